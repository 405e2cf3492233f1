"""Plan light that brings the GPUs of jobs and claims together, and move it. Plans are made one at a time."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ringlight.controller.circuits.change import Change, Target
from ringlight.controller.circuits.manager import CircuitManager
from ringlight.controller.errors import ConflictError
from ringlight.controller.packets.attachment import circuit_pairs
from ringlight.fabric.cost import RingJob
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.fabric.parts import Port
from ringlight.fabric.placement import Regrouping, regroup
from ringlight.fabric.topology import CrossConnects, Fabric, circuit_cross_connects

#: All-reduced in each step by a job or a claim of which that is not known.
UNKNOWN_BYTES = 1 << 20


@dataclass(frozen=True)
class Planned:
    """Regrouping of the light of a ``generation``. ``before``, ``after``: all cross-connects by switch."""

    generation: int
    moves: Regrouping
    before: CrossConnects
    after: CrossConnects

    def targets(self) -> dict[str, Target]:
        """Return what the optical switches whose light changes must carry."""
        return {
            name: Target(tuple(group), Mode.REPLACE)
            for name, group in self.after.items()
            if set(group) != set(self.before[name])
        }


class Planner:
    """The queue of planned light of a fabric. Any thread may call.

    Between :meth:`take_turn` and :meth:`end_turn`, which another thread may call, no other plan moves light.
    Clients that move light without a plan may.
    """

    def __init__(self, fabric: Fabric, circuits: CircuitManager) -> None:
        self._fabric, self._circuits = fabric, circuits
        self._turn = threading.Lock()

    def take_turn(self, timeout_s: float) -> None:
        """Wait for the end of the plans under way. Raises ConflictError if they take longer."""
        if not self._turn.acquire(timeout=timeout_s):
            raise ConflictError(
                f"other planned light has been moving for {timeout_s:g} s; try again"
            )

    def end_turn(self) -> None:
        self._turn.release()

    @contextmanager
    def turn(self, timeout_s: float) -> Iterator[None]:
        """Hold off other plans, as :meth:`take_turn` and :meth:`end_turn` do. Raises ConflictError."""
        self.take_turn(timeout_s)
        try:
            yield
        finally:
            self.end_turn()

    def plan(self, rings: Iterable[RingJob], taken: Collection[str]) -> Planned:
        """Return a plan from the light as it is. Raises ValueError if there is no such regrouping.

        ``taken``: GPUs that belong to others, whose fibres stay.
        """
        generation, before = self._circuits.light()
        movable = [gpu for gpu in self._fabric.packet_gpus if gpu not in taken]
        moves, after = moved_circuits(self._fabric, before, rings, movable)
        return Planned(generation, moves, before, after)

    def move(self, planned: Planned, who: str) -> Change:
        """Change the light as planned. Return the change.

        Raises LightMovedError if the light has changed since, and as :meth:`.CircuitManager.change`.
        """
        return self._circuits.change(
            planned.targets(), who=who, expect=planned.generation
        )


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
