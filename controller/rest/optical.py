"""REST: optical switches, their ports, cross-connects and alarms."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from controller.circuits.manager import Change, Target
from controller.rest import answers as shapes
from controller.rest.common import PlainRoute, answers
from controller.rest.requests import (
    CrossConnectSet,
    Ingress,
    OneCrossConnect,
    OpticalPortNumber,
    OpticalSwitchName,
    PortAdmin,
)
from controller.service import Controller
from fabric.crossconnect import CrossConnect, Mode


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

    def change(name: str, target: Target, dry_run: bool) -> Response:
        site.driver(name)
        made = circuits.change({name: target}, dry_run=dry_run)
        document = {**change_document(made, name), "problems": list(made.problems)}
        return answer(made, document)

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

    @routes.get("/{name}/ports", **answers(list[shapes.OpticalPort], 404, 503))
    def ports(name: OpticalSwitchName) -> Any:
        """Every port, read from the switch now; ``plugged``: the far end of its fibre."""
        snapshot = site.look(name)
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
                "cross_connect": None if number not in busy else _pair(busy[number][0]),
                "cross_connects": [_pair(xc) for xc in busy.get(number, ())],
            }
            for number, status in sorted(snapshot.ports.items())
        ]

    @routes.put("/{name}/ports/{port}", **answers(shapes.PortStatusDocument, 404, 409, 415, 422, 501, 503))
    def put_port(name: OpticalSwitchName, port: OpticalPortNumber, body: PortAdmin) -> Any:
        """Enable or disable a port; its cross-connects stay, without light while it is disabled."""
        status = site.set_port_enabled(name, port, body.enabled)
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
    def put_one(name: OpticalSwitchName, ingress: Ingress, body: OneCrossConnect) -> Any:
        """Connect an ingress to an egress."""
        wanted = CrossConnect(ingress, body.egress, body.wavelength, body.name)
        return change(name, Target((wanted,), body.mode), body.dry_run)

    @routes.delete("/{name}/cross-connects/{ingress}", **changes)
    def delete_one(name: OpticalSwitchName, ingress: Ingress, dry_run: bool = False) -> Any:
        """Remove what an ingress carries; nothing there is no error."""
        return change(name, Target((), Mode.UPDATE, (ingress,)), dry_run)

    @routes.put("/{name}/cross-connects", **changes)
    def put_set(name: OpticalSwitchName, body: CrossConnectSet) -> Any:
        """Connect a set, with SAFE, UPDATE or REPLACE semantics."""
        wanted = tuple(CrossConnect(e.ingress, e.egress, e.wavelength, e.name) for e in body.cross_connects)
        return change(name, Target(wanted, body.mode), body.dry_run)

    return routes


def change_document(change: Change, name: str) -> dict[str, Any]:
    """The plan for one switch and what came of it."""
    plan = change.plans[name]
    return {
        "plan": {
            "keep": _pairs(plan.keep),
            "remove": _pairs(plan.remove),
            "add": _pairs(plan.add),
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


def answer(change: Change, document: dict[str, Any]) -> Response:
    """200 when all went well, else 502 with the first problem as ``detail`` beside the whole story."""
    if not change.problems:
        return JSONResponse(document)
    return JSONResponse({"detail": change.problems[0], **document}, 502)


def _pairs(group: Iterable[CrossConnect]) -> list[dict[str, Any]]:
    return [_pair(xc) for xc in sorted(group)]


def _pair(xc: CrossConnect) -> dict[str, Any]:
    return {"ingress": xc.ingress, "egress": xc.egress, "wavelength": xc.wavelength, "name": xc.name}
