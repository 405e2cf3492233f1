"""A collective in progress whose ranks send what they have as soon as workers do.

A worker (``containers/worker/transport.py``) sends over one connection to each peer, in the order of the
schedule. It waits for no step: a part of a chunk may go as soon as the part that it consists of has arrived.
So a tree adds and hands down a vector at once, and what two steps send to one peer has one share of a link.
In a schedule of exchanges (``step_by_step``) it waits until both have come and received all of the steps
before, but not until what it sends itself has arrived. A rank has ended when its peers have reported that
they have all. These words take the delays of links, and no latency: that of a transfer is measured with them.

Rings whose ranks all do the same at the same time need no parts (:func:`alike_s`, :class:`Together`), and
larger ones take too many: :mod:`ringlight.testbed.simulation.streaming`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ringlight.testbed.simulation.arrays import SAME, FloatArray
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.exchange import Lanes, StepPlan
from ringlight.testbed.simulation.link_flows import LinkFlow
from ringlight.testbed.simulation.maxmin import rates

#: Parts of a chunk that is passed on: as the workers' ``SEGMENTS_PER_CHUNK``.
PARTS = 8
#: Rings of more transfers are not followed part by part.
MOST_IN_PARTS = 1000


@dataclass(slots=True)
class Part:
    """A part of transfer ``k`` of step ``number``, ``size`` bytes over connection ``connection``.

    ``sends_after`` and ``counts_after``: how many things must have come about before it may go, and before it
    counts at its receiver; ``lets_go`` and ``lets_count``: the parts for which it is one of them. ``adds``:
    whether its receiver adds it to what it has.
    """

    number: int
    k: int
    size: float
    source: int
    destination: int
    connection: int
    adds: bool
    sends_after: int = 0
    counts_after: int = 2
    lets_go: list[int] = field(default_factory=list)
    lets_count: list[int] = field(default_factory=list)


class _Owners:
    """By range of a rank's vector the last transfer that was received into it, -1 for none."""

    def __init__(self) -> None:
        self._starts, self._owners = [0.0], [-1]

    def of(self, begin: float, end: float) -> Iterator[tuple[int, float]]:
        """Yield the transfers of a range, each with the end of its part of the range."""
        k = bisect_right(self._starts, begin) - 1
        while k < len(self._starts) and self._starts[k] < end:
            after = self._starts[k + 1] if k + 1 < len(self._starts) else end
            if self._owners[k] >= 0:
                yield self._owners[k], min(after, end)
            k += 1

    def own(self, begin: float, end: float, owner: int) -> None:
        first, last = (
            bisect_right(self._starts, begin) - 1,
            bisect_left(self._starts, end),
        )
        rest = self._owners[last - 1]
        starts, owners = [begin], [owner]
        if self._starts[first] < begin:
            starts.insert(0, self._starts[first])
            owners.insert(0, self._owners[first])
        if last == len(self._starts) or self._starts[last] > end:
            starts.append(end)
            owners.append(rest)
        self._starts[first:last], self._owners[first:last] = starts, owners


@dataclass
class _Transfer:
    """Transfer of a schedule: its range of the vector in chunks, the transfers that it waits for, and its
    parts from ``at`` on.

    ``takes``: transfers whose data it forwards. ``follows``: transfers that its receiver applies before.
    """

    number: int
    k: int
    begin: float
    end: float
    takes: list[int]
    follows: list[int]
    parts: int = 1
    at: int = 0

    def part_to(self, end: float) -> int:
        """Return the part with whose arrival all up to ``end`` has arrived."""
        share = (min(end, self.end) - self.begin) / (self.end - self.begin)
        return self.at + max(
            0, min(self.parts, int(np.ceil(share * self.parts - 1e-9))) - 1
        )


class Passing:
    """Dependencies between the parts of a plan's transfers, computed once for all executions of the plan."""

    def __init__(
        self, plan: Sequence[StepPlan], ranks: int, *, step_by_step: bool = False
    ) -> None:
        transfers = _exchanges(plan, ranks) if step_by_step else _transfers(plan, ranks)
        for transfer in () if step_by_step else reversed(transfers):
            if transfer.takes:
                transfer.parts = PARTS
            for other in (
                *transfer.takes,
                *(transfer.follows if transfer.parts > 1 else ()),
            ):
                transfers[other].parts = PARTS
        self.parts: list[Part] = []
        #: The parts of each connection in order, and by rank those that it sends and receives.
        self.connections: list[list[int]] = []
        self.sent: list[list[int]] = [[] for _ in range(ranks)]
        self.received: list[list[int]] = [[] for _ in range(ranks)]
        #: By rank the parts that are sent only once it has come, as their sender waits for its word.
        self.awaiting = self.received if step_by_step else [[] for _ in range(ranks)]
        number_of: dict[tuple[int, int], int] = {}
        for transfer in transfers:
            step = plan[transfer.number].step
            source, destination = (
                int(step.sources[transfer.k]),
                int(step.destinations[transfer.k]),
            )
            connection = number_of.setdefault((source, destination), len(number_of))
            if connection == len(self.connections):
                self.connections.append([])
            transfer.at = len(self.parts)
            size = float(plan[transfer.number].lanes.sizes[transfer.k]) / transfer.parts
            for _ in range(transfer.parts):
                part = Part(
                    transfer.number,
                    transfer.k,
                    size,
                    source,
                    destination,
                    connection,
                    step.op == "reduce",
                )
                # Its sender must have come, and in an exchange its receiver, too.
                part.sends_after = 2 if step_by_step else 1
                self._add(part)
        for transfer in transfers:
            for p in range(transfer.parts):
                begin = (
                    transfer.begin
                    + (transfer.end - transfer.begin) * p / transfer.parts
                )
                end = (
                    transfer.begin
                    + (transfer.end - transfer.begin) * (p + 1) / transfer.parts
                )
                part = self.parts[transfer.at + p]
                taken = (
                    transfer.takes
                    if step_by_step
                    else self._up_to(transfers, transfer.takes, begin, end)
                )
                for other in taken:
                    self.parts[other].lets_go.append(transfer.at + p)
                    part.sends_after += 1
                for other in self._up_to(transfers, transfer.follows, begin, end):
                    self.parts[other].lets_count.append(transfer.at + p)
                    part.counts_after += 1

    def _add(self, part: Part) -> None:
        index = len(self.parts)
        self.parts.append(part)
        line = self.connections[part.connection]
        if line:
            # A worker reads a connection in order.
            self.parts[line[-1]].lets_count.append(index)
            part.counts_after += 1
        line.append(index)
        self.sent[part.source].append(index)
        self.received[part.destination].append(index)

    @staticmethod
    def _up_to(
        transfers: Sequence[_Transfer], of: Sequence[int], begin: float, end: float
    ) -> Iterator[int]:
        for other in map(transfers.__getitem__, of):
            if other.begin < end and other.end > begin:
                yield other.part_to(end)


def _transfers(plan: Sequence[StepPlan], ranks: int) -> list[_Transfer]:
    """Return the transfers of a plan, those of a step in its order. A rank sends what it had before the
    step.
    """
    owners = [_Owners() for _ in range(ranks)]
    transfers: list[_Transfer] = []
    for number, step_plan in enumerate(plan):
        step, before = step_plan.step, len(transfers)
        columns = (step.sources, step.destinations, step.first, step.count)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        for k, (source, _, first, count) in enumerate(rows):
            begin, end = float(first), float(first + count)
            takes = list(
                dict.fromkeys(other for other, _ in owners[source].of(begin, end))
            )
            transfers.append(_Transfer(number, k, begin, end, takes, []))
        for k, (_, destination, first, count) in enumerate(rows):
            begin, end = float(first), float(first + count)
            there = owners[destination]
            transfers[before + k].follows = list(
                dict.fromkeys(other for other, _ in there.of(begin, end))
            )
            there.own(begin, end, before + k)
    return transfers


def _exchanges(plan: Sequence[StepPlan], ranks: int) -> list[_Transfer]:
    """Return the transfers of a schedule of exchanges, of one part each.

    A transfer waits until both of its ranks have received all of the steps before, as the sender knows by the
    receiver's word. It does not wait for what its sender has yet to send.
    """
    latest: list[list[int]] = [[] for _ in range(ranks)]
    transfers: list[_Transfer] = []
    for number, step_plan in enumerate(plan):
        ends = list(
            zip(
                step_plan.step.sources.tolist(),
                step_plan.step.destinations.tolist(),
                strict=True,
            )
        )
        before = len(transfers)
        for k, (source, destination) in enumerate(ends):
            transfers.append(
                _Transfer(
                    number, k, 0.0, 1.0, [*latest[source], *latest[destination]], []
                )
            )
        for rank in {destination for _, destination in ends}:
            latest[rank] = [
                before + k
                for k, (_, destination) in enumerate(ends)
                if destination == rank
            ]
    return transfers


def alike_s(lanes: Lanes, capacity: FloatArray) -> float | None:
    """Return how long every transfer of a ring is on its links if all ranks begin together, seconds; None if
    its transfers do not begin and end together, step by step. ``lanes``: of all its steps; ``capacity``: of
    the network's links, bytes per second.
    """
    offsets, links, latency_s = lanes.routes()
    if len(set(latency_s)) > 1 or len(set(lanes.sizes.tolist())) > 1:
        return None
    flow_rates = rates(np.array(offsets), np.array(links, dtype=np.int64), capacity)
    least, most = float(flow_rates.min()), float(flow_rates.max())
    return (
        float(lanes.sizes[0]) / least
        if least > 0 and most - least <= SAME * most
        else None
    )


class Together:
    """Execution of a ring's ``steps`` steps whose ranks all do the same at the same time, on links that
    nothing else uses.

    ``transfer_s``: seconds as of :func:`alike_s`. ``ended`` and ``over``: as of :class:`PassingOn`. From one
    step to the next it is the time of a chunk, or of its first part and its latency if longer. The receivers'
    words come at the end.
    """

    def __init__(
        self,
        engine: Engine,
        lanes: Lanes,
        steps: int,
        transfer_s: float,
        ended: Callable[[int], None],
    ) -> None:
        self.over = False
        self._engine, self._lanes, self._steps, self._ended = (
            engine,
            lanes,
            steps,
            ended,
        )
        self._come = 0
        self._latency_s = lanes.way(0)[1]
        pace_s = max(transfer_s, self._latency_s + transfer_s / PARTS)
        self._passing_s = (steps - 1) * pace_s + transfer_s

    def begin(self, rank: int) -> None:
        """Called when the rank comes to the collective. Begin it with the last rank."""
        self._come += 1
        if self._come == len(self._lanes.sources):
            first_s = self._engine.now_s + self._latency_s
            self._engine.at(
                first_s + self._passing_s + self._lanes.back_s(0), self._end, first_s
            )

    def _end(self, first_s: float) -> None:
        if self.over:
            return
        for k, size in enumerate(self._lanes.sizes.tolist()):
            self._engine.note(
                self._lanes.way(k)[0],
                self._steps * size,
                first_s,
                first_s + self._passing_s,
            )
        for rank in self._lanes.sources:
            if not self.over:
                self._ended(rank)

    def continue_on(self, engine: Engine, ended: Callable[[int], None]) -> None:
        """Another engine has taken over what is under way."""
        self._engine, self._ended = engine, ended


#: Starts a flow for a part of a transfer whose sender had its bytes so many seconds ago; the last two as
#: ``more`` and ``done`` of :meth:`Engine.start`.
Transferring = Callable[
    [Part, float, Callable[[LinkFlow], float], Callable[[], None]], None
]


class PassingOn:
    """Execution of a plan by ``ranks`` ranks.

    ``ended(rank)`` is called when a rank has all that it receives, and its peers all that it sends.
    ``reduce_s_per_byte``: as in ``StepCost``. ``over``: set it, and nothing more is begun.
    """

    def __init__(
        self,
        engine: Engine,
        plan: Sequence[StepPlan],
        passing: Passing,
        ranks: int,
        reduce_s_per_byte: float,
        transfer: Transferring,
        ended: Callable[[int], None],
    ) -> None:
        self._latency = any(step_plan.lanes.late for step_plan in plan)
        self.over = False
        self._engine, self._plan, self._passing = engine, plan, passing
        self._transfer, self._ended, self._add_s = transfer, ended, reduce_s_per_byte
        parts = passing.parts
        self._sends_after = [part.sends_after for part in parts]
        self._counts_after = [part.counts_after for part in parts]
        self._ready_s = [0.0] * len(parts)
        self._next = [0] * len(passing.connections)
        self._busy = [False] * len(passing.connections)
        self._adding_until_s = [0.0] * ranks
        self._left = [
            len(sent) + len(received) + 1
            for sent, received in zip(passing.sent, passing.received, strict=True)
        ]

    def continue_on(self, engine: Engine, ended: Callable[[int], None]) -> None:
        """Another engine has taken over what is under way."""
        self._engine, self._ended = engine, ended

    def begin(self, rank: int) -> None:
        """Called when the rank comes to the collective. Release its transfers."""
        for index in self._passing.sent[rank]:
            self._may_go(index)
        for index in self._passing.awaiting[rank]:
            self._when_heard(index, self._may_go, index)
        for index in self._passing.received[rank]:
            self._may_count(index)
        self._less(rank)

    def _less(self, rank: int) -> None:
        self._left[rank] -= 1
        if self._left[rank] == 0 and not self.over:
            self._ended(rank)

    def _when_heard(
        self, index: int, function: Callable[[int], None], argument: int
    ) -> None:
        """Call ``function`` when the sender of a part has what its receiver says now."""
        part = self._passing.parts[index]
        back_s = self._plan[part.number].lanes.back_s(part.k)
        if back_s:
            self._engine.at(self._engine.now_s + back_s, function, argument)
        else:
            function(argument)

    def _may_go(self, index: int) -> None:
        self._sends_after[index] -= 1
        if self._sends_after[index] == 0:
            self._ready_s[index] = self._engine.now_s
            self._send(self._passing.parts[index].connection)

    def _head(self, connection: int) -> int | None:
        """Return the next part of a connection, or None if there is none or it may not go yet."""
        line, place = self._passing.connections[connection], self._next[connection]
        if self.over or place == len(line) or self._sends_after[line[place]]:
            return None
        return line[place]

    def _send(self, connection: int) -> None:
        index = None if self._busy[connection] else self._head(connection)
        if index is None:
            return
        self._busy[connection] = True
        waited_s = self._waited_s(index) if self._latency else 0.0

        def more(flow: LinkFlow) -> float:
            """Return the bytes that follow the arrived ones without a pause; 0 if there are none."""
            nonlocal index
            assert index is not None
            self._next[connection] += 1
            self._arrived(index)
            index = self._head(connection)
            if index is None:
                return 0.0
            part = self._passing.parts[index]
            try:
                links, latency_s = self._plan[part.number].lanes.way(part.k)
            except ValueError:
                return 0.0
            straight = links == flow.links and (
                not latency_s or self._waited_s(index) >= latency_s
            )
            return part.size if straight else 0.0

        def done() -> None:
            self._busy[connection] = False
            self._send(connection)

        self._transfer(self._passing.parts[index], waited_s, more, done)

    def _waited_s(self, index: int) -> float:
        """Return for how long the part could have gone, seconds."""
        return self._engine.now_s - self._ready_s[index]

    def _arrived(self, index: int) -> None:
        part = self._passing.parts[index]
        if not (self._add_s and part.adds):
            self._may_count(index)
            return
        begin_s = max(self._engine.now_s, self._adding_until_s[part.destination])
        until_s = self._adding_until_s[part.destination] = (
            begin_s + self._add_s * part.size
        )
        self._engine.at(until_s, lambda: self._may_count(index))

    def _may_count(self, index: int) -> None:
        counting = [index]
        while counting and not self.over:
            index = counting.pop()
            self._counts_after[index] -= 1
            if self._counts_after[index]:
                continue
            part = self._passing.parts[index]
            for other in part.lets_go:
                if self._passing.parts[other].source == part.destination:
                    self._may_go(other)
                else:
                    self._when_heard(other, self._may_go, other)
            counting += part.lets_count
            self._when_heard(index, self._less, part.source)
            self._less(part.destination)
