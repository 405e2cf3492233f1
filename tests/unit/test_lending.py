"""What may be lent is not overwritten before it is received, and lent bytes arrive as they were."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.containers.worker import assignment, transport
from ringlight.containers.worker.assignment import LEND_BYTES
from ringlight.containers.worker.lending import PIPE_BYTES, Lender
from ringlight.containers.worker.transport import RECEIPT, Transport
from ringlight.fabric.collectives import (
    Schedule,
    Transfer,
    all_reduce,
    apply_schedule,
    lendable,
)
from tests.unit.fabrics import COLLECTIVES
from tests.unit.test_transport import (
    Vectors,
    connected,
    random_vectors,
    run,
    same_bits,
    schedules,
    tcp_pair,
)

#: One transfer of this many elements is long enough to be lent, and longer than a socket and a pipe hold.
LONG = 2 * PIPE_BYTES


def played(
    schedule: Schedule, vectors: Vectors, lent: tuple[bool, ...], seed: int
) -> Vectors:
    """What each rank holds in the end, one element a chunk, the transfers in a random possible order.

    Each is first sent and later received, in order on its connection. Of a lent one the receiver reads what
    the sender's memory holds by then; any other is copied when it is sent or about to be overwritten.
    """
    random = np.random.RandomState(seed)
    held = [vector.copy() for vector in vectors]
    transfers = schedule.transfers
    # For each send the receive that it waits for; for each receive the one before it, and the sends.
    waits: list[int | None] = [None] * len(transfers)
    previous: list[int | None] = [None] * len(transfers)
    guards: dict[int, list[int]] = {}
    last: dict[tuple[int, int], int] = {}
    unguarded: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    queues: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for step in range(schedule.steps):
        now = [(k, t) for k, t in enumerate(transfers) if t.step == step]
        for k, t in now:
            waits[k] = last.get((t.source, t.chunk))
            unguarded[t.source, t.chunk].append(k)
            queues[t.source, t.destination].append(k)
        for k, t in now:
            place = (t.destination, t.chunk)
            previous[k], guards[k] = last.get(place), unguarded.pop(place, [])
            last[place] = k
    copies: dict[int, np.float32] = {}
    to_send = {link: list(queue) for link, queue in queues.items()}
    to_receive: dict[tuple[int, int], list[int]] = {link: [] for link in queues}
    received: set[int | None] = {None}
    while any(to_send.values()) or any(to_receive.values()):
        ready = [
            (link, queue)
            for link, queue in to_send.items()
            if queue and waits[queue[0]] in received
        ]
        ready += [
            (link, q)
            for link, q in to_receive.items()
            if q and previous[q[0]] in received
        ]
        link, queue = ready[random.randint(len(ready))]
        k = queue.pop(0)
        t = transfers[k]
        if queue is to_send[link]:
            to_receive[link].append(k)
            if not lent[k]:
                copies.setdefault(k, held[t.source][t.chunk])
            continue
        brought = held[t.source][t.chunk] if lent[k] else copies[k]
        for guarded in guards[k]:
            copies.setdefault(guarded, held[t.destination][t.chunk])
        if t.op == "reduce":
            held[t.destination][t.chunk] += brought
        else:
            held[t.destination][t.chunk] = brought
        received.add(k)
    return held


@settings(max_examples=150)
@given(st.sampled_from(COLLECTIVES), st.integers(2, 9), st.integers(0, 2**31))
def test_a_collective_that_lends_gives_the_same_bits(
    name: str, n: int, seed: int
) -> None:
    schedule = all_reduce(name, n)
    vectors = random_vectors(n, schedule.chunks)
    assert same_bits(
        played(schedule, vectors, lendable(schedule), seed),
        apply_schedule(schedule, vectors),
    )


@settings(max_examples=100)
@given(schedules(), st.integers(0, 2**31))
def test_any_schedule_that_lends_gives_the_same_bits(
    schedule: Schedule, seed: int
) -> None:
    vectors = random_vectors(schedule.world_size, schedule.chunks)
    with np.errstate(all="ignore"):
        expected = apply_schedule(schedule, vectors)
        assert same_bits(played(schedule, vectors, lendable(schedule), seed), expected)


@settings(max_examples=15)
@given(schedules(), st.integers(0, 1000))
def test_any_schedule_over_connections_that_lend_all_they_may(
    schedule: Schedule, seed: int
) -> None:
    vectors = random_vectors(schedule.world_size, 60_001, seed)
    with (
        np.errstate(all="ignore"),
        patch.object(assignment, "LEND_BYTES", 1),
        patch.object(transport, "LEND_BYTES", 1),
    ):
        assert same_bits(
            run(schedule, vectors, buffer_bytes=2048), apply_schedule(schedule, vectors)
        )


@pytest.mark.parametrize("name", ["recursive-doubling"])
def test_an_exchange_would_be_overwritten_too_soon(name: str) -> None:
    """So the test above can fail, and what is not lendable is so for a reason."""
    schedule = all_reduce(name, 4)
    assert not any(lendable(schedule))
    vectors = random_vectors(4, schedule.chunks)
    all_lent = (True,) * len(schedule.transfers)
    outcomes = [played(schedule, vectors, all_lent, seed) for seed in range(50)]
    assert not all(
        same_bits(outcome, apply_schedule(schedule, vectors)) for outcome in outcomes
    )


@pytest.mark.parametrize(
    "name", ["ring", "halving-doubling", "hierarchical-ring", "binary-tree"]
)
@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_the_usual_collectives_may_lend_everything(name: str, n: int) -> None:
    assert all(lendable(all_reduce(name, n)))


def all_reduced(
    schedule: Schedule, vectors: Vectors, rounds: int
) -> tuple[list[Vectors], list[int]]:
    """Each rank's sums, round by round, and the bytes it lent; it wipes its vector as soon as it may."""
    sums: list[Vectors] = [[] for _ in vectors]
    lent = [0] * len(vectors)

    def work(rank: int, own: dict[int, socket.socket]) -> None:
        vector = np.empty_like(vectors[rank])
        with closing(
            Transport(schedule, rank, own, len(vector), peer_timeout_s=20)
        ) as engine:
            for _ in range(rounds):
                vector[:] = vectors[rank]
                lent[rank] += engine.run(vector).bytes_lent
                sums[rank].append(vector.copy())
                vector[:] = np.nan

    with connected(schedule) as connections:
        threads = [
            threading.Thread(target=work, args=each, daemon=True)
            for each in enumerate(connections)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert not any(thread.is_alive() for thread in threads)
    return sums, lent


@pytest.mark.parametrize(
    "name", ["ring", "halving-doubling", "recursive-doubling", "binary-tree"]
)
def test_a_vector_may_change_as_soon_as_the_all_reduce_is_over(name: str) -> None:
    schedule = all_reduce(name, 3)
    vectors = random_vectors(3, 3 * LONG // 2)
    sums, _ = all_reduced(schedule, vectors, rounds=4)
    expected = apply_schedule(schedule, vectors)
    for rank, own in enumerate(sums):
        assert same_bits(own, [expected[rank]] * 4)


def test_all_is_lent_but_what_is_short_or_must_be_copied() -> None:
    ring, exchange = all_reduce("ring", 2), all_reduce("recursive-doubling", 2)
    long, short = 2 * LEND_BYTES // 4, 2 * LEND_BYTES // 4 - 2
    assert all_reduced(ring, random_vectors(2, long), 3)[1] == [3 * long * 4] * 2
    assert all_reduced(ring, random_vectors(2, short), 3)[1] == [0, 0]
    assert all_reduced(exchange, random_vectors(2, long), 3)[1] == [0, 0]


def test_without_a_pipe_everything_is_copied() -> None:
    schedule = all_reduce("ring", 2)
    vectors = random_vectors(2, LONG)
    with connected(schedule) as connections:
        limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            engines = [
                Transport(schedule, rank, connections[rank], LONG) for rank in range(2)
            ]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        held = [vector.copy() for vector in vectors]
        other = threading.Thread(target=engines[1].run, args=(held[1],), daemon=True)
        other.start()
        report = engines[0].run(held[0])
        other.join(timeout=20)
    assert (report.bytes_sent, report.bytes_lent) == (LONG * 4, 0)
    assert same_bits(held, apply_schedule(schedule, vectors))


def test_a_receipt_does_not_overtake_what_is_held() -> None:
    """Rank 1 is played here: rank 0 has got all of its ring when its last bytes are still in the pipe."""
    mine, own = random_vectors(2, 2 * LONG)
    total, half = mine + own, LONG
    near, far = tcp_pair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1024 * 1024)
    got = bytearray()

    def read(until: int) -> None:
        while len(got) < until:
            got.extend(far.recv(until - len(got)))

    def peer() -> None:
        far.settimeout(20)
        far.sendall(own[half:].tobytes())
        read(half * 4)
        far.sendall(total[:half].tobytes())
        time.sleep(0.2)
        read(half * 8 + 1)
        far.sendall(RECEIPT)

    with (
        near,
        far,
        closing(Transport(all_reduce("ring", 2), 0, {1: near}, 2 * half)) as engine,
    ):
        other = threading.Thread(target=peer, daemon=True)
        other.start()
        held = mine.copy()
        engine.run(held)
        other.join(timeout=20)
    assert held.tobytes() == total.tobytes()
    assert got == mine[:half].tobytes() + total[half:].tobytes() + RECEIPT


@contextmanager
def lender() -> Iterator[tuple[Lender, socket.socket]]:
    near, far = tcp_pair()
    with near, far:
        near.setblocking(False)
        far.settimeout(5)
        with closing(Lender(near)) as made:
            yield made, far


def test_what_is_lent_arrives_from_any_address_on() -> None:
    data = np.random.RandomState(1).bytes(3 * PIPE_BYTES)
    memory = np.frombuffer(bytearray(data), dtype=np.uint8)
    with lender() as (made, far):
        for start, end in (
            (0, 1),
            (1, 5000),
            (4095, 4097),
            (4096, 8192),
            (7, PIPE_BYTES + 99),
        ):
            sent, got = start, b""
            while len(got) < end - start:
                made.flush()
                if sent < end and not made.held:
                    sent += made.send(memory.ctypes.data + sent, end - sent)
                got += far.recv(end - start - len(got))
            assert got == data[start:end]
            assert made.held == 0


def test_a_full_socket_takes_no_more_and_is_no_error() -> None:
    memory = np.zeros(64 * PIPE_BYTES, dtype=np.uint8)
    with lender() as (made, _):
        taken = made.send(memory.ctypes.data, len(memory))
        assert 0 < made.held <= PIPE_BYTES
        assert taken < len(memory)
        held = made.held
        assert made.send(memory.ctypes.data, len(memory)) == 0
        assert made.held == held


def test_a_lost_peer_is_an_error_and_nothing_stays_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    memory = np.zeros(64 * PIPE_BYTES, dtype=np.uint8)
    with lender() as (made, far):
        made.send(memory.ctypes.data, len(memory))
        far.close()
        time.sleep(0.1)
        with pytest.raises(ConnectionError):
            made.flush()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_transport_gives_its_pipes_back() -> None:
    schedule = Schedule(2, 1, (Transfer(0, 0, 1, 0, "replace"),))
    near, far = tcp_pair()
    with near, far:
        before = len(os.listdir("/proc/self/fd"))
        engine = Transport(schedule, 0, {1: near}, LONG)
        assert len(os.listdir("/proc/self/fd")) == before + 2
        engine.close()
        engine.close()
        assert len(os.listdir("/proc/self/fd")) == before
