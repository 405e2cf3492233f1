"""Compute how a switch differs from what it should carry, and the plan that a policy derives from the
difference. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ringlight.controller.circuits.transaction import Taken, standing
from ringlight.controller.optical.model import Plan, Snapshot
from ringlight.fabric.crossconnect import (
    CrossConnect,
    CrossConnectState,
    Mode,
    PortState,
)

_BROKEN = (CrossConnectState.FAILED, CrossConnectState.INVALID)


class Policy(StrEnum):
    """Policy for a change that the controller did not make.

    MEND: missing cross-connects are lit again; added ones stay, with an alarm, unless they are in the way.
    REPAIR: the switch gets exactly what it should have. ADOPT: what the switch carries becomes what it should
    carry. ALARM: nothing is changed, the difference is only reported.
    """

    MEND = "mend"
    REPAIR = "repair"
    ADOPT = "adopt"
    ALARM = "alarm"


@dataclass(frozen=True)
class Drift:
    """Difference between a switch and what it should carry.

    ``missing``: wanted and not present. ``broken``: present without light, as reported by the switch.
    ``foreign``: present and not wanted. ``left``: made by the controller, to be removed, and still present.
    """

    missing: frozenset[CrossConnect] = frozenset()
    broken: frozenset[CrossConnect] = frozenset()
    foreign: frozenset[CrossConnect] = frozenset()
    left: frozenset[CrossConnect] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.missing or self.broken or self.foreign or self.left)

    def __str__(self) -> str:
        parts = [
            (self.missing, "is missing", "are missing"),
            (self.broken, "has no light", "have no light"),
            (self.foreign, "was made by somebody else", "were made by somebody else"),
            (self.left, "should be gone", "should be gone"),
        ]
        phrases = []
        for group, singular, many in parts:
            if group:
                first = ", ".join(map(str, sorted(group)[:3]))
                more = f" and {len(group) - 3} more" if len(group) > 3 else ""
                phrases.append(f"{first}{more} {singular if len(group) == 1 else many}")
        return "; ".join(phrases)


def drift(
    intended: Collection[CrossConnect],
    unwanted: Collection[CrossConnect],
    now: Snapshot,
) -> Drift:
    """Return the difference between a reading and what is wanted.

    ``unwanted``: cross-connects that the controller made and that must be removed. Cross-connects that the
    switch attributes to another owner are ignored. A cross-connect is not called broken if its port is
    disabled or has failed: the port's alarm reports that.
    """
    intended, stand = frozenset(intended), standing(now)
    left = (frozenset(unwanted) & stand) - intended
    broken = {
        xc
        for xc in intended & stand
        if now.cross_connects[xc] in _BROKEN and not _unusable(xc, now)
    }
    return Drift(
        intended - stand, frozenset(broken), stand - intended - left - now.foreign, left
    )


@dataclass(frozen=True)
class Mending:
    """A change of one switch, and why some of what is wanted cannot be made."""

    plan: Plan
    cannot: Mapping[CrossConnect, str] = field(default_factory=dict)


def mending(difference: Drift, now: Snapshot, *, exactly: bool) -> Mending:
    """Return the plan that mends a difference, and the reason for each cross-connect that cannot be made.

    Missing and broken cross-connects are made, and leftovers are removed. Of the foreign cross-connects those
    in the way are removed, or all of them (``exactly``).
    """
    cannot: dict[CrossConnect, str] = {}
    makeable = set()
    owned = Taken(now.foreign)
    for xc in sorted(difference.missing | difference.broken):
        if reason := _unusable(xc, now):
            cannot[xc] = reason
        elif (other := owned.by(xc)) is not None:
            cannot[xc] = f"{other}, which belongs to another owner, has its port"
        else:
            makeable.add(xc)
    in_way = Taken(makeable)
    gone = {
        xc for xc in difference.foreign if exactly or in_way.by(xc) is not None
    } | difference.left
    again = difference.broken & makeable
    remove, add = gone | again, (difference.missing & makeable) | again
    keep = standing(now) - remove
    plan = Plan(
        now.revision, Mode.UPDATE, keep, tuple(sorted(remove)), tuple(sorted(add))
    )
    return Mending(plan, cannot)


def _unusable(xc: CrossConnect, now: Snapshot) -> str:
    """Return the reason for which one of the cross-connect's ports cannot carry light; empty if both can."""
    for port in (xc.ingress, xc.egress):
        status = now.ports.get(port)
        if status is None:
            return f"there is no port {port}"
        if status.state is PortState.FAILED:
            return f"port {port} has failed"
        if not status.enabled:
            return f"port {port} is disabled"
    return ""
