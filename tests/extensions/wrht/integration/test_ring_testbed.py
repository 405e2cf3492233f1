"""A ring of wavelengths in a real lab: arrays of transmitters, and WSSs that add, drop and pass each colour.

Transmit tables come from the testbed's agent and light from the WSSs' drivers, as a controller would do it.
"""

from __future__ import annotations

import json
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    suppress,
)
from pathlib import Path
from typing import Any

import httpx
import pytest

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.registry import make_driver
from ringlight.extensions.wrht.ring import ADD_CLOCKWISE, EAST, WEST
from ringlight.extensions.wrht.wdm import cross_connects
from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.steps import Step, frozen, frozen_bool
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation import testbed as emulated
from ringlight.testbed.emulation.onic.tables import (
    Counters,
    RouteTable,
    Transmitter,
    read_counters,
)
from ringlight.testbed.emulation.optical.datapath import (
    Datapath,
    Selective,
    remove_pins,
)
from ringlight.testbed.emulation.optical.lasers import Lasers
from ringlight.testbed.emulation.scale import Emulation
from ringlight.testbed.lab import new_lab
from tests.drivers import converge
from tests.integration.labs import (
    Ends,
    agent_client,
    drain,
    pour,
    running_testbed,
    socket_inside,
    tcp_connection,
    unsent,
    until,
)

pytestmark = pytest.mark.root

#: 25 Gbit/s of each wavelength over the payload scale.
RATE_BPS = 50e6
NODES, WAVELENGTHS = 5, 2
LOSS_DB = 7.0
CLOCKWISE, COUNTER = 0, 1
#: Constants of packet sockets, which hand out the tag beside the frame.
SOL_PACKET, PACKET_AUXDATA = 263, 8


def ring_spec(profile: str = "ideal") -> dict[str, Any]:
    # A queue of two frames, which TCP would overrun, were it the one that counts.
    spec = {
        "nodes": NODES,
        "wavelengths": WAVELENGTHS,
        "gpu": "test",
        "rate": "25 Gbit/s",
        "queue": "1 us",
    }
    # Four WSSs leave a receiver 0 - 28 dBm, which it reads, and five 0 - 35 dBm, which it does not.
    wss = {"profile": profile, "loss_db": LOSS_DB}
    return {"rings": {"r": {**spec, "wss": wss}}}


def ring(profile: str = "ideal") -> Fabric:
    return build_fabric(FabricSpec.model_validate(ring_spec(profile)))


def step(*lightpaths: tuple[int, int, int, int]) -> Step:
    """Lightpaths as (source, destination, port, wavelength)."""
    sources, destinations, ports, wavelengths = zip(*lightpaths, strict=True)
    zeros = frozen([0] * len(lightpaths))
    clockwise = frozen_bool([port == CLOCKWISE for port in ports])
    return Step(
        frozen(sources),
        frozen(destinations),
        zeros,
        zeros + 1,
        "reduce",
        frozen(wavelengths),
        clockwise,
    )


class Rig:
    """A lab with one ring and a worker that waits on every GPU."""

    def __init__(self, testbed: emulated.Testbed) -> None:
        self.testbed = testbed
        self.lab = testbed.settings.lab
        self.fabric = testbed.settings.fabric
        self.ring = self.fabric.parts["rings"]["r"]
        self.http = agent_client(testbed)
        self.drivers: dict[str, OpticalSwitchDriver] = {}
        for name in self.ring.switches:
            entry = testbed.inventory["optical_switches"][name]
            self.drivers[name] = make_driver(
                name, entry, self.fabric.optical_switches[name].size
            )
            self.drivers[name].open()

    def close(self) -> None:
        for driver in self.drivers.values():
            driver.close()
        self.http.close()

    def start_workers(self) -> None:
        peers = [g.ip for g in self.fabric.gpus.values()]
        wanted = [
            {"job": "red", "rank": rank, "gpu": gpu, "spec": {"peers": peers}}
            for rank, gpu in enumerate(self.ring.nodes)
        ]
        answer = self.http.post("/v1/workers/batch", json=wanted)
        assert answer.status_code == 200, answer.text

    def ip(self, node: int) -> str:
        return self.fabric.gpus[self.ring.nodes[node]].ip

    def connection(self, a: int, b: int) -> AbstractContextManager[Ends]:
        """A TCP connection from node a to b: the two ends."""
        return tcp_connection(self.lab, f"red-{a}", f"red-{b}", self.ip(b))

    # Light

    def tables(self, wanted: Mapping[int, Mapping[int, Transmitter]]) -> None:
        """The transmit table of every node, by peer; empty where none is wanted."""
        for node, gpu in enumerate(self.ring.nodes):
            body = {
                self.ip(peer): chosen._asdict()
                for peer, chosen in wanted.get(node, {}).items()
            }
            answer = self.http.put(f"/v1/onics/{gpu}/transmit", json=body)
            assert (answer.status_code, answer.json()) == (200, body)

    def light(self, wanted: Mapping[str, Iterable[CrossConnect]]) -> None:
        """Exactly these cross-connects, at every WSS."""
        for name, driver in self.drivers.items():
            converge(driver, wanted.get(name, ()), Mode.REPLACE)

    def set_up(self, *lightpaths: tuple[int, int, int, int]) -> None:
        """Tables and light of one step of (source, destination, port, wavelength)."""
        tables: dict[int, dict[int, Transmitter]] = {}
        for source, destination, port, wavelength in lightpaths:
            tables.setdefault(source, {})[destination] = Transmitter(port, wavelength)
        self.tables(tables)
        self.light(cross_connects(self.ring, self.fabric, step(*lightpaths)))

    def at(
        self, node: int, ingress: int, egress: int, wavelength: int
    ) -> dict[str, set[CrossConnect]]:
        """One cross-connect between faceplate ports of the WSS of a node."""
        name = self.ring.switches[node]
        switch = self.fabric.optical_switches[name]
        return {
            name: {
                CrossConnect(switch.ingress(ingress), switch.egress(egress), wavelength)
            }
        }

    # Counters

    def queued(self, node: int) -> dict[tuple[int, int], int]:
        """Bytes that have gone through the queue of each port and wavelength of a node's O-NIC."""
        netns = self.lab.namespace(f"onic-{self.ring.nodes[node]}")
        command = ["tc", "-n", netns, "-s", "-j", "qdisc"]
        shown = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        ).stdout
        queues = {(q["dev"], q.get("parent", "root")): q for q in json.loads(shown)}
        found = {}
        for port in (CLOCKWISE, COUNTER):
            assert queues[f"p{port}", "root"]["options"]["direct_packets_stat"] == 0
            for wavelength in range(WAVELENGTHS):
                queue = queues[f"p{port}", f"1:{wavelength + 1}"]
                assert queue["drops"] == 0
                found[port, wavelength] = queue["bytes"]
        return found

    def onic(self, node: int) -> Counters:
        return read_counters(self.lab.bpf_dir / f"onic-{self.ring.nodes[node]}", 2)

    def light_counters(self) -> dict[str, Any]:
        return dict(self.http.get("/v1/onics").raise_for_status().json())

    def totals(self) -> dict[str, int]:
        return dict(self.light_counters()["totals"])


@contextmanager
def running(fabric: Fabric) -> Iterator[Rig]:
    command = (sys.executable, "-S", "-c", "import time; time.sleep(600)", "{job}")
    emulation = Emulation(payload_scale=25e9 / RATE_BPS)
    with (
        running_testbed(
            fabric, runtime="namespace", emulation=emulation, command=command
        ) as made,
        closing(Rig(made)) as rig,
    ):
        yield rig


@pytest.fixture(scope="module")
def lit() -> Iterator[Rig]:
    with running(ring()) as rig:
        rig.start_workers()
        yield rig


@pytest.fixture
def rig(lit: Rig) -> Iterator[Rig]:
    yield lit
    lit.tables({})
    lit.light({})


def carried(rig: Rig, *pairs: tuple[int, int], size: int = 1 << 18) -> None:
    """Every source sends ``size`` random bytes to its destination, all at once; each gets what was sent."""
    data = {pair: secrets.token_bytes(size) for pair in pairs}
    with ExitStack() as stack:
        ends = {pair: stack.enter_context(rig.connection(*pair)) for pair in pairs}
        senders = [
            threading.Thread(target=ends[pair][0].sendall, args=(data[pair],))
            for pair in pairs
        ]
        for sender in senders:
            sender.start()
        for pair in pairs:
            assert drain(ends[pair][1], size) == data[pair]
        for sender in senders:
            sender.join(10)
        until(lambda: not any(unsent(near) for near, _ in ends.values()), 5)


def test_the_lab_has_wss_of_micro_rings_and_onics_without_agents() -> None:
    fabric = ring("mrr")
    with running(fabric) as rig:
        inventory = rig.testbed.inventory
        for gpu in rig.ring.nodes:
            entry = inventory["onics"][gpu]
            place = rig.testbed.settings.state / "onics" / gpu
            assert entry == {
                "transmitters": "array",
                "flow": str(place / "flow.sock"),
                "directory": str(place),
            }
            # Where a controller puts that socket, and nothing is yet.
            assert list(place.iterdir()) == []
        assert "onics" not in rig.testbed.processes.by_part
        for name in rig.ring.switches:
            entry = inventory["optical_switches"][name]
            assert entry["wavelengths"] == WAVELENGTHS
            assert entry["profile"]["name"] == "mrr"
            assert entry["profile"]["dark_max_s"] == pytest.approx(25e-6)
            assert rig.drivers[name].snapshot().cross_connects == {}
        counted = rig.light_counters()
        assert counted["onics"].keys() == set(rig.ring.nodes)
        assert counted["switches"].keys() == set(rig.ring.switches)
        assert set(counted["totals"].values()) == {0}


def test_payload_crosses_nodes_that_pass_it_on_and_each_colour_its_own_way(
    rig: Rig,
) -> None:
    # Over every segment between 0 and 3 go two colours at once, node 2 passes one and drops another, and
    # node 0 sends on both wavelengths of one port and on one of the other.
    paths = (
        (0, 3, CLOCKWISE, 0),
        (0, 2, CLOCKWISE, 1),
        (2, 3, CLOCKWISE, 1),
        (0, 4, COUNTER, 0),
    )
    rig.set_up(*paths)
    before, nodes = rig.totals(), [rig.onic(node) for node in range(NODES)]
    size = 1 << 18
    carried(
        rig, *[(source, destination) for source, destination, _, _ in paths], size=size
    )
    assert rig.totals() == before
    for node, was in enumerate(nodes):
        now = rig.onic(node)
        for port in (CLOCKWISE, COUNTER):
            sent = size * sum(path[0] == node and path[2] == port for path in paths)
            got = size * sum(path[1] == node and path[2] == port for path in paths)
            # Headers come on top, and what TCP sent twice.
            assert (
                sent
                <= now.light_tx_bytes[port] - was.light_tx_bytes[port]
                <= 1.5 * sent
            ), (node, port)
            assert (
                got <= now.light_rx_bytes[port] - was.light_rx_bytes[port] <= 1.5 * got
            ), (node, port)


def test_the_colour_can_be_seen_on_the_fibre_and_is_gone_at_the_receiver(
    rig: Rig,
) -> None:
    rig.set_up((4, 1, CLOCKWISE, 1))

    def listen(name: str) -> socket.socket:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        made.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        made.bind((name, 0))
        made.setblocking(False)
        return made

    with ExitStack() as stack:
        # Where light from node 4 comes to the WSS of node 0, and the NIC of node 1.
        fibre = stack.enter_context(
            socket_inside(rig.lab, rig.ring.switches[0], lambda: listen(f"p{WEST}"))
        )
        nic = stack.enter_context(
            socket_inside(rig.lab, "red-1", lambda: listen("eth0"))
        )
        carried(rig, (4, 1), size=1 << 16)
        told: dict[socket.socket, set[int]] = {}
        for tap in (fibre, nic):
            tags = told.setdefault(tap, set())
            with suppress(BlockingIOError):
                while True:
                    _, more, _, _ = tap.recvmsg(64, 256)
                    tags |= {
                        struct.unpack_from("=IIIHHHH", value)[5] for _, _, value in more
                    }
    assert told[fibre] == {2}
    assert told[nic] == {0}


def test_light_of_a_wrong_step_is_brought_to_another_or_nowhere_and_counted(
    rig: Rig,
) -> None:
    rig.set_up((0, 2, CLOCKWISE, 0))
    with rig.connection(0, 2) as (near, far):
        far.settimeout(0.1)
        # The step before: node 1 still drops this colour.
        rig.light(cross_connects(rig.ring, rig.fabric, step((0, 1, CLOCKWISE, 0))))
        before = rig.light_counters()
        near.sendall(b"not for you")
        until(lambda: rig.totals()["misdirected"] > before["totals"]["misdirected"], 5)
        after = rig.light_counters()
        assert (
            after["onics"]["r1"]["light_rx_packets"]
            == before["onics"]["r1"]["light_rx_packets"]
        )
        assert (
            after["switches"]["r-w1"]["misdirected"]
            > before["switches"]["r-w1"]["misdirected"]
        )
        # The next: node 1 passes only the other colour on.
        rig.light(
            {
                **rig.at(0, ADD_CLOCKWISE, EAST, 0),
                **rig.at(1, WEST, EAST, 1),
                **rig.at(2, WEST, ADD_CLOCKWISE, 0),
            }
        )
        before = rig.light_counters()
        until(lambda: rig.totals()["unset_drops"] > before["totals"]["unset_drops"], 5)
        assert rig.light_counters()["switches"]["r-w1"]["unset_drops"] > 0
        with pytest.raises(TimeoutError):
            far.recv(100)
        # And once the light is right, it arrives.
        far.settimeout(10)
        rig.light(cross_connects(rig.ring, rig.fabric, step((0, 2, CLOCKWISE, 0))))
        assert drain(far, 11) == b"not for you"
    assert (rig.totals()["collisions"], rig.totals()["receiver_overlaps"]) == (0, 0)


def test_a_path_that_leaves_too_little_power_carries_nothing_and_raises_loss_of_signal(
    rig: Rig,
) -> None:
    rig.set_up((0, 3, CLOCKWISE, 0))
    with rig.connection(0, 4) as (near, far):
        far.settimeout(0.2)
        before = rig.totals()
        # The way through all five WSSs, which no plan would choose.
        tables = {0: {4: Transmitter(CLOCKWISE, 0)}}
        rig.tables(tables)
        rig.light(cross_connects(rig.ring, rig.fabric, step((0, 4, CLOCKWISE, 0))))
        near.sendall(b"weak light")
        until(lambda: rig.totals()["dim_drops"] > before["dim_drops"], 5)
        with pytest.raises(TimeoutError):
            far.recv(100)
        last = rig.drivers[rig.ring.switches[4]]
        drop = rig.fabric.optical_switches[last.name].egress(ADD_CLOCKWISE)
        assert last.power_dbm([WEST, drop]) == {
            WEST: pytest.approx(-28),
            drop: pytest.approx(-35),
        }
        assert [(alarm.kind, alarm.port) for alarm in last.alarms()] == [("LOS", drop)]
        # A WSS on the way that goes dark darkens what is behind it; then the other way round is short enough.
        rig.light({})
        assert last.power_dbm([WEST])[WEST] == pytest.approx(-60)
        far.settimeout(10)
        rig.set_up((0, 4, COUNTER, 0))
        assert drain(far, 10) == b"weak light"
        assert last.alarms() == ()


def test_payload_for_a_peer_that_is_not_in_the_table_is_counted(rig: Rig) -> None:
    with rig.connection(3, 0) as (near, _):
        before = rig.onic(3).unrouted
        near.sendall(b"no transmitter")
        until(lambda: rig.onic(3).unrouted > before, 5)


def test_light_without_a_colour_is_dark(rig: Rig) -> None:
    rig.set_up((3, 0, COUNTER, 0))
    table = RouteTable(rig.lab.bpf_dir / "onic-r3")
    table.replace({rig.ip(0): Transmitter(COUNTER)})
    table.close()
    with rig.connection(3, 0) as (near, _):
        before = rig.totals()
        near.sendall(b"grey")
        until(lambda: rig.totals()["dark_drops"] > before["dark_drops"], 5)
        now = rig.totals()
        assert now == before | {"dark_drops": now["dark_drops"]}


def test_every_wavelength_has_its_own_rate_and_nothing_is_dropped(rig: Rig) -> None:
    # Two colours of one port of one node, a third from the next node on the same fibre as one of them, and
    # the same colour in the other direction.
    pairs = {
        (0, 1): (CLOCKWISE, 0),
        (0, 3): (CLOCKWISE, 1),
        (1, 2): (CLOCKWISE, 0),
        (0, 4): (COUNTER, 0),
    }
    rig.set_up(
        *[(a, b, port, wavelength) for (a, b), (port, wavelength) in pairs.items()]
    )
    queued = rig.queued(0)
    with ExitStack() as stack:
        ends = {pair: stack.enter_context(rig.connection(*pair)) for pair in pairs}
        before = rig.totals()
        taken, lasted = pour(ends, 1.5)
    for pair, size in taken.items():
        share = size * 8 / lasted / RATE_BPS
        assert 1 / 3 < share < 1.3, f"{pair}: {share:.3f} of the wavelength's rate"
    assert rig.totals() == before
    # Each colour of each port waited in a queue of its own.
    for (source, destination), (port, wavelength) in pairs.items():
        if source == 0:
            waited = rig.queued(0)[port, wavelength] - queued[port, wavelength]
            assert (
                taken[source, destination]
                < waited
                < 2 * taken[source, destination] + (1 << 18)
            )
    assert rig.queued(0)[COUNTER, 1] == queued[COUNTER, 1]


def test_flows_of_one_colour_share_its_rate(rig: Rig) -> None:
    # Both drop at node 1: what a controller would never set, but the transmitter is one.
    rig.tables({0: {1: Transmitter(CLOCKWISE, 0)}})
    rig.light(cross_connects(rig.ring, rig.fabric, step((0, 1, CLOCKWISE, 0))))
    size = 1 << 20
    with rig.connection(0, 1) as one, rig.connection(0, 1) as two:
        senders = [
            threading.Thread(target=near.sendall, args=(bytes(size),))
            for near, _ in (one, two)
        ]
        began = time.monotonic()
        for sender in senders:
            sender.start()
        for _, far in (one, two):
            drain(far, size)
        lasted = time.monotonic() - began
        for sender in senders:
            sender.join(10)
    assert lasted > 0.8 * 2 * size * 8 / RATE_BPS


def test_a_transmit_table_is_checked_and_read_back(rig: Rig) -> None:
    peer = rig.ip(1)
    good = {peer: {"port": 0, "wavelength": 1}}

    def put(gpu: str, body: Any) -> httpx.Response:
        return rig.http.put(f"/v1/onics/{gpu}/transmit", json=body)

    assert put("r0", good).json() == good
    table = RouteTable(rig.lab.bpf_dir / "onic-r0")
    try:
        assert table.read() == {peer: Transmitter(0, 1)}
        refused = [
            ("r9", good, 404, "GPU r9 has no O-NIC"),
            (
                "r0",
                {peer: {"port": 0, "wavelength": 2}},
                422,
                "there is no wavelength 2 (0..1)",
            ),
            (
                "r0",
                {"10.9.9.9": {"port": 0, "wavelength": 0}},
                422,
                "10.9.9.9 is the address of no other GPU",
            ),
            (
                "r0",
                {rig.ip(0): {"port": 0, "wavelength": 0}},
                422,
                "is the address of no other GPU",
            ),
            (
                "r0",
                {peer: {"port": 2, "wavelength": 0}},
                422,
                "less than or equal to 1",
            ),
            ("r0", {peer: {"port": 0}}, 422, "required"),
        ]
        for gpu, body, status, words in refused:
            answer = put(gpu, body)
            assert (answer.status_code, words in answer.text) == (status, True), (
                answer.text
            )
            assert table.read() == {peer: Transmitter(0, 1)}
        assert put("r0", {}).json() == {}
        assert table.read() == {}
    finally:
        table.close()


def test_a_wss_that_reads_tags_is_not_resumed_as_one_that_looks_up_lasers(
    tmp_path: Path,
) -> None:
    pins = Path("/sys/fs/bpf", f"test-{new_lab().id}")
    lasers = Lasers.create(pins / "lasers", 1)
    try:
        made = Datapath.open(pins / "w", "w", 8, selective=Selective(2))
        made.connect(1, 6, 0, 1)
        made.close()
        with pytest.raises(
            ValueError, match=r"2 wavelengths by tag .* not 'w' with 8 ports and 2 "
        ):
            Datapath.open(pins / "w", "w", 8, selective=Selective(2, lasers.descriptor))
        again = Datapath.open(pins / "w", "w", 8, selective=Selective(2))
        assert again.resumed
        assert again.cross_connects().keys() == {(1, 1)}
        again.close()
    finally:
        remove_pins(pins / "w")
        lasers.close()
        (pins / "lasers").unlink()
        pins.rmdir()
