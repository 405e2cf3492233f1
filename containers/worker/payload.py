"""Payload of a rank's collectives and messages; here numbers whose sums are exact in any order.

Each rank contributes small whole numbers, drawn from a table at a place that rank, operation and iteration
decide. Sums of up to 4,096 ranks stay below 2^24, so float32 holds them exactly whatever the order, and the
result of an operation can be computed by any rank alone: that is what every result is compared with.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ringlight.containers.worker.assignment import partners
from ringlight.containers.worker.elements import ITEM_BYTES
from ringlight.containers.worker.flows import Flows
from ringlight.containers.worker.posted import Posted
from ringlight.containers.worker.rendezvous import Line, Lines
from ringlight.containers.worker.spec import WorkerSpec
from ringlight.containers.worker.transport import RunReport, Transport
from ringlight.fabric.collectives import (
    Schedule,
    chunk_bounds,
    local_bounds,
    schedule_of,
)
from ringlight.fabric.kinds import holds, matrix_bounds, needs, vector_bytes
from ringlight.fabric.steps import BoolArray, IntArray
from ringlight.workloads.graph import Collective, Kind, Program, Workload, calls
from ringlight.workloads.splits import split_bytes

Array = npt.NDArray[np.float32]
#: Length of the table. A prime, so that a chunk in another's place is noticed unless it is that far away.
PERIOD = 4093
_TABLE = np.random.default_rng(20261122).integers(1, 4096, PERIOD).astype(np.float32)
#: Schedules and transports that are kept.
_KEPT = 256


class Mismatch(ArithmeticError):
    """A collective or a message brought something else than it should have."""


class RankGraph:
    """A rank's part of a workload. ``groups``: by communicator slot its ranks; ``peers``: by slot.

    ``after`` [operations]: what each comes after. Raises ValueError for what cannot be executed: it would be
    waited for without end.
    """

    def __init__(self, workload: Workload, rank: int) -> None:
        self.workload, self.rank = workload, rank
        self.program: Program = workload.programs[int(workload.program_of[rank])]
        self.numbers: list[int] = workload.communicators[rank].tolist()
        self.groups: list[list[int]] = [
            workload.groups[n].tolist() if n >= 0 else [] for n in self.numbers
        ]
        self.peers: list[int] = workload.peers[rank].tolist()
        after = np.split(self.program.after, self.program.after_offsets[1:-1])
        self.after: list[list[int]] = [
            earlier.tolist() for earlier in after[: len(self.program)]
        ]
        self._check()

    def _check(self) -> None:
        program = self.program
        if not len(program):
            raise ValueError(f"rank {self.rank} has no operations")
        waits = np.isin(program.kind, (Kind.COMPUTE, Kind.MEMORY))
        for bad, rule in (
            (waits & ~np.isfinite(program.seconds), "has no seconds"),
            (
                ~waits & (program.bytes % ITEM_BYTES != 0),
                f"has no multiple of {ITEM_BYTES} bytes",
            ),
        ):
            if bad.any():
                k = int(bad.argmax())
                raise ValueError(f"operation {k} ({self.name(k)}) {rule}")

    def group(self, k: int) -> list[int]:
        """Return the ranks that take part in collective ``k``."""
        return self.groups[int(self.program.slot[k])]

    def of_kind(self, kind: Kind) -> list[int]:
        return [int(k) for k in np.flatnonzero(self.program.kind == kind)]

    def name(self, k: int) -> str:
        return self.workload.names[int(self.program.name[k])]


class Payload:
    """Payload of the operations of a rank's graph, with a hook for each step that another kind of payload
    changes.

    ``posted``: counter of transfers as they begin. ``flows``: the O-NIC, if it is asked for light.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        graph: RankGraph,
        posted: Posted | None,
        flows: Flows | None,
    ) -> None:
        self._spec, self._graph, self.posted, self._flows = spec, graph, posted, flows
        self._call: list[int] = calls(graph.program).tolist()
        self._wired: Mapping[Line, socket.socket] = {}
        self._buffers: dict[int, Array] = {}
        #: By communicator slot, which one stream alone uses.
        self._transports: list[dict[tuple[Any, ...], Transport]] = [
            {} for _ in graph.groups
        ]

    def lines(self) -> dict[Line, bool]:
        """Return the connections of the rank's collectives, each with whether the rank sends payload on it.
        Raises ValueError.
        """
        connections: dict[Line, bool] = {}
        for k in self._graph.of_kind(Kind.COLLECTIVE):
            for line, sends in self._lines(k).sending().items():
                connections[line] = sends or connections.get(line, False)
        return connections

    @contextlib.contextmanager
    def over(self, connections: Mapping[Line, socket.socket]) -> Iterator[None]:
        """Carry the payload over these connections for the length of the ``with`` block."""
        self._wired = connections
        try:
            yield
        finally:
            for kept in self._transports:
                for transport in kept.values():
                    transport.close()

    def compute(self, iteration: int) -> bool:
        """Do the work of a computation. Return whether there is any except its time."""
        return False

    def collective(
        self, iteration: int, k: int
    ) -> tuple[Callable[[], RunReport], Callable[[], int]]:
        """Prepare a collective. Return a function that runs it, and a function that checks its result.

        The check returns how many parts of the result are right, or raises Mismatch. Streams may call this
        method at the same time.
        """
        program, graph = self._graph.program, self._graph
        what, slot, group = self._what(k), int(program.slot[k]), graph.group(k)
        mine, key = (
            group.index(graph.rank),
            (graph.numbers[slot], self._call[k], iteration),
        )
        schedule = self._schedule(k)
        before, after = _terms(what.kind, len(group), schedule.chunks, what.root)
        bounds = self.bounds(k, key)
        here = local_bounds(schedule, mine, bounds, before[mine] | after[mine])
        vector = self._buffer(slot, here[-1])
        for first, end, ranks in _parts(
            before[mine], np.eye(len(group), dtype=bool)[:, [mine]]
        ):
            count = here[end] - here[first]
            vector[here[first] : here[end]] = contribution(
                ranks, key, bounds[first], count
            )
        transport = self.transport(k, here)

        def check() -> int:
            parts = list(_parts(after[mine], before))
            for first, end, ranks in parts:
                self.check(
                    iteration,
                    k,
                    vector[here[first] : here[end]],
                    ranks,
                    key,
                    bounds[first],
                )
            return len(parts)

        return lambda: transport.run(vector), check

    def check(
        self,
        iteration: int,
        k: int,
        part: Array,
        ranks: Iterable[int],
        key: tuple[int, ...],
        first: int = 0,
    ) -> None:
        """Compare a part of operation ``k``'s result with the sum of what ``ranks`` contribute under ``key``
        from element ``first`` on. Raises Mismatch. For any thread."""
        if (wrong := first_wrong(part, ranks, key, first)) is not None:
            where = f"iteration {iteration}, operation {k} ({self._graph.name(k)})"
            raise Mismatch(f"{where}: element {wrong} is wrong")

    def end(self, iteration: int) -> dict[str, object]:
        """Called when all operations of an iteration have ended. Return the fields of its event besides
        times.
        """
        return {}

    def outcome(self, checked: int) -> dict[str, object]:
        """Return the fields of the last event besides the amounts moved. ``checked``: number of parts of
        results that were right.
        """
        return {"results_checked": checked}

    def bounds(self, k: int, key: tuple[int, ...] = ()) -> list[int]:
        """Return the bounds of a collective's chunks, in elements. ``key``: numbers by which an all-to-all-v
        is drawn.
        """
        what, ranks, size = (
            self._what(k),
            len(self._graph.group(k)),
            int(self._graph.program.bytes[k]),
        )
        sizes: Sequence[Sequence[int]] | IntArray | None = what.sizes
        if what.split is not None:
            sizes = split_bytes(what.split, ranks, size, key)
        if sizes is not None:
            return [elements(begin) for begin in matrix_bounds(sizes).tolist()]
        pairs = chunk_bounds(
            elements(vector_bytes(what.kind, ranks, size)), self._schedule(k).chunks
        )
        return [0, *(end for _, end in pairs)]

    def transport(self, k: int, bounds: Sequence[int]) -> Transport:
        """Return the transport of a collective. It is kept for further calls with the same chunks."""
        group, kept = (
            self._graph.group(k),
            self._transports[int(self._graph.program.slot[k])],
        )
        key = (_shape(self._what(k)), tuple(bounds))
        transport = kept.pop(key, None)
        if transport is None:
            posted, (to, into) = self.posted, self.sockets(k)
            transport = Transport(
                self._schedule(k),
                group.index(self._graph.rank),
                to,
                bounds[-1],
                self._spec.peer_timeout_s,
                self._flows,
                [self._spec.peers[rank] for rank in group],
                bounds=bounds,
                into=into,
                on_begin=None
                if posted is None
                else lambda peer, size: posted.add(group[peer], size),
            )
        kept[key] = transport
        if len(kept) > _KEPT:
            kept.pop(next(iter(kept))).close()
        return transport

    def sockets(
        self, k: int
    ) -> tuple[dict[int, socket.socket], dict[int, socket.socket]]:
        """Return the connections for payload to other ranks of a collective's group, and the connections for
        payload from them, by position in the group.
        """
        group = self._graph.group(k)
        to, into = (
            {group.index(peer): self._wired[line] for peer, line in way.items()}
            for way in self._lines(k)
        )
        return to, into

    def _what(self, k: int) -> Collective:
        return self._graph.workload.collectives[int(self._graph.program.collective[k])]

    def _schedule(self, k: int) -> Schedule:
        return _schedule(_shape(self._what(k)), len(self._graph.group(k)))

    def _lines(self, k: int) -> Lines:
        group = self._graph.group(k)
        to, from_ = partners(self._schedule(k), group.index(self._graph.rank))
        slot = int(self._graph.program.slot[k])
        return Lines.of(
            self._spec,
            [group[peer] for peer in to],
            [group[peer] for peer in from_],
            slot,
        )

    def _buffer(self, slot: int, length: int) -> Array:
        if len(self._buffers.get(slot, ())) < length:
            self._buffers[slot] = np.empty(length, dtype=np.float32)
        return self._buffers[slot][:length]


def contribution(
    ranks: Iterable[int], key: tuple[int, ...], first: int, count: int
) -> Array:
    """Return the sum of the contributions of ``ranks`` to ``count`` elements of operation ``key`` from
    element ``first`` on.
    """
    period = np.zeros(PERIOD, dtype=np.float32)
    for rank in ranks:
        period += np.roll(_TABLE, -_place(rank, key))
    sums: Array = np.resize(np.roll(period, -(first % PERIOD)), count)
    return sums


def first_wrong(
    part: Array, ranks: Iterable[int], key: tuple[int, ...], first: int
) -> int | None:
    """Return the first element of ``part``, which begins at ``first``, that is not the sum; None if all are
    right.
    """
    wrong: npt.NDArray[Any] = np.flatnonzero(
        part != contribution(ranks, key, first, len(part))
    )
    return first + int(wrong[0]) if len(wrong) else None


def _place(rank: int, key: tuple[int, ...]) -> int:
    # Neighbouring keys and ranks must not meet in one place; for one key no two ranks do.
    place = 0
    for part in key:
        place = (place * 2741 + part + 1) % PERIOD
    return (place + rank * 1291) % PERIOD


def _shape(what: Collective) -> Collective:
    """Return the fields of a collective that decide its schedule: all except how its bytes divide."""
    return what._replace(split=None, sizes=None)


@lru_cache(_KEPT)
def _terms(
    kind: str, ranks: int, chunks: int, root: int
) -> tuple[BoolArray, BoolArray]:
    """Return the chunks that each rank has before a collective, and the chunks that it has after it, as two
    arrays [ranks, chunks].
    """
    return holds(kind, ranks, chunks, root), needs(kind, ranks, chunks, root)


@lru_cache(_KEPT)
def _schedule(what: Collective, ranks: int) -> Schedule:
    return schedule_of(what.steps(ranks))


def elements(size: int) -> int:
    """Return how many float32 values ``size`` bytes hold. Raises ValueError if that is not a whole number."""
    if size % ITEM_BYTES:
        raise ValueError(f"{size} bytes are no whole number of float32")
    return size // ITEM_BYTES


#: First chunk, the one behind the last, and whose values are summed there.
_Part = tuple[int, int, list[int]]


def _parts(chosen: BoolArray, holders: BoolArray) -> Iterator[_Part]:
    """Yield the chosen chunks as (first, end, holders), with neighbours of the same ``holders`` [ranks,
    chunks] together.
    """
    chunks = np.flatnonzero(chosen)
    if not len(chunks):
        return
    theirs = np.broadcast_to(holders, (len(holders), len(chosen)))[:, chunks]
    new = (np.diff(chunks) > 1) | (theirs[:, 1:] != theirs[:, :-1]).any(axis=0)
    for run in np.split(np.arange(len(chunks)), np.flatnonzero(new) + 1):
        yield (
            int(chunks[run[0]]),
            int(chunks[run[-1]]) + 1,
            np.flatnonzero(theirs[:, run[0]]).tolist(),
        )
