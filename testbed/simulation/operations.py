"""Runs the operations of a workload's programs in virtual time.

An *actor* runs a program: a rank, or a class of ranks in lock-step. Its operations begin when what they come
after has ended, and one at a time on each stream. Computing and memory take their time here; what is
communicated is handed on, and its carrier reports when it has ended.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.testbed.simulation.engine import Engine
from ringlight.workloads.graph import Kind, Program, Workload, dependencies

# As plain numbers: a member of an enumeration is slow to find, and every operation asks for these.
_COMPUTE, COLLECTIVE = int(Kind.COMPUTE), int(Kind.COLLECTIVE)
_LOCAL = (_COMPUTE, int(Kind.MEMORY))


class OperationPlan(NamedTuple):
    """A program as lists by operation, with what has to end before each and what follows it.

    ``local_s``: seconds of computing or memory. ``purpose``: index into the purposes.
    """

    kind: list[int]
    local_s: list[float]
    bytes: list[int]
    collective: list[int]
    slot: list[int]
    tag: list[int]
    purpose: list[int]
    waits: list[int]
    followers: list[tuple[int, ...]]
    first: list[int]


def plan_of(
    workload: Workload, program: Program, purposes: Sequence[int]
) -> OperationPlan:
    """Return the plan of a program. ``purposes``: purpose of each of the workload's names.

    Raises ValueError naming an operation that computes or moves memory and has no seconds.
    """
    return OperationPlan(
        program.kind.tolist(),
        program.seconds.tolist(),
        program.bytes.tolist(),
        program.collective.tolist(),
        program.slot.tolist(),
        program.tag.tolist(),
        np.asarray(purposes)[program.name].tolist(),
        *dependencies(workload, program),
    )


@dataclass(frozen=True)
class Times:
    """Seconds of each actor by activity, over all iterations.

    ``compute_s``, ``memory_s`` [actors]: at least one such operation was in progress. ``exposed_s``,
    ``overlapped_s`` [actors, purposes]: an operation of that purpose was in progress, without or with
    computing or memory at the same time; purposes may overlap each other. ``communication_s`` [actors]: any
    purpose was exposed. ``idle_s`` [actors]: nothing was in progress. A collective counts from when its rank
    comes to it, a message from when both its ends have; the wait for a message's other end is idle.
    """

    compute_s: FloatArray
    memory_s: FloatArray
    communication_s: FloatArray
    idle_s: FloatArray
    exposed_s: FloatArray
    overlapped_s: FloatArray


class _Tally:
    """The times of one actor."""

    __slots__ = (
        "active",
        "communication_s",
        "compute_s",
        "computing",
        "exposed_s",
        "idle_s",
        "memory_s",
        "moving",
        "overlapped_s",
        "since_s",
    )

    def __init__(self, purposes: int) -> None:
        self.compute_s = self.memory_s = self.communication_s = self.idle_s = (
            self.since_s
        ) = 0.0
        self.computing = self.moving = 0
        self.active: dict[int, int] = {}
        self.exposed_s, self.overlapped_s = [0.0] * purposes, [0.0] * purposes

    def count(self, now_s: float) -> None:
        """Add the seconds since the last change to all activities that are in progress."""
        passed_s = now_s - self.since_s
        if passed_s <= 0:
            return
        self.since_s = now_s
        local = self.computing or self.moving
        if self.computing:
            self.compute_s += passed_s
        if self.moving:
            self.memory_s += passed_s
        if self.active:
            into = self.overlapped_s if local else self.exposed_s
            for purpose in self.active:
                into[purpose] += passed_s
            if not local:
                self.communication_s += passed_s
        elif not local:
            self.idle_s += passed_s


@dataclass(frozen=True)
class Record:
    """Begin and end of each operation of an actor, seconds [iterations, operations]."""

    begin_s: FloatArray
    end_s: FloatArray


class Operations:
    """The actors' operations on an engine; ``plan_of``: index into ``plans`` of each actor.

    ``communicate(actor, iteration, operation)`` begins one that communicates; its carrier calls ``moves``
    when it counts as communication, and ``ended`` once. ``record``: keep every begin and end. ``progress`` is
    called with an actor and an iteration at the end of each.
    """

    def __init__(
        self,
        engine: Engine,
        plans: Sequence[OperationPlan],
        plan_of: Sequence[int],
        iterations: int,
        purposes: int,
        communicate: Callable[[int, int, int], None],
        *,
        record: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        actors = len(plan_of)
        self.iterations = iterations
        self.begin_s = np.full((iterations, actors), math.nan)
        self.end_s = np.full((iterations, actors), math.nan)
        self._engine, self._communicate, self._progress = engine, communicate, progress
        #: By actor.
        self.plan = [plans[number] for number in plan_of]
        self.at_iteration = [-1] * actors
        self._waits: list[list[int]] = [[] for _ in range(actors)]
        self._open = [0] * actors
        self._tally = [_Tally(purposes) for _ in range(actors)]
        #: Operations that communicate and have not ended: for who asks what everybody waits for.
        self.under_way: list[dict[int, None]] = [{} for _ in range(actors)]
        self._over: deque[tuple[int, int]] = deque()
        #: Called with the actor and each operation that communicated, when the operation has ended.
        self.on_end: Callable[[int, int], None] | None = None
        self._settling = self._stopped = False
        self.records: list[Record] | None = None
        if record:
            shapes = [(iterations, len(plan.kind)) for plan in self.plan]
            self.records = [
                Record(np.full(s, math.nan), np.full(s, math.nan)) for s in shapes
            ]

    @property
    def unfinished(self) -> list[int]:
        """Actors that have not ended their last iteration."""
        return np.flatnonzero(~np.isfinite(self.end_s[-1])).tolist()

    def times(self) -> Times:
        """Return the times of all actors up to the end of the last one, in seconds."""
        for tally in self._tally:
            tally.count(float(self.end_s.max()))
        return Times(
            *(
                np.array(
                    [getattr(tally, name) for tally in self._tally], dtype=np.float64
                )
                for name in Times.__dataclass_fields__
            )
        )

    def stop(self) -> None:
        """Begin nothing any more; operations in progress have no consequences."""
        self._stopped = True

    def begin(self) -> None:
        """Begin the first iteration of all actors now."""
        for actor in range(len(self.plan)):
            self._next_iteration(actor)
        self._settle()

    def moves(self, actor: int, operation: int) -> None:
        """Count the operation as communication from now on."""
        tally = self._tally[actor]
        tally.count(self._engine.now_s)
        purpose = self.plan[actor].purpose[operation]
        tally.active[purpose] = tally.active.get(purpose, 0) + 1

    def ended(self, actor: int, operation: int) -> None:
        """Called when an operation that communicated has ended."""
        tally = self._tally[actor]
        tally.count(self._engine.now_s)
        purpose = self.plan[actor].purpose[operation]
        tally.active[purpose] -= 1
        if not tally.active[purpose]:
            del tally.active[purpose]
        del self.under_way[actor][operation]
        if self.on_end is not None:
            self.on_end(actor, operation)
        self._over.append((actor, operation))
        self._settle()

    def _next_iteration(self, actor: int) -> None:
        plan = self.plan[actor]
        while self.at_iteration[actor] + 1 < self.iterations:
            self.at_iteration[actor] += 1
            self.begin_s[self.at_iteration[actor], actor] = self._engine.now_s
            self._open[actor] = len(plan.kind)
            self._waits[actor] = plan.waits.copy()
            if plan.kind:
                for operation in plan.first:
                    self._begin(actor, operation)
                return
            # It has nothing to do.
            self.end_s[self.at_iteration[actor], actor] = self._engine.now_s
            if self._progress is not None:
                self._progress(actor, self.at_iteration[actor])

    def _begin(self, actor: int, operation: int) -> None:
        plan = self.plan[actor]
        if self.records is not None:
            self.records[actor].begin_s[self.at_iteration[actor], operation] = (
                self._engine.now_s
            )
        kind = plan.kind[operation]
        if kind in _LOCAL:
            seconds = plan.local_s[operation]
            if seconds == 0:
                self._over.append((actor, operation))
                return
            self._local(actor, kind, 1)
            then_s = self._engine.now_s + seconds
            self._engine.at(then_s, lambda: self._done(actor, operation, kind))
        else:
            self.under_way[actor][operation] = None
            self._communicate(actor, self.at_iteration[actor], operation)

    def _done(self, actor: int, operation: int, kind: int) -> None:
        if self._stopped:
            return
        self._local(actor, kind, -1)
        self._over.append((actor, operation))
        self._settle()

    def _local(self, actor: int, kind: int, change: int) -> None:
        tally = self._tally[actor]
        tally.count(self._engine.now_s)
        if kind == _COMPUTE:
            tally.computing += change
        else:
            tally.moving += change

    def _settle(self) -> None:
        """Begin the operations that follow from ended ones. Ended operations are in a queue, as thousands may
        end in one instant.
        """
        if self._settling:
            return
        self._settling = True
        while self._over and not self._stopped:
            actor, operation = self._over.popleft()
            if self.records is not None:
                self.records[actor].end_s[self.at_iteration[actor], operation] = (
                    self._engine.now_s
                )
            waits = self._waits[actor]
            for following in self.plan[actor].followers[operation]:
                waits[following] -= 1
                if not waits[following]:
                    self._begin(actor, following)
            self._open[actor] -= 1
            if not self._open[actor]:
                self.end_s[self.at_iteration[actor], actor] = self._engine.now_s
                if self._progress is not None:
                    self._progress(actor, self.at_iteration[actor])
                if not self._stopped:
                    self._next_iteration(actor)
        self._settling = False
