"""Plan the change of one optical switch from a reading, without touching the switch."""

from __future__ import annotations

from collections.abc import Iterable

from ringlight.controller.optical.errors import (
    NoSuchPort,
    PortBusy,
    PortClash,
    PortDisabled,
    PortFailed,
    Rejected,
    Unsupported,
    WrongSide,
)
from ringlight.controller.optical.model import Capabilities, Plan, Snapshot
from ringlight.fabric.crossconnect import (
    BusyError,
    CrossConnect,
    CrossConnectState,
    MatchingError,
    Mode,
    PortState,
    check_matching,
    plan_changes,
)

_BROKEN = (CrossConnectState.FAILED, CrossConnectState.INVALID)


def port_order(cross_connect: CrossConnect) -> tuple[int, int, int]:
    """Return the place of a cross-connect in lists: by ingress, egress and wavelength."""
    colour = cross_connect.wavelength
    return cross_connect.ingress, cross_connect.egress, -1 if colour is None else colour


def check_cross_connect(capabilities: Capabilities, xc: CrossConnect) -> None:
    """Check that the switch could make this cross-connect. Raises NoSuchPort, WrongSide or Unsupported."""
    for port in (xc.ingress, xc.egress):
        if port not in capabilities.ports:
            raise NoSuchPort(port, f"cross-connect {xc}: there is no port {port}")
    if xc.ingress not in capabilities.ingress:
        raise WrongSide(
            xc.ingress, f"cross-connect {xc}: port {xc.ingress} is an egress"
        )
    if xc.egress not in capabilities.egress:
        raise WrongSide(
            xc.egress, f"cross-connect {xc}: port {xc.egress} is an ingress"
        )
    if xc.egress not in capabilities.egresses(xc.ingress):
        raise WrongSide(
            xc.egress,
            f"cross-connect {xc}: port {xc.ingress} cannot reach port {xc.egress}",
        )
    if xc.wavelength is not None and not 0 <= xc.wavelength < capabilities.wavelengths:
        raise Unsupported(
            f"cross-connect {xc}: the switch does not tell that wavelength apart"
        )
    if xc.wavelength is None and capabilities.wavelengths:
        raise Unsupported(
            f"cross-connect {xc}: name its wavelength, 0 to {capabilities.wavelengths - 1}, on this switch"
        )


def check_ports_usable(
    snapshot: Snapshot, cross_connects: Iterable[CrossConnect]
) -> None:
    """Check that all ports can carry light. Raises PortDisabled or PortFailed for the first that cannot."""
    for xc in cross_connects:
        for port in (xc.ingress, xc.egress):
            status = snapshot.ports[port]
            if status.state is PortState.FAILED:
                raise PortFailed(port, f"cross-connect {xc}: port {port} has failed")
            if not status.enabled:
                raise PortDisabled(port, f"cross-connect {xc}: port {port} is disabled")


def make_plan(
    capabilities: Capabilities,
    snapshot: Snapshot,
    requested: Iterable[CrossConnect],
    mode: Mode,
    delete: Iterable[int] = (),
    owned: Iterable[CrossConnect] | None = None,
    anew: bool = False,
) -> Plan:
    """Return the smallest change from ``snapshot`` to a state in which everything ``requested`` is connected.

    ``delete``: ingresses that must carry nothing. ``owned``: cross-connects that may be removed (default: all
    that the switch does not attribute to others); other cross-connects are removed in REPLACE mode only. A
    requested cross-connect that the switch reports as broken is removed and made again; with ``anew`` every
    requested one. No I/O. Raises a :class:`~controller.optical.errors.Rejected` naming the port.
    """
    requested = tuple(requested)
    for xc in requested:
        check_cross_connect(capabilities, xc)
    try:
        target = check_matching(requested)
    except MatchingError as error:
        raise PortClash(error.port, str(error), error.first, error.second) from None

    present = frozenset(snapshot.cross_connects)
    foreign = snapshot.foreign if owned is None else present - frozenset(owned)
    by_ingress: dict[int, list[CrossConnect]] = {}
    for xc in present:
        by_ingress.setdefault(xc.ingress, []).append(xc)
    deleted: set[CrossConnect] = set()
    absent = []
    for port in sorted(set(delete)):
        if port not in capabilities.ports:
            raise NoSuchPort(port, f"delete: there is no port {port}")
        if port not in capabilities.ingress:
            raise WrongSide(port, f"delete: port {port} is an egress; name the ingress")
        if any(xc.ingress == port for xc in target):
            raise Rejected(f"port {port} is both wanted and to be deleted")
        deleted.update(by_ingress.get(port, ()))
        if port not in by_ingress:
            absent.append(port)

    try:
        changes = plan_changes(present - deleted, target, mode)
    except BusyError as error:
        raise PortBusy(error.port, str(error), error.holder) from None
    again = {
        xc for xc in changes.keep & target if anew or snapshot.state(xc) in _BROKEN
    }
    remove = changes.remove | deleted | again
    add = changes.add | again
    check_ports_usable(snapshot, sorted(add, key=port_order))
    if mode is not Mode.REPLACE:
        for xc in sorted(remove & foreign, key=port_order):
            raise PortBusy(
                xc.ingress,
                f"port {xc.ingress} is busy: {xc} belongs to another owner",
                xc,
            )
    named = {xc: xc for xc in target}
    return Plan(
        base_revision=snapshot.revision,
        mode=mode,
        keep=frozenset(named.get(xc, xc) for xc in changes.keep - again),
        remove=tuple(sorted(remove, key=port_order)),
        add=tuple(sorted(add, key=port_order)),
        absent=tuple(absent),
        anew=anew,
    )


def replaces_at_once(capabilities: Capabilities, plan: Plan) -> bool:
    """Return whether carrying out a plan removes and adds in one write, so that ports are dark for one dark
    time.

    Only in REPLACE mode: such a write also removes what someone else has made since the plan.
    """
    return (
        plan.mode is Mode.REPLACE
        and not plan.anew
        and bool(plan.remove and plan.add)
        and not set(plan.remove) & set(plan.add)
        and len(plan.keep) + len(plan.add) <= capabilities.max_replace
    )
