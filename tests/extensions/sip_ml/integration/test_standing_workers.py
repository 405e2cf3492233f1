"""Workers and the server agent where light stands: words need none, and what is posted is what leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from ringlight.controller.errors import ConflictError
from ringlight.controller.optical.registry import make_driver
from ringlight.controller.server_agent import AgentClient
from ringlight.extensions.sip_ml.divided.lightpaths import setting_of
from ringlight.extensions.sip_ml.divided.planes import Lightpath, Paths
from ringlight.extensions.sip_ml.light.demand import left, stranded
from ringlight.fabric.crossconnect import Mode
from ringlight.testbed.emulation import testbed as emulated
from ringlight.testbed.emulation.scale import Emulation
from ringlight.workloads.packed import pack
from tests.drivers import converge
from tests.extensions.sip_ml.integration.test_standing_onic import (
    SCALE,
    STRAY_BYTES,
    circuits,
    planes,
)
from tests.integration.labs import running_testbed, until
from tests.unit.test_worker_graph import pipeline

pytestmark = pytest.mark.root

GPUS = 3
Pair = tuple[int, int]


class Rig:
    """A lab of circuit planes; its agent, as the controller uses it."""

    def __init__(self, testbed: emulated.Testbed, agent: AgentClient) -> None:
        self.testbed, self.agent = testbed, agent
        self.fabric = testbed.settings.fabric
        self.ips = [gpu.ip for gpu in self.fabric.gpus.values()]

    def shine(self, paths: Paths) -> None:
        """Exactly these lightpaths lit, and all other pairs dark."""
        self.switch(paths)
        self.tell(paths)

    def switch(self, paths: Paths) -> None:
        """Exactly what these lightpaths need, at every switch."""
        for name, crossed in setting_of(self.fabric, paths).items():
            entry = self.testbed.inventory["optical_switches"][name]
            with closing(
                make_driver(name, entry, self.fabric.optical_switches[name].size)
            ) as driver:
                driver.open()
                converge(driver, crossed, Mode.REPLACE)

    def tell(self, paths: Paths) -> None:
        """The tables of all O-NICs."""
        wanted = {
            f"g{a}": {
                self.ips[b]: {
                    "lit": (a, b) in paths,
                    "paths": [
                        {"port": path.port, "wavelength": None}
                        for path in paths.get((a, b), ())
                    ],
                }
                for b in range(GPUS)
                if b != a
            }
            for a in range(GPUS)
        }
        assert self.agent.set_lightpaths(wanted) == wanted

    def start(self, job: str, digest: str | None = None, **spec: Any) -> None:
        """A job on all GPUs, and wait until its workers are connected."""
        given = {
            "job": job,
            "world_size": GPUS,
            "peers": self.ips,
            "posted": True,
            **spec,
        }
        wanted = [
            {
                "job": job,
                "rank": rank,
                "gpu": f"g{rank}",
                "spec": {**given, "rank": rank},
                "graph": digest,
            }
            for rank in range(GPUS)
        ]
        self.agent.start(wanted)
        until(
            lambda: len(self.events(job, "ready")) == GPUS,
            30,
            lambda: str(self.agent.workers(0)),
        )

    def release(self, job: str) -> None:
        self.agent.release([f"{job}-{rank}" for rank in range(GPUS)], 0.0)

    def events(self, job: str, kind: str) -> dict[int, Mapping[str, Any]]:
        """By rank."""
        told = self.agent.workers(0)["events"]
        return {
            event["rank"]: event
            for event in told
            if event["job"] == job and event["event"] == kind
        }

    def exited(self, job: str) -> Sequence[int]:
        until(
            lambda: len(self.events(job, "exited")) == GPUS,
            60,
            lambda: str(self.agent.workers(0)),
        )
        return [
            event["exit_code"]
            for _, event in sorted(self.events(job, "exited").items())
        ]

    def remove(self, job: str) -> None:
        for rank in range(GPUS):
            self.agent.remove(f"{job}-{rank}")

    def traffic(self) -> dict[Pair, Mapping[str, int]]:
        gpus = self.agent.traffic()["gpus"]
        return {
            (int(gpu[1:]), self.ips.index(ip)): counts
            for gpu, peers in gpus.items()
            for ip, counts in peers.items()
        }

    def check(self, job: str, pairs: set[Pair]) -> dict[Pair, tuple[int, int]]:
        """All that the workers posted has left as light, once; bytes of payload and of framing by pair."""
        told = {
            (rank, int(peer)): tuple(both)
            for rank, done in self.events(job, "done").items()
            for peer, both in done["light"].items()
        }
        assert told.keys() == pairs
        traffic = self.traffic()
        assert len(traffic) == GPUS * (GPUS - 1)
        for pair, counts in traffic.items():
            assert counts["posted"] == counts["fresh"] == sum(told.get(pair, (0, 0)))
            assert counts["resent"] <= STRAY_BYTES
        return told


@contextmanager
def running() -> Iterator[Rig]:
    emulation = Emulation(payload_scale=SCALE, rto_min_s=2.0)
    with ExitStack() as stack:
        testbed = stack.enter_context(
            running_testbed(planes(), runtime="namespace", emulation=emulation)
        )
        agent = AgentClient(f"unix:{testbed.settings.state / 'agent.sock'}")
        stack.callback(agent.close)
        yield Rig(testbed, agent)


@pytest.fixture(scope="module")
def lit() -> Iterator[Rig]:
    with running() as rig:
        yield rig


@pytest.fixture
def rig(lit: Rig) -> Iterator[Rig]:
    lit.shine({})
    yield lit
    lit.agent.set_lightpaths({f"g{a}": {} for a in range(GPUS)})
    for name in {worker["job"] for worker in lit.agent.workers(0)["workers"]}:
        lit.remove(name)


def test_a_ring_of_one_way_light_trains_once_there_is_light(rig: Rig) -> None:
    """Hellos and receipts pass while all is dark, and against the light; payload waits for it."""
    pairs = {(0, 1), (1, 2), (2, 0)}
    for job, iterations in (("first", 3), ("second", 1)):
        rig.shine({})
        rig.start(job, gradient_bytes=120_000, iterations=iterations)
        assert all(not any(counts.values()) for counts in rig.traffic().values())
        rig.release(job)
        until(
            lambda: all(rig.traffic()[pair]["held"] for pair in pairs),
            20,
            lambda: str(rig.traffic()),
        )
        for pair, counts in rig.traffic().items():
            assert (counts["posted"] > 0, counts["fresh"]) == (pair in pairs, 0)
        rig.shine(circuits(dict.fromkeys(pairs, 1)))
        assert rig.exited(job) == [0] * GPUS
        found = rig.check(job, pairs)
        sent = [
            done["bytes_sent"] for _, done in sorted(rig.events(job, "done").items())
        ]
        assert [found[rank, (rank + 1) % GPUS] for rank in range(GPUS)] == [
            (size, 0) for size in sent
        ]
        rig.remove(job)
        assert rig.traffic() == {}


def test_messages_both_ways_and_their_heads_are_all_that_leaves(rig: Rig) -> None:
    up, down = (Lightpath(0),), (Lightpath(1),)
    rig.shine({(0, 1): up, (1, 2): up, (2, 1): down, (1, 0): down})
    packed = pack(pipeline(GPUS, 3, 0.01, 40_000))
    digest = hashlib.sha256(packed).hexdigest()
    rig.agent.put_workload(digest, packed)
    rig.start("line", digest, workload="graph", iterations=2)
    rig.release("line")
    assert rig.exited("line") == [0] * GPUS
    # Three micro-batches, twice; 17 bytes before each.
    pairs = {(0, 1), (1, 0), (1, 2), (2, 1)}
    assert set(rig.check("line", pairs).values()) == {(6 * 40_000, 6 * 17)}


def test_what_is_posted_stays_when_the_worker_is_killed(rig: Rig) -> None:
    rig.start("dead", gradient_bytes=120_000, iterations=3)
    rig.release("dead")
    until(lambda: rig.traffic()[0, 1]["held"], 20)
    posted = rig.traffic()[0, 1]["posted"]
    assert posted >= 40_000
    (worker,) = [
        worker
        for worker in rig.testbed.workers.workers()
        if worker.place.id == "dead-0"
    ]
    worker.host.kill()
    until(lambda: 0 in rig.events("dead", "exited"), 20)
    assert rig.traffic()[0, 1]["posted"] == posted


def test_what_is_lost_in_the_light_asks_for_light_once_it_is_sent_again(
    rig: Rig,
) -> None:
    """All that was posted has left, and without light what TCP sends again would go round for ever."""
    up, down = (Lightpath(0),), (Lightpath(1),)
    paths: Paths = {(0, 1): up, (1, 2): up, (2, 1): down, (1, 0): down}
    rig.shine(paths)
    packed = pack(pipeline(GPUS, 1, 0.01, 1000))
    digest = hashlib.sha256(packed).hexdigest()
    rig.agent.put_workload(digest, packed)
    rig.start("lost", digest, workload="graph", iterations=1)
    # The O-NICs take the switches for lit.
    rig.switch({})
    rig.release("lost")
    until(lambda: rig.traffic()[0, 1]["fresh"] == 1017, 20, lambda: str(rig.traffic()))
    rig.tell({})
    nodes, before = [f"g{a}" for a in range(GPUS)], rig.agent.traffic()["gpus"]

    def asks() -> bool:
        now = rig.agent.traffic()["gpus"]
        assert not left(rig.fabric, nodes, now).any()
        found = stranded(rig.fabric, nodes, now, before, set())
        return list(zip(*found.nonzero(), strict=True)) == [(0, 1)]

    until(asks, 20, lambda: str(rig.traffic()))
    rig.shine(paths)
    assert rig.exited("lost") == [0] * GPUS


def test_refused_light_changes_nothing(rig: Rig) -> None:
    g0 = {rig.ips[1]: {"lit": True, "paths": [{"port": 0}]}}
    rig.agent.set_lightpaths({"g0": g0})
    with pytest.raises(
        ConflictError, match=r"^O-NIC g1: there is no port 3 \(0\.\.2\)$"
    ):
        rig.agent.set_lightpaths(
            {"g0": {}, "g1": {rig.ips[0]: {"lit": True, "paths": [{"port": 3}]}}}
        )
    # Nothing but a table that is named is touched, or even looked at.
    assert rig.agent.set_lightpaths({}) == {}
    shown = rig.agent.set_lightpaths({"g0": g0})
    assert shown == {
        "g0": {rig.ips[1]: {"lit": True, "paths": [{"port": 0, "wavelength": None}]}}
    }
