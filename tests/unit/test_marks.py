"""What ranks say and what they carry is told apart: marks, one-way connections, and what is posted."""

from __future__ import annotations

import itertools
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringlight.containers.worker.assignment import partners
from ringlight.containers.worker.marks import WORD_TOS
from ringlight.containers.worker.messages import Receiver, Sender
from ringlight.containers.worker.posted import FILE, Posted
from ringlight.containers.worker.rendezvous import Line, Lines, connect_all, listen
from ringlight.containers.worker.spec import WorkerSpec, parse_spec
from ringlight.containers.worker.transport import Transport
from ringlight.fabric.collectives import (
    Schedule,
    all_reduce,
    apply_schedule,
    chunk_bounds,
)
from ringlight.workloads.formats.matrix import traffic
from ringlight.workloads.graph import Collective, Kind, Workload
from ringlight.workloads.graph_writer import Writer
from tests.unit.fabrics import COLLECTIVES
from tests.unit.test_training import ROOT, Crew, crew, ended, of_kind
from tests.unit.test_transport import random_vectors, same_bits, tcp_pair
from tests.unit.test_worker_graph import alike, executing, pipeline

#: Bytes of a message's head: kind, tag and size.
HEAD_BYTES = 17


def numbers(path: Path) -> list[int]:
    """What was posted for each rank; no turns, which only light by phases has."""
    data = path.read_bytes()
    *found, turns = struct.unpack(f"={len(data) // 8}Q", data)
    assert turns == 0
    return found


def tos(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_IP, socket.IP_TOS)


# -- marks


@pytest.mark.parametrize("posted", [False, True])
def test_each_end_of_a_connection_carries_payload_or_words(posted: bool) -> None:
    """Rank 0 sends to rank 1 and 2, rank 1 to rank 0."""
    sends = {(0, 1), (0, 2), (1, 0)}
    peers = ("127.77.73.1", "127.77.73.2", "127.77.73.3")

    def join(rank: int) -> dict[Line, socket.socket]:
        spec = WorkerSpec("job", rank, 3, peers, port=29600, posted=posted)
        lines = Lines.of(
            spec, [b for a, b in sends if a == rank], [a for a, b in sends if b == rank]
        )
        with listen(spec, 0.0) as listener:
            return connect_all(spec, lines.sending(), listener)

    with ThreadPoolExecutor(3) as pool, ExitStack() as stack:
        made = list(pool.map(join, range(3)))
        for connection in itertools.chain.from_iterable(one.values() for one in made):
            stack.enter_context(connection)
        marked = [
            {tuple(line): tos(connection) for line, connection in one.items()}
            for one in made
        ]
    if posted:
        down = 1 << 21
        assert marked[0] == {(1, 0): 0, (1, down): WORD_TOS, (2, 0): 0}
        assert marked[1] == {(0, 0): WORD_TOS, (0, down): 0}
    else:
        assert marked[0] == {(1, 0): 0, (2, 0): 0}
        assert marked[1] == {(0, 0): 0}
    assert marked[2] == {(0, 0): WORD_TOS}


# -- posted


def test_what_is_posted_outlives_a_worker_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from ringlight.containers.worker.posted import Posted\n"
        "posted = Posted(Path(sys.argv[1]), 3)\n"
        "posted.add(2, 1 << 40, 17)\n"
        "posted.add(0, 4)\n"
        "posted.add(2, 1)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / FILE
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], cwd=ROOT, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert numbers(path) == [4, 0, (1 << 40) + 18]


class Slow(int):
    """A number during whose addition others get their turn."""

    def __radd__(self, other: int) -> int:
        time.sleep(0.002)
        return int(other) + int(self)


def test_threads_post_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    posted = Posted(tmp_path / FILE, 2)

    def work() -> None:
        for _ in range(10):
            posted.add(1, Slow(3), 2)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert numbers(tmp_path / FILE) == [0, 4 * 10 * 5]
    assert posted.amounts() == {1: [4 * 10 * 3, 4 * 10 * 2]}


def test_a_message_is_posted_once_it_may_go(tmp_path: Path) -> None:
    posted = Posted(tmp_path / FILE, 2)
    near, far = tcp_pair()
    with near, far:
        sender, receiver = Sender(1, near, 5.0, posted), Receiver(0, far, 5.0)
        sending = threading.Thread(
            target=sender.send, args=(7, memoryview(bytes(1000))), daemon=True
        )
        sending.start()
        sending.join(0.2)
        assert numbers(tmp_path / FILE) == [0, 0]
        into = bytearray(1000)
        receiver.receive(7, memoryview(into))
        sending.join(5)
        assert not sending.is_alive()
        assert numbers(tmp_path / FILE) == [0, 1000 + HEAD_BYTES]
        assert posted.amounts() == {1: [1000, HEAD_BYTES]}
        sender.hang_up()
        receiver.hang_up()


def test_whether_a_worker_posts_is_true_or_false() -> None:
    raw: dict[str, Any] = {
        "job": "a",
        "rank": 0,
        "world_size": 1,
        "peers": ["127.0.0.1"],
    }
    assert parse_spec(raw).posted is False
    assert parse_spec({**raw, "posted": True}).posted is True


# -- collectives whose payload goes one way on each connection


class Counting(socket.socket):
    """Counts what is sent on it."""

    sent = 0

    def send(self, data: Any, flags: int = 0) -> int:
        count = super().send(data, flags)
        self.sent += count
        return count


@contextmanager
def one_way_pairs(
    schedule: Schedule,
) -> Iterator[dict[tuple[int, int], tuple[Counting, Counting]]]:
    """By source and destination: the source's and the destination's end of their connection."""
    found = {}
    with ExitStack() as stack:
        for rank in range(schedule.world_size):
            for peer in partners(schedule, rank)[0]:
                ends = [
                    stack.enter_context(Counting(fileno=end.detach()))
                    for end in tcp_pair()
                ]
                found[rank, peer] = ends[0], ends[1]
        yield found


def sent_bytes(schedule: Schedule, length: int) -> Mapping[tuple[int, int], int]:
    bounds = chunk_bounds(length, schedule.chunks)
    found: dict[tuple[int, int], int] = {}
    for t in schedule.transfers:
        begin, end = bounds[t.chunk]
        found[t.source, t.destination] = found.get((t.source, t.destination), 0) + 4 * (
            end - begin
        )
    return found


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_nothing_but_posted_payload_goes_the_way_of_payload(
    name: str, world_size: int
) -> None:
    schedule, rounds = all_reduce(name, world_size), 2
    vectors = random_vectors(world_size, 1003)
    expected = vectors
    for _ in range(rounds):
        expected = apply_schedule(schedule, expected)
    told: dict[tuple[int, int], int] = {}

    def work(rank: int) -> None:
        def begins(peer: int, size: int) -> None:
            told[rank, peer] = told.get((rank, peer), 0) + size

        out = {b: ends[0] for (a, b), ends in pairs.items() if a == rank}
        into = {a: ends[1] for (a, b), ends in pairs.items() if b == rank}
        engine = Transport(schedule, rank, out, 1003, 20.0, into=into, on_begin=begins)
        with closing(engine):
            for _ in range(rounds):
                engine.run(vectors[rank])

    with one_way_pairs(schedule) as pairs, ThreadPoolExecutor(world_size) as pool:
        list(pool.map(work, range(world_size)))
        wanted = {
            pair: rounds * size for pair, size in sent_bytes(schedule, 1003).items()
        }
        assert same_bits(vectors, expected)
        assert told == wanted
        assert {pair: ends[0].sent for pair, ends in pairs.items()} == wanted
        # A receipt each run, and where steps are exchanges a word before each.
        assert all(
            rounds <= ends[1].sent <= rounds * (1 + schedule.steps)
            for ends in pairs.values()
        )


# -- workers


def lit(workers: Crew) -> np.ndarray[Any, Any]:
    """[ranks, ranks, 2]: bytes of payload and of framing as the workers told them."""
    found = np.zeros((len(workers.specs), len(workers.specs), 2), dtype=np.int64)
    for rank, directory in enumerate(workers.directories):
        (done,) = of_kind(workers.events(rank), "done")
        for peer, both in done["light"].items():
            found[rank, int(peer)] = both
        assert numbers(directory / FILE) == found[rank].sum(axis=1).tolist()
    return found


def everything(writer: Writer) -> None:
    for algorithm in ("ring", "halving-doubling"):
        writer.collective(
            algorithm, Collective("all-reduce", algorithm), 40_000, 0, stream="one"
        )
    writer.collective(
        "all-to-all",
        Collective("all-to-all", "pairwise"),
        4 * 4 * 1009,
        0,
        stream="one",
    )
    writer.collective("halves", Collective("all-reduce", "ring"), 4004, 1, stream="two")


@pytest.mark.parametrize(
    "workload",
    [alike(4, everything), pipeline(3, 2, 0.01, 20_000)],
    ids=["all", "line"],
)
def test_a_workload_gives_the_light_its_traffic(
    tmp_path: Path, workload: Workload
) -> None:
    with executing(tmp_path, 74, workload, iterations=2, posted=True) as workers:
        assert workers.exit_codes() == [0] * workload.ranks, workers.events(0)[-1]
        found = lit(workers)
    assert (found[:, :, 0] == 2 * traffic(workload)).all()
    messages = found[:, :, 1] // HEAD_BYTES
    assert (found[:, :, 1] == HEAD_BYTES * messages).all()
    programs = [workload.programs[int(p)] for p in workload.program_of]
    sends = sum(int((program.kind == Kind.SEND).sum()) for program in programs)
    assert messages.sum() == 2 * sends


def test_a_training_gives_the_light_its_all_reduces(tmp_path: Path) -> None:
    with crew(
        tmp_path, 75, 4, iterations=3, collective="halving-doubling", posted=True
    ) as workers:
        workers.wait_for("ready")
        workers.release()
        assert workers.exit_codes() == [0] * 4
        found = lit(workers)
        sent = [
            of_kind(workers.events(rank), "done")[0]["bytes_sent"] for rank in range(4)
        ]
    assert found[:, :, 0].sum(axis=1).tolist() == sent
    assert not found[:, :, 1].any()


def test_a_link_test_gives_the_light_what_it_sends(tmp_path: Path) -> None:
    workers = Crew(tmp_path, 76, 2, workload="linktest", posted=True)
    workers.specs[0]["linktest"] = {"seconds": 0.2, "to": 1}
    workers.specs[1]["linktest"] = {"seconds": 0.2}
    with ended(workers):
        for rank in range(2):
            workers.start(rank)
        workers.wait_for("ready")
        workers.release()
        assert workers.exit_codes() == [0, 0]
        found = lit(workers)
        (done,) = of_kind(workers.events(0), "done")
        assert found[0, 1].tolist() == [done["bytes_sent"], 0]
