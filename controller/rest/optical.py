"""REST: optical switches, their ports, cross-connects and alarms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import TypeAdapter

from ringlight.controller.circuits.change import Change, Target
from ringlight.controller.circuits.transaction import LeftoverDocument
from ringlight.controller.optical.model import (
    Alarm,
    CrossConnectResult,
    Identity,
    Timing,
)
from ringlight.controller.rest.common import PlainRoute, Who, answers, sender, tagged
from ringlight.controller.rest.light_requests import (
    CrossConnectEntry,
    CrossConnectSet,
    IfMatch,
    OneCrossConnect,
    expected,
)
from ringlight.controller.rest.requests import (
    Ingress,
    OpticalPortNumber,
    OpticalSwitchName,
    PortAdmin,
)
from ringlight.controller.service import Controller
from ringlight.controller.web.refusals import failure
from ringlight.fabric.crossconnect import (
    CrossConnect,
    CrossConnectState,
    Mode,
    PortState,
)


@dataclass(frozen=True)
class OpticalSwitchOverview:
    """``error``: why it cannot be reached."""

    name: str
    size: int
    wavelengths: int | None
    driver: str
    reachable: bool
    error: str | None
    cross_connects: int
    alarms: int


@dataclass(frozen=True)
class OpticalSwitchDocument(OpticalSwitchOverview):
    """``timing`` as declared; ``profile``: the emulated device's settings."""

    identity: Identity | None
    timing: Timing
    profile: dict[str, Any] | None


@dataclass(frozen=True)
class PortStatusDocument:
    port: int
    state: PortState
    enabled: bool


@dataclass(frozen=True)
class OpticalPort(PortStatusDocument):
    """Port of an optical switch.

    ``cross_connect``: the first of ``cross_connects``. ``power_dbm``: null if not requested, or if the port
    has no meter.
    """

    side: Literal["ingress", "egress"]
    faceplate: int
    plugged: str | None
    power_dbm: float | None
    cross_connect: CrossConnect | None
    cross_connects: list[CrossConnect]


@dataclass(frozen=True)
class PortPower:
    """Optical power at a port. ``power_dbm`` is null if the port has no meter."""

    port: int
    power_dbm: float | None


@dataclass(frozen=True, kw_only=True)
class StandingCrossConnect(CrossConnect):
    state: CrossConnectState


@dataclass(frozen=True)
class PlanDocument:
    """Cross-connects that a change keeps, removes and adds.

    ``dark_ports`` have no light during the change.
    """

    keep: list[CrossConnect]
    remove: list[CrossConnect]
    add: list[CrossConnect]
    dark_ports: list[int]


@dataclass(frozen=True)
class SwitchChange:
    plan: PlanDocument
    applied: bool
    results: list[CrossConnectResult]


@dataclass(frozen=True, kw_only=True)
class WholeChange:
    """``undone``: a switch did not do its part, and all was taken back but what is ``left``.

    ``generation``: number of the light after the change, of all switches or of the one that was changed.
    """

    generation: int
    problems: list[str]
    undone: bool
    left: list[LeftoverDocument]


@dataclass(frozen=True, kw_only=True)
class OneSwitchChange(SwitchChange, WholeChange):
    """A change of one switch."""


@dataclass(frozen=True, kw_only=True)
class CircuitsChange(WholeChange):
    """A change of several switches. ``timeline``: its moments ``t``, each with its ``phase``."""

    applied: bool
    optical_switches: dict[str, SwitchChange]
    timeline: list[Mapping[str, Any]]


_CHANGES: TypeAdapter[OneSwitchChange | CircuitsChange] = TypeAdapter(
    OneSwitchChange | CircuitsChange
)


def router(controller: Controller) -> APIRouter:
    """Return the routes below ``/v1/optical-switches``."""
    routes = APIRouter(
        prefix="/v1/optical-switches", tags=["optical switches"], route_class=PlainRoute
    )
    fabric, site, circuits = controller.fabric, controller.site, controller.circuits
    changes = answers(OneSwitchChange, 404, 409, 415, 422, 502, 503)

    send_standing = sender(list[StandingCrossConnect])

    def overview(name: str) -> dict[str, Any]:
        switch, view = fabric.optical_switches[name], site.view(name)
        return {
            "name": name,
            "size": switch.size,
            "wavelengths": switch.wavelengths,
            "driver": switch.driver,
            "reachable": view.reachable,
            "error": view.error,
            "cross_connects": 0
            if view.snapshot is None
            else len(view.snapshot.cross_connects),
            "alarms": len(site.alarms(name)),
        }

    def change(
        name: str, target: Target, who: str, dry_run: bool, expect: int | None
    ) -> Response:
        site.driver(name)
        made = circuits.change(
            {name: target}, who=who, dry_run=dry_run, expect=expect, of=name
        )
        return answer(made, name)

    @routes.get("", **answers(list[OpticalSwitchOverview]))
    def optical_switches() -> Any:
        return [
            OpticalSwitchOverview(**overview(name)) for name in fabric.optical_switches
        ]

    @routes.get("/{name}", **answers(OpticalSwitchDocument, 404))
    def optical_switch(name: OpticalSwitchName) -> Any:
        """Identity, size and declared timing (seconds)."""
        driver, view = site.driver(name), site.view(name)
        timing, profile = (
            driver.capabilities().timing,
            site.entries[name].get("profile"),
        )
        return OpticalSwitchDocument(
            **overview(name), identity=view.identity, timing=timing, profile=profile
        )

    @routes.get("/{name}/ports", **answers(list[OpticalPort], 404, 422, 503))
    def ports(name: OpticalSwitchName, power: bool = False) -> Any:
        """Every port, read from the switch now; ``plugged``: the far end of its fibre; with ``power``."""
        snapshot = site.look(name)
        measured = site.power_dbm(name) if power else {}
        size = fabric.optical_switches[name].size
        plugged = {
            port.number: str(link.other(port))
            for port, link in fabric.link_at.items()
            if port.node == name
        }
        # A port of a WSS carries one for each wavelength.
        busy: dict[int, list[CrossConnect]] = {}
        for xc in sorted(snapshot.cross_connects):
            for p in (xc.ingress, xc.egress):
                busy.setdefault(p, []).append(xc)
        return [
            OpticalPort(
                number,
                status.state,
                status.enabled,
                side="ingress" if number <= size else "egress",
                faceplate=number if number <= size else number - size,
                plugged=plugged.get(number if number <= size else number - size),
                power_dbm=measured.get(number),
                cross_connect=busy[number][0] if number in busy else None,
                cross_connects=busy.get(number, []),
            )
            for number, status in sorted(snapshot.ports.items())
        ]

    @routes.put(
        "/{name}/ports/{port}",
        **answers(PortStatusDocument, 404, 409, 415, 422, 501, 502, 503),
    )
    def put_port(
        name: OpticalSwitchName, port: OpticalPortNumber, body: PortAdmin, who: Who
    ) -> Any:
        """Enable or disable a port; its cross-connects stay, without light while it is disabled."""
        status = site.set_port_enabled(name, port, body.enabled, who=who)
        return PortStatusDocument(port, status.state, status.enabled)

    @routes.get("/{name}/power", **answers(list[PortPower], 404, 503))
    def power(name: OpticalSwitchName) -> Any:
        """Optical power at every port, measured now."""
        return [
            PortPower(port, dbm) for port, dbm in sorted(site.power_dbm(name).items())
        ]

    @routes.get(
        "/{name}/cross-connects", **answers(list[StandingCrossConnect], 404, 503)
    )
    def cross_connects(name: OpticalSwitchName) -> Any:
        """Every cross-connect with its state, read from the switch now. The ``ETag`` is their generation."""
        generation, snapshot = site.look_numbered(name)
        states = snapshot.cross_connects
        document = [
            StandingCrossConnect(**vars(xc), state=states[xc]) for xc in sorted(states)
        ]
        return tagged(send_standing(document), generation)

    @routes.get("/{name}/alarms", **answers(list[Alarm], 404))
    def alarms(name: OpticalSwitchName) -> Any:
        """Standing alarms, at most a second old."""
        return site.alarms(name)

    @routes.put("/{name}/cross-connects/{ingress}", **changes)
    def put_one(
        name: OpticalSwitchName,
        ingress: Ingress,
        body: OneCrossConnect,
        who: Who,
        if_match: IfMatch = None,
    ) -> Any:
        """Connect an ingress to an egress."""
        cross_connect = CrossConnect(ingress, body.egress, body.wavelength, body.name)
        target = Target((cross_connect,), body.mode)
        expect = expected(if_match, body.expect)
        return change(name, target, who, body.dry_run, expect)

    @routes.delete("/{name}/cross-connects/{ingress}", **changes)
    def delete_one(
        name: OpticalSwitchName,
        ingress: Ingress,
        who: Who,
        dry_run: bool = False,
        if_match: IfMatch = None,
    ) -> Any:
        """Remove what an ingress carries; nothing there is no error."""
        target = Target((), Mode.UPDATE, (ingress,))
        return change(name, target, who, dry_run, expected(if_match))

    @routes.put("/{name}/cross-connects", **changes)
    def put_set(
        name: OpticalSwitchName,
        body: CrossConnectSet,
        who: Who,
        if_match: IfMatch = None,
    ) -> Any:
        """Connect a set, with SAFE, UPDATE or REPLACE semantics."""
        target = Target(entries(body.cross_connects), body.mode)
        expect = expected(if_match, body.expect)
        return change(name, target, who, body.dry_run, expect)

    return routes


def entries(group: Iterable[CrossConnectEntry]) -> tuple[CrossConnect, ...]:
    """Return the cross-connects that a body names."""
    return tuple(CrossConnect(e.ingress, e.egress, e.wavelength, e.name) for e in group)


def answer(change: Change, name: str | None = None) -> Response:
    """Return a change as a response, of all its switches or of one.

    The status is 200 if everything succeeded, else 502 with the first problem as ``detail`` next to the full
    document.
    """
    plans = {switch: _change_of(change, switch) for switch in change.plans}
    whole: dict[str, Any] = {
        "generation": change.generation,
        "problems": list(change.problems),
        "undone": change.undone,
        "left": [leftover.document() for leftover in change.left],
    }
    document: OneSwitchChange | CircuitsChange
    if name is not None:
        document = OneSwitchChange(**whole, **vars(plans[name]))
    else:
        whole |= {"applied": change.applied, "timeline": list(change.timeline)}
        document = CircuitsChange(**whole, optical_switches=plans)
    if not change.problems:
        return _sent(document)
    after = ""
    if change.undone:
        after = (
            f"; {len(change.left)} could not be taken back"
            if change.left
            else "; all was taken back"
        )
    return failure(
        502, change.problems[0] + after, **_CHANGES.dump_python(document, mode="json")
    )


def _sent(document: OneSwitchChange | CircuitsChange) -> Response:
    return Response(_CHANGES.dump_json(document), media_type="application/json")


def _change_of(change: Change, name: str) -> SwitchChange:
    """Return the plan for one switch and its outcome."""
    plan = change.plans[name]
    shown = PlanDocument(
        sorted(plan.keep),
        sorted(plan.remove),
        sorted(plan.add),
        sorted(plan.dark_ports),
    )
    return SwitchChange(shown, change.applied, list(change.results.get(name, ())))
