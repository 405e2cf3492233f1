"""Plan which circuits bring the GPUs of jobs and claims together. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ringlight.controller.packets.attachment import circuit_pairs
from ringlight.fabric.cost import RingJob
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.parts import Port
from ringlight.fabric.placement import Regrouping, regroup
from ringlight.fabric.topology import CrossConnects, Fabric, circuit_cross_connects


def moved_circuits(
    fabric: Fabric,
    before: CrossConnects,
    rings: Iterable[RingJob],
    movable: Collection[str],
) -> tuple[Regrouping, dict[str, frozenset[CrossConnect]]]:
    """Return the regrouping of these rings, and all cross-connects after it, by optical switch.

    ``before``: cross-connects that are lit. ``movable``: GPUs whose fibres may be moved. Cross-connects that
    belong to no circuit stay. Raises ValueError if there is no such regrouping.
    """
    pairs = [pair for pair in circuit_pairs(fabric, before) if _is_simple(fabric, pair)]
    plan = regroup(fabric, pairs, rings, movable=movable)
    old = circuit_cross_connects(fabric, pairs)
    new = circuit_cross_connects(fabric, plan.circuits)
    none: frozenset[CrossConnect] = frozenset()
    # A WSS makes no circuits: its light is that of jobs with O-NICs and stays.
    after = {
        name: (frozenset(group) - old.get(name, none)) | new.get(name, none)
        for name, group in before.items()
    }
    return plan, after


def _is_simple(fabric: Fabric, pair: tuple[Port, Port]) -> bool:
    """Return whether the circuit passes only one optical switch, like the circuits that regrouping moves."""
    try:
        circuit_cross_connects(fabric, [pair])
    except ValueError:
        return False
    return True
