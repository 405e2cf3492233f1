"""Executes a rank's graph of operations: a thread for each stream, connections for each communicator.

Computation is a wait. A collective runs its schedule over the connections of its communicator, a message goes
over those of its pair of ranks; their payload is real, and every result is compared with what it must be
(``containers.worker.payload``), in one process.
"""

from __future__ import annotations

import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ringlight.containers.worker.events import EventLog
from ringlight.containers.worker.messages import Receiver, Sender
from ringlight.containers.worker.payload import Array, contribution, first_wrong
from ringlight.containers.worker.posted import FILE as POSTED
from ringlight.containers.worker.posted import Posted, told
from ringlight.containers.worker.release import wait_for_release
from ringlight.containers.worker.rendezvous import Line, Lines, connect_all, describe, listen, one_way, part
from ringlight.containers.worker.spec import BadSpec, WorkerSpec
from ringlight.containers.worker.transport import ITEM_BYTES, Transport, partners, retransmits
from ringlight.fabric.collectives import Schedule, chunk_bounds, local_bounds, schedule_of
from ringlight.fabric.kinds import holds, matrix_bounds, needs, vector_bytes
from ringlight.fabric.steps import BoolArray, IntArray
from ringlight.workloads.graph import Collective, Kind, Program, Workload, calls, covered_s
from ringlight.workloads.packed import unpack
from ringlight.workloads.splits import split_bytes

#: The workload's file in the worker's directory.
FILE = "workload"
#: The channel of messages comes after those of communicators.
_MESSAGES = 1 << 20
#: The streams of a rank take turns in one interpreter; with the usual 5 ms a message would wait for that.
_SWITCH_S = 0.0005
#: Schedules and transports that are kept.
_KEPT = 256


class Mismatch(ArithmeticError):
    """A collective or a message brought something else than it should have."""


def run_graph(spec: WorkerSpec, directory: Path, events: EventLog) -> None:
    """Connect, wait for the release, execute the graph ``spec.iterations`` times, and write the events.

    Raises PeerLost, NoConnection, Mismatch, TimeoutError, BadSpec (the workload cannot be read).
    """
    try:
        workload = unpack((directory / FILE).read_bytes())
    except ValueError as error:
        raise BadSpec(f"{FILE}: {error}") from None
    if workload.ranks != spec.world_size:
        raise BadSpec(f"{FILE}: it is for {workload.ranks} ranks, and the job has {spec.world_size}")
    sys.setswitchinterval(_SWITCH_S)
    graph = _Graph.of(workload, spec.rank)
    try:
        graph.check()
        lines = graph.lines(spec)
    except ValueError as error:
        raise BadSpec(f"{FILE}: {error}") from None
    deadline = time.monotonic() + spec.connect_timeout_s
    with listen(spec, deadline) as listener:
        connections = connect_all(spec, lines, listener)
    try:
        posted = Posted(directory / POSTED, spec.world_size) if spec.posted else None
        run = _Run(spec, graph, connections, events, posted)
        by_rank = [(line.peer, connection) for line, connection in sorted(connections.items())]
        events.write("ready", local=spec.address, connections=describe(by_rank))
        started = wait_for_release(directory / "go", by_rank, spec.go_timeout_s)
        events.write("started", at=started)
        run.run(started)
        held = describe(by_rank)
        run.part()
        events.write(
            "done",
            results_checked=run.checked,
            bytes_sent=run.sent,
            bytes_received=run.received,
            connections=held,
            retransmits=sum(retransmits(connection) for _, connection in by_rank),
            **told(posted),
        )
    finally:
        for connection in connections.values():
            connection.close()


@dataclass(frozen=True, eq=False)
class _Graph:
    """A rank's part of a workload, as lists. ``groups``: by communicator slot its ranks; ``peers`` by slot.

    ``call`` [operations]: how many collectives come before on the same communicator.
    """

    workload: Workload
    rank: int
    program: Program
    groups: tuple[tuple[int, ...], ...]
    numbers: tuple[int, ...]
    peers: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]
    call: tuple[int, ...]

    @classmethod
    def of(cls, workload: Workload, rank: int) -> _Graph:
        program = workload.programs[int(workload.program_of[rank])]
        numbers = tuple(workload.communicators[rank].tolist())
        after = np.split(program.after, program.after_offsets[1:-1])
        return cls(
            workload=workload,
            rank=rank,
            program=program,
            groups=tuple(tuple(workload.groups[n].tolist()) if n >= 0 else () for n in numbers),
            numbers=numbers,
            peers=tuple(workload.peers[rank].tolist()),
            after=tuple(tuple(one.tolist()) for one in after[: len(program)]),
            call=tuple(calls(program).tolist()),
        )

    def check(self) -> None:
        """Raises ValueError for what cannot be executed: it would be waited for without end."""
        program = self.program
        if not len(program):
            raise ValueError(f"rank {self.rank} has no operations")
        waits = np.isin(program.kind, (Kind.COMPUTE, Kind.MEMORY))
        for bad, rule in (
            (waits & ~np.isfinite(program.seconds), "has no seconds"),
            (~waits & (program.bytes % ITEM_BYTES != 0), f"has no multiple of {ITEM_BYTES} bytes"),
        ):
            if bad.any():
                k = int(bad.argmax())
                raise ValueError(f"operation {k} ({self.name(k)}) {rule}")

    def of_kind(self, kind: Kind) -> list[int]:
        return [int(k) for k in np.flatnonzero(self.program.kind == kind)]

    def what(self, k: int) -> Collective:
        return self.workload.collectives[int(self.program.collective[k])]

    def name(self, k: int) -> str:
        return self.workload.names[int(self.program.name[k])]

    def lines(self, spec: WorkerSpec) -> dict[Line, bool]:
        """Connections that the rank needs, and whether it sends payload on each."""
        found: dict[Line, bool] = {}
        for k in self.of_kind(Kind.COLLECTIVE):
            slot = int(self.program.slot[k])
            schedule = _schedule(*_shape(self.what(k), len(self.groups[slot])))
            for line, sends in self.collective_lines(spec, slot, schedule).sending().items():
                found[line] = sends or found.get(line, False)
        for kind in (Kind.SEND, Kind.RECEIVE):
            for k in self.of_kind(kind):
                found[self.message_line(self.peers[int(self.program.slot[k])], kind)] = kind == Kind.SEND
        return found

    def collective_lines(self, spec: WorkerSpec, slot: int, schedule: Schedule) -> Lines:
        group = self.groups[slot]
        to, from_ = partners(schedule, group.index(self.rank))
        return Lines.of(spec, [group[peer] for peer in to], [group[peer] for peer in from_], slot)

    def message_line(self, peer: int, kind: Kind) -> Line:
        return one_way(self.rank, peer, _MESSAGES, out=kind == Kind.SEND)


#: What a collective's schedule follows from: all but how bytes divide, and the ranks of its group.
_Shape = tuple[Collective, int]


def _shape(what: Collective, ranks: int) -> _Shape:
    return what._replace(split=None, sizes=None), ranks


@lru_cache(_KEPT)
def _terms(kind: str, ranks: int, chunks: int, root: int) -> tuple[BoolArray, BoolArray]:
    """Which chunks each rank has before a collective, and which after it, [ranks, chunks]."""
    return holds(kind, ranks, chunks, root), needs(kind, ranks, chunks, root)


@lru_cache(_KEPT)
def _schedule(what: Collective, ranks: int) -> Schedule:
    return schedule_of(what.steps(ranks))


def _bounds(what: Collective, schedule: Schedule, ranks: int, size: int, key: tuple[int, ...]) -> list[int]:
    """Bounds of the chunks, in elements."""
    sizes: Sequence[Sequence[int]] | IntArray | None = what.sizes
    if what.split is not None:
        sizes = split_bytes(what.split, ranks, size, key)
    if sizes is not None:
        return [_elements(begin) for begin in matrix_bounds(sizes).tolist()]
    pairs = chunk_bounds(_elements(vector_bytes(what.kind, ranks, size)), schedule.chunks)
    return [0, *(end for _, end in pairs)]


def _elements(size: int) -> int:
    if size % ITEM_BYTES:
        raise ValueError(f"{size} bytes are no whole number of float32")
    return size // ITEM_BYTES


#: First chunk, the one behind the last, and whose values are summed there.
_Part = tuple[int, int, list[int]]


def _parts(chosen: BoolArray, holders: BoolArray) -> Iterator[_Part]:
    """The chosen chunks, neighbours of the same ``holders`` [ranks, chunks] together."""
    chunks = np.flatnonzero(chosen)
    if not len(chunks):
        return
    theirs = np.broadcast_to(holders, (len(holders), len(chosen)))[:, chunks]
    new = (np.diff(chunks) > 1) | (theirs[:, 1:] != theirs[:, :-1]).any(axis=0)
    for run in np.split(np.arange(len(chunks)), np.flatnonzero(new) + 1):
        yield int(chunks[run[0]]), int(chunks[run[-1]]) + 1, np.flatnonzero(theirs[:, run[0]]).tolist()


class _Stopped(Exception):
    """Ends a stream because another one failed."""


@dataclass
class _Iteration:
    """One iteration under way: when each of the rank's operations began and ended, NaN before."""

    number: int
    begin: float
    begins: list[float]
    ends: list[float]
    left: int
    lateness_s: float = 0.0
    max_stall_s: float = 0.0
    stalls: list[tuple[float, float]] = field(default_factory=list)


class _Run:
    """The iterations of one rank. The thread of each stream executes the stream's operations in order."""

    def __init__(
        self,
        spec: WorkerSpec,
        graph: _Graph,
        connections: Mapping[Line, socket.socket],
        events: EventLog,
        posted: Posted | None,
    ) -> None:
        self._spec, self._graph, self._events, self._posted = spec, graph, events, posted
        self.checked = self.sent = self.received = 0
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        #: Those of collectives.
        self._wired: dict[Line, socket.socket] = {}
        self._senders: dict[int, Sender] = {}
        self._receivers: dict[int, Receiver] = {}
        for line, connection in sorted(connections.items()):
            if line == graph.message_line(line.peer, Kind.SEND):
                self._senders[line.peer] = Sender(line.peer, connection, spec.peer_timeout_s, posted)
            elif line == graph.message_line(line.peer, Kind.RECEIVE):
                self._receivers[line.peer] = Receiver(line.peer, connection, spec.peer_timeout_s)
            else:
                self._wired[line] = connection
        #: By communicator slot, which one stream alone uses.
        self._transports: dict[int, dict[tuple[Any, ...], Transport]] = {
            s: {} for s in range(len(graph.groups))
        }
        self._buffers: dict[int, Array] = {}
        streams: dict[int, list[int]] = {}
        for k, stream in enumerate(graph.program.stream.tolist()):
            streams.setdefault(stream, []).append(k)
        self._streams = list(streams.values())
        self._now: _Iteration | None = None

    def run(self, started: float) -> None:
        """Run all iterations; raises what the first failed operation raised."""
        self._now = self._next(0, started)
        threads = [
            threading.Thread(target=self._follow, args=(operations,), name="stream", daemon=True)
            for operations in self._streams
        ]
        for thread in threads:
            thread.start()
        with self._changed:
            # Each operation has a deadline of its own.
            self._changed.wait_for(lambda: self._now is None or self._failure is not None)
            failure = self._failure
        if failure is not None:
            raise failure
        for thread in threads:
            thread.join(self._spec.peer_timeout_s)

    def part(self) -> None:
        """Say that all is said and wait until the peers say so too. Raises PeerLost."""
        for kept in self._transports.values():
            for transport in kept.values():
                transport.close()
        part([(line.peer, connection) for line, connection in self._wired.items()], self._spec.peer_timeout_s)
        for end in (*self._senders.values(), *self._receivers.values()):
            end.hang_up()
        for end in (*self._senders.values(), *self._receivers.values()):
            end.join()

    # -- iterations

    def _next(self, number: int, begin: float) -> _Iteration | None:
        if number == self._spec.iterations:
            return None
        count = len(self._graph.program)
        return _Iteration(number, begin, [np.nan] * count, [np.nan] * count, count)

    def _follow(self, operations: list[int]) -> None:
        try:
            for number in range(self._spec.iterations):
                with self._changed:
                    self._wait(lambda: self._now is not None and self._now.number == number)  # noqa: B023
                    now = self._now
                assert now is not None
                free = now.begin
                for k in operations:
                    free = self._operate(now, k, free)
        except _Stopped:
            return
        except BaseException as error:  # noqa: BLE001 - run() raises it
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _operate(self, now: _Iteration, k: int, free: float) -> float:
        """One operation, in a stream that is ``free`` since then; when it ended."""
        # What it needs is made while it waits for others.
        perform = self._prepared(now, k)
        after = self._graph.after[k]
        with self._changed:
            self._wait(lambda: not any(math.isnan(now.ends[other]) for other in after))
            begin = max([free, *(now.ends[other] for other in after)])
        end = perform(begin)
        with self._changed:
            now.begins[k], now.ends[k] = begin, end
            now.left -= 1
            if not now.left:
                self._tell(now)
                self._now = self._next(now.number + 1, max(now.ends))
            self._changed.notify_all()
        return end

    def _wait(self, there: Callable[[], bool]) -> None:
        """Wait until ``there`` is true; its cause has a deadline. Raises _Stopped once anything failed."""
        self._changed.wait_for(lambda: self._failure is not None or there())
        if self._failure is not None:
            raise _Stopped

    def _tell(self, now: _Iteration) -> None:
        program, end = self._graph.program, max(now.ends)
        busy = np.isin(program.kind, (Kind.COMPUTE, Kind.MEMORY))
        times = np.array((now.begins, now.ends)).T
        self._events.write(
            "iteration",
            i=now.number,
            compute_start=now.begin,
            compute_end=now.begin + covered_s(times[busy]),
            allreduce_end=end,
            lateness_s=now.lateness_s,
            max_stall_s=now.max_stall_s,
            stalls=now.stalls,
        )
        since_begin_s = np.round(times - now.begin, 6)
        self._events.write("operations", i=now.number, begin=now.begin, times_s=since_begin_s.tolist())

    # -- operations: what is to be done once it may begin, and when that ended

    def _prepared(self, now: _Iteration, k: int) -> Callable[[float], float]:
        match Kind(int(self._graph.program.kind[k])):
            case Kind.COLLECTIVE:
                return self._collective(now, k)
            case Kind.SEND:
                return self._send(now, k)
            case Kind.RECEIVE:
                return self._receive(now, k)
            case _:
                return self._compute(now, k)

    def _compute(self, now: _Iteration, k: int) -> Callable[[float], float]:
        seconds = float(self._graph.program.seconds[k]) * self._spec.slower

        def perform(begin: float) -> float:
            due = begin + seconds
            while (left := due - time.monotonic()) > 0:
                time.sleep(left)
            with self._changed:
                now.lateness_s = max(now.lateness_s, time.monotonic() - due)
            # A late timer delays only what follows it, not the whole chain.
            return due

        return perform

    def _send(self, now: _Iteration, k: int) -> Callable[[float], float]:
        program, graph = self._graph.program, self._graph
        peer, tag, size = graph.peers[int(program.slot[k])], int(program.tag[k]), int(program.bytes[k])
        payload = contribution((graph.rank,), (peer, tag, now.number), 0, _elements(size))

        def perform(_begin: float) -> float:
            self._senders[peer].send(tag, memoryview(payload).cast("B"))  # type: ignore[arg-type]
            end = time.monotonic()
            with self._changed:
                self.sent += size
            return end

        return perform

    def _receive(self, now: _Iteration, k: int) -> Callable[[float], float]:
        program, graph = self._graph.program, self._graph
        peer, tag, size = graph.peers[int(program.slot[k])], int(program.tag[k]), int(program.bytes[k])
        payload = np.empty(_elements(size), dtype=np.float32)

        def perform(_begin: float) -> float:
            self._receivers[peer].receive(tag, memoryview(payload).cast("B"))  # type: ignore[arg-type]
            end = time.monotonic()
            self._check(now, k, payload, (peer,), (graph.rank, tag, now.number), 0)
            with self._changed:
                self.received += size
            return end

        return perform

    def _collective(self, now: _Iteration, k: int) -> Callable[[float], float]:
        program, graph = self._graph.program, self._graph
        what, slot, size = graph.what(k), int(program.slot[k]), int(program.bytes[k])
        group = graph.groups[slot]
        mine, key = group.index(graph.rank), (graph.numbers[slot], graph.call[k], now.number)
        schedule = _schedule(*_shape(what, len(group)))
        before, after = _terms(what.kind, len(group), schedule.chunks, what.root)
        bounds = _bounds(what, schedule, len(group), size, key)
        here = local_bounds(schedule, mine, bounds, before[mine] | after[mine])
        vector = self._buffer(slot, here[-1])
        for first, end, ranks in _parts(before[mine], np.eye(len(group), dtype=bool)[:, [mine]]):
            count = here[end] - here[first]
            vector[here[first] : here[end]] = contribution(ranks, key, bounds[first], count)
        transport = self._transport(slot, _shape(what, len(group)), here, mine)

        def perform(_begin: float) -> float:
            report = transport.run(vector)
            end_s = time.monotonic()
            for first, end, ranks in _parts(after[mine], before):
                self._check(now, k, vector[here[first] : here[end]], ranks, key, bounds[first])
            with self._changed:
                self.sent += report.bytes_sent
                self.received += report.bytes_received
                now.max_stall_s = max(now.max_stall_s, report.max_stall_s)
                now.stalls += report.stalls
            return end_s

        return perform

    def _buffer(self, slot: int, length: int) -> Array:
        if len(self._buffers.get(slot, ())) < length:
            self._buffers[slot] = np.empty(length, dtype=np.float32)
        return self._buffers[slot][:length]

    def _transport(self, slot: int, shape: _Shape, bounds: Sequence[int], mine: int) -> Transport:
        """Transport of a collective, kept for further calls with the same chunks."""
        key, kept = (*shape, tuple(bounds)), self._transports[slot]
        found = kept.pop(key, None)
        if found is None:
            group, schedule, posted = self._graph.groups[slot], _schedule(*shape), self._posted
            lines = self._graph.collective_lines(self._spec, slot, schedule)
            found = Transport(
                schedule,
                mine,
                {group.index(peer): self._wired[line] for peer, line in lines.out.items()},
                bounds[-1],
                self._spec.peer_timeout_s,
                bounds=bounds,
                into={group.index(peer): self._wired[line] for peer, line in lines.into.items()},
                on_begin=None if posted is None else lambda peer, size: posted.add(group[peer], size),
            )
        kept[key] = found
        if len(kept) > _KEPT:
            kept.pop(next(iter(kept))).close()
        return found

    def _check(
        self, now: _Iteration, k: int, part: Array, ranks: Iterable[int], key: tuple[int, ...], first: int
    ) -> None:
        """Raises Mismatch."""
        if (wrong := first_wrong(part, ranks, key, first)) is not None:
            where = f"iteration {now.number}, operation {k} ({self._graph.name(k)})"
            raise Mismatch(f"{where}: element {wrong} is wrong")
        with self._changed:
            self.checked += 1
