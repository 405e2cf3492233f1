"""A grid of O-NICs in a real lab: lasers, fibres, wavelength-selective switches, agents, the control network.

Light is set by hand where the datapath is looked at, and by the agents where workers ask for it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import PortClash
from ringlight.controller.optical.registry import make_driver
from ringlight.extensions.oddl.wavelengths import cross_connects, wavelength_map
from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation import clean
from ringlight.testbed.emulation import testbed as emulated
from ringlight.testbed.emulation.onic.counting import read_switch
from ringlight.testbed.emulation.onic.tables import Counters, read_counters
from ringlight.testbed.emulation.onic.transmitters import BpfLaser, BpfRoutes
from ringlight.testbed.emulation.onic.wiring import laser_ids
from ringlight.testbed.emulation.optical.datapath import Datapath
from ringlight.testbed.emulation.optical.lasers import Lasers
from ringlight.testbed.emulation.scale import Emulation
from ringlight.testbed.lab import new_lab
from ringlight.testbed.process_start import SOCKET
from tests import forks
from tests.drivers import converge
from tests.integration.labs import (
    Ends,
    agent_client,
    drain,
    pour,
    running_testbed,
    tcp_connection,
    traces,
    unsent,
    until,
)

pytestmark = pytest.mark.root

#: 100 Gbit/s of each fibre over the payload scale.
RATE_BPS = 100e6
NS = 1_000_000_000

#: A worker that asks its O-NIC for light, sends to one peer, and tells what it got from another.
PROGRAM = """
import fcntl, hashlib, json, os, socket, struct, sys, termios, threading, time
os.chdir(sys.argv[1])
spec = json.load(open("spec.json"))
def tell(event, **more):
    with open("events.jsonl", "a") as file:
        file.write(json.dumps({"t": time.monotonic(), "event": event, **more}) + "\\n")
def keep_trying(function):
    deadline = time.monotonic() + 10
    while True:
        try:
            return function()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
if spec["do"] == "wait":
    time.sleep(100)
def receive(listener):
    connection, _ = listener.accept()
    digest = hashlib.sha256()
    while piece := connection.recv(1 << 16):
        digest.update(piece)
    tell("received", digest=digest.hexdigest())
while "eth0:" not in open("/proc/net/dev").read():
    time.sleep(0.02)
listener = socket.socket()
keep_trying(lambda: listener.bind((spec["at"], 5000)))
listener.listen()
listener.settimeout(20)
thread = threading.Thread(target=receive, args=(listener,))
thread.start()
def refused(name):
    with socket.socket(socket.AF_UNIX) as other:
        try:
            other.connect(os.path.join(os.path.dirname(spec["onic"]), name))
        except OSError as error:
            return error.strerror
agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
agent.settimeout(20)
agent.connect(spec["onic"])
connection = keep_trying(lambda: socket.create_connection((spec["to"], 5000), 10))
data = bytes(range(256)) * spec["blocks"]
for number in range(spec["flows"]):
    part = data[number * len(data) // spec["flows"] : (number + 1) * len(data) // spec["flows"]]
    agent.send(json.dumps({"open": number, "peer": spec["to"]}).encode())
    answer = json.loads(agent.recv(4096))
    assert answer == {"lit": number}, answer
    connection.sendall(part)
    left = bytearray(4)
    while fcntl.ioctl(connection, termios.TIOCOUTQ, left) or struct.unpack("=i", left)[0]:
        time.sleep(0.0005)
    agent.send(json.dumps({"close": number}).encode())
    answer = json.loads(agent.recv(4096))
    assert answer == {"closed": number}, answer
# tcpi_total_retrans
sent_again = struct.unpack_from("I", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)[0]
connection.close()
thread.join()
digest, manage = hashlib.sha256(data).hexdigest(), refused("manage.sock")
tell("done", sent_again=sent_again, digest=digest, manage=manage, uid=os.getuid())
"""


def grid(rows: int = 2, columns: int = 2) -> Fabric:
    sides = {"rows": rows, "columns": columns}
    # A queue of two frames, which TCP would overrun, were it the one that counts.
    spec = {
        "gpu": "test",
        "rate": "100 Gbit/s",
        "queue": "1 us",
        "wss": {"profile": "ideal"},
        **sides,
    }
    return build_fabric(FabricSpec.model_validate({"grids": {"n": spec}}))


class Rig:
    """A lab with one grid, a worker that waits on every GPU, and light by hand."""

    def __init__(self, testbed: emulated.Testbed) -> None:
        self.testbed = testbed
        self.lab = testbed.settings.lab
        self.fabric = testbed.settings.fabric
        self.grid = self.fabric.parts["grids"]["n"]
        self.http = agent_client(testbed)
        self.lasers = Lasers.open(self.lab.bpf_dir / "lasers")

    def close(self) -> None:
        self.lasers.close()
        self.http.close()

    # Switches and workers

    def driver(self, switch: str) -> OpticalSwitchDriver:
        entry = self.testbed.inventory["optical_switches"][switch]
        return make_driver(switch, entry, self.fabric.optical_switches[switch].size)

    def connect_all(self) -> None:
        """Every node reaches every other of its row and column."""
        for name, wanted in cross_connects(
            self.grid, self.fabric, wavelength_map(self.grid, self.grid.nodes)
        ).items():
            driver = self.driver(name)
            driver.open()
            converge(driver, wanted, Mode.REPLACE)
            driver.close()

    def start(self, *wanted: dict[str, Any]) -> None:
        answer = self.http.post("/v1/workers/batch", json=wanted)
        assert answer.status_code == 200, answer.text

    def request(self, gpu: str, **spec: Any) -> dict[str, Any]:
        rank = self.grid.nodes.index(gpu)
        peers = [g.ip for g in self.fabric.gpus.values()]
        return {
            "job": "red",
            "rank": rank,
            "gpu": gpu,
            "spec": {"peers": peers, **spec},
        }

    def remove_workers(self) -> None:
        for worker in self.http.get("/v1/workers").json()["workers"]:
            self.http.delete(f"/v1/workers/{worker['id']}").raise_for_status()

    def connection(self, a: str, b: str) -> AbstractContextManager[Ends]:
        """A TCP connection from a to b: the two ends."""
        near, far = (f"red-{self.grid.nodes.index(gpu)}" for gpu in (a, b))
        return tcp_connection(self.lab, near, far, self.fabric.gpus[b].ip)

    # Light by hand

    def route_all(self) -> None:
        for node, peers in wavelength_map(self.grid, self.grid.nodes).items():
            table = BpfRoutes(self.lab.bpf_dir / f"onic-{node}")
            routes = {
                self.fabric.gpus[peer].ip: way.port for peer, way in peers.items()
            }
            table.replace(routes)
            assert table.read() == routes
            table.close()

    def light(
        self, a: str, b: str, wavelength: int | None = None, seconds: float = 3600
    ) -> None:
        """a's laser towards b, or on another wavelength of the same port."""
        way = wavelength_map(self.grid, self.grid.nodes)[a][b]
        laser = laser_ids(self.fabric, a)[way.port]
        now = time.monotonic_ns()
        colour = way.wavelength if wavelength is None else wavelength
        self.lasers.tune(laser, colour, now, now + round(seconds * NS))

    def dark(self) -> None:
        for gpu in self.fabric.onics:
            for laser in laser_ids(self.fabric, gpu):
                self.lasers.dark(laser)

    def onic(self, gpu: str) -> Counters:
        return read_counters(self.lab.bpf_dir / f"onic-{gpu}", 2)

    def switch(self, name: str) -> dict[str, int]:
        return read_switch(
            self.lab.bpf_dir / name, self.fabric.optical_switches[name].size
        )

    def totals(self) -> dict[str, int]:
        answer: dict[str, int] = self.http.get("/v1/onics").json()["totals"]
        return answer

    # Agents

    def ask(self, gpu: str, **request: Any) -> dict[str, Any]:
        """One question to an O-NIC's agent on its management socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(self.testbed.inventory["onics"][gpu]["manage"])
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer: dict[str, Any] = json.loads(lines.readline())
        return answer

    def set_maps(self, job: str = "red") -> None:
        onics = self.testbed.inventory["onics"]
        for node, peers in wavelength_map(self.grid, self.grid.nodes).items():
            lines = {
                self.fabric.gpus[peer].ip: {
                    "port": way.port,
                    "wavelength": way.wavelength,
                    "agent": onics[peer]["control"],
                }
                for peer, way in peers.items()
            }
            answer = self.ask(node, op="set_map", job=job, version=1, peers=lines)
            assert answer["ok"], answer
            assert answer["map"]["peers"] == lines

    def clear_maps(self, job: str = "red") -> None:
        for node in self.grid.nodes:
            assert self.ask(node, op="clear_map", job=job)["ok"]


@contextmanager
def running(
    fabric: Fabric, runtime: Any = "namespace", **settings: Any
) -> Iterator[Rig]:
    python = "python3" if runtime == "docker" else sys.executable
    command = (python, "-c", PROGRAM, "{job}")
    emulation = Emulation(payload_scale=100e9 / RATE_BPS)
    with (
        running_testbed(
            fabric, runtime=runtime, emulation=emulation, command=command, **settings
        ) as made,
        closing(Rig(made)) as rig,
    ):
        yield rig


@pytest.fixture(scope="module")
def by_hand() -> Iterator[Rig]:
    """2 × 3 nodes, so that a wrong wavelength of a row leads to somebody else."""
    with running(grid(2, 3)) as rig:
        rig.connect_all()
        rig.start(*[rig.request(node, do="wait") for node in rig.grid.nodes])
        rig.route_all()
        yield rig


@pytest.fixture
def rig(by_hand: Rig) -> Iterator[Rig]:
    by_hand.dark()
    yield by_hand
    by_hand.dark()


def test_payload_goes_as_light_and_its_acknowledgements_by_the_control_network(
    rig: Rig,
) -> None:
    before = {node: rig.onic(node) for node in ("n0", "n1")}
    row = rig.switch("n-r0")
    data = secrets.token_bytes(1 << 20)
    with rig.connection("n0", "n1") as (near, far):
        # It opened without any light.
        assert rig.onic("n0").light_tx_packets == before["n0"].light_tx_packets
        rig.light("n0", "n1")
        sender = threading.Thread(target=near.sendall, args=(data,))
        sender.start()
        assert drain(far, len(data)) == data
        sender.join(10)
        until(lambda: not unsent(near), 5)
    source, sink = rig.onic("n0"), rig.onic("n1")
    assert source.light_tx_bytes[0] - before["n0"].light_tx_bytes[0] > len(data)
    assert sink.light_rx_bytes[0] - before["n1"].light_rx_bytes[0] > len(data)
    assert source.light_tx_packets[1] == before["n0"].light_tx_packets[1]
    # Nothing came back as light.
    assert sink.light_tx_packets == before["n1"].light_tx_packets
    assert source.control_rx_packets > before["n0"].control_rx_packets
    after = rig.switch("n-r0")
    assert after["bytes"] - row["bytes"] > len(data)
    for name in ("dark_drops", "unset_drops", "collisions", "receiver_overlaps"):
        assert after[name] == row[name], name


def test_payload_without_light_is_dropped_and_counted(rig: Rig) -> None:
    with rig.connection("n0", "n3") as (near, far):
        before, told = rig.switch("n-c0"), rig.totals()
        near.sendall(b"in the dark")
        until(lambda: rig.switch("n-c0")["dark_drops"] > before["dark_drops"], 5)
        assert rig.totals()["dark_drops"] > told["dark_drops"]
        far.settimeout(0.2)
        with pytest.raises(TimeoutError):
            far.recv(100)
        # What the sender sends again arrives once there is light.
        far.settimeout(10)
        rig.light("n0", "n3")
        assert drain(far, 11) == b"in the dark"


def test_payload_on_a_wavelength_without_cross_connect_is_counted(rig: Rig) -> None:
    with rig.connection("n0", "n1") as (near, _):
        before = rig.switch("n-r0")
        rig.light("n0", "n1", wavelength=0)
        near.sendall(b"nowhere")
        until(lambda: rig.switch("n-r0")["unset_drops"] > before["unset_drops"], 5)


def test_a_wrong_wavelength_brings_light_to_another_which_counts_and_drops_it(
    rig: Rig,
) -> None:
    with rig.connection("n0", "n1") as (near, far):
        before, told = rig.onic("n2"), rig.totals()
        rig.light("n0", "n1", wavelength=2)
        near.sendall(b"not for you")
        until(lambda: rig.onic("n2").misdirected[0] > before.misdirected[0], 5)
        assert rig.onic("n2").light_rx_packets == before.light_rx_packets
        counted = rig.http.get("/v1/onics").json()
        assert counted["totals"]["misdirected"] > told["misdirected"]
        assert (
            counted["switches"]["n-r0"]["misdirected"]
            == counted["totals"]["misdirected"]
        )
        far.settimeout(0.1)
        with pytest.raises(TimeoutError):
            far.recv(100)


def test_payload_for_a_peer_without_route_is_counted(rig: Rig) -> None:
    with rig.connection("n0", "n5") as (near, _):
        before = rig.onic("n0").unrouted
        near.sendall(b"neither row nor column")
        until(lambda: rig.onic("n0").unrouted > before, 5)


def test_light_goes_out_by_itself_at_the_end_of_its_lease(rig: Rig) -> None:
    with rig.connection("n0", "n1") as (near, far):
        rig.light("n0", "n1", seconds=2.0)
        near.sendall(b"in time")
        assert drain(far, 7) == b"in time"
        time.sleep(2.0)
        before = rig.switch("n-r0")
        near.sendall(b"too late")
        until(lambda: rig.switch("n-r0")["dark_drops"] > before["dark_drops"], 5)
        assert rig.switch("n-r0")["packets"] == before["packets"]


def test_two_lit_towards_one_receiver_are_counted_whatever_their_wavelengths(
    rig: Rig,
) -> None:
    before = rig.switch("n-r0")
    with (
        rig.connection("n0", "n2") as (one, far),
        rig.connection("n1", "n0") as (two, _),
    ):
        rig.light("n0", "n2")
        one.sendall(b"first")
        assert drain(far, 5) == b"first"
        assert rig.switch("n-r0")["receiver_overlaps"] == before["receiver_overlaps"]
        # n1 is lit towards n2, too, and sends there what is for n0.
        strays = rig.onic("n2").misdirected[0]
        rig.light("n1", "n2")
        two.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(5):
            two.sendall(b"second")
        until(lambda: rig.onic("n2").misdirected[0] >= strays + 5, 5)
    after = rig.switch("n-r0")
    # Once for each tuning, however many packets.
    assert after["receiver_overlaps"] == before["receiver_overlaps"] + 1
    assert after["collisions"] == before["collisions"]
    assert rig.totals()["receiver_overlaps"] >= 1


def test_a_planted_collision_is_counted(rig: Rig) -> None:
    row = rig.fabric.optical_switches["n-r0"]
    wrong = CrossConnect(row.ingress(2), row.egress(3), 2)
    driver = rig.driver("n-r0")
    driver.open()
    held = driver.snapshot().cross_connects
    with pytest.raises(PortClash):
        converge(driver, [*held, wrong])
    driver.close()
    # What the switch itself would never do, behind its back.
    kernel = Datapath.resume(rig.lab.bpf_dir / "n-r0")
    before = rig.switch("n-r0")
    mine = kernel.cross_connects()[wrong.ingress, 2]
    try:
        kernel.connect(wrong.ingress, wrong.egress, 0, 2)
        with (
            rig.connection("n0", "n2") as (one, far),
            rig.connection("n1", "n2") as (two, _),
        ):
            rig.light("n0", "n2")
            one.sendall(b"first")
            assert drain(far, 5) == b"first"
            rig.light("n1", "n2", wavelength=2)
            two.sendall(b"second")
            until(lambda: rig.switch("n-r0")["collisions"] > before["collisions"], 5)
    finally:
        kernel.connect(wrong.ingress, mine.egress, mine.ready_ns, 2)
        kernel.close()
    assert rig.totals()["collisions"] == rig.switch("n-r0")["collisions"]


def test_each_fibre_port_has_its_own_rate_and_nothing_is_dropped(rig: Rig) -> None:
    rig.light("n0", "n1")
    rig.light("n0", "n3")
    with ExitStack() as stack:
        ends = {
            peer: stack.enter_context(rig.connection("n0", peer))
            for peer in ("n1", "n3")
        }
        before = rig.totals()
        taken, lasted = pour(ends, 1.5)
    for peer, size in taken.items():
        share = size * 8 / lasted / RATE_BPS
        assert 1 / 3 < share < 1.3, f"to {peer}: {share:.3f} of the port's rate"
    netns = rig.lab.namespace("onic-n0")
    shown = subprocess.run(
        ["tc", "-n", netns, "-s", "-j", "qdisc"],
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    ports = {q["dev"]: q for q in json.loads(shown.stdout) if q["kind"] == "tbf"}
    assert ports.keys() == {"p0", "p1"}
    assert {q["drops"] for q in ports.values()} == {0}
    assert rig.totals() == before


# Agents


@pytest.fixture(scope="module", params=["namespace", "docker"])
def with_agents(request: pytest.FixtureRequest) -> Iterator[Rig]:
    image = None
    if request.param == "docker":
        from ringlight.containers.image_build import ensure_image

        image = ensure_image(lambda _: None)
    with running(
        grid(), request.param, image=image, onic_faults=True, onic_lease_s=0.5
    ) as rig:
        rig.connect_all()
        yield rig


def exchange(rig: Rig, **more: Any) -> list[dict[str, Any]]:
    """Every node sends to the next along the square, flow by flow; the requests."""
    after = {"n0": "n1", "n1": "n3", "n3": "n2", "n2": "n0"}
    onics = rig.testbed.inventory["onics"]
    return [
        rig.request(
            a,
            do="flows",
            at=rig.fabric.gpus[a].ip,
            to=rig.fabric.gpus[b].ip,
            onic=onics[a]["flow"],
            **more,
        )
        for a, b in after.items()
    ]


def finished(rig: Rig, cursor: int, timeout_s: float = 20) -> int:
    """Waits for the workers of an exchange; what each received is what its neighbour sent.

    Returns how many segments TCP sent again.
    """

    def events(kind: str) -> list[dict[str, Any]]:
        told = rig.http.get("/v1/workers", params={"cursor": cursor}).json()["events"]
        return [event for event in told if event["event"] == kind]

    until(lambda: len(events("exited")) == 4, timeout_s)
    assert [event["exit_code"] for event in events("exited")] == [0] * 4, str(
        rig.http.get("/v1/workers").json()
    )
    sent = {event["digest"] for event in events("done")}
    # A worker is no manager, whatever it can see of the agent's directory.
    assert {event["manage"] for event in events("done") if event["uid"]} <= {
        "Permission denied"
    }
    assert len(events("received")) == 4
    assert {event["digest"] for event in events("received")} == sent
    return sum(event["sent_again"] for event in events("done"))


def assert_all_light_arrived(
    rig: Rig, before: dict[str, int], sent_again: int, flows: int
) -> None:
    """In ``flows`` flows no light met other light, and only bytes received already were sent into the dark.

    A flow ends when all of it is acknowledged, and a worker fails whose flow is lost before. What TCP sent
    again needlessly, as on a machine that stood still for a while, may wait at the port until then and finds
    the laser dark. That is rare; an agent that says 'lit' too early does it in every flow.
    """
    after = rig.totals()
    assert after | {"dark_drops": before["dark_drops"]} == before
    assert after["dark_drops"] - before["dark_drops"] <= min(sent_again, flows // 10)


def test_workers_get_light_from_their_agents_flow_by_flow(with_agents: Rig) -> None:
    rig = with_agents
    rig.set_maps()
    before, cursor = rig.totals(), rig.http.get("/v1/workers").json()["cursor"]
    try:
        rig.start(*exchange(rig, blocks=4096, flows=20))
        sent_again = finished(rig, cursor)
    finally:
        rig.remove_workers()
        rig.clear_maps()
    assert_all_light_arrived(rig, before, sent_again, flows=4 * 20)
    for gpu in rig.fabric.onics:
        assert rig.onic(gpu).unrouted == 0
        status = rig.ask(gpu, op="status")
        assert status["counters"]["flows_done"] >= 20
        assert status["lasers"] == [None, None]


def test_a_lossy_control_network_costs_time_and_nothing_else(with_agents: Rig) -> None:
    rig = with_agents
    rig.set_maps()
    before, cursor = rig.totals(), rig.http.get("/v1/workers").json()["cursor"]
    bad, good = (
        {"loss": 0.05, "duplicate": 0.05, "reorder": 0.05, "seed": 1},
        dict.fromkeys(("loss", "duplicate", "reorder"), 0.0),
    )
    try:
        for gpu in rig.fabric.onics:
            assert rig.ask(gpu, op="emulate", **bad)["ok"]
        rig.start(*exchange(rig, blocks=1024, flows=60))
        sent_again = finished(rig, cursor)
        assert (
            sum(
                rig.ask(gpu, op="status")["counters"]["faults"]["lost"]
                for gpu in rig.fabric.onics
            )
            > 0
        )
    finally:
        for gpu in rig.fabric.onics:
            rig.ask(gpu, op="emulate", **good)
        rig.remove_workers()
        rig.clear_maps()
    assert_all_light_arrived(rig, before, sent_again, flows=4 * 60)


def test_a_killed_agent_is_started_again_dark_and_with_its_map(
    with_agents: Rig,
) -> None:
    rig = with_agents
    inventory = rig.testbed.settings.state / "inventory.json"
    rig.set_maps()
    try:
        laser = BpfLaser(rig.lasers, laser_ids(rig.fabric, "n1"))
        laser.tune(0, 1, 0.0, time.monotonic() + 3600)
        old = json.loads(inventory.read_text())["onics"]["n1"]["pid"]
        assert rig.ask("n1", op="status")["pid"] == old
        os.kill(old, signal.SIGKILL)

        def again() -> bool:
            try:
                return bool(rig.ask("n1", op="status")["pid"] != old)
            except (OSError, ValueError):
                return False

        until(again, 10)
        assert laser.read(0) is None
        status = rig.ask("n1", op="status")
        assert (status["job"], status["map_version"]) == ("red", 1)
        until(
            lambda: (
                json.loads(inventory.read_text())["onics"]["n1"]["pid"] == status["pid"]
            ),
            5,
        )
        # And it serves: after its quarantine the same exchange as ever.
        before, cursor = rig.totals(), rig.http.get("/v1/workers").json()["cursor"]
        rig.start(*exchange(rig, blocks=256, flows=4))
        assert_all_light_arrived(rig, before, finished(rig, cursor), flows=4 * 4)
    finally:
        rig.remove_workers()
        rig.clear_maps()


def reaches(host: str, port: int) -> bool:
    """Whether anything comes back for a datagram from this machine's own network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outside:
        outside.settimeout(0.1)
        try:
            outside.connect((host, port))
            # A message of another version, which an agent answers.
            outside.send(b"RL\x63\x01")
            return bool(outside.recv(100))
        except OSError:
            return False


def test_agents_talk_over_the_control_network_only(with_agents: Rig) -> None:
    rig = with_agents
    before = {gpu: rig.onic(gpu) for gpu in rig.fabric.onics}
    for gpu in rig.fabric.onics:
        host, _, port = rig.testbed.inventory["onics"][gpu]["control"].partition(":")
        assert host == rig.fabric.gpus[gpu].ip.replace("10.82.", "10.83.")
        assert not reaches(host, int(port)), "not to be had from outside of it"
    # Their messages are none of the GPU's, and none of them is light.
    assert {gpu: rig.onic(gpu) for gpu in rig.fabric.onics} == before


def test_a_testbed_of_many_switches_and_agents_forks_them_and_does_without_its_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SOCKET)
    side = {
        "rows": 2,
        "columns": 2,
        "gpu": "test",
        "rate": "100 Gbit/s",
        "wss": {"profile": "ideal"},
    }
    fabric = build_fabric(FabricSpec.model_validate({"grids": {"n": side}}))
    with running_testbed(
        fabric, runtime="namespace", emulation=Emulation(payload_scale=1000)
    ) as testbed:

        def entry() -> dict[str, Any]:
            found: dict[str, Any] = testbed.inventory["onics"]["n1"]
            return found

        def parent(pid: int) -> int:
            return int(
                Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            )

        def parents() -> set[int]:
            parts = (testbed.inventory["optical_switches"], testbed.inventory["onics"])
            return {parent(found["pid"]) for part in parts for found in part.values()}

        (server,) = parents()
        assert server != os.getpid()
        first = entry()["pid"]
        os.kill(first, signal.SIGKILL)
        until(lambda: entry()["pid"] != first, 10)
        assert parents() == {server}
        os.kill(server, signal.SIGKILL)
        until(
            lambda: (
                not Path(f"/proc/{server}/stat").exists()
                or parent(entry()["pid"]) != server
            ),
            10,
        )
        second = entry()["pid"]
        os.kill(second, signal.SIGKILL)
        until(lambda: entry()["pid"] != second, 10)
        assert parent(entry()["pid"]) == os.getpid()


@pytest.mark.labs
def test_a_killed_testbed_leaves_nothing_that_clean_does_not_remove(
    tmp_path: Path,
) -> None:
    lab = new_lab()
    described = tmp_path / "fabric.json"
    side = {
        "rows": 2,
        "columns": 2,
        "gpu": "test",
        "rate": "100 Gbit/s",
        "wss": {"profile": "ideal"},
    }
    described.write_text(json.dumps({"grids": {"n": side}}))
    command = [
        *(
            sys.executable,
            "-m",
            "ringlight.testbed.emulation",
            "--fabric",
            str(described),
            "--lab",
            lab.id,
        ),
        *(
            "--runtime",
            "namespace",
            "--payload-scale",
            "1000",
            "--openflow",
            "127.0.0.1:9",
        ),
    ]
    process = forks.Command(command)
    try:
        until(
            lambda: (
                (lab.state_dir / "inventory.json").exists()
                or process.poll() is not None
            ),
            30,
        )
        assert process.poll() is None
        onics = json.loads((lab.state_dir / "inventory.json").read_text())["onics"]
        process.kill()
        process.wait(10)
        # The agents go on without it.
        assert all(Path("/proc", str(onic["pid"])).exists() for onic in onics.values())
    finally:
        process.kill()
        process.wait(10)
        clean.clean(lab.id)
    assert traces(lab) == []
