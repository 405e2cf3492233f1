"""Simulates communication rank by rank, every transfer as a flow of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ringlight.fabric.steps import Step, frozen, passes_on, streams
from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.testbed.simulation.calls import Call, Calls, End, ends_of
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.exchange import Exchange, StepPlan, plan_steps
from ringlight.testbed.simulation.link_flows import LinkFlow, More
from ringlight.testbed.simulation.merged_steps import merged_steps, travelling
from ringlight.testbed.simulation.networks import Network, Routes
from ringlight.testbed.simulation.operations import COLLECTIVE, Operations
from ringlight.testbed.simulation.passing import (
    MOST_IN_PARTS,
    Part,
    Passing,
    PassingOn,
    alike_s,
)
from ringlight.testbed.simulation.phases import StepCost
from ringlight.testbed.simulation.streaming import (
    Stream,
    Streaming,
    first_of,
    streams_of,
)
from ringlight.workloads.graph import Workload


class _Ways:
    """The paths between some GPUs. The engine's links have the network's numbers."""

    def __init__(self, network: Network, gpus: Sequence[str]) -> None:
        self._network, self._gpus = network, gpus

    def routes(self, step: Step, number: int) -> Routes:
        return self._network.routes(self._gpus, step, number)

    def links(self, locals_: Sequence[int]) -> tuple[int, ...]:
        return tuple(locals_)


class _Plan(NamedTuple):
    """The steps of a collective, and what waits for what where ranks pass on what comes; of a ring that is
    not followed part by part its streams, and the first step."""

    steps: list[StepPlan]
    passing: Passing | None = None
    streams: list[Stream] | None = None


class _Meeting:
    """A collective in progress on a communicator: its parts, and by group rank who has come to it."""

    __slots__ = ("left", "operation_of", "parts", "plan")

    def __init__(self, plan: _Plan, ranks: int) -> None:
        self.plan, self.left = plan, ranks
        self.parts: list[Exchange | PassingOn | Streaming] = []
        self.operation_of: dict[int, tuple[int, int]] = {}


class RankByRank:
    """The collectives and messages of a workload, for :class:`Operations` whose actors are ranks."""

    def __init__(
        self,
        engine: Engine,
        network: Network,
        gpus: Sequence[str],
        workload: Workload,
        calls: Calls,
        cost: StepCost,
        *,
        alike: bool = False,
        standing: bool = True,
    ) -> None:
        """``alike``: all ranks do the same, at the same time if their links allow it. ``standing``: no light
        is asked for or set again meanwhile."""
        self._alike, self._standing = alike, standing
        self.operations: Operations
        self._engine, self._network, self._gpus = engine, network, gpus
        self._calls, self._cost = calls, cost
        self._capacity = network.capacity_bps / 8
        for link, capacity in enumerate(self._capacity.tolist()):
            engine.link(network.key(link), capacity)
        self._sent: dict[tuple[int, ...], float] = {}
        self._place = [
            {rank: place for place, rank in enumerate(g.tolist())}
            for g in workload.groups
        ]
        self._ways = [
            _Ways(network, [gpus[rank] for rank in group]) for group in self._place
        ]
        self._communicators = workload.communicators.tolist()
        self._ends = [ends_of(workload, rank) for rank in range(workload.ranks)]
        self._called: Counter[tuple[int, int, int]] = Counter()
        self._meetings: dict[tuple[int, int, int, int], _Meeting] = {}
        self._plans: dict[tuple[int, int, int], _Plan] = {}
        #: Ends of messages whose other end no rank has come to, by iteration.
        self._waiting: dict[tuple[End, int], tuple[int, int]] = {}
        self._between: dict[tuple[int, int], tuple[tuple[int, ...], float]] = {}

    def moved(self) -> FloatArray:
        """Return the bytes that have been sent over each link, [links]."""
        bytes_sent = np.zeros(len(self._network.capacity_bps))
        for links, size in self._sent.items():
            bytes_sent[list(links)] += size
        return bytes_sent

    def remaining(self) -> FloatArray:
        """Return the bytes in progress that have yet to pass each link, [links]."""
        return self._engine.remaining(len(self._network.capacity_bps))

    def set_capacity(self, capacity: FloatArray) -> None:
        """Set the capacity of all links [links] from now on, bytes per second; 0 is dark."""
        changed = np.flatnonzero(capacity != self._capacity)
        for link, rate in zip(
            changed.tolist(), capacity[changed].tolist(), strict=True
        ):
            self._engine.set_capacity(link, rate)
        self._capacity = capacity.copy()

    def communicate(self, rank: int, iteration: int, operation: int) -> None:
        """Called when a rank comes to an operation that communicates. Begin its part of the operation."""
        plan = self.operations.plan[rank]
        if plan.kind[operation] != COLLECTIVE:
            self._message(rank, iteration, operation)
            return
        slot = plan.slot[operation]
        group = self._communicators[rank][slot]
        ordinal = self._called[rank, slot, iteration]
        self._called[rank, slot, iteration] += 1
        key = (group, slot, iteration, ordinal)
        meeting = self._meetings.get(key)
        if meeting is None:
            steps = self._plan(
                plan.collective[operation],
                plan.bytes[operation],
                group,
                ordinal,
                iteration,
            )
            meeting = self._meetings[key] = _Meeting(steps, len(self._place[group]))
            for _ in range(self._calls.splits):
                self._add_part(key, meeting)
        place = self._place[group][rank]
        meeting.operation_of[place] = (rank, operation)
        self.operations.moves(rank, operation)
        meeting.parts[0].begin(place)

    def _add_part(self, key: tuple[int, int, int, int], meeting: _Meeting) -> None:
        number, ranks = len(meeting.parts), meeting.left

        def ended(place: int) -> None:
            if number + 1 < len(meeting.parts):
                meeting.parts[number + 1].begin(place)
                return
            meeting.left -= 1
            if not meeting.left:
                del self._meetings[key]
            self.operations.ended(*meeting.operation_of[place])

        meeting.parts.append(self._execution(meeting.plan, ranks, ended))

    def _execution(
        self, plan: _Plan, ranks: int, ended: Callable[[int], None]
    ) -> Exchange | PassingOn | Streaming:
        steps = plan.steps

        def transfer(step: int, k: int, done: Callable[[], None]) -> None:
            self._flow(
                *steps[step].lanes.way(k), float(steps[step].lanes.sizes[k]), done
            )

        def pass_on(
            part: Part, waited_s: float, more: More, done: Callable[[], None]
        ) -> None:
            links, latency_s = steps[part.number].lanes.way(part.k)

            def counted(flow: LinkFlow) -> float:
                size = more(flow)
                self._sent[links] += size
                return size

            self._flow(links, max(0.0, latency_s - waited_s), part.size, done, counted)

        def begin(stream: Stream, flow: LinkFlow) -> None:
            links, latency_s = steps[0].lanes.way(stream.k)
            self._sent[links] = self._sent.get(links, 0.0) + stream.size
            self._engine.begin(flow, links, latency_s)

        if plan.streams is not None:
            lanes = steps[0].lanes
            return Streaming(
                self._engine, lanes, plan.streams, ranks, begin, lambda _: None, ended
            )
        if plan.passing is not None:
            reduce_s_per_byte = self._cost.reduce_s_per_byte
            return PassingOn(
                self._engine,
                steps,
                plan.passing,
                ranks,
                reduce_s_per_byte,
                pass_on,
                ended,
            )
        return Exchange(
            self._engine, steps, ranks, self._cost.set_up_s, transfer, ended
        )

    def _plan(
        self, collective: int, size: int, group: int, ordinal: int, iteration: int
    ) -> _Plan:
        key = (collective, size, group)
        plan = self._plans.get(key)
        if plan is None:
            ranks = len(self._place[group])
            call = self._calls.call(
                collective, size, ranks, (group, ordinal, iteration)
            )
            plan = self._planned(call, self._ways[group], ranks)
            if not call.once:
                self._plans[key] = plan
        return plan

    def _planned(self, call: Call, ways: _Ways, ranks: int) -> _Plan:
        waits = self._cost.set_up_s or not (
            self._standing or call.steps.step_by_step or passes_on(call.steps)
        )
        if waits:
            steps = merged_steps([call.steps], [frozen(np.arange(ranks))], ranks)
        else:
            steps = travelling(call.steps)
        is_stream = not waits and streams(steps)
        large = is_stream and sum(map(len, steps)) > MOST_IN_PARTS
        plan = plan_steps(
            first_of(steps) if large else steps, call.chunk_bytes, self._cost, ways
        )
        for step in plan:
            step.lanes.routes()
        if waits:
            return _Plan(plan)
        cost_s = self._cost.reduce_s_per_byte
        # Where all do the same at the same time, parts change nothing.
        together = is_stream and self._alike and not cost_s
        if large or (together and alike_s(plan[0].lanes, self._capacity) is not None):
            return _Plan(
                plan, streams=streams_of(plan[0].lanes, steps, self._capacity, cost_s)
            )
        return _Plan(plan, Passing(plan, ranks, step_by_step=call.steps.step_by_step))

    def _message(self, rank: int, iteration: int, operation: int) -> None:
        end = self._ends[rank][operation]
        other = self._waiting.pop((end, iteration), None)
        if other is None:
            self._waiting[end, iteration] = (rank, operation)
            return
        both = ((rank, operation), other)
        for waiting in both:
            self.operations.moves(*waiting)

        def done() -> None:
            for waiting in both:
                self.operations.ended(*waiting)

        links, latency_s = self._way(end.source, end.destination)
        size = float(self.operations.plan[rank].bytes[operation])
        self._flow(links, latency_s + self._cost.set_up_s, size, done)

    def _way(self, source: int, destination: int) -> tuple[tuple[int, ...], float]:
        way = self._between.get((source, destination))
        if way is None:
            gpus = (self._gpus[source], self._gpus[destination])
            routes = self._network.routes(gpus, ONE_MESSAGE)
            way = (tuple(routes.links.tolist()), float(routes.latency_s[0]))
            self._between[source, destination] = way
        return way

    def _flow(
        self,
        links: tuple[int, ...],
        latency_s: float,
        size: float,
        done: Callable[[], None],
        more: More | None = None,
    ) -> None:
        self._sent[links] = self._sent.get(links, 0.0) + size
        self._engine.start(links, size, done, latency_s, more)


#: From the first of two ranks to the second.
ONE_MESSAGE = Step(frozen([0]), frozen([1]), frozen([0]), frozen([1]), "replace")
