"""REST: optical switches, their ports, cross-connects and alarms."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from ringlight.controller.circuits.manager import Change, Target
from ringlight.controller.rest import answers as shapes
from ringlight.controller.rest.common import PlainRoute, Who, answers
from ringlight.controller.rest.requests import (
    CrossConnectEntry,
    CrossConnectSet,
    Ingress,
    OneCrossConnect,
    OpticalPortNumber,
    OpticalSwitchName,
    PortAdmin,
)
from ringlight.controller.service import Controller
from ringlight.fabric.crossconnect import CrossConnect, Mode


def router(controller: Controller) -> APIRouter:
    """Routes below ``/v1/optical-switches``."""
    routes = APIRouter(prefix="/v1/optical-switches", tags=["optical switches"], route_class=PlainRoute)
    fabric, site, circuits = controller.fabric, controller.site, controller.circuits
    changes = answers(shapes.OneSwitchChange, 404, 409, 415, 422, 502, 503)

    def overview(name: str) -> dict[str, Any]:
        switch, view = fabric.optical_switches[name], site.view(name)
        return {
            "name": name,
            "size": switch.size,
            "wavelengths": switch.wavelengths,
            "driver": switch.driver,
            "reachable": view.reachable,
            "error": view.error,
            "cross_connects": 0 if view.snapshot is None else len(view.snapshot.cross_connects),
            "alarms": len(site.alarms(name)),
        }

    def change(name: str, target: Target, who: str, dry_run: bool) -> Response:
        site.driver(name)
        return answer(circuits.change({name: target}, who=who, dry_run=dry_run), name)

    @routes.get("", **answers(list[shapes.OpticalSwitchOverview]))
    def optical_switches() -> Any:
        return [overview(name) for name in fabric.optical_switches]

    @routes.get("/{name}", **answers(shapes.OpticalSwitchDocument, 404))
    def optical_switch(name: OpticalSwitchName) -> Any:
        """Identity, size and declared timing (seconds)."""
        driver, view = site.driver(name), site.view(name)
        return {
            **overview(name),
            "identity": None if view.identity is None else dataclasses.asdict(view.identity),
            "timing": dataclasses.asdict(driver.capabilities().timing),
            "profile": site.entries[name].get("profile"),
        }

    @routes.get("/{name}/ports", **answers(list[shapes.OpticalPort], 404, 422, 503))
    def ports(name: OpticalSwitchName, power: bool = False) -> Any:
        """Every port, read from the switch now; ``plugged``: the far end of its fibre; with ``power``."""
        snapshot = site.look(name)
        measured = site.power_dbm(name) if power else {}
        size = fabric.optical_switches[name].size
        plugged = {
            port.number: str(link.other(port)) for port, link in fabric.link_at.items() if port.node == name
        }
        # A port of a WSS carries one for each wavelength.
        busy: dict[int, list[CrossConnect]] = {}
        for xc in sorted(snapshot.cross_connects):
            for p in (xc.ingress, xc.egress):
                busy.setdefault(p, []).append(xc)
        return [
            {
                "port": number,
                "side": "ingress" if number <= size else "egress",
                "faceplate": number if number <= size else number - size,
                "plugged": plugged.get(number if number <= size else number - size),
                "state": status.state.value,
                "enabled": status.enabled,
                "power_dbm": measured.get(number),
                "cross_connect": None if number not in busy else _pair(busy[number][0]),
                "cross_connects": [_pair(xc) for xc in busy.get(number, ())],
            }
            for number, status in sorted(snapshot.ports.items())
        ]

    @routes.put(
        "/{name}/ports/{port}", **answers(shapes.PortStatusDocument, 404, 409, 415, 422, 501, 502, 503)
    )
    def put_port(name: OpticalSwitchName, port: OpticalPortNumber, body: PortAdmin, who: Who) -> Any:
        """Enable or disable a port; its cross-connects stay, without light while it is disabled."""
        status = site.set_port_enabled(name, port, body.enabled, who=who)
        return {"port": port, "state": status.state.value, "enabled": status.enabled}

    @routes.get("/{name}/power", **answers(list[shapes.PortPower], 404, 503))
    def power(name: OpticalSwitchName) -> Any:
        """Optical power at every port, measured now."""
        return [{"port": port, "power_dbm": dbm} for port, dbm in sorted(site.power_dbm(name).items())]

    @routes.get("/{name}/cross-connects", **answers(list[shapes.StandingCrossConnect], 404, 503))
    def cross_connects(name: OpticalSwitchName) -> Any:
        """Every cross-connect with its state, read from the switch now."""
        found = site.look(name).cross_connects
        return [{**_pair(xc), "state": found[xc].value} for xc in sorted(found)]

    @routes.get("/{name}/alarms", **answers(list[shapes.AlarmDocument], 404))
    def alarms(name: OpticalSwitchName) -> Any:
        """Standing alarms, at most a second old."""
        return [dataclasses.asdict(alarm) for alarm in site.alarms(name)]

    @routes.put("/{name}/cross-connects/{ingress}", **changes)
    def put_one(name: OpticalSwitchName, ingress: Ingress, body: OneCrossConnect, who: Who) -> Any:
        """Connect an ingress to an egress."""
        wanted = CrossConnect(ingress, body.egress, body.wavelength, body.name)
        return change(name, Target((wanted,), body.mode), who, body.dry_run)

    @routes.delete("/{name}/cross-connects/{ingress}", **changes)
    def delete_one(name: OpticalSwitchName, ingress: Ingress, who: Who, dry_run: bool = False) -> Any:
        """Remove what an ingress carries; nothing there is no error."""
        return change(name, Target((), Mode.UPDATE, (ingress,)), who, dry_run)

    @routes.put("/{name}/cross-connects", **changes)
    def put_set(name: OpticalSwitchName, body: CrossConnectSet, who: Who) -> Any:
        """Connect a set, with SAFE, UPDATE or REPLACE semantics."""
        return change(name, Target(entries(body.cross_connects), body.mode), who, body.dry_run)

    return routes


def entries(group: Iterable[CrossConnectEntry]) -> tuple[CrossConnect, ...]:
    """Cross-connects that a body names."""
    return tuple(CrossConnect(e.ingress, e.egress, e.wavelength, e.name) for e in group)


def answer(change: Change, name: str | None = None) -> Response:
    """A change as an answer, of all its switches or of one: 200 when all went well, else 502 with the first
    problem as ``detail`` beside the whole story."""
    document: dict[str, Any] = {
        "problems": list(change.problems),
        "undone": change.undone,
        "left": [one.document() for one in change.left],
    }
    if name is not None:
        document |= _change_of(change, name)
    else:
        document |= {
            "applied": change.applied,
            "optical_switches": {switch: _change_of(change, switch) for switch in change.plans},
            "timeline": list(change.timeline),
        }
    if not change.problems:
        return JSONResponse(document)
    after = ""
    if change.undone:
        after = f"; {len(change.left)} could not be taken back" if change.left else "; all was taken back"
    return JSONResponse({"detail": change.problems[0] + after, **document}, 502)


def _change_of(change: Change, name: str) -> dict[str, Any]:
    """The plan for one switch and what came of it."""
    plan = change.plans[name]
    return {
        "plan": {
            "keep": pairs(plan.keep),
            "remove": pairs(plan.remove),
            "add": pairs(plan.add),
            "dark_ports": sorted(plan.dark_ports),
        },
        "applied": change.applied,
        "results": [
            {
                "ingress": r.ingress,
                "egress": r.egress,
                "action": r.action,
                "state": r.state.value,
                "reason": r.reason,
                "t_dark": r.t_dark,
                "t_lit": r.t_lit,
            }
            for r in change.results.get(name, ())
        ],
    }


def pairs(group: Iterable[CrossConnect]) -> list[dict[str, Any]]:
    """Cross-connects in order."""
    return [_pair(xc) for xc in sorted(group)]


def _pair(xc: CrossConnect) -> dict[str, Any]:
    return {"ingress": xc.ingress, "egress": xc.egress, "wavelength": xc.wavelength, "name": xc.name}
