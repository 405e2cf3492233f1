"""Executes a rank's graph of operations: a thread for each stream, connections for each communicator.

Computation is a wait. A collective runs its schedule over the connections of its communicator, a message goes
over those of its pair of ranks. The payload (``containers.worker.payload``) decides what they carry: numbers
whose sums are known beforehand, to which every result is compared, or a training's gradients.
"""

from __future__ import annotations

import contextlib
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ringlight.containers.worker.beacon import Beacons
from ringlight.containers.worker.events import EventLog
from ringlight.containers.worker.messages import Receiver, Sender
from ringlight.containers.worker.nics import carried, carried_since
from ringlight.containers.worker.payload import (
    Payload,
    RankGraph,
    contribution,
    elements,
)
from ringlight.containers.worker.posted import FILE as POSTED
from ringlight.containers.worker.posted import Posted, done_fields
from ringlight.containers.worker.release import wait_for_release
from ringlight.containers.worker.rendezvous import (
    Line,
    connect_all,
    describe,
    listen,
    one_way,
    onic,
    part,
)
from ringlight.containers.worker.spec import BadSpec, WorkerSpec
from ringlight.containers.worker.tcp_state import retransmits, round_trip_s
from ringlight.workloads.following import Progress, followings
from ringlight.workloads.graph import Kind, Workload, covered_s
from ringlight.workloads.packed import unpack

#: The workload's file in the worker's directory.
FILE = "workload"
#: The channel of messages comes after those of communicators.
_MESSAGES = 1 << 20
#: The streams of a rank take turns in one interpreter; with the usual 5 ms a message would wait for that.
_SWITCH_S = 0.0005


def run_graph(spec: WorkerSpec, directory: Path, events: EventLog) -> None:
    """Execute the graph that the server agent wrote into ``directory``; its payload are known numbers.

    Raises BadSpec (it cannot be read), and as :func:`run`.
    """
    try:
        workload = unpack((directory / FILE).read_bytes())
    except ValueError as error:
        raise BadSpec(f"{FILE}: {error}") from None
    if workload.ranks != spec.world_size:
        raise BadSpec(
            f"{FILE}: it is for {workload.ranks} ranks, and the job has {spec.world_size}"
        )
    run(spec, directory, events, workload, Payload)


def run(
    spec: WorkerSpec,
    directory: Path,
    events: EventLog,
    workload: Workload,
    carries: type[Payload],
) -> None:
    """Connect, wait for the release, execute the graph ``spec.iterations`` times, and write the events.

    Raises PeerLost, NoConnection, ArithmeticError (a wrong result), TimeoutError (never released), BadSpec
    (the workload cannot be executed), and what the payload raises.
    """
    with contextlib.ExitStack() as stack:
        flows = stack.enter_context(onic(spec))
        posted = Posted(directory / POSTED, spec.world_size) if spec.posted else None
        try:
            graph = RankGraph(workload, spec.rank)
            payload = carries(spec, graph, posted, flows)
            lines = payload.lines() | _message_lines(graph)
            progress = _progress(spec, workload)
        except ValueError as error:
            raise BadSpec(f"{FILE}: {error}") from None
        prepared = time.monotonic()
        deadline = prepared + spec.connect_timeout_s
        with listen(spec, deadline) as listener:
            connections = connect_all(spec, lines, listener)
        for connection in connections.values():
            stack.callback(connection.close)
        by_rank = [
            (line.peer, connection) for line, connection in sorted(connections.items())
        ]
        with payload.over(connections), Beacons(spec) as beacons:
            rank = _Rank(spec, graph, payload, connections, events, progress)
            events.write(
                "ready",
                local=spec.address,
                prepared=prepared,
                connections=describe(by_rank),
            )
            started = wait_for_release(directory / "go", by_rank, spec.go_timeout_s)
            events.write("started", at=started)
            before = carried()
            rank.run(started)
            wire, held = carried_since(before), describe(by_rank)
            rank.part()
        events.write(
            "done",
            **payload.outcome(rank.checked),
            bytes_sent=rank.sent,
            bytes_received=rank.received,
            bytes_lent=rank.lent,
            connections=held,
            wire_bytes=wire,
            retransmits=sum(retransmits(connection) for _, connection in by_rank),
            max_beacon_gap_s=beacons.max_gap_s,
            beacon_gaps=beacons.gaps,
            **done_fields(posted),
        )


def _progress(spec: WorkerSpec, workload: Workload) -> Progress | None:
    """Return the rank's way through what its light follows; None if it follows nothing."""
    if spec.light is None:
        return None
    if spec.light not in followings():
        raise ValueError(f"no light follows {spec.light}")
    return followings()[spec.light].progress(workload, spec.rank)


def _message_lines(graph: RankGraph) -> dict[Line, bool]:
    """Return the connections for messages, each with whether the rank sends payload on it."""
    return {
        _message_line(graph, graph.peers[int(graph.program.slot[k])], kind): kind
        == Kind.SEND
        for kind in (Kind.SEND, Kind.RECEIVE)
        for k in graph.of_kind(kind)
    }


def _message_line(graph: RankGraph, peer: int, kind: Kind) -> Line:
    return one_way(graph.rank, peer, _MESSAGES, out=kind == Kind.SEND)


class _Stopped(Exception):
    """Ends a stream because another one failed."""


@dataclass
class _Iteration:
    """Iteration in progress: when each of the rank's operations began and ended (CLOCK_MONOTONIC, seconds),
    NaN before.
    """

    number: int
    begin: float
    begins: list[float]
    ends: list[float]
    left: int
    lateness_s: float = 0.0
    max_stall_s: float = 0.0
    stalls: list[tuple[float, float]] = field(default_factory=list)


class _Rank:
    """The iterations of one rank. The thread of each stream executes the stream's operations in order.

    ``checked``: parts of results that were compared; bytes of payload ``sent``, ``received`` and ``lent``.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        graph: RankGraph,
        payload: Payload,
        connections: Mapping[Line, socket.socket],
        events: EventLog,
        progress: Progress | None,
    ) -> None:
        """``progress``: through its stages, if light follows them."""
        self._spec, self._graph, self._payload, self._events = (
            spec,
            graph,
            payload,
            events,
        )
        self._progress = progress
        self.checked = self.sent = self.received = self.lent = 0
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._of_collectives: list[tuple[int, socket.socket]] = []
        self._senders: dict[int, Sender] = {}
        self._receivers: dict[int, Receiver] = {}
        for line, connection in sorted(connections.items()):
            if line == _message_line(graph, line.peer, Kind.SEND):
                self._senders[line.peer] = Sender(
                    line.peer, connection, spec.peer_timeout_s, payload.posted
                )
            elif line == _message_line(graph, line.peer, Kind.RECEIVE):
                self._receivers[line.peer] = Receiver(
                    line.peer, connection, spec.peer_timeout_s
                )
            else:
                self._of_collectives.append((line.peer, connection))
        streams: dict[int, list[int]] = {}
        for k, stream in enumerate(graph.program.stream.tolist()):
            streams.setdefault(stream, []).append(k)
        self._streams = list(streams.values())
        if len(self._streams) > 1:
            sys.setswitchinterval(_SWITCH_S)
        self._now: _Iteration | None = None

    def run(self, started: float) -> None:
        """Run all iterations; raises what the first failed operation raised."""
        self._now = self._next(self._spec.resume, started)
        threads = [
            threading.Thread(
                target=self._follow, args=(operations,), name="stream", daemon=True
            )
            for operations in self._streams
        ]
        for thread in threads:
            thread.start()
        with self._changed:
            # Each operation has a deadline of its own.
            self._changed.wait_for(
                lambda: self._now is None or self._failure is not None
            )
            failure = self._failure
        if failure is not None:
            raise failure
        for thread in threads:
            thread.join(self._spec.peer_timeout_s)

    def part(self) -> None:
        """Report that all is sent, and wait until the peers report it too. Raises PeerLost."""
        part(self._of_collectives, self._spec.peer_timeout_s)
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
            for number in range(self._spec.resume, self._spec.iterations):
                with self._changed:
                    self._wait(
                        lambda: self._now is not None and self._now.number == number  # noqa: B023
                    )
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
        """Carry out one operation in a stream that is free since ``free``. Return when it ended
        (CLOCK_MONOTONIC, seconds).
        """
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
            if (
                self._progress is not None
                and self._progress.end(k)
                and self._payload.posted is not None
            ):
                self._payload.posted.turned(self._progress.ended)
            if not now.left:
                self._tell(now, self._payload.end(now.number))
                self._now = self._next(now.number + 1, max(now.ends))
            self._changed.notify_all()
        return end

    def _wait(self, there: Callable[[], bool]) -> None:
        """Wait until ``there`` is true; its cause has a deadline. Raises _Stopped once anything failed."""
        self._changed.wait_for(lambda: self._failure is not None or there())
        if self._failure is not None:
            raise _Stopped

    def _tell(self, now: _Iteration, fields: Mapping[str, object]) -> None:
        program, end = self._graph.program, max(now.ends)
        busy = np.isin(program.kind, (Kind.COMPUTE, Kind.MEMORY))
        times = np.array((now.begins, now.ends)).T
        self._events.write(
            "iteration",
            i=now.number,
            compute_start=now.begin,
            compute_end=min(now.begin + covered_s(times[busy]), end),
            allreduce_end=end,
            lateness_s=now.lateness_s,
            max_stall_s=now.max_stall_s,
            stalls=now.stalls,
            round_trip_s=max(
                (round_trip_s(c) for _, c in self._of_collectives), default=0.0
            ),
            **fields,
        )
        if self._spec.workload == "graph":
            since_begin_s = np.round(times - now.begin, 6)
            self._events.write(
                "operations",
                i=now.number,
                begin=now.begin,
                times_s=since_begin_s.tolist(),
            )

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
            """Compute from ``begin`` on. Return when it ends, seconds."""
            real = self._payload.compute(now.number)
            due = begin + seconds
            while (left := due - time.monotonic()) > 0:
                time.sleep(left)
            end = time.monotonic()
            with self._changed:
                now.lateness_s = max(now.lateness_s, end - due)
            # A late timer delays what follows it, not the whole chain; what is computed takes its time.
            return end if real else due

        return perform

    def _send(self, now: _Iteration, k: int) -> Callable[[float], float]:
        program, graph = self._graph.program, self._graph
        peer, tag, size = (
            graph.peers[int(program.slot[k])],
            int(program.tag[k]),
            int(program.bytes[k]),
        )
        payload = contribution(
            (graph.rank,), (peer, tag, now.number), 0, elements(size)
        )

        def perform(_begin: float) -> float:
            """Send. Return when all is sent, seconds."""
            self._senders[peer].send(tag, memoryview(payload).cast("B"))  # type: ignore[arg-type]
            end = time.monotonic()
            with self._changed:
                self.sent += size
            return end

        return perform

    def _receive(self, now: _Iteration, k: int) -> Callable[[float], float]:
        program, graph = self._graph.program, self._graph
        peer, tag, size = (
            graph.peers[int(program.slot[k])],
            int(program.tag[k]),
            int(program.bytes[k]),
        )
        payload = np.empty(elements(size), dtype=np.float32)

        def perform(_begin: float) -> float:
            """Receive and check. Return when all is there, seconds."""
            self._receivers[peer].receive(tag, memoryview(payload).cast("B"))  # type: ignore[arg-type]
            end = time.monotonic()
            self._payload.check(
                now.number, k, payload, (peer,), (graph.rank, tag, now.number)
            )
            with self._changed:
                self.received += size
                self.checked += 1
            return end

        return perform

    def _collective(self, now: _Iteration, k: int) -> Callable[[float], float]:
        run, check = self._payload.collective(now.number, k)

        def perform(_begin: float) -> float:
            """Carry out the collective and check its result. Return when it ends, seconds."""
            report = run()
            end = time.monotonic()
            checked = check()
            with self._changed:
                self.checked += checked
                self.sent += report.bytes_sent
                self.received += report.bytes_received
                self.lent += report.bytes_lent
                now.max_stall_s = max(now.max_stall_s, report.max_stall_s)
                now.stalls += report.stalls
            return end

        return perform
