"""Communication of classes of ranks in lock-step: what all groups of a class do at once is one bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ringlight.fabric.steps import Step, frozen
from ringlight.testbed.simulation.bundles import Bundles, Load
from ringlight.testbed.simulation.calls import Calls, ends_of
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.lockstep import Classes, Meeting
from ringlight.testbed.simulation.merged_steps import merged_steps
from ringlight.testbed.simulation.networks import Network
from ringlight.testbed.simulation.operations import COLLECTIVE, Operations
from ringlight.testbed.simulation.phases import PhaseRun, Phases, StepCost, Transfers
from ringlight.workloads.graph import Workload


class _Part(NamedTuple):
    """Identical steps of all groups of one collective."""

    load: Load
    chunk_bytes: float
    steps: int
    set_up_s: float
    reduce_s: float


class _Message(NamedTuple):
    """End of all messages that a class sends by a peer slot: the ``ordinal``-th with a tag."""

    sender: int
    slot: int
    tag: int
    ordinal: int


class InClasses:
    """The collectives and messages of a workload, for :class:`Operations` whose actors are classes."""

    def __init__(
        self,
        engine: Engine,
        network: Network,
        gpus: Sequence[str],
        workload: Workload,
        classes: Classes,
        calls: Calls,
        cost: StepCost,
        *,
        trace: bool = False,
    ) -> None:
        self.operations: Operations
        self.bundles = Bundles(engine, len(network.capacity_bps), trace=trace)
        self._network, self._gpus = network, gpus
        self._workload, self._calls, self._cost, self._classes = (
            workload,
            calls,
            cost,
            classes,
        )
        self._meets = [classes.meetings(number) for number in range(len(classes))]
        self._messages = [self._messages_of(number) for number in range(len(classes))]
        self._called: Counter[tuple[int, int, int]] = Counter()
        #: Who has come, by what they have come to.
        self._come: dict[tuple[object, ...], list[tuple[int, int]]] = {}
        self._runs: dict[tuple[object, ...], list[tuple[Load, PhaseRun]]] = {}
        self._loads: dict[tuple[int, int], Load] = {}

    def communicate(self, number: int, iteration: int, operation: int) -> None:
        """Called when a class comes to an operation that communicates. Begin it once all of its classes have
        come.
        """
        plan = self.operations.plan[number]
        if plan.kind[operation] != COLLECTIVE:
            message = self._messages[number][operation]
            both = self._meet((*message, iteration), 2, number, operation)
            if both:
                for end in both:
                    self.operations.moves(*end)
                self._send(message, float(plan.bytes[operation]), both)
            return
        slot = plan.slot[operation]
        meeting = self._meets[number][slot]
        ordinal = self._called[number, slot, iteration]
        self._called[number, slot, iteration] += 1
        self.operations.moves(number, operation)
        key = (slot, meeting.classes, ordinal, iteration)
        all_ = self._meet(key, len(meeting.classes), number, operation)
        if all_:
            what = (plan.collective[operation], plan.bytes[operation])
            self._run(self._collective(meeting, *what, ordinal, iteration), all_)

    def _meet(
        self, key: tuple[object, ...], of: int, number: int, operation: int
    ) -> list[tuple[int, int]] | None:
        """Enter a class at a meeting; returns all of it once the last has come, else nothing."""
        come = self._come.setdefault(key, [])
        come.append((number, operation))
        if len(come) < of:
            return None
        return self._come.pop(key)

    def _run(
        self, parts: Sequence[_Part], who: Sequence[tuple[int, int]], number: int = 0
    ) -> None:
        """Run the parts from ``number`` on, one after the other, and then end the operations of ``who``."""
        if number < len(parts):
            self.bundles.start(
                *parts[number], lambda: self._run(parts, who, number + 1)
            )
            return
        for member in who:
            self.operations.ended(*member)

    # Collectives.

    def _collective(
        self, meeting: Meeting, collective: int, size: int, ordinal: int, iteration: int
    ) -> list[_Part]:
        ranks = meeting.groups.shape[1]
        key = (meeting.slot, meeting.classes, collective)
        runs = self._runs.get(key)
        numbers = meeting.numbers if runs is None else meeting.numbers[:1]
        calls = [
            self._calls.call(collective, size, ranks, (n, ordinal, iteration))
            for n in numbers
        ]
        once = calls[0].once
        if runs is None:
            world = self._workload.ranks
            steps = merged_steps(
                [call.steps for call in calls], list(meeting.groups), world
            )
            phases = Phases(self._network, self._gpus, steps)
            loads: dict[int, Load] = {}
            runs = [
                (
                    loads.setdefault(
                        id(run.transfers), self.bundles.load(run.transfers, once=once)
                    ),
                    run,
                )
                for run in phases.runs
            ]
            if not once:
                self._runs[key] = runs
        return [
            self._part(*run, calls[0].chunk_bytes) for run in runs
        ] * self._calls.splits

    def _part(self, load: Load, run: PhaseRun, chunk_bytes: float) -> _Part:
        cost = self._cost
        set_ups = run.set_ups if cost.when == "changed-only" else run.steps
        reduce_s = run.steps * run.added * chunk_bytes * cost.reduce_s_per_byte
        return _Part(load, chunk_bytes, run.steps, set_ups * cost.set_up_s, reduce_s)

    # Messages.

    def _messages_of(self, number: int) -> dict[int, _Message]:
        """Return the messages of a class by operation."""
        messages = {}
        classes = self._classes
        for operation, end in ends_of(
            self._workload, int(classes.members[number][0])
        ).items():
            slot = classes.slot_to(end.source, end.destination)
            messages[operation] = _Message(
                int(classes.of[end.source]), slot, end.tag, end.ordinal
            )
        return messages

    def _send(
        self, message: _Message, size: float, both: Sequence[tuple[int, int]]
    ) -> None:
        load = self._loads.get((message.sender, message.slot))
        if load is None:
            sources = self._classes.members[message.sender]
            destinations = self._workload.peers[sources, message.slot]
            ones = frozen(np.ones(len(sources)))
            step = Step(frozen(sources), frozen(destinations), ones, ones, "replace")
            load = self.bundles.load(Transfers(self._network, self._gpus, step, 0))
            self._loads[message.sender, message.slot] = load
        self._run([_Part(load, size, 1, self._cost.set_up_s, 0.0)], both)
