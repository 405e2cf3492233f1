"""The transport gives, over real TCP connections, bit for bit what ``apply_schedule`` says."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.containers.worker.assignment import READY, partners
from ringlight.containers.worker.elements import ITEM_BYTES
from ringlight.containers.worker.model import Replica
from ringlight.containers.worker.peer import PeerLost
from ringlight.containers.worker.rendezvous import part
from ringlight.containers.worker.tcp_state import unacknowledged
from ringlight.containers.worker.transfers import SEGMENT_BYTES
from ringlight.containers.worker.transport import RECEIPT, Transport
from ringlight.fabric.collectives import (
    Schedule,
    Transfer,
    all_reduce,
    apply_schedule,
)
from ringlight.fabric.steps import Op
from tests.unit.fabrics import COLLECTIVES
from tests.unit.test_training import Crew, ended, of_kind

Vectors = list[npt.NDArray[np.float32]]
ONE_WAY = Schedule(2, 1, (Transfer(0, 0, 1, 0, "replace"),))


@contextmanager
def connected(
    schedule: Schedule, buffer_bytes: int = 0
) -> Iterator[list[dict[int, socket.socket]]]:
    """For each rank its connections by peer: TCP on loopback, or Unix sockets with small buffers.

    TCP with buffers below its segment size crawls by its timers, so small buffers are tried on Unix sockets.
    """
    connections: list[dict[int, socket.socket]] = [
        {} for _ in range(schedule.world_size)
    ]
    with ExitStack() as stack:
        for a, b in itertools.combinations(range(schedule.world_size), 2):
            if b not in set().union(*partners(schedule, a)):
                continue
            near, far = small_pair(buffer_bytes) if buffer_bytes else tcp_pair()
            connections[a][b], connections[b][a] = (
                stack.enter_context(near),
                stack.enter_context(far),
            )
        yield connections


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), timeout=5)
        return near, listener.accept()[0]


def small_pair(buffer_bytes: int) -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    return pair


def run(
    schedule: Schedule, vectors: Vectors, rounds: int = 1, buffer_bytes: int = 0,
    bounds: Sequence[Sequence[int] | None] = (),
) -> Vectors:  # fmt: skip
    """One thread per rank; what each holds after ``rounds`` runs of the schedule. ``bounds``: each rank's."""
    held = [vector.copy() for vector in vectors]
    errors: list[BaseException] = []

    def work(rank: int, own: dict[int, socket.socket]) -> None:
        try:
            cut = bounds[rank] if bounds else None
            engine = Transport(
                schedule, rank, own, len(held[rank]), peer_timeout_s=20, bounds=cut
            )
            with closing(engine):
                for _ in range(rounds):
                    engine.run(held[rank])
        except (PeerLost, ValueError, AssertionError) as error:
            errors.append(error)

    with connected(schedule, buffer_bytes) as connections:
        threads = [
            threading.Thread(target=work, args=(rank, own), daemon=True)
            for rank, own in enumerate(connections)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert not any(thread.is_alive() for thread in threads)
    assert not errors
    return held


def random_vectors(world_size: int, length: int, seed: int = 0) -> Vectors:
    """Values of very different size, so that another order of summation gives other bits."""
    random = np.random.RandomState(seed)
    return [
        (random.standard_normal(length) * 10.0 ** random.randint(-6, 7, length)).astype(
            np.float32
        )
        for _ in range(world_size)
    ]


def same_bits(a: Vectors, b: Vectors) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("length", [0, 1, 3, 7, 1000, 100_003])
def test_all_reduce_is_bit_identical(name: str, world_size: int, length: int) -> None:
    vectors = random_vectors(world_size, length)
    schedule = all_reduce(name, world_size)
    assert same_bits(run(schedule, vectors), apply_schedule(schedule, vectors))


def test_large_ring_again_and_again_through_small_buffers() -> None:
    vectors = random_vectors(3, 700_001)
    schedule = all_reduce("ring", 3)
    expected = vectors
    for _ in range(3):
        expected = apply_schedule(schedule, expected)
    assert same_bits(run(schedule, vectors, rounds=3, buffer_bytes=4096), expected)


@pytest.mark.parametrize("op", ["reduce", "replace"])
def test_exchange_in_one_step_takes_the_values_from_before_it(op: Op) -> None:
    """Both directions of one chunk at once, larger than the socket buffers: nothing is overwritten early."""
    schedule = Schedule(2, 1, (Transfer(0, 0, 1, 0, op), Transfer(0, 1, 0, 0, op)))
    vectors = random_vectors(2, 400_000)
    assert same_bits(
        run(schedule, vectors, buffer_bytes=4096), apply_schedule(schedule, vectors)
    )


def test_crossed_order_in_one_step_cannot_deadlock() -> None:
    """Each rank must receive into the chunk that it is second to send."""
    transfers = (
        Transfer(0, 0, 1, 0, "replace"),
        Transfer(0, 0, 1, 1, "reduce"),
        Transfer(0, 1, 0, 1, "replace"),
        Transfer(0, 1, 0, 0, "reduce"),
    )
    schedule = Schedule(2, 2, transfers)
    vectors = random_vectors(2, 800_000)
    assert same_bits(
        run(schedule, vectors, buffer_bytes=4096), apply_schedule(schedule, vectors)
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    world_size = draw(st.integers(2, 4))
    chunks = draw(st.integers(1, 4))
    steps, ranks = st.integers(0, 5), st.integers(0, world_size - 1)
    drawn = draw(
        st.lists(
            st.tuples(
                steps,
                ranks,
                ranks,
                st.integers(0, chunks - 1),
                st.sampled_from(get_args(Op)),
            ),
            max_size=24,
        )
    )
    transfers = [Transfer(*each) for each in drawn if each[1] != each[2]]
    transfers.sort(key=lambda t: t.step)
    return Schedule(
        world_size, chunks, tuple(transfers), step_by_step=draw(st.booleans())
    )


@settings(max_examples=60)
@given(schedule=schedules(), length=st.integers(1, 5000), seed=st.integers(0, 1000))
def test_any_schedule_is_bit_identical(
    schedule: Schedule, length: int, seed: int
) -> None:
    vectors = random_vectors(schedule.world_size, length, seed)
    # Overflow to infinity is fine: its bits must be the same too.
    with np.errstate(all="ignore"):
        expected = apply_schedule(schedule, vectors)
        assert same_bits(run(schedule, vectors, buffer_bytes=2048), expected)


@settings(max_examples=15)
@given(schedule=schedules(), seed=st.integers(0, 1000))
def test_any_schedule_larger_than_the_buffers(schedule: Schedule, seed: int) -> None:
    vectors = random_vectors(schedule.world_size, 60_001, seed)
    with np.errstate(all="ignore"):
        expected = apply_schedule(schedule, vectors)
        assert same_bits(run(schedule, vectors, buffer_bytes=2048), expected)


def test_an_exchange_begins_when_the_peer_is_ready() -> None:
    """Early data would share the NIC of a peer that is still in an earlier step."""
    near, far = socket.socketpair()
    with near, far:
        transport = Transport(
            all_reduce("halving-doubling", 2), 0, {1: near}, 1000, peer_timeout_s=5
        )
        thread = threading.Thread(
            target=transport.run, args=(np.ones(1000, dtype=np.float32),)
        )
        thread.start()
        far.settimeout(0.2)
        assert far.recv(100) == READY
        with pytest.raises(TimeoutError):
            far.recv(100)
        far.settimeout(5)
        far.sendall(READY)
        assert (
            far.recv(2000, socket.MSG_WAITALL)
            == np.ones(500, dtype=np.float32).tobytes()
        )
        # Our half, that we are ready for the next step, the sum of the other half, and a receipt.
        far.sendall(bytes(2000) + READY + bytes(2000) + RECEIPT)
        assert far.recv(2002, socket.MSG_WAITALL)[:1] == READY
        thread.join(5)
        assert not thread.is_alive()


def test_report_counts_bytes_and_stall() -> None:
    begin = time.monotonic()
    schedule = all_reduce("ring", 2)
    with connected(schedule) as connections:
        slow = Transport(schedule, 1, connections[1], 1000)
        late = threading.Timer(0.2, slow.run, (np.ones(1000, dtype=np.float32),))
        late.start()
        report = Transport(schedule, 0, connections[0], 1000).run(
            np.ones(1000, dtype=np.float32)
        )
        late.join(timeout=5)
    assert (report.bytes_sent, report.bytes_received) == (4000, 4000)
    assert 0.15 < report.max_stall_s < 2.0
    longest = max(report.stalls, key=lambda stall: stall[1] - stall[0])
    assert longest[1] - longest[0] == report.max_stall_s
    assert begin <= longest[0]
    assert longest[1] <= time.monotonic()
    assert report.flows == report.flow_wait_sum_s == 0


@contextmanager
def towards_a_small_buffer() -> Iterator[
    tuple[Transport, socket.socket, socket.socket]
]:
    """Rank 0 of a transport that sends 200 kB one way, its connection, and the bare far end of it.

    The far end's host takes only a little until somebody reads; the near end's buffer holds all of it.
    """
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        near = stack.enter_context(
            socket.create_connection(listener.getsockname(), timeout=5)
        )
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1024 * 1024)
        far = stack.enter_context(listener.accept()[0])
        yield Transport(ONE_WAY, 0, {1: near}, 50_000, peer_timeout_s=0.5), near, far


def test_done_means_received_by_the_peer() -> None:
    """The peer's host may have all of it, as here after 0.3 s, and still the peer must say that it has."""
    with towards_a_small_buffer() as (engine, near, far):

        def peer() -> None:
            read_slowly(far, 200_000, 0.3)
            deadline = time.monotonic() + 5
            while unacknowledged(near) and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.3)
            far.sendall(RECEIPT)

        reader = threading.Thread(target=peer, daemon=True)
        begin = time.monotonic()
        reader.start()
        report = engine.run(np.ones(50_000, dtype=np.float32))
        assert time.monotonic() - begin >= 0.6
        # Nothing was left to send or to add meanwhile: the wait is none for a byte of the vector.
        assert report.max_stall_s < 0.3
        reader.join(timeout=5)


def test_a_peer_that_takes_what_was_sent_slowly_is_not_lost() -> None:
    near, far = small_pair(1024 * 1024)
    with near, far:
        engine = Transport(ONE_WAY, 0, {1: near}, 200_000, peer_timeout_s=0.5)

        def peer() -> None:
            for _ in range(40):
                read_slowly(far, 20_000, 0.03)
            far.sendall(RECEIPT)

        reader = threading.Thread(target=peer, daemon=True)
        begin = time.monotonic()
        reader.start()
        engine.run(np.ones(200_000, dtype=np.float32))
        assert time.monotonic() - begin > 1.0
        reader.join(timeout=5)


def read_slowly(connection: socket.socket, length: int, after_s: float) -> None:
    time.sleep(after_s)
    while length:
        data = connection.recv(min(length, 20_000))
        assert data, f"the connection ended {length} bytes early"
        length -= len(data)
        time.sleep(0.01)


def test_a_peer_that_does_not_take_what_was_sent_is_named() -> None:
    with towards_a_small_buffer() as (engine, _, far):
        with pytest.raises(
            PeerLost, match=r"rank 1 lost: it did not take what was sent for 0\.5 s"
        ):
            engine.run(np.ones(50_000, dtype=np.float32))
        read_slowly(far, 200_000, 0.0)


def test_parting_waits_for_the_peer_and_loses_nothing() -> None:
    with ExitStack() as stack:
        ends = [[stack.enter_context(end) for end in tcp_pair()] for _ in range(2)]
        mine = {peer: pair[0] for peer, pair in enumerate(ends, start=1)}
        for connection in mine.values():
            connection.sendall(b"last" * 10_000)
        got: dict[int, bytes] = {}

        def peer_parts(peer: int, far: socket.socket) -> None:
            time.sleep(0.3)
            with far.makefile("rb") as stream:
                got[peer] = stream.read()
            far.shutdown(socket.SHUT_WR)

        threads = [
            threading.Thread(target=peer_parts, args=(p, ends[p - 1][1]), daemon=True)
            for p in mine
        ]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        part(mine.items(), 5.0)
        assert time.monotonic() - begin >= 0.3
        # Whoever has parted may end: the peers have all of it.
        for connection in mine.values():
            connection.close()
        for thread in threads:
            thread.join(timeout=5)
    assert got == {1: b"last" * 10_000, 2: b"last" * 10_000}


def test_a_worker_waits_for_delivery_and_for_its_peer_to_part(tmp_path: Path) -> None:
    """Rank 1 is played here: it sends all of its ring at once, but reads, says so and parts only later."""
    workers = Crew(tmp_path, 50, 2, gradient_bytes=400_000, iterations=1)
    replicas = [Replica(rank, 2, 400_000, 28, 7, 0.2) for rank in range(2)]
    for replica in replicas:
        replica.compute(0)
    own, total = replicas[1].buffer, replicas[0].buffer + replicas[1].buffer
    half = len(own) // 2
    with ended(workers), socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        listener.bind((workers.specs[1]["peers"][1], workers.specs[1]["port"]))
        listener.listen()
        listener.settimeout(20)
        workers.start(0)
        peer, _ = listener.accept()
        with peer:
            hello = peer.recv(100)
            # The same, but of rank 1; the channel stands behind it.
            peer.sendall(hello[:-5] + b"\1" + hello[-4:])
            deadline = time.monotonic() + 20
            while (
                not of_kind(workers.events(0), "ready") and time.monotonic() < deadline
            ):
                time.sleep(0.02)
            workers.directories[1].mkdir()
            released = workers.release()
            peer.sendall(own[half:].tobytes() + total[:half].tobytes())
            time.sleep(max(0.0, released + 0.6 - time.monotonic()))
            read_at = time.monotonic()
            read_slowly(peer, 400_000, 0.0)
            peer.sendall(RECEIPT)
            assert peer.recv(1) == RECEIPT
            assert peer.recv(1) == b""
            parted_at = time.monotonic() + 0.3
            time.sleep(0.3)
            peer.shutdown(socket.SHUT_WR)
            assert workers.exit_codes() == [0]
    (iteration,) = of_kind(workers.events(0), "iteration")
    assert iteration["allreduce_end"] >= read_at
    assert of_kind(workers.events(0), "done")[0]["t"] >= parted_at


def test_a_peer_that_does_not_part_or_sends_on_is_named() -> None:
    near, far = tcp_pair()
    with near, far:
        with pytest.raises(PeerLost, match=r"rank 4 lost: it did not part in 0\.2 s"):
            part([(4, near)], 0.2)
        # The near end has said that it sends no more.
        assert far.recv(1) == b""
        far.sendall(b"x")
        with pytest.raises(
            PeerLost, match="rank 4 lost: it sent more than the schedule says"
        ):
            part([(4, near)], 5.0)


def test_wrong_vector_and_missing_connection_are_refused() -> None:
    schedule = all_reduce("ring", 2)
    with pytest.raises(ValueError, match="rank 0 has no connection to ranks \\[1\\]"):
        Transport(schedule, 0, {}, 10)
    with connected(schedule) as connections:
        for bounds, said in (
            ([0, 10], r"bounds of 2 chunks are 3 numbers in order, not \[0, 10\]"),
            ([0, 6, 5], r"bounds of 2 chunks are 3 numbers in order, not \[0, 6, 5\]"),
            ([0, 6, 9], "bounds from 0 to 9 of a vector of 10 elements"),
            ([1, 6, 10], "bounds from 1 to 10 of a vector of 10 elements"),
        ):
            with pytest.raises(ValueError, match=said):
                Transport(schedule, 0, connections[0], 10, bounds=bounds)
    with connected(schedule) as connections:
        engine = Transport(schedule, 0, connections[0], 10)
        for wrong in (
            np.ones(9, dtype=np.float32),
            np.ones(10),
            np.ones(20, dtype=np.float32)[::2],
        ):
            with pytest.raises(ValueError, match="expected 10 contiguous float32"):
                engine.run(wrong)  # type: ignore[arg-type]


def test_silent_peer_is_named_at_the_deadline() -> None:
    schedule = all_reduce("ring", 3)
    with connected(schedule, buffer_bytes=4096) as connections:
        engine = Transport(schedule, 0, connections[0], 300_000, peer_timeout_s=0.3)
        started = time.monotonic()
        # Rank 1 takes what its buffers hold and then no more; rank 2 never sends a byte.
        with pytest.raises(
            PeerLost, match=r"rank 2 lost: no byte moved for 0\.3 s"
        ) as caught:
            engine.run(np.ones(300_000, dtype=np.float32))
    assert caught.value.rank == 2
    assert 0.3 <= time.monotonic() - started < 3.0


def test_closed_peer_is_named() -> None:
    schedule = all_reduce("ring", 3)
    with connected(schedule) as connections:
        connections[2][0].close()
        with pytest.raises(PeerLost) as caught:
            Transport(schedule, 0, connections[0], 300).run(
                np.ones(300, dtype=np.float32)
            )
    assert caught.value.rank == 2


def test_killed_peer_process_is_named() -> None:
    """A peer that dies in the middle, by SIGKILL, with data under way in both directions."""
    program = (
        "import socket, sys\n"
        "connection = socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=5)\n"
        "connection.recv(1000)\n"
        "connection.sendall(b'x' * 1000)\n"
        "print('half', flush=True)\n"
        "connection.recv(1)\n"
        "input()\n"
    )
    schedule = all_reduce("ring", 2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        port = str(listener.getsockname()[1])
        with subprocess.Popen(
            [sys.executable, "-c", program, port],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as peer:
            connection, _ = listener.accept()

            def kill_when_half() -> None:
                assert peer.stdout is not None
                peer.stdout.readline()
                os.kill(peer.pid, signal.SIGKILL)

            killer = threading.Thread(target=kill_when_half, daemon=True)
            killer.start()
            engine = Transport(schedule, 0, {1: connection}, 4_000_000)
            with connection, pytest.raises(PeerLost) as caught:
                engine.run(np.ones(4_000_000, dtype=np.float32))
            killer.join(timeout=5)
    assert caught.value.rank == 1
    assert peer.returncode == -signal.SIGKILL


def test_segments_are_whole_elements() -> None:
    assert SEGMENT_BYTES % ITEM_BYTES == 0
