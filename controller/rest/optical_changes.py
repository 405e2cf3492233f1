"""REST: the light of all optical switches: changes, intent, policies, alarms, and the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from ringlight.controller.circuits.change import Target
from ringlight.controller.circuits.drift import Policy
from ringlight.controller.circuits.intent import AuditEntry
from ringlight.controller.optical.model import Alarm
from ringlight.controller.rest.common import PlainRoute, Who, answers
from ringlight.controller.rest.light_requests import IfMatch, LightChange, expected
from ringlight.controller.rest.optical import CircuitsChange, answer, entries
from ringlight.controller.rest.requests import (
    AtMost,
    GeneralPolicy,
    OfSwitch,
    OlderThan,
    OpticalSwitchName,
    OwnPolicy,
    Settle,
)
from ringlight.controller.service import Controller
from ringlight.fabric.crossconnect import CrossConnect


@dataclass(frozen=True)
class SwitchAlarm(Alarm):
    switch: str


@dataclass(frozen=True)
class DriftDocument:
    """Difference between a switch and its intent.

    ``missing``: wanted and not present. ``broken``: present without light. ``foreign``: present and not
    wanted. ``left``: to be removed, and still present.
    """

    missing: list[CrossConnect]
    broken: list[CrossConnect]
    foreign: list[CrossConnect]
    left: list[CrossConnect]


@dataclass(frozen=True)
class IntentDocument:
    """Cross-connects that a switch should carry.

    ``drift``: difference from them, as last read. ``job``: job that has the switch alone, and then defines
    what it should carry.
    """

    switch: str
    policy: Policy
    job: str | None
    cross_connects: list[CrossConnect]
    drift: DriftDocument


@dataclass(frozen=True)
class PolicyDocument:
    """``policy``: of all switches without one of their own. ``optical_switches``: what holds for each;
    ``own``: which have one of their own."""

    policy: Policy
    optical_switches: dict[str, Policy]
    own: list[str]


def router(controller: Controller) -> APIRouter:
    """Return the routes ``/v1/optical-changes``, ``-alarms``, ``-policy``, ``-audit``,
    and a switch's intent.
    """
    routes = APIRouter(prefix="/v1", tags=["light"], route_class=PlainRoute)
    fabric, site, circuits = controller.fabric, controller.site, controller.circuits
    intents = controller.intents

    def intent_of(name: str) -> IntentDocument:
        site.driver(name)
        intended = sorted((intents.intended() or {}).get(name, ()))
        drift = DriftDocument(
            **{key: sorted(group) for key, group in vars(circuits.drift(name)).items()}
        )
        return IntentDocument(
            name, intents.policy(name), site.holder(name), intended, drift
        )

    def policies() -> PolicyDocument:
        each = {name: intents.policy(name) for name in fabric.optical_switches}
        return PolicyDocument(
            intents.policy(), each, sorted(intents.own_policies().keys() & each.keys())
        )

    @routes.post(
        "/optical-changes", **answers(CircuitsChange, 404, 409, 415, 422, 502, 503)
    )
    def change(body: LightChange, who: Who, if_match: IfMatch = None) -> Any:
        """Change some optical switches, all or none, with the forwarding rules in between.

        ``dry_run`` shows the plans. 502: something did not work; with ``undone`` all was taken back but what
        is ``left``.
        """
        targets = {
            name: Target(
                entries(target.cross_connects), target.mode, tuple(target.delete)
            )
            for name, target in body.optical_switches.items()
        }
        for name in targets:
            site.driver(name)
        expect = expected(if_match, body.expect)
        return answer(
            circuits.change(targets, who=who, dry_run=body.dry_run, expect=expect)
        )

    @routes.get("/optical-alarms", **answers(list[SwitchAlarm]))
    def alarms() -> Any:
        """Standing alarms of all optical switches, at most a second old."""
        return [
            SwitchAlarm(**vars(alarm), switch=name)
            for name in fabric.optical_switches
            for alarm in site.alarms(name)
        ]

    @routes.get("/optical-audit", **answers(list[AuditEntry], 422))
    def audit(
        switch: OfSwitch = None, before: OlderThan = None, limit: AtMost = 100
    ) -> Any:
        """Audit log: who changed what and when, the newest first; the last 10,000 entries are kept."""
        return intents.audit(switch, before, limit)

    @routes.get("/optical-policy", **answers(PolicyDocument))
    def get_policy() -> Any:
        """Policies for changes that the controller did not make."""
        return policies()

    @routes.put("/optical-policy", **answers(PolicyDocument, 415, 422, 503))
    def put_policy(body: GeneralPolicy, who: Who) -> Any:
        """Set the policy for others' changes on optical switches without a policy of their own."""
        circuits.set_policy(None, body.policy, who)
        return policies()

    @routes.put(
        "/optical-switches/{name}/policy", **answers(PolicyDocument, 404, 415, 422, 503)
    )
    def put_own_policy(name: OpticalSwitchName, body: OwnPolicy, who: Who) -> Any:
        """Set the policy for others' changes on one optical switch."""
        circuits.set_policy(name, body.policy, who)
        return policies()

    @routes.get("/optical-switches/{name}/intent", **answers(IntentDocument, 404))
    def get_intent(name: OpticalSwitchName) -> Any:
        """Intended cross-connects of an optical switch, and the differences from them, at
        most a second old.
        """
        return intent_of(name)

    @routes.post(
        "/optical-switches/{name}/settle",
        **answers(IntentDocument, 404, 409, 415, 422, 503),
    )
    def settle(name: OpticalSwitchName, body: Settle, who: Who) -> Any:
        """Do once with a switch's difference what a policy says; ``drift`` is what is left of it."""
        circuits.settle(name, body.how, who)
        return intent_of(name)

    return routes
