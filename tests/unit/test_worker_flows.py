"""Payload is sent only under light, whether the agent grants at once, late or not at all, or dies.

The agent here is a small server on a real SOCK_SEQPACKET socket, the connections are TCP on loopback. Every
payload that a rank writes is checked against what its agent had granted at that moment.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ringlight.containers.worker.assignment import partners
from ringlight.containers.worker.flows import Flows
from ringlight.containers.worker.peer import PeerLost
from ringlight.containers.worker.rendezvous import part
from ringlight.containers.worker.spec import parse_spec
from ringlight.containers.worker.tcp_state import NOTE_WHEN_ACKNOWLEDGED, unacknowledged
from ringlight.containers.worker.transport import RunReport, Transport
from ringlight.fabric.collectives import (
    Schedule,
    Transfer,
    all_reduce,
    apply_schedule,
    schedule_of,
)
from ringlight.fabric.kinds import KINDS, collective_steps, matrix_bounds
from tests.unit.fabrics import COLLECTIVES
from tests.unit.test_training import Crew, ended, of_kind
from tests.unit.test_transport import random_vectors, same_bits, tcp_pair

Vectors = list[npt.NDArray[np.float32]]


def address(rank: int) -> str:
    return f"10.82.0.{rank + 2}"


class Receivers:
    """Broadband receivers: each takes one flow at a time, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, deque[Callable[[], None]]] = {}

    def ask(self, peer: str, granted: Callable[[], None]) -> None:
        with self._lock:
            queue = self._queues.setdefault(peer, deque())
            queue.append(granted)
            first = len(queue) == 1
        if first:
            granted()

    def release(self, peer: str) -> None:
        with self._lock:
            self._queues[peer].popleft()
            following = self._queues[peer][0] if self._queues[peer] else None
        if following is not None:
            following()


@dataclass
class Manners:
    """How an agent behaves. ``lose``: every so many-th flow loses its light; ``fail``: that many opens fail.

    ``die_after``: after so many opens it goes away once for ``away_s``. ``together``: it grants nothing
    before so many flows are open. ``never``: it does not answer.
    """

    delay_s: float = 0.0
    lose: int = 0
    fail: int = 0
    die_after: int = 0
    away_s: float = 0.1
    together: int = 1
    never: bool = False
    receivers: Receivers | None = None


@dataclass
class Seen:
    opens: list[str] = field(default_factory=list)
    steps: list[int | None] = field(default_factory=list)
    closes: list[str] = field(default_factory=list)
    lost: int = 0
    deaths: int = 0
    hung_up: int = 0
    wrong: list[str] = field(default_factory=list)


class Agent:
    """One O-NIC's agent, as its worker sees it. ``connections``: the worker's own, by peer address."""

    def __init__(
        self, path: Path, manners: Manners, connections: dict[str, socket.socket]
    ) -> None:
        self.seen = Seen()
        self.lit: set[str] = set()
        self._path, self._manners, self._connections = path, manners, connections
        self._open: dict[int, str] = {}
        self._stop, self._stopper = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Agent:
        self._listen()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopper.close()
        self._thread.join(timeout=10)
        assert not self._thread.is_alive()
        self._stop.close()

    def _listen(self) -> None:
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self._path))
        self._listener.listen()

    def _run(self) -> None:
        while True:
            ready = select.select([self._stop, self._listener], [], [])[0]
            if self._stop in ready:
                break
            worker, _ = self._listener.accept()
            with worker:
                try:
                    if not self._serve(worker):
                        break
                except OSError:
                    # It hung up with answers unread.
                    self.seen.hung_up += 1
            self.lit.clear()
        self._listener.close()

    def _serve(self, worker: socket.socket) -> bool:
        """Until the worker hangs up or this agent dies (True), or the test is over (False)."""
        self._open = {}
        later: list[tuple[float, int]] = []
        lits, gathered = 0, False
        # Receivers call from other agents' threads.
        grants: deque[int] = deque()
        bell, ring = socket.socketpair()

        def grant(number: int) -> None:
            grants.append(number)
            ring.send(b"x")

        try:
            while True:
                wait_s = max(0.0, later[0][0] - time.monotonic()) if later else None
                ready = select.select([self._stop, worker, bell], [], [], wait_s)[0]
                if self._stop in ready:
                    return False
                if bell in ready:
                    bell.recv(1)
                    number = grants.popleft()
                    later.append((time.monotonic() + self._manners.delay_s, number))
                if worker in ready:
                    data = worker.recv(4096)
                    if not data:
                        self.seen.hung_up += 1
                        return True
                    if not self._hear(worker, json.loads(data), grant):
                        return True
                gathered = gathered or len(self._open) >= self._manners.together
                while gathered and later and later[0][0] <= time.monotonic():
                    number = later.pop(0)[1]
                    if number in self._open:
                        lits += 1
                        self._light(worker, number, lits)
        finally:
            for peer in self._open.values():
                if self._manners.receivers is not None:
                    self._manners.receivers.release(peer)
            bell.close()
            ring.close()

    def _hear(
        self,
        worker: socket.socket,
        message: dict[str, Any],
        grant: Callable[[int], None],
    ) -> bool:
        """One message of the worker; False when the agent dies of it."""
        peer: str | None
        manners, seen = self._manners, self.seen
        if "close" in message:
            peer = self._open.pop(message["close"], None)
            if peer is None:
                return True
            self.lit.discard(peer)
            seen.closes.append(peer)
            left = (
                unacknowledged(self._connections[peer])
                if peer in self._connections
                else 0
            )
            if left:
                seen.wrong.append(f"closed with {left} bytes under way to {peer}")
            worker.send(json.dumps({"closed": message["close"]}).encode())
            if manners.receivers is not None:
                manners.receivers.release(peer)
            return True
        number, peer = message["open"], message["peer"]
        # From here on the worker knows that an earlier light was lost.
        self.lit.discard(peer)
        if peer in self._open.values():
            seen.wrong.append(f"two flows to {peer} at once")
        seen.opens.append(peer)
        seen.steps.append(message.get("step"))
        if manners.fail:
            manners.fail -= 1
            worker.send(
                json.dumps({"failed": number, "reason": "no wavelength"}).encode()
            )
            return True
        self._open[number] = peer
        if manners.die_after and len(seen.opens) >= manners.die_after:
            manners.die_after = 0
            seen.deaths += 1
            self._listener.close()
            worker.close()
            time.sleep(manners.away_s)
            self._listen()
            return False
        if manners.never:
            return True
        if manners.receivers is None:
            grant(number)
        else:
            manners.receivers.ask(peer, lambda: grant(number))
        return True

    def _light(self, worker: socket.socket, number: int, lits: int) -> None:
        peer = self._open[number]
        self.lit.add(peer)
        worker.send(json.dumps({"lit": number}).encode())
        if self._manners.lose and lits % self._manners.lose == 0:
            time.sleep(0.002)
            # The worker may have closed it meanwhile; then neither has to do with it any more.
            del self._open[number]
            self.seen.lost += 1
            worker.send(
                json.dumps({"lost": number, "reason": "the lease ran out"}).encode()
            )


class Checked(socket.socket):
    """A connection whose every payload must be under light."""

    under_light: Callable[[], bool]
    wrong: list[str]

    def _check(self) -> None:
        if not self.under_light():
            self.wrong.append("payload without light")

    def send(self, *arguments: Any) -> int:
        self._check()
        return super().send(*arguments)

    def sendmsg(self, *arguments: Any) -> int:
        self._check()
        return super().sendmsg(*arguments)


@contextmanager
def checked(
    connection: socket.socket, agent: Agent, peer: int
) -> Iterator[socket.socket]:
    with Checked(fileno=connection.detach()) as same:
        same.under_light = lambda: address(peer) in agent.lit
        same.wrong = agent.seen.wrong
        agent._connections[address(peer)] = same
        yield same


@dataclass
class Rank:
    agent: Agent
    connections: dict[int, socket.socket]
    flows: Flows

    def engine(
        self, schedule: Schedule, rank: int, length: int, timeout_s: float = 20.0,
        bounds: Sequence[int] | None = None,
    ) -> Transport:  # fmt: skip
        addresses = [address(each) for each in range(schedule.world_size)]
        return Transport(
            schedule,
            rank,
            self.connections,
            length,
            timeout_s,
            self.flows,
            addresses,
            bounds,
        )


@contextmanager
def ranks(
    directory: Path,
    schedule: Schedule,
    manners: Callable[[], Manners] = Manners,
    buffer_bytes: int = 0,
) -> Iterator[list[Rank]]:
    """For each rank an agent, a client of it, and checked connections to its peers."""
    with ExitStack() as stack:
        made: list[Rank] = []
        for rank in range(schedule.world_size):
            agent = Agent(directory / f"{rank}.sock", manners(), {})
            stack.enter_context(agent)
            flows = Flows(directory / f"{rank}.sock")
            stack.callback(flows.shut)
            made.append(Rank(agent, {}, flows))
        for a, b in itertools.combinations(range(schedule.world_size), 2):
            if b not in set().union(*partners(schedule, a)):
                continue
            near, far = tcp_pair()
            for mine, here, there in ((near, a, b), (far, b, a)):
                if buffer_bytes:
                    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
                    mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
                made[here].connections[there] = stack.enter_context(
                    checked(mine, made[here].agent, there)
                )
        yield made


def run(
    made: Sequence[Rank], schedule: Schedule, vectors: Vectors, rounds: int = 1, late_s: Sequence[float] = (),
    bounds: Sequence[int] | None = None,
) -> tuple[Vectors, list[list[RunReport]]]:  # fmt: skip
    """What each rank holds after ``rounds`` all-reduces, and its reports; ``late_s``: when each starts."""
    held = [vector.copy() for vector in vectors]
    reports: list[list[RunReport]] = [[] for _ in made]
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            engine = made[rank].engine(schedule, rank, len(held[rank]), bounds=bounds)
            time.sleep(late_s[rank] if late_s else 0.0)
            for _ in range(rounds):
                reports[rank].append(engine.run(held[rank]))
        except (PeerLost, OSError, ValueError, AssertionError) as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(rank,), daemon=True)
        for rank in range(len(made))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=40)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors
    return held, reports


def expected(schedule: Schedule, vectors: Vectors, rounds: int) -> Vectors:
    for _ in range(rounds):
        vectors = apply_schedule(schedule, vectors)
    return vectors


def bursts(schedule: Schedule, rank: int) -> Counter[str]:
    """How many flows a rank opens to each peer: one per step in which it sends to it."""
    steps = {(t.step, t.destination) for t in schedule.transfers if t.source == rank}
    return Counter(address(peer) for _, peer in steps)


def steps(schedule: Schedule, rank: int, rounds: int) -> Counter[int | None]:
    """How many flows a rank opens in each step, counted on through all rounds."""
    once = {(t.step, t.destination) for t in schedule.transfers if t.source == rank}
    return Counter(
        turn * schedule.steps + step for turn in range(rounds) for step, _ in once
    )


def check_and_stop(made: Sequence[Rank]) -> None:
    """Nothing was sent in the dark, and every agent has heard the last close."""
    deadline = time.monotonic() + 5
    for rank in made:
        # A worker that hangs up with answers unread resets its connection: what it said last is lost.
        while rank.agent._open and time.monotonic() < deadline:
            time.sleep(0.005)
        rank.flows.shut()
        while (
            rank.agent.seen.opens
            and not rank.agent.seen.hung_up
            and time.monotonic() < deadline
        ):
            time.sleep(0.005)
    assert [rank.agent.seen.wrong for rank in made] == [[] for _ in made]


#: Collectives in which every rank sends often.
ALL_SEND = ("ring", "halving-doubling")


@pytest.mark.parametrize("name", ALL_SEND)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_bit_identical_with_a_flow_per_step_and_peer(
    tmp_path: Path, name: str, world_size: int
) -> None:
    schedule = all_reduce(name, world_size)
    vectors = random_vectors(world_size, 50_003)
    with ranks(tmp_path, schedule) as made:
        held, reports = run(made, schedule, vectors, rounds=3)
        check_and_stop(made)
        assert same_bits(held, expected(schedule, vectors, 3))
        for rank, own in enumerate(made):
            wanted = bursts(schedule, rank)
            assert [report.flows for report in reports[rank]] == [wanted.total()] * 3
            assert Counter(own.agent.seen.opens) == Counter(
                {p: 3 * n for p, n in wanted.items()}
            )
            assert Counter(own.agent.seen.closes) == Counter(own.agent.seen.opens)
            assert Counter(own.agent.seen.steps) == steps(schedule, rank, 3)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_late_light_is_waited_for_and_told(tmp_path: Path, name: str) -> None:
    schedule = all_reduce(name, 4)
    vectors = random_vectors(4, 20_000)
    with ranks(tmp_path, schedule, lambda: Manners(delay_s=0.02)) as made:
        held, reports = run(made, schedule, vectors)
        check_and_stop(made)
    assert same_bits(held, expected(schedule, vectors, 1))
    for rank, (report,) in enumerate(reports):
        flows = bursts(schedule, rank).total()
        assert 0.02 <= report.flow_wait_longest_s < 1.0
        assert (
            0.02 * flows <= report.flow_wait_sum_s <= report.flow_wait_longest_s * flows
        )
        assert all(
            0.02 <= end - start <= report.max_stall_s for start, end in report.stalls
        )


@pytest.mark.parametrize("name", ALL_SEND)
def test_lost_light_is_asked_for_again(tmp_path: Path, name: str) -> None:
    schedule = all_reduce(name, 4)
    vectors = random_vectors(4, 1_000_000)
    with ranks(
        tmp_path, schedule, lambda: Manners(lose=2), buffer_bytes=128 * 1024
    ) as made:
        held, _ = run(made, schedule, vectors)
        check_and_stop(made)
        assert all(rank.agent.seen.lost > 0 for rank in made)
        again = [
            len(rank.agent.seen.opens) - bursts(schedule, r).total()
            for r, rank in enumerate(made)
        ]
    assert same_bits(held, expected(schedule, vectors, 1))
    assert sum(again) > 0


def test_a_failed_flow_is_asked_for_again(tmp_path: Path) -> None:
    schedule = all_reduce("halving-doubling", 4)
    vectors = random_vectors(4, 20_000)
    with ranks(tmp_path, schedule, lambda: Manners(fail=3)) as made:
        held, _ = run(made, schedule, vectors)
        check_and_stop(made)
        assert [len(rank.agent.seen.opens) for rank in made] == [4 + 3] * 4
    assert same_bits(held, expected(schedule, vectors, 1))


@pytest.mark.parametrize("name", ALL_SEND)
def test_an_agent_that_dies_and_comes_back(tmp_path: Path, name: str) -> None:
    schedule = all_reduce(name, 4)
    vectors = random_vectors(4, 20_000)
    with ranks(tmp_path, schedule, lambda: Manners(die_after=7)) as made:
        held, _ = run(made, schedule, vectors, rounds=6)
        check_and_stop(made)
        assert [rank.agent.seen.deaths for rank in made] == [1] * 4
        for r, rank in enumerate(made):
            assert set(rank.agent.seen.steps) == set(steps(schedule, r, 6))
    assert same_bits(held, expected(schedule, vectors, 6))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("world_size", [4, 6])
def test_receivers_that_take_one_flow_at_a_time(
    tmp_path: Path, name: str, world_size: int
) -> None:
    """Chunks larger than the socket buffers, so that a flow ends only because the peer reads."""
    schedule = all_reduce(name, world_size)
    vectors = random_vectors(world_size, 600_000)
    receivers = Receivers()
    with ranks(
        tmp_path, schedule, lambda: Manners(receivers=receivers), buffer_bytes=64 * 1024
    ) as made:
        held, _ = run(
            made,
            schedule,
            vectors,
            rounds=2,
            late_s=[0.05 * r for r in range(world_size)],
        )
        check_and_stop(made)
    assert same_bits(held, expected(schedule, vectors, 2))


def test_a_flow_that_comes_too_early_does_not_block_the_receiver(
    tmp_path: Path,
) -> None:
    """Rank 1 has the light to rank 0, which first needs what rank 2 can only send after it."""
    schedule = Schedule(
        3, 1, (Transfer(0, 2, 0, 0, "reduce"), Transfer(1, 1, 0, 0, "reduce"))
    )
    vectors = random_vectors(3, 2_000_000)
    receivers = Receivers()
    with ranks(
        tmp_path, schedule, lambda: Manners(receivers=receivers), buffer_bytes=64 * 1024
    ) as made:
        held, _ = run(made, schedule, vectors, late_s=[0.0, 0.0, 0.3])
        check_and_stop(made)
    assert same_bits(held, expected(schedule, vectors, 1))


def test_flows_of_one_step_are_open_at_the_same_time(tmp_path: Path) -> None:
    """Each agent lights nothing before both flows of the step are asked for."""
    transfers = [
        Transfer(0, a, b, a, "replace") for a in range(3) for b in range(3) if a != b
    ]
    schedule = Schedule(3, 3, tuple(transfers))
    vectors = random_vectors(3, 30_000)
    with ranks(tmp_path, schedule, lambda: Manners(together=2)) as made:
        held, _ = run(made, schedule, vectors)
        check_and_stop(made)
    assert same_bits(held, expected(schedule, vectors, 1))


@pytest.mark.parametrize("name", KINDS["all-to-all-v"])
def test_an_all_to_all_v_under_light_opens_no_flow_for_nothing(
    tmp_path: Path, name: str
) -> None:
    matrix = np.array(
        [[3, 0, 0, 5], [40_000, 0, 7, 0], [0, 0, 9, 0], [1, 70_000, 0, 2]]
    )
    schedule = schedule_of(collective_steps("all-to-all-v", name, 4))
    bounds = matrix_bounds(matrix.tolist()).tolist()
    vectors = random_vectors(4, bounds[-1])
    with ranks(tmp_path, schedule) as made:
        held, reports = run(made, schedule, vectors, bounds=bounds)
        check_and_stop(made)
    assert same_bits(held, apply_schedule(schedule, vectors, bounds))
    if name in ("direct", "pairwise"):
        others = matrix - np.diag(np.diag(matrix))
        assert [report.flows for (report,) in reports] == np.count_nonzero(
            others, axis=1
        ).tolist()


def test_a_peer_that_has_finished_may_part(tmp_path: Path) -> None:
    """Rank 1 sends all it has and half-closes, while rank 0 still waits for rank 2's earlier transfer."""
    schedule = Schedule(
        3, 1, (Transfer(0, 2, 0, 0, "reduce"), Transfer(1, 1, 0, 0, "reduce"))
    )
    vectors = random_vectors(3, 10_000)
    with ranks(tmp_path, schedule) as made:
        threads = [
            threading.Thread(
                target=run_one, args=(made[0], schedule, 0, vectors[0]), daemon=True
            )
        ]
        threads[0].start()
        run_one(made[1], schedule, 1, vectors[1])
        deadline = time.monotonic() + 5
        while not made[1].agent.seen.closes and time.monotonic() < deadline:
            time.sleep(0.005)
        made[1].connections[0].shutdown(socket.SHUT_WR)
        time.sleep(0.1)
        before = vectors[0].copy()
        run_one(made[2], schedule, 2, vectors[2])
        threads[0].join(timeout=10)
        assert not threads[0].is_alive()
        check_and_stop(made)
    assert same_bits(
        [vectors[0]], expected(schedule, [before, vectors[1], vectors[2]], 1)[:1]
    )


def run_one(
    own: Rank, schedule: Schedule, rank: int, vector: npt.NDArray[np.float32]
) -> RunReport:
    return own.engine(schedule, rank, len(vector)).run(vector)


ONE_WAY = Schedule(2, 1, (Transfer(0, 0, 1, 0, "replace"),))


@contextmanager
def one_way(
    directory: Path, manners: Manners, length: int, timeout_s: float
) -> Iterator[tuple[Rank, Transport, socket.socket]]:
    """Rank 0 that sends to a bare socket with a small receive buffer."""
    with ExitStack() as stack:
        agent = stack.enter_context(Agent(directory / "0.sock", manners, {}))
        flows = Flows(directory / "0.sock")
        stack.callback(flows.shut)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        near = socket.create_connection(listener.getsockname(), timeout=5)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1024 * 1024)
        far = stack.enter_context(listener.accept()[0])
        connection = stack.enter_context(checked(near, agent, 1))
        rank = Rank(agent, {1: connection}, flows)
        yield rank, rank.engine(ONE_WAY, 0, length, timeout_s), far


def read_all(connection: socket.socket, length: int, after_s: float) -> None:
    time.sleep(after_s)
    while length:
        length -= len(connection.recv(65536))


def test_light_stays_on_until_the_last_byte_is_acknowledged(tmp_path: Path) -> None:
    """All bytes fit in the sender's buffer at once, but the peer's host takes them only when it reads."""
    with one_way(tmp_path, Manners(), 100_000, 10.0) as (rank, transport, far):
        reader = threading.Thread(
            target=read_all, args=(far, 400_000, 0.4), daemon=True
        )
        cpu, begin = time.thread_time(), time.monotonic()
        reader.start()
        report = transport.run(np.ones(100_000, dtype=np.float32))
        cpu = time.thread_time() - cpu
        assert 0.4 <= time.monotonic() - begin < 5.0
        assert unacknowledged(rank.connections[1]) == 0
        reader.join(timeout=5)
        check_and_stop([rank])
        assert rank.agent.seen.closes == [address(1)]
    assert report.bytes_sent == 400_000
    assert report.max_stall_s > 0.2
    assert cpu < 0.2, "it waits busily"


def test_waiting_for_light_takes_no_processor(tmp_path: Path) -> None:
    with one_way(tmp_path, Manners(delay_s=0.5), 100, 10.0) as (rank, transport, _):
        cpu = time.thread_time()
        report = transport.run(np.ones(100, dtype=np.float32))
        assert time.thread_time() - cpu < 0.25
        assert report.flow_wait_longest_s >= 0.5
        assert (report.flows, report.flow_wait_sum_s) == (1, report.flow_wait_longest_s)
        check_and_stop([rank])


def test_an_agent_that_is_away_takes_no_processor_and_is_named(tmp_path: Path) -> None:
    with one_way(tmp_path, Manners(), 100, 0.6) as (rank, _, far):
        del far
        flows = Flows(tmp_path / "none.sock")
        transport = Transport(
            ONE_WAY, 0, rank.connections, 100, 0.6, flows, [address(0), address(1)]
        )
        cpu = time.thread_time()
        with pytest.raises(
            ConnectionError,
            match=r"no light for 0\.6 s: .*none\.sock cannot be reached",
        ):
            transport.run(np.ones(100, dtype=np.float32))
        assert time.thread_time() - cpu < 0.3


def test_light_that_never_comes_is_told_with_its_reason(tmp_path: Path) -> None:
    with (
        one_way(tmp_path, Manners(never=True, fail=1), 100, 0.3) as (_, transport, _),
        pytest.raises(
            PeerLost, match=r"rank 1 lost: no light to it for 0\.3 s: no wavelength"
        ),
    ):
        transport.run(np.ones(100, dtype=np.float32))


def test_a_peer_that_dies_before_its_light_comes_is_named(tmp_path: Path) -> None:
    with one_way(tmp_path, Manners(never=True), 100, 10.0) as (_, transport, far):
        # With a reset, as the kernel of a killed peer answers.
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        far.close()
        begin = time.monotonic()
        with pytest.raises(PeerLost) as caught:
            transport.run(np.ones(100, dtype=np.float32))
    assert caught.value.rank == 1
    assert time.monotonic() - begin < 5.0


def test_answers_to_a_flow_of_before_are_not_taken_for_the_present_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "flow.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, contextlib.closing(
        _Shut(Flows(path))
    ) as client:  # fmt: skip
        listener.bind(str(path))
        listener.listen()
        flows = client.flows
        first = flows.open("10.82.0.3")
        with listener.accept()[0] as agent:
            assert json.loads(agent.recv(4096)) == {
                "open": first.number,
                "peer": "10.82.0.3",
            }
            number = first.number
            flows.close(first)
            second = flows.open("10.82.0.3")
            agent.send(json.dumps({"lit": number}).encode())
            agent.send(json.dumps({"closed": number}).encode())
            flows.update()
            assert not second.lit
            agent.send(json.dumps({"lit": second.number}).encode())
            flows.wait(time.monotonic() + 5)
            assert second.lit
            agent.send(b"nonsense")
            flows.wait(time.monotonic() + 5)
            assert not second.lit
            assert flows.trouble is not None
            assert "nonsense" in flows.trouble
        # It connects again by itself, and asks for what is still wanted.
        listener.settimeout(5)
        flows.wait(time.monotonic() + 1)
        with listener.accept()[0] as agent:
            assert json.loads(agent.recv(4096))["peer"] == "10.82.0.3"


@dataclass
class _Shut:
    flows: Flows

    def close(self) -> None:
        self.flows.shut()


def test_parting_is_not_misled_by_a_late_note_of_an_acknowledgement() -> None:
    near, far = tcp_pair()
    with near, far:
        Transport(
            ONE_WAY,
            0,
            {1: near},
            100,
            5.0,
            Flows(Path("none")),
            [address(0), address(1)],
        )
        near.sendmsg([b"x"], NOTE_WHEN_ACKNOWLEDGED)
        parting = threading.Timer(0.2, far.shutdown, (socket.SHUT_WR,))
        # Before the timer: what is counted from may not be later than what it counts from.
        begin, cpu = time.monotonic(), time.thread_time()
        parting.start()
        part([(1, near)], 5.0)
        assert time.monotonic() - begin >= 0.2
        assert time.thread_time() - cpu < 0.15
        parting.join(timeout=5)


# Whole workers


def test_workers_train_under_light_as_without(tmp_path: Path) -> None:
    values = {"collective": "halving-doubling", "iterations": 4}
    hashes = []
    for number, onic in enumerate((False, True)):
        directory = tmp_path / str(number)
        directory.mkdir()
        with ExitStack() as stack:
            workers = Crew(directory, 40 + number, 4, **values)
            stack.enter_context(ended(workers))
            agents = []
            for rank in range(4):
                path = directory / f"{rank}.sock"
                agents.append(
                    stack.enter_context(Agent(path, Manners(delay_s=0.005), {}))
                )
                if onic:
                    workers.specs[rank]["onic"] = str(path)
                workers.start(rank)
            workers.wait_for("ready")
            workers.release()
            codes = workers.exit_codes()
            events = [workers.events(rank) for rank in range(4)]
            assert codes == [0] * 4, [of_kind(each, "failed") for each in events]
            hashes += [of_kind(each, "done")[0]["parameters_sha256"] for each in events]
        for rank, agent in enumerate(agents):
            # One in each of four steps, and the steps count on.
            assert agent.seen.steps == (list(range(4 * 4)) if onic else [])
            assert Counter(agent.seen.closes) == Counter(agent.seen.opens)
            iterations = of_kind(events[rank], "iteration")
            assert all(
                b - a <= e["max_stall_s"] for e in iterations for a, b in e["stalls"]
            )
            assert all(("flows" in event) == onic for event in iterations)
            if onic:
                assert [event["flows"] for event in iterations] == [4] * 4
                assert all(
                    0.005 <= e["flow_wait_s"]["longest"] <= e["flow_wait_s"]["sum"]
                    for e in iterations
                )
    assert len(set(hashes)) == 1


def test_the_linktest_sends_under_light(tmp_path: Path) -> None:
    workers = Crew(tmp_path, 42, 2, workload="linktest")
    with ExitStack() as stack:
        stack.enter_context(ended(workers))
        agents = [
            stack.enter_context(Agent(tmp_path / f"{r}.sock", Manners(), {}))
            for r in range(2)
        ]
        for rank, to in enumerate([1, None]):
            workers.specs[rank] |= {
                "onic": str(tmp_path / f"{rank}.sock"),
                "linktest": {"seconds": 0.3, "to": to},
            }
            workers.start(rank)
        workers.wait_for("ready")
        workers.release()
        assert workers.exit_codes() == [0, 0]
        (stream,) = of_kind(workers.events(1), "linktest")
        deadline = time.monotonic() + 10
        # An agent may hear of the last flow's end when the worker is gone.
        while any(
            Counter(agent.seen.closes) != Counter(agent.seen.opens) for agent in agents
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert stream["bytes"] > 0
    # Rank 0: the stream; rank 1 sends nothing.
    assert [agent.seen.steps for agent in agents] == [[None], []]


def test_the_socket_of_the_onic_in_a_spec() -> None:
    good = {"job": "x", "rank": 0, "world_size": 1, "peers": ["10.0.0.1"]}
    assert parse_spec(good).onic is None
    assert parse_spec(good | {"onic": None}).onic is None
    assert parse_spec(good | {"onic": "/onic/flow.sock"}).onic == "/onic/flow.sock"
