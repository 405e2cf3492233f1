"""Finds the phases of a workload: stretches in which ranks send over the same circuits.

What communicates is put into one order for all ranks: by when each could begin if sending took no time. In
that order, what follows on the same circuits of the same ranks is one phase.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ringlight.extensions.sip_ml.phases import Phase, PhasePlan
from ringlight.fabric.kinds import matrix_bounds, vector_bytes
from ringlight.workloads.graph import Kind, Workload, calls, dependencies
from ringlight.workloads.splits import split_bytes

#: Bytes of each pair of ranks.
_Pairs = dict[tuple[int, int], float]


class _Meeting(NamedTuple):
    """A collective of a group, or a message: all that its ranks do in it together.

    ``what``: index of the collective, -1 of a message. ``where``: the group and the slot, or the ranks that
    send and receive. ``number``: which of those there.
    """

    what: int
    where: tuple[int, int]
    tag: int
    number: int


def phases_of(workload: Workload) -> PhasePlan:
    """Return the phases of an iteration.

    Raises ValueError naming a rank that waits for ever, and an operation without seconds.
    """
    writing = _Writing(workload)
    for meeting, ends in _in_order(workload):
        writing.add(meeting, ends)
    return writing.done()


class _Writing:
    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._phases: list[tuple[tuple[int, ...], _Pairs]] = []
        self._present = [-1] * workload.ranks
        self._phase_of = [
            [-1] * len(workload.programs[program])
            for program in workload.program_of.tolist()
        ]
        self._known: dict[tuple[int, int, int], _Pairs] = {}

    def add(self, meeting: _Meeting, ends: list[tuple[int, int]]) -> None:
        """Add a meeting. ``ends``: the ranks that meet and the operation of each."""
        pairs = self._pairs(meeting, *ends[0])
        ranks = tuple(sorted({rank for pair in pairs for rank in pair}))
        if not ranks:
            return
        present = {self._present[rank] for rank in ranks}
        number = present.pop()
        fits = not present and number >= 0 and self._phases[number][0] == ranks
        if fits and _fits(self._phases[number][1], pairs):
            own = self._phases[number][1]
            for pair, size in pairs.items():
                own[pair] = own.get(pair, 0.0) + size
        else:
            number = len(self._phases)
            self._phases.append((ranks, dict(pairs)))
        for rank, operation in ends:
            if rank in ranks:
                self._present[rank] = number
                self._phase_of[rank][operation] = number

    def done(self) -> PhasePlan:
        return PhasePlan(
            tuple(Phase(ranks, pairs) for ranks, pairs in self._phases),
            tuple(map(tuple, self._phase_of)),
        )

    def _pairs(self, meeting: _Meeting, rank: int, operation: int) -> _Pairs:
        program = self._workload.programs[int(self._workload.program_of[rank])]
        size = int(program.bytes[operation])
        if meeting.what < 0:
            return {meeting.where: float(size)} if size else {}
        group = meeting.where[0]
        what = self._workload.collectives[meeting.what]
        drawn = what.split is not None and what.split.skew > 0
        key = (meeting.what, group, size)
        if key not in self._known or drawn:
            self._known[key] = self._of_collective(meeting, size, drawn)
        return self._known[key]

    def _of_collective(self, meeting: _Meeting, size: int, drawn: bool) -> _Pairs:
        members = self._workload.groups[meeting.where[0]].tolist()
        what = self._workload.collectives[meeting.what]
        steps = what.steps(len(members))
        bounds: npt.NDArray[Any]
        if drawn:
            assert what.split is not None
            key = (meeting.where[0], meeting.number, 0)
            bounds = matrix_bounds(
                split_bytes(what.split, len(members), size, key).tolist()
            )
        elif what.sizes is not None:
            bounds = matrix_bounds(what.sizes)
        else:
            whole = vector_bytes(what.kind, len(members), size)
            bounds = np.arange(steps.chunks + 1) * (whole / steps.chunks)
        pairs: _Pairs = {}
        for step in steps:
            sizes = (bounds[step.first + step.count] - bounds[step.first]).tolist()
            for a, b, sent in zip(
                step.sources.tolist(), step.destinations.tolist(), sizes, strict=True
            ):
                if sent:
                    pair = (members[a], members[b])
                    pairs[pair] = pairs.get(pair, 0.0) + sent
        return pairs


def _fits(own: _Pairs, more: _Pairs) -> bool:
    """Return whether two sets of pairs fit into one phase.

    They fit if no rank has more partners than the busiest rank of either set.
    """
    both = own.keys() | more.keys()
    if len(both) == len(own):
        return True
    return all(
        _most(both, end) <= max(_most(own, end), _most(more, end)) for end in (0, 1)
    )


def _most(pairs: Iterable[tuple[int, int]], end: int) -> int:
    return max(Counter(pair[end] for pair in pairs).values())


def _in_order(workload: Workload) -> Iterator[tuple[_Meeting, list[tuple[int, int]]]]:
    """Yield meetings and their ends, by when they could begin if sending took no time.

    Ties are as programs have them. Raises ValueError naming a rank that waits for ever, and an operation
    without seconds.
    """
    programs = workload.programs
    waiting = [dependencies(workload, program) for program in programs]
    kinds, seconds = (
        [getattr(item, name).tolist() for item in programs]
        for name in ("kind", "seconds")
    )
    of = workload.program_of.tolist()
    waits = [list(waiting[number].counts) for number in of]
    meetings: dict[_Meeting, list[tuple[int, int]]] = {}
    expected = [_expected(workload, rank) for rank in range(workload.ranks)]
    #: What ends then: time, rank, operation.
    due: list[tuple[float, int, int]] = []
    now_s, open_ = 0.0, sum(len(programs[number]) for number in of)

    def begin(
        rank: int, operation: int
    ) -> Iterator[tuple[_Meeting, list[tuple[int, int]]]]:
        number = of[rank]
        if kinds[number][operation] in (Kind.COMPUTE, Kind.MEMORY):
            heapq.heappush(due, (now_s + seconds[number][operation], rank, operation))
            return
        meeting, ends = expected[rank][operation]
        come = meetings.setdefault(meeting, [])
        come.append((rank, operation))
        if len(come) == ends:
            del meetings[meeting]
            yield meeting, come
            for item in come:
                heapq.heappush(due, (now_s, *item))

    ready = [
        (operation, rank)
        for rank, number in enumerate(of)
        for operation in waiting[number].first
    ]
    while ready or due:
        # Of ranks that are alike all do one operation before any does the next: theirs is one order.
        for operation, rank in sorted(ready):
            yield from begin(rank, operation)
        ready = []
        if due:
            now_s = due[0][0]
        while due and due[0][0] == now_s:
            _, rank, operation = heapq.heappop(due)
            open_ -= 1
            for follower in waiting[of[rank]].followers[operation]:
                waits[rank][follower] -= 1
                if not waits[rank][follower]:
                    ready.append((follower, rank))
    if open_:
        rank, operation = next(iter(meetings.values()), [(0, 0)])[0]
        raise ValueError(
            f"{workload.name}: rank {rank} waits for ever in operation {operation}"
        )


def _expected(workload: Workload, rank: int) -> dict[int, tuple[_Meeting, int]]:
    """Return the meeting of each of a rank's operations that communicate, and how many ends it has."""
    program = workload.programs[int(workload.program_of[rank])]
    ordinals = calls(program).tolist()
    seen: dict[tuple[int, int, int], int] = {}
    meetings = {}
    columns = (program.kind, program.slot, program.collective, program.tag)
    for k, (kind, slot, what, tag) in enumerate(
        zip(*(c.tolist() for c in columns), strict=True)
    ):
        if kind == Kind.COLLECTIVE:
            group = int(workload.communicators[rank, slot])
            meetings[k] = (
                _Meeting(what, (group, slot), 0, ordinals[k]),
                len(workload.groups[group]),
            )
        elif kind in (Kind.SEND, Kind.RECEIVE):
            peer = int(workload.peers[rank, slot])
            ends = (rank, peer) if kind == Kind.SEND else (peer, rank)
            number = seen[(*ends, tag)] = seen.get((*ends, tag), 0) + 1
            meetings[k] = _Meeting(-1, ends, tag, number), 2
    return meetings
