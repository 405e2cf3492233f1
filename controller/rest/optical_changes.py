"""REST: the light of all optical switches: changes, intent, policies, alarms, and who changed what."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi import APIRouter

from ringlight.controller.circuits.drift import Drift
from ringlight.controller.circuits.manager import Target
from ringlight.controller.rest import answers as shapes
from ringlight.controller.rest.common import PlainRoute, Who, answers
from ringlight.controller.rest.optical import answer, entries, pairs
from ringlight.controller.rest.requests import (
    AtMost,
    GeneralPolicy,
    LightChange,
    OfSwitch,
    OlderThan,
    OpticalSwitchName,
    OwnPolicy,
    Settle,
)
from ringlight.controller.service import Controller


def router(controller: Controller) -> APIRouter:
    """Routes ``/v1/optical-changes``, ``-alarms``, ``-policy``, ``-audit``, and a switch's intent."""
    routes = APIRouter(prefix="/v1", tags=["light"], route_class=PlainRoute)
    fabric, site, circuits = controller.fabric, controller.site, controller.circuits
    intents = controller.intents

    def intent_of(name: str) -> dict[str, Any]:
        site.driver(name)
        return {
            "switch": name,
            "policy": intents.policy(name).value,
            "job": site.holder(name),
            "cross_connects": pairs((intents.wanted() or {}).get(name, ())),
            "drift": _drift_document(circuits.drift(name)),
        }

    def policies() -> dict[str, Any]:
        return {
            "policy": intents.policy().value,
            "optical_switches": {name: intents.policy(name).value for name in fabric.optical_switches},
            "own": sorted(intents.own_policies().keys() & fabric.optical_switches.keys()),
        }

    @routes.post("/optical-changes", **answers(shapes.CircuitsChange, 404, 409, 415, 422, 502, 503))
    def change(body: LightChange, who: Who) -> Any:
        """Change some optical switches, all or none, with the forwarding rules in between.

        ``dry_run`` shows the plans. 502: something did not work; with ``undone`` all was taken back but what
        is ``left``.
        """
        targets = {
            name: Target(entries(target.cross_connects), target.mode, tuple(target.delete))
            for name, target in body.optical_switches.items()
        }
        for name in targets:
            site.driver(name)
        return answer(circuits.change(targets, who=who, dry_run=body.dry_run))

    @routes.get("/optical-alarms", **answers(list[shapes.SwitchAlarm]))
    def alarms() -> Any:
        """Standing alarms of all optical switches, at most a second old."""
        return [
            {"switch": name, **dataclasses.asdict(alarm)}
            for name in fabric.optical_switches
            for alarm in site.alarms(name)
        ]

    @routes.get("/optical-audit", **answers(list[shapes.AuditEntry], 422))
    def audit(switch: OfSwitch = None, before: OlderThan = None, limit: AtMost = 100) -> Any:
        """Audit log: who changed what and when, the newest first; the last 10,000 entries are kept."""
        return intents.audit(switch, before, limit)

    @routes.get("/optical-policy", **answers(shapes.PolicyDocument))
    def get_policy() -> Any:
        """What becomes of changes that the controller did not make."""
        return policies()

    @routes.put("/optical-policy", **answers(shapes.PolicyDocument, 415, 422, 503))
    def put_policy(body: GeneralPolicy, who: Who) -> Any:
        """Set the policy for others' changes on optical switches without a policy of their own."""
        circuits.set_policy(None, body.policy, who)
        return policies()

    @routes.put("/optical-switches/{name}/policy", **answers(shapes.PolicyDocument, 404, 415, 422, 503))
    def put_own_policy(name: OpticalSwitchName, body: OwnPolicy, who: Who) -> Any:
        """Set the policy for others' changes on one optical switch."""
        circuits.set_policy(name, body.policy, who)
        return policies()

    @routes.get("/optical-switches/{name}/intent", **answers(shapes.IntentDocument, 404))
    def get_intent(name: OpticalSwitchName) -> Any:
        """What an optical switch should carry, and how it differs from that, at most a second old."""
        return intent_of(name)

    @routes.post("/optical-switches/{name}/settle", **answers(shapes.IntentDocument, 404, 409, 415, 422, 503))
    def settle(name: OpticalSwitchName, body: Settle, who: Who) -> Any:
        """Do once with a switch's difference what a policy says; ``drift`` is what is left of it."""
        circuits.settle(name, body.how, who)
        return intent_of(name)

    return routes


def _drift_document(found: Drift) -> dict[str, Any]:
    return {key: pairs(group) for key, group in vars(found).items()}
