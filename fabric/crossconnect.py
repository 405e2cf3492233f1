"""Cross-connects inside one optical switch, and the plan from one set of them to another.

A cross-connect is one direction of light through one switch. A valid set is a partial matching: each
ingress feeds at most one egress and each egress is fed by at most one ingress (per wavelength, on a
switch that tells wavelengths apart).

The states are those of the Open Compute Project's optical circuit switch model; the three modes are
those of SONiC's cross-connect command (its safe, update and overwrite).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, order=True)
class CrossConnect:
    """One direction of light from an ingress to an egress.

    ``wavelength`` is a channel index, or None if the switch passes every colour. ``name`` is a
    label and takes no part in equality.
    """

    ingress: int
    egress: int
    wavelength: int | None = None
    name: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        colour = "" if self.wavelength is None else f" on λ{self.wavelength}"
        return f"{self.ingress}->{self.egress}{colour}"


@dataclass(frozen=True)
class Emit:
    """Port and wavelength on which an O-NIC sends."""

    port: int
    wavelength: int


class Mode(StrEnum):
    """Treatment of cross-connects that stand in the way of the requested ones.

    SAFE: none is removed; a requested cross-connect whose port is busy is refused. UPDATE: cross-connects
    that use a requested port are removed. REPLACE: every cross-connect that is not requested is removed.
    """

    SAFE = "safe"
    UPDATE = "update"
    REPLACE = "replace"


class CrossConnectState(StrEnum):
    """State of a cross-connect (Open Compute Project's model, and two for what cannot be known)."""

    CONNECTED = "CONNECTED"
    PENDING_CONNECTION = "PENDING_CONNECTION"
    PENDING_DELETION = "PENDING_DELETION"
    FAILED = "FAILED"
    INVALID = "INVALID"
    ABSENT = "ABSENT"
    UNKNOWN = "UNKNOWN"


class PortState(StrEnum):
    """State of an optical port (Open Compute Project's model)."""

    BLOCKED = "BLOCKED"
    TUNING = "TUNING"
    TUNED = "TUNED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"


class MatchingError(ValueError):
    """Two cross-connects want one port. ``port`` is its number."""

    def __init__(self, port: int, first: CrossConnect, second: CrossConnect) -> None:
        super().__init__(f"port {port} is wanted by both {first} and {second}")
        self.port = port
        self.first = first
        self.second = second


class BusyError(ValueError):
    """SAFE mode, and a wanted port is in use. ``port`` is its number, ``holder`` what uses it."""

    def __init__(self, port: int, holder: CrossConnect) -> None:
        super().__init__(f"port {port} is busy: it carries {holder}")
        self.port = port
        self.holder = holder


@dataclass(frozen=True)
class Changes:
    """Changes of one switch, in order: ``remove``, then ``add``. ``keep`` is never touched."""

    keep: frozenset[CrossConnect]
    remove: frozenset[CrossConnect]
    add: frozenset[CrossConnect]

    def __bool__(self) -> bool:
        return bool(self.remove or self.add)


def _order(xc: CrossConnect) -> tuple[int, int, int]:
    return (xc.ingress, xc.egress, -1 if xc.wavelength is None else xc.wavelength)


def check_matching(cross_connects: Iterable[CrossConnect]) -> frozenset[CrossConnect]:
    """Return the set, if it is a partial matching per wavelength. Raises MatchingError."""
    chosen = frozenset(cross_connects)
    held: dict[tuple[str, int, int | None], CrossConnect] = {}
    colours = {xc.wavelength for xc in chosen} - {None}
    for xc in sorted(chosen, key=_order):
        for side, port in (("in", xc.ingress), ("out", xc.egress)):
            # A cross-connect without a wavelength passes all of them, so it clashes with each.
            clashing = (
                {None, *colours} if xc.wavelength is None else {None, xc.wavelength}
            )
            for colour in clashing:
                other = held.get((side, port, colour))
                if other is not None:
                    raise MatchingError(port, other, xc)
            held[side, port, xc.wavelength] = xc
    return chosen


def _clashes(a: CrossConnect, b: CrossConnect) -> int | None:
    """Return the port that two different cross-connects cannot share, or None."""
    if (
        a.wavelength is not None
        and b.wavelength is not None
        and a.wavelength != b.wavelength
    ):
        return None
    if a.ingress == b.ingress:
        return a.ingress
    if a.egress == b.egress:
        return a.egress
    return None


def plan_changes(
    current: Iterable[CrossConnect], requested: Iterable[CrossConnect], mode: Mode
) -> Changes:
    """Return the smallest change that makes every requested cross-connect exist.

    Raises MatchingError when ``requested`` is not a partial matching, BusyError in SAFE mode when a
    requested port is in use by a cross-connect that is not requested.
    """
    target = check_matching(requested)
    present = frozenset(current)
    add = target - present
    if mode is Mode.REPLACE:
        remove = present - target
    else:
        in_the_way: set[CrossConnect] = set()
        by_end: dict[tuple[str, int], list[CrossConnect]] = {}
        for old in present - target:
            for end in (("in", old.ingress), ("out", old.egress)):
                by_end.setdefault(end, []).append(old)
        for new in sorted(add, key=_order):
            near = {
                *by_end.get(("in", new.ingress), ()),
                *by_end.get(("out", new.egress), ()),
            }
            for old in sorted(near, key=_order):
                port = _clashes(new, old)
                if port is None:
                    continue
                if mode is Mode.SAFE:
                    raise BusyError(port, old)
                in_the_way.add(old)
        remove = frozenset(in_the_way)
    return Changes(keep=present - remove, remove=remove, add=add)
