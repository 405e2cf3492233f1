"""All-or-nothing changes of light over several switches: undo plans and leftovers. No I/O, no clock.

Switches have no common transaction. So a change that did not come about everywhere is taken back where it
did: first what was new goes, on all switches, then what was there before comes back. What others made
meanwhile is never touched. Where that fails too, each cross-connect that is not as before is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ringlight.controller.optical.model import Plan, Snapshot
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, Mode

_LIT = (
    CrossConnectState.CONNECTED,
    CrossConnectState.PENDING_CONNECTION,
    CrossConnectState.UNKNOWN,
)


def carrying(snapshot: Snapshot | None) -> frozenset[CrossConnect]:
    """Return the cross-connects of a reading that carry light or are about to; empty without a reading."""
    if snapshot is None:
        return frozenset()
    return frozenset(
        xc for xc, state in snapshot.cross_connects.items() if state in _LIT
    )


def standing(snapshot: Snapshot) -> frozenset[CrossConnect]:
    """Return the cross-connects of a reading that use their ports, whether they carry light or not."""
    going = CrossConnectState.PENDING_DELETION
    return frozenset(
        xc for xc, state in snapshot.cross_connects.items() if state is not going
    )


class Found(StrEnum):
    """State in which a cross-connect was found that could not be restored."""

    STANDS = "STANDS"
    GONE = "GONE"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class Leftover:
    """A cross-connect that a change that was taken back has left otherwise than it was before."""

    switch: str
    cross_connect: CrossConnect
    state: Found
    reason: str

    def document(self) -> LeftoverDocument:
        """Return the leftover as a document of the REST API."""
        where, state, reason = self.switch, self.state, self.reason
        return LeftoverDocument(
            **vars(self.cross_connect), switch=where, found=state, reason=reason
        )

    def __str__(self) -> str:
        words = {
            Found.STANDS: "still stands",
            Found.GONE: "is gone",
            Found.UNKNOWN: "may have changed",
        }
        return f"optical switch {self.switch}: {self.cross_connect} {words[self.state]}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class LeftoverDocument(CrossConnect):
    """Cross-connect that an undone change has left different: it still STANDS, is GONE, or its state is
    UNKNOWN.
    """

    switch: str
    found: Found
    reason: str


def achieved(plan: Plan, now: Snapshot) -> bool:
    """Return whether a reading shows everything that a plan was to change. Changes by others are ignored."""
    removed = set(plan.remove) - set(plan.add)
    return set(plan.add) <= carrying(now) and not removed & standing(now)


def taken_back(plan: Plan, now: Snapshot) -> Plan:
    """Return the plan that undoes what another plan changed, starting from the present state.

    A removed cross-connect whose ports others have used meanwhile stays removed.
    """
    stand, removed = standing(now), frozenset(plan.remove)
    away = frozenset(plan.add) - removed
    remove = away & stand
    stays = stand - remove
    add = free_of(removed - stand, stays)
    return Plan(
        now.revision, Mode.UPDATE, stays, tuple(sorted(remove)), tuple(sorted(add))
    )


def free_of(
    candidates: Iterable[CrossConnect], present: Collection[CrossConnect]
) -> frozenset[CrossConnect]:
    """Return the wanted cross-connects whose ports no other cross-connect has."""
    taken = Taken(present)
    return frozenset(xc for xc in candidates if taken.by(xc) is None)


class Taken:
    """Cross-connects by the ports and wavelengths that they occupy."""

    def __init__(self, cross_connects: Iterable[CrossConnect]) -> None:
        self._at: dict[int, list[CrossConnect]] = {}
        for xc in cross_connects:
            for port in {xc.ingress, xc.egress}:
                self._at.setdefault(port, []).append(xc)

    def by(self, xc: CrossConnect) -> CrossConnect | None:
        """Return the first other cross-connect that uses one of this cross-connect's ports; None if both are
        free.
        """
        for port in (xc.ingress, xc.egress):
            for other in self._at.get(port, ()):
                same_side = other.ingress == xc.ingress or other.egress == xc.egress
                colours = (other.wavelength, xc.wavelength)
                if (
                    other != xc
                    and same_side
                    and (None in colours or colours[0] == colours[1])
                ):
                    return other
        return None


def leftovers(
    plans: Mapping[str, Plan],
    now: Mapping[str, Snapshot | None],
    reasons: Mapping[str, str],
) -> tuple[Leftover, ...]:
    """Return the cross-connects that differ from the state before these plans, by switch and cross-connect.

    ``now``: last reading by switch after everything was undone. If it is None, everything that the plan names
    may have changed. ``reasons``: reason by switch, if known, for which the switch did not carry out its
    part.
    """
    remaining = []
    for name, plan in plans.items():
        reason = reasons.get(name, "the switch did not do as it was told")
        removed = frozenset(plan.remove)
        away = frozenset(plan.add) - removed
        snapshot = now[name]
        if snapshot is None:
            remaining += [
                Leftover(name, xc, Found.UNKNOWN, reason)
                for xc in sorted(removed | away)
            ]
            continue
        stand = standing(snapshot)
        taken = Taken(stand)
        remaining += [
            Leftover(name, xc, Found.STANDS, reason) for xc in sorted(away & stand)
        ]
        for xc in sorted(removed - stand):
            other = taken.by(xc)
            why = (
                reason
                if other is None or other in away
                else f"{other}, made meanwhile, has its port"
            )
            remaining.append(Leftover(name, xc, Found.GONE, why))
    return tuple(remaining)
