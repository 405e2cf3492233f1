"""Light that stands, in a real lab: a pair's lightpaths carry one stream together, what is sent in the dark
waits, and all of it is counted. Light and its division are set by hand, without a controller.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.registry import make_driver
from ringlight.extensions.sip_ml.allocation.dividing import divider
from ringlight.extensions.sip_ml.divided.lightpaths import setting_of
from ringlight.extensions.sip_ml.divided.planes import Lightpath, Paths
from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import Mode
from ringlight.fabric.keys import plugged
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation import testbed as emulated
from ringlight.testbed.emulation.onic.tables import (
    LightTable,
    PathCount,
    PeerCount,
    PeerLight,
    PeerTraffic,
    Transmitter,
    read_counters,
    read_traffic,
)
from ringlight.testbed.emulation.scale import Emulation
from tests.drivers import converge
from tests.integration.labs import (
    Ends,
    agent_client,
    drain,
    running_testbed,
    tcp_connection,
    unsent,
    until,
)

pytestmark = pytest.mark.root

#: Rate of one lightpath, bits per second: 25 Gbit/s over the payload scale.
RATE_BPS = 25e6
SCALE = 25e9 / RATE_BPS
SWITCHES = 3
#: What TCP may take for lost when the machine stands still; a dark time that lost frames would cost more.
STRAY_BYTES = 2 * 9000
IP_TOS_OF_WORDS = 0xC0


def fabric(**interconnect: Any) -> Fabric:
    return plugged(
        build_fabric(
            FabricSpec.model_validate({"interconnect": {"gpu": "a100", **interconnect}})
        )
    )


def planes() -> Fabric:
    return fabric(kind="parallel-ocs", gpus=3, rate="75 Gbit/s", switches=SWITCHES)


def ring() -> Fabric:
    times = {"interval": "5 ms", "dark": "1 ms"}
    return fabric(
        kind="demand-ring", gpus=5, rate="100 Gbit/s", wavelength="25 Gbit/s", **times
    )


class Rig:
    """A lab of an interconnect, and a worker that waits on every GPU."""

    def __init__(self, testbed: emulated.Testbed) -> None:
        self.testbed, self.lab = testbed, testbed.settings.lab
        self.fabric = testbed.settings.fabric
        self.switches = self.fabric.parts["divided"].switches
        self.gpus = list(self.fabric.gpus.values())
        self.http = agent_client(testbed)
        self.tables = [
            LightTable(self.pins(number)) for number in range(len(self.gpus))
        ]
        self.drivers: dict[str, OpticalSwitchDriver] = {}
        for name in self.switches:
            entry = testbed.inventory["optical_switches"][name]
            self.drivers[name] = make_driver(
                name, entry, self.fabric.optical_switches[name].size
            )
            self.drivers[name].open()
        peers = [gpu.ip for gpu in self.gpus]
        wanted = [
            {"job": "job", "rank": rank, "gpu": gpu.name, "spec": {"peers": peers}}
            for rank, gpu in enumerate(self.gpus)
        ]
        answer = self.http.post("/v1/workers/batch", json=wanted)
        assert answer.status_code == 200, answer.text

    def close(self) -> None:
        for table in self.tables:
            table.close()
        for driver in self.drivers.values():
            driver.close()
        self.http.close()

    def pins(self, number: int) -> Path:
        return self.lab.bpf_dir / f"onic-{self.gpus[number].name}"

    def connection(self, a: int, b: int) -> AbstractContextManager[Ends]:
        """A TCP connection from the worker on GPU a to that on b: the two ends."""
        return tcp_connection(self.lab, f"job-{a}", f"job-{b}", self.gpus[b].ip)

    # Light

    def switch(self, paths: Paths) -> None:
        """Exactly what these lightpaths need, at every switch."""
        setting = setting_of(self.fabric, paths)
        for name, driver in self.drivers.items():
            converge(driver, setting[name], Mode.REPLACE)

    def lights(self, paths: Paths, lit: bool = True) -> None:
        """The tables of all O-NICs, read back."""
        wanted: list[dict[str, PeerLight]] = [{} for _ in self.gpus]
        for (source, destination), own in paths.items():
            ways = tuple(Transmitter(*path) for path in own)
            wanted[source][self.gpus[destination].ip] = PeerLight(lit, ways)
        for table, lights in zip(self.tables, wanted, strict=True):
            table.replace(lights)
            assert table.read() == lights

    def shine(self, paths: Paths) -> None:
        self.switch(paths)
        self.lights(paths)

    # What it counts

    def traffic(self, number: int) -> PeerTraffic:
        return read_traffic(self.pins(number))

    def sent(self, source: int, destination: int) -> PeerCount:
        return self.traffic(source).peers[self.gpus[destination].ip]

    def on_paths(self, source: int, destination: int) -> dict[Lightpath, PathCount]:
        """Counters of what entered a pair's lightpaths, which must equal what came out."""
        here, there = self.gpus[source].ip, self.gpus[destination].ip

        def of(
            counts: Mapping[tuple[str, int, int | None], PathCount], ip: str
        ) -> dict[Lightpath, PathCount]:
            return {
                Lightpath(port, colour): count
                for (peer, port, colour), count in counts.items()
                if peer == ip
            }

        went_in = of(self.traffic(source).sent_on, there)
        assert went_in == of(self.traffic(destination).received_on, here)
        return went_in

    def under_way(self, source: int, destination: int) -> int:
        """Bytes that have left the one as light and not come out at the other, lost ones included."""
        sent, here = self.sent(source, destination), self.gpus[source].ip
        came = self.traffic(destination).received_on.items()
        return (
            sent.fresh
            + sent.resent
            - sum(count.payload for (ip, _, _), count in came if ip == here)
        )

    def lost(self) -> dict[str, int]:
        """What must stay as it is while nothing goes wrong."""
        totals = self.http.get("/v1/onics").raise_for_status().json()["totals"]
        onics = [
            read_counters(self.pins(number), self.fabric.onics[gpu.name].ports)
            for number, gpu in enumerate(self.gpus)
        ]
        return {**totals, "unrouted": sum(onic.unrouted for onic in onics)}

    def queued(self, source: int, destination: int) -> list[int]:
        """Bytes that have gone through a pair's queue for one lightpath, for two, and so on."""
        peers = [gpu.ip for gpu in self.gpus if gpu is not self.gpus[source]]
        first = 1 + peers.index(self.gpus[destination].ip) * SWITCHES
        netns = self.lab.namespace(f"onic-{self.gpus[source].name}")
        command = ["tc", "-n", netns, "-s", "class", "show", "dev", "qo"]
        shown = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        ).stdout
        sent = dict(
            re.findall(
                r"^class htb 1:(\w+) .*\n\s*Sent (\d+) bytes", shown, re.MULTILINE
            )
        )
        return [int(sent[f"{first + number:x}"]) for number in range(SWITCHES)]

    def dropped(self) -> int:
        """Packets that a queue of an O-NIC had no room for."""
        found = 0
        for gpu in self.gpus:
            command = [
                "tc",
                "-n",
                self.lab.namespace(f"onic-{gpu.name}"),
                "-s",
                "-j",
                "qdisc",
                "show",
            ]
            shown = subprocess.run(
                command, capture_output=True, text=True, timeout=10, check=True
            ).stdout
            found += sum(queue["drops"] for queue in json.loads(shown))
        return found


@contextmanager
def running(made: Fabric) -> Iterator[Rig]:
    command = (sys.executable, "-S", "-c", "import time; time.sleep(600)", "{job}")
    # Longer than any dark time here, as an experiment must have it.
    emulation = Emulation(payload_scale=SCALE, rto_min_s=2.0)
    with (
        running_testbed(
            made, runtime="namespace", emulation=emulation, command=command
        ) as testbed,
        closing(Rig(testbed)) as rig,
    ):
        yield rig


@pytest.fixture(scope="module")
def lit() -> Iterator[Rig]:
    with running(planes()) as rig:
        yield rig


@pytest.fixture
def rig(lit: Rig) -> Iterator[Rig]:
    yield lit
    lit.shine({})


def circuits(pairs: Mapping[tuple[int, int], int]) -> Paths:
    """A pair's circuits through the first switches."""
    return {
        pair: tuple(Lightpath(port) for port in range(count))
        for pair, count in pairs.items()
    }


class Stream:
    """Random bytes on their way from one GPU to another, over one connection."""

    def __init__(self, ends: Ends, size: int) -> None:
        self._near, self._far = ends
        self._far.settimeout(60)
        self._near.settimeout(60)
        self._data = secrets.token_bytes(size)
        self._got = b""
        self._threads = [
            threading.Thread(target=self._send),
            threading.Thread(target=self._receive),
        ]
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        self._near.sendall(self._data)

    def _receive(self) -> None:
        self._got = drain(self._far, len(self._data))
        self.lasted = time.monotonic() - self._began

    def arrives(self) -> float:
        """Wait until all has been acknowledged; how long it took to arrive, seconds."""
        for thread in self._threads:
            thread.join(60)
        assert self._got == self._data
        until(lambda: not unsent(self._near), 10)
        return self.lasted


def check(rig: Rig, before: PeerCount, size: int, pair: tuple[int, int]) -> PeerCount:
    """All of it has left once as light, and next to nothing twice; what has since the count before."""
    found = PeerCount(
        *(now - was for now, was in zip(rig.sent(*pair), before, strict=True))
    )
    assert found.fresh == size
    assert found.resent <= STRAY_BYTES
    assert rig.dropped() == 0
    return found


def payloads(rig: Rig, pair: tuple[int, int]) -> dict[Lightpath, int]:
    return {path: count.payload for path, count in rig.on_paths(*pair).items()}


def test_the_lab_says_whose_light_stands(rig: Rig) -> None:
    inventory = rig.testbed.inventory
    assert inventory["onics"] == {
        gpu.name: {"transmitters": "array", "standing": True} for gpu in rig.gpus
    }
    assert list(inventory["optical_switches"]) == list(rig.switches)
    assert not (rig.testbed.settings.state / "onics").exists()
    counted = rig.http.get("/v1/onics").raise_for_status().json()
    assert counted["switches"].keys() == set(rig.switches)
    assert counted["onics"]["g0"].keys() >= {"lightpaths", "unrouted"}
    assert rig.traffic(0).peers.keys() == {gpu.ip for gpu in rig.gpus[1:]}


def test_a_table_of_light_is_written_whole_or_not_at_all(rig: Rig) -> None:
    ip, table = rig.gpus[1].ip, rig.tables[0]
    most = tuple(Transmitter(port % SWITCHES, port) for port in range(64))
    table.replace({ip: PeerLight(True, most)})
    assert table.read() == {ip: PeerLight(True, most)}
    with pytest.raises(ValueError, match=f"{ip} has 65 lightpaths, at most 64"):
        table.replace(
            {
                rig.gpus[2].ip: PeerLight(True),
                ip: PeerLight(False, (*most, Transmitter(0))),
            }
        )
    assert table.read() == {ip: PeerLight(True, most)}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_lightpaths_of_a_pair_carry_one_stream_together(
    rig: Rig, count: int
) -> None:
    pair, size = (0, 1), 1 << 20
    rig.shine(circuits({pair: count}))
    lost, before, were, queued = (
        rig.lost(),
        rig.sent(*pair),
        payloads(rig, pair),
        rig.queued(*pair),
    )
    with rig.connection(*pair) as ends:
        lasted = Stream(ends, size).arrives()
    found = check(rig, before, size, pair)
    assert (found.held, found.words) == (0, 0)
    assert rig.lost() == lost
    ideal = size * 8 / (count * RATE_BPS)
    # A burst at the start is at most a frame; a machine that stands still makes it longer.
    assert 0.95 * ideal < lasted < 3 * ideal + 1
    # In the queue of that rate.
    waited = [now - was for now, was in zip(rig.queued(*pair), queued, strict=True)]
    assert [number for number, passed in enumerate(waited, start=1) if passed] == [
        count
    ]
    assert size < waited[count - 1] < 1.1 * size
    now = payloads(rig, pair)
    shares = [
        now[Lightpath(port)] - were.get(Lightpath(port), 0) for port in range(count)
    ]
    assert sum(shares) == found.fresh + found.resent
    # In turn, frame by frame.
    assert max(shares) - min(shares) < size / 20
    assert now.keys() == were.keys() | {Lightpath(port) for port in range(count)}


def test_what_is_sent_in_the_dark_waits_and_is_not_lost(rig: Rig) -> None:
    pair, size = (0, 1), 2 << 20
    paths = circuits({pair: 2})
    rig.shine(paths)
    lost, before, gone = rig.lost(), rig.sent(*pair), rig.under_way(*pair)
    with rig.connection(*pair) as ends:
        stream = Stream(ends, size)
        for _ in range(3):
            time.sleep(0.05)
            rig.lights(paths, lit=False)
            # What is on its way arrives; then the switches let nothing through.
            until(lambda: rig.under_way(*pair) == gone, 5)
            rig.switch({})
            held = rig.sent(*pair)
            time.sleep(0.1)
            until(lambda held=held: rig.sent(*pair).held > held.held, 5)
            assert rig.sent(*pair).fresh == held.fresh
            rig.shine(paths)
        lasted = stream.arrives()
    check(rig, before, size, pair)
    assert rig.lost() == lost
    assert lasted > 3 * 0.1 + 0.9 * size * 8 / (2 * RATE_BPS)


def test_what_the_light_loses_is_sent_again_and_not_counted_as_fresh(rig: Rig) -> None:
    pair, size = (0, 1), 1 << 16
    paths = circuits({pair: 1})
    rig.lights(paths)
    lost, before = rig.lost(), rig.sent(*pair)
    with rig.connection(*pair) as ends:
        stream = Stream(ends, size)
        # The O-NIC takes it for lit, and no switch passes it.
        until(lambda: rig.lost()["unset_drops"] > lost["unset_drops"], 5)
        rig.switch(paths)
        stream.arrives()
    now = rig.sent(*pair)
    assert now.fresh - before.fresh == size
    assert now.resent > before.resent
    assert rig.lost()["unset_drops"] > lost["unset_drops"]


def test_light_is_divided_anew_while_a_stream_is_on_its_way(rig: Rig) -> None:
    pair, size = (0, 1), 2 << 20
    lost, before, gone = rig.lost(), rig.sent(*pair), rig.under_way(*pair)
    rig.shine(circuits({pair: 1}))
    with rig.connection(*pair) as ends:
        stream = Stream(ends, size)
        for count in (3, 1, 2, 3):
            time.sleep(0.1)
            rig.lights(circuits({pair: count}), lit=False)
            until(lambda: rig.under_way(*pair) == gone, 5)
            rig.shine(circuits({pair: count}))
        lasted = stream.arrives()
    check(rig, before, size, pair)
    assert rig.lost() == lost
    assert lasted < 3 * size * 8 / RATE_BPS + 1


def test_a_pair_that_gets_no_light_for_long_waits_too_and_then_goes_on(
    rig: Rig,
) -> None:
    pair = (1, 2)
    rig.lights({pair: ()})
    lost, before = rig.lost(), rig.sent(*pair)
    with rig.connection(*pair) as (near, far):
        near.sendall(b"small")
        # Longer than TCP waits before it would send again, and what waits has not left.
        until(lambda: rig.sent(*pair).held > before.held, 5)
        time.sleep(2.3)
        assert rig.sent(*pair).fresh == before.fresh
        rig.shine(circuits({pair: 1}))
        assert drain(far, 5) == b"small"
        until(lambda: not unsent(near), 5)
    assert check(rig, before, 5, pair).resent == 0
    assert rig.lost() == lost


def test_words_travel_while_all_light_is_out(rig: Rig) -> None:
    pair = (0, 2)
    rig.lights({pair: ()})
    before, words = rig.sent(*pair), b"a word"
    with rig.connection(*pair) as (near, far):
        near.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, IP_TOS_OF_WORDS)
        near.sendall(words)
        assert drain(far, len(words)) == words
        until(lambda: not unsent(near), 5)
        assert rig.sent(*pair) == before._replace(words=before.words + len(words))
        # From now on it is payload, and words were none of it.
        near.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0)
        near.sendall(b"payload")
        until(lambda: rig.sent(*pair).held > before.held, 5)
        rig.shine(circuits({pair: 1}))
        assert drain(far, 7) == b"payload"
        until(lambda: not unsent(near), 5)
    check(rig, before, 7, pair)


def test_payload_that_no_light_is_meant_for_is_dropped_and_counted(rig: Rig) -> None:
    rig.lights({(0, 1): ()})
    with rig.connection(0, 1) as (near, _):
        near.sendall(b"held")
        held = rig.sent(0, 1).held
        until(lambda: rig.sent(0, 1).held > held, 5)
        before = rig.lost()["unrouted"]
        # Nothing goes round for ever after a job.
        rig.lights({})
        until(lambda: rig.lost()["unrouted"] > before, 5)
        held = rig.sent(0, 1).held
        time.sleep(0.1)
        assert rig.sent(0, 1).held == held
    with rig.connection(1, 0) as (near, _):
        near.sendall(b"nobody")
        until(lambda: rig.lost()["unrouted"] >= before + 2, 5)


def test_a_ring_carries_what_its_program_divides() -> None:
    with running(ring()) as rig:
        division_of, size = divider(rig.fabric), 1 << 18
        for step in (1, 2):
            demand = np.zeros((5, 5))
            pairs = [(node, (node + step) % 5) for node in range(5)]
            for pair in pairs:
                demand[pair] = size
            division = division_of.division(demand)
            assert set(pairs) <= division.paths.keys()
            rig.shine(division.paths)
            lost, before = rig.lost(), {pair: rig.sent(*pair) for pair in pairs}
            with ExitStack() as stack:
                streams = [
                    Stream(stack.enter_context(rig.connection(*pair)), size)
                    for pair in pairs
                ]
                for stream in streams:
                    stream.arrives()
            for pair in pairs:
                check(rig, before[pair], size, pair)
                assert set(rig.on_paths(*pair)) <= set(division.paths[pair])
                assert len(rig.on_paths(*pair)) == division.counts[pair]
            assert rig.lost() == lost
