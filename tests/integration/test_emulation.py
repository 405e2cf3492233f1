"""The testbed with real containers, namespaces, Open vSwitch and traffic control."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import docker
import httpx
import pytest

from ringlight.controller.optical.errors import OpticalError
from ringlight.controller.optical.registry import make_driver
from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric
from ringlight.testbed import services
from ringlight.testbed.emulation import clean, openvswitch
from ringlight.testbed.emulation import testbed as emulated
from ringlight.testbed.emulation.bridges import has_kernel_datapath
from ringlight.testbed.emulation.kernel import namespaces, network_errors, shaping
from ringlight.testbed.emulation.scale import Emulation
from ringlight.testbed.emulation.settings import Settings, TestbedError
from ringlight.testbed.emulation.worker_hosts import WORKER_UID
from ringlight.testbed.lab import Lab, new_lab
from tests import forks
from tests.drivers import converge
from tests.integration.labs import (
    NOBODY,
    Idle,
    agent_client,
    running_testbed,
    traces,
    until,
)

pytestmark = pytest.mark.root

#: What the workers of these tests run: it does what its spec says and tells what came of it.
PROGRAM = """
import json, os, socket, sys, time
os.chdir(sys.argv[1])
spec = json.load(open("spec.json"))
def tell(event, **more):
    with open("events.jsonl", "a") as file:
        file.write(json.dumps({"t": time.monotonic(), "event": event, **more}) + "\\n")
deadline = time.monotonic() + 10
def keep_trying(function):
    while True:
        try:
            return function()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
while spec["do"] != "end" and "eth0:" not in open("/proc/net/dev").read():
    time.sleep(0.02)
if spec["do"] == "receive":
    listener = socket.socket()
    keep_trying(lambda: listener.bind((spec["at"], 5000)))
    listener.listen()
    listener.settimeout(10)
    connection, _ = listener.accept()
    buffer, first, taken = bytearray(1 << 20), None, 0
    while size := connection.recv_into(buffer):
        now = time.monotonic()
        if first is None:
            first, window = now, (now + 0.4, now + spec["seconds"] - 0.1)
        if window[0] <= now <= window[1]:
            taken += size
            start = locals().get("start", now)
            last = now
    tell("received", bps=taken * 8 / (last - start))
elif spec["do"] == "send":
    connection = keep_trying(lambda: socket.create_connection((spec["to"], 5000), 5))
    end = time.monotonic() + spec["seconds"]
    while time.monotonic() < end:
        connection.sendall(bytes(1 << 16))
    connection.close()
elif spec["do"] == "look":
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    try:
        open("/written", "w")
        root = "writable"
    except OSError as error:
        root = error.strerror
    tell("looked", root=root, uid=os.getuid(), lab=os.environ.get("RINGLIGHT_LAB"),
         caps={key: status[key].strip() for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")},
         no_new_privileges=status["NoNewPrivs"].strip(), interfaces=sorted(os.listdir("/sys/class/net")),
         congestion=open("/proc/sys/net/ipv4/tcp_congestion_control").read().strip())
elif spec["do"] in ("fail", "end"):
    sys.exit("no gradient today")
elif spec["do"] == "eat":
    hoard = b"x" * (2 << 30)
else:
    time.sleep(100)
"""


def two_switches() -> Fabric:
    """Three GPUs on each of two packet switches, and one in a drawer (g4).

    Emulated Mbit/s: NICs 100 on the first and 400 on the second switch, the link between them 32.
    """
    return build_fabric(
        FabricSpec.model_validate(
            {
                "servers": {"s0": {"gpus": {f"g{i}": "test" for i in range(7)}}},
                "packet_switches": {"tor0": {"ports": 4}, "tor1": {"ports": 4}},
                "links": [
                    {"ends": ["g0", "tor0:1"], "rate": "40 Gbit/s"},
                    {"ends": ["g1", "tor0:2"], "rate": "40 Gbit/s"},
                    {"ends": ["g2", "tor1:1"], "rate": "160 Gbit/s"},
                    {"ends": ["g3", "tor1:2"], "rate": "160 Gbit/s"},
                    {"ends": ["g5", "tor0:3"], "rate": "40 Gbit/s"},
                    {"ends": ["g6", "tor1:3"], "rate": "160 Gbit/s"},
                    {"ends": ["tor0:4", "tor1:4"], "rate": "12.8 Gbit/s"},
                ],
            }
        )
    )


OPTICAL = {
    "servers": {"s0": {"gpus": {"g0": "test", "g1": "test"}}},
    "packet_switches": {"tor0": {"ports": 2}},
    "optical_switches": {"ocs0": {"size": 4, "profile": "ideal"}},
    "links": [
        {"ends": ["g0", "ocs0:1"], "rate": "40 Gbit/s"},
        {"ends": ["g1", "tor0:2"], "rate": "40 Gbit/s"},
        {"ends": ["tor0:1", "ocs0:3"], "rate": "40 Gbit/s"},
    ],
}


@pytest.fixture(scope="session")
def image() -> str:
    from ringlight.containers.image_build import ensure_image

    return ensure_image(lambda _: None)


class Rig:
    """A testbed in this process and a client of its agent."""

    def __init__(self, testbed: emulated.Testbed) -> None:
        self.testbed = testbed
        self.fabric = testbed.settings.fabric
        self.lab = testbed.settings.lab
        self.http = agent_client(testbed)

    def request(
        self, rank: int, gpu: str, job: str = "red", **spec: Any
    ) -> dict[str, Any]:
        return {"job": job, "rank": rank, "gpu": gpu, "spec": spec}

    def start(self, *wanted: dict[str, Any]) -> httpx.Response:
        return self.http.post("/v1/workers/batch", json=wanted)

    def report(self, cursor: int = 0) -> dict[str, Any]:
        answer: dict[str, Any] = self.http.get(
            "/v1/workers", params={"cursor": cursor}
        ).json()
        return answer

    def worker(self, name: str) -> dict[str, Any]:
        return next(w for w in self.report()["workers"] if w["id"] == name)

    def remove_all(self) -> None:
        for worker in self.report()["workers"]:
            assert self.http.delete(f"/v1/workers/{worker['id']}").status_code == 200

    def forward(self) -> None:
        """Flow rules that a controller would write: by destination, over the one link."""
        for name, switch in self.testbed.inventory["packet_switches"].items():
            rules = ["priority=5,arp,actions=drop"]
            for gpu in self.fabric.gpus.values():
                link = next(
                    (
                        li
                        for li in self.fabric.links
                        if gpu.name in (li.a.node, li.b.node)
                    ),
                    None,
                )
                if link is None:
                    continue
                port = link.b if link.a.node == gpu.name else link.a
                out = port.number if port.node == name else 4
                rules.append(f"priority=10,ip,nw_dst={gpu.ip},actions=output:{out}")
            subprocess.run(
                ["ovs-ofctl", "-O", "OpenFlow13", "add-flows", switch["bridge"], "-"],
                input="\n".join(rules),
                text=True,
                check=True,
                timeout=10,
            )

    def rates(self, pairs: list[tuple[str, str]], seconds: float) -> list[float]:
        """Bits per second that arrive, for flows from one GPU to another at the same time."""
        ips = {name: gpu.ip for name, gpu in self.fabric.gpus.items()}
        peers = list(ips.values())
        wanted = []
        for i, (source, to) in enumerate(pairs):
            wanted.append(
                self.request(
                    2 * i, to, do="receive", at=ips[to], seconds=seconds, peers=peers
                )
            )
            wanted.append(
                self.request(
                    2 * i + 1,
                    source,
                    do="send",
                    to=ips[to],
                    seconds=seconds,
                    peers=peers,
                )
            )
        cursor = self.report()["cursor"]
        answer = self.start(*wanted)
        assert answer.status_code == 200, answer.text

        def events() -> list[dict[str, Any]]:
            return [
                e for e in self.report(cursor)["events"] if e["event"] == "received"
            ]

        until(
            lambda: len(events()) == len(pairs),
            25,
            lambda: str(self.report()["workers"]),
        )
        found = {e["rank"]: e["bps"] for e in events()}
        self.remove_all()
        return [found[2 * i] for i in range(len(pairs))]


@contextmanager
def running(fabric: Fabric, runtime: Any, image: str | None = None) -> Iterator[Rig]:
    python = "python3" if runtime == "docker" else sys.executable
    command = (python, "-c", PROGRAM, "{job}")
    emulation = Emulation(payload_scale=400, bounded=True)
    with running_testbed(
        fabric, runtime=runtime, image=image, emulation=emulation, command=command
    ) as made:
        rig = Rig(made)
        with rig.http:
            yield rig


@pytest.fixture(scope="module")
def docker_rig(image: str) -> Iterator[Rig]:
    with running(two_switches(), "docker", image) as rig:
        rig.forward()
        yield rig


@pytest.fixture(scope="module")
def namespace_rig() -> Iterator[Rig]:
    with running(two_switches(), "namespace") as rig:
        rig.forward()
        yield rig


@pytest.fixture(scope="module")
def idle(namespace_rig: Rig) -> Iterator[Idle]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(namespace_rig.lab.state_dir / "agent.sock"))
        yield Idle(connection, "/v1/health")


@pytest.fixture(params=["docker", "namespace"])
def rig(request: pytest.FixtureRequest, idle: Idle) -> Iterator[Rig]:
    used: Rig = request.getfixturevalue(f"{request.param}_rig")
    yield used
    used.remove_all()


@pytest.mark.alone
def test_links_have_their_rates_and_share_them_evenly(rig: Rig) -> None:
    # Wide bounds, as the machine may be busy: every run measures its own links (the link test of a run),
    # and what is looked for here is a rate that is another link's, or none.
    slow, fast = rig.rates([("g0", "g1"), ("g2", "g3")], 2.0)
    shared = rig.rates([("g0", "g2"), ("g1", "g3"), ("g5", "g6")], 3.0)
    for name, share in {
        "slow": slow / 100e6,
        "fast": fast / 400e6,
        "shared": sum(shared) / 32e6,
    }.items():
        assert 1 / 3 < share < 1.5, f"{name}: {share:.3f} of its rate"
    assert max(shared) / min(shared) < 3
    # What makes it so, as three flows in one queue may share it evenly by chance.
    name, pairs = rig.lab.interface("tor0", 4), len(rig.fabric.gpus) ** 2
    command = ["tc", "-statistics", "class", "show", "dev", name]
    classes = subprocess.run(command, capture_output=True, text=True, check=True)
    assert classes.stdout.count("leaf") == 1 + pairs
    sent = re.findall(
        r"^class htb 1:(\w+) .*leaf.*\n Sent (\d+)", classes.stdout, re.MULTILINE
    )
    assert {int(number, 16) for number, count in sent if int(count) > 100_000} == {
        3 + 7 * source + destination for source, destination in ((0, 2), (1, 3), (5, 6))
    }
    # Queues are as deep in bytes as the link is in time; acknowledgements would fill one that counts packets.
    queues = subprocess.run(
        ["tc", "qdisc", "show", "dev", name], capture_output=True, text=True, check=True
    )
    assert queues.stdout.count("bfifo") == 1 + pairs
    assert "pfifo" not in queues.stdout


def test_a_worker_has_few_privileges_in_a_container(docker_rig: Rig) -> None:
    try:
        docker_rig.start(docker_rig.request(0, "g0", do="look")).raise_for_status()
        until(lambda: docker_rig.worker("red-0")["state"] == "exited", 10)
        seen = next(e for e in docker_rig.report()["events"] if e["event"] == "looked")
    finally:
        docker_rig.remove_all()
    assert set(seen["caps"].values()) == {"0000000000000000"}
    assert seen["no_new_privileges"] == "1"
    assert seen["root"] == "Read-only file system"
    assert seen["uid"] == WORKER_UID
    assert seen["lab"] == docker_rig.lab.id
    assert "lo" in seen["interfaces"]
    assert set(seen["interfaces"]) <= {"lo", "eth0"}


def test_a_worker_has_no_capabilities_in_a_namespace(namespace_rig: Rig) -> None:
    try:
        namespace_rig.start(
            namespace_rig.request(0, "g0", do="look")
        ).raise_for_status()
        until(lambda: namespace_rig.worker("red-0")["state"] == "exited", 10)
        seen = next(
            e for e in namespace_rig.report()["events"] if e["event"] == "looked"
        )
    finally:
        namespace_rig.remove_all()
    assert set(seen["caps"].values()) == {"0000000000000000"}
    assert seen["no_new_privileges"] == "1"


def test_settings_of_a_worker_s_network(rig: Rig) -> None:
    peers = [gpu.ip for gpu in rig.fabric.gpus.values()]
    rig.start(rig.request(0, "g0", do="wait", peers=peers)).raise_for_status()
    assert rig.testbed.workers is not None
    assert rig.testbed.network is not None
    node = rig.testbed.network.get(rig.lab.container("red-0"))
    gpu = rig.fabric.gpus["g0"]
    shown = node.cmd("ip -d addr show eth0")
    assert f"inet {gpu.ip}/16" in shown
    assert gpu.mac in shown
    assert "mtu 9000" in shown
    assert "inet6" not in shown
    route = node.cmd("ip route")
    assert "rto_min lock 20ms" in route
    # A worker sets it by itself.
    assert "window" not in route
    assert rig.fabric.gpus["g1"].mac in node.cmd("ip neigh")
    # A class for every GPU, and one for what goes to none of them.
    classes = node.cmd("tc class show dev eth0").splitlines()
    assert sum("leaf" in line for line in classes) == 1 + len(rig.fabric.gpus)
    assert all("ceil 100Mbit" in line for line in classes)
    # Turns are a frame long only where TCP hands over single frames.
    assert "gso_max_segs 1 " in shown
    read = (
        "sysctl -n net.ipv4.tcp_congestion_control net.ipv4.tcp_slow_start_after_idle"
    )
    assert node.cmd(f"{read} net.ipv4.tcp_shrink_window").split() == ["reno", "0", "1"]
    # The machine's own may be others.
    assert node.cmd("sysctl -n net.ipv4.tcp_wmem").split() == [
        "10240",
        "87380",
        "16777216",
    ]
    assert "TX:" not in node.cmd("ip -s link show lo").split("lo:")[0]


def test_a_new_connection_may_have_as_much_under_way_as_an_old_one(
    namespace_rig: Rig,
) -> None:
    rig = namespace_rig
    peers = [gpu.ip for gpu in rig.fabric.gpus.values()]
    rig.start(rig.request(0, "g0", do="wait", peers=peers)).raise_for_status()
    rig.start(rig.request(1, "g1", do="wait", peers=peers)).raise_for_status()
    assert rig.testbed.network is not None
    sender, receiver = (
        rig.testbed.network.get(rig.lab.container(f"red-{rank}")) for rank in range(2)
    )
    to = rig.fabric.gpus["g1"].ip
    listen = f'import socket, time; held = socket.create_server(("{to}", 4000)).accept(); time.sleep(20)'
    listener = receiver.popen(["timeout", "20", "python3", "-c", listen])
    # tcpi_snd_wnd of Linux 5.4 and later: what the receiver lets be under way.
    ask = f"""
import socket, struct, time
for _ in range(50):
    try:
        connection = socket.create_connection(("{to}", 4000), 1)
        break
    except OSError:
        time.sleep(0.1)
connection.sendall(bytes(1))
time.sleep(0.2)
print(struct.unpack_from("I", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 228)[0])
"""
    try:
        asked = sender.popen(
            ["timeout", "20", "python3", "-c", ask], stdout=subprocess.PIPE
        )
        window_bytes = int(asked.communicate(timeout=30)[0])
    finally:
        listener.terminate()
        listener.wait(10)
        rig.remove_all()
    # The window's field in the answer to a SYN has 16 bits, and it is not scaled.
    assert window_bytes > 7 * 8900


#: A connection of a worker that sends both ways, on a link of which others take two thirds in one direction.
BOTH_WAYS = """
import contextlib, json, socket, struct, sys, threading, time
from ringlight.containers.worker.windows import keep_window
role, at, window_bytes = sys.argv[1], (sys.argv[2], 4001), int(sys.argv[3])
if role == "listen":
    connection, _ = socket.create_server(at).accept()
else:
    connection = None
    for _ in range(100):
        with contextlib.suppress(OSError):
            connection = socket.create_connection(at, 5)
            break
        time.sleep(0.1)
connection.settimeout(20)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
keep_window(connection, window_bytes)
# tcpi_snd_wnd, Linux 5.4 and later.
given = struct.unpack_from("I", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 228)[0]
sending = threading.Thread(target=connection.sendall, args=(bytes(4_000_000),), daemon=True)
sending.start()
left = 4_000_000
while left:
    left -= len(connection.recv(min(left, 1 << 16)))
sending.join(20)
names, values = (line.split() for line in open("/proc/net/netstat") if line.startswith("TcpExt:"))
print(json.dumps({"given": given, "too_old": int(dict(zip(names, values))["TCPChallengeACK"])}))
"""


def test_small_windows_are_given_last_and_lose_no_payload_that_acknowledgements_pass(
    namespace_rig: Rig,
) -> None:
    rig, window_bytes = namespace_rig, 8 * 8948
    ips = {name: gpu.ip for name, gpu in rig.fabric.gpus.items()}
    peers = list(ips.values())
    flows = [("g1", "g3"), ("g5", "g6")]
    waiting = [
        rig.request(rank, gpu, do="wait", peers=peers)
        for rank, gpu in enumerate(("g0", "g2"))
    ]
    receiving = [
        rig.request(2 + i, to, do="receive", at=ips[to], seconds=5, peers=peers)
        for i, (_, to) in enumerate(flows)
    ]
    sending = [
        rig.request(4 + i, source, do="send", to=ips[to], seconds=5, peers=peers)
        for i, (source, to) in enumerate(flows)
    ]
    rig.start(*waiting, *receiving, *sending).raise_for_status()
    assert rig.testbed.network is not None
    hosts = [
        rig.testbed.network.get(rig.lab.container(f"red-{rank}")) for rank in range(2)
    ]
    ends = [
        host.popen(
            [
                "timeout",
                "30",
                sys.executable,
                "-c",
                BOTH_WAYS,
                role,
                ips["g0"],
                str(window_bytes),
            ],
            stdout=subprocess.PIPE,
        )
        for host, role in zip(hosts, ("listen", "connect"), strict=True)
    ]
    try:
        found = [json.loads(end.communicate(timeout=40)[0]) for end in ends]
    finally:
        for end in ends:
            end.kill()
        rig.remove_all()
    assert [one["too_old"] for one in found] == [0, 0]
    # In units of the window's scale, and at least the kernel's smallest.
    assert all(window_bytes <= one["given"] < 2 * window_bytes for one in found)


def test_a_death_is_noticed_and_the_gpu_can_be_used_again(rig: Rig) -> None:
    answer = rig.start(*[rig.request(i, f"g{i}", do="wait") for i in range(3)])
    assert answer.json()[2] == {"id": "red-2", "gpu": "g2", "state": "running"}
    node = rig.testbed.network.get(rig.lab.container("red-1"))  # type: ignore[union-attr]
    os.kill(node.pid, signal.SIGKILL)
    until(lambda: rig.worker("red-1")["state"] == "exited", 3)
    ended = rig.worker("red-1")
    assert (ended["signal"], ended["exit_code"], ended["oom"]) == (9, None, False)
    assert rig.worker("red-0")["state"] == "running"
    events = rig.report()["events"]
    assert [e["worker"] for e in events if e["event"] == "exited"][-1] == "red-1"
    assert rig.start(rig.request(0, "g1", job="blue", do="wait")).status_code == 409
    rig.remove_all()
    # The port that died is there again, with another interface behind the same name.
    assert rig.rates([("g0", "g1")], 1.0)[0] > 100e6 / 3


def test_a_failing_worker_tells_why(rig: Rig) -> None:
    rig.start(rig.request(0, "g0", do="fail")).raise_for_status()
    until(lambda: rig.worker("red-0")["state"] == "exited", 10)
    ended = rig.worker("red-0")
    assert (ended["exit_code"], ended["signal"]) == (1, None)
    assert ended["stderr_tail"].strip() == "no gradient today"


def test_a_worker_that_ends_at_once_tells_why(docker_rig: Rig) -> None:
    answer = docker_rig.start(
        docker_rig.request(0, "g0", do="wait"), docker_rig.request(1, "g1", do="end")
    )
    if answer.status_code == 200:
        until(lambda: docker_rig.worker("red-1")["state"] == "exited", 10)
        assert docker_rig.worker("red-1")["stderr_tail"].strip() == "no gradient today"
        docker_rig.remove_all()
    else:
        assert "job red rank 1 on g1: container" in answer.json()["detail"]
        assert "exit code 1; it said: no gradient today" in answer.json()["detail"]
    assert docker_rig.report()["workers"] == []


def test_memory_is_limited(docker_rig: Rig) -> None:
    try:
        docker_rig.start(docker_rig.request(0, "g0", do="eat")).raise_for_status()
        until(lambda: docker_rig.worker("red-0")["state"] == "exited", 20)
        assert docker_rig.worker("red-0")["oom"]
    finally:
        docker_rig.remove_all()


def test_workers_start_all_or_none(docker_rig: Rig, image: str) -> None:
    name = docker_rig.lab.container("red-1")
    api = docker.APIClient(version="auto")
    other = api.create_container(image, ["true"], name=name)
    try:
        answer = docker_rig.start(
            *[docker_rig.request(i, f"g{i}", do="wait") for i in range(3)]
        )
        assert answer.status_code == 500
        assert "job red rank 1 on g1" in answer.json()["detail"]
        assert name in answer.json()["detail"]
        assert docker_rig.report()["workers"] == []
        assert api.inspect_container(other)["Name"] == f"/{name}", (
            "what is not ours stays"
        )
        ports = openvswitch.vsctl("list-ports", docker_rig.lab.bridge("tor0")).split()
        assert ports == [docker_rig.lab.interface("tor0", 4)]
    finally:
        api.remove_container(other, force=True)
        api.close()


def test_requests_that_do_not_fit_are_refused(namespace_rig: Rig) -> None:
    ask = namespace_rig.request
    for wanted, status, text in (
        ([], 422, "no workers"),
        ([ask(0, "g9")], 422, "there is no GPU g9"),
        ([ask(0, "g4")], 422, "GPU g4 is not plugged into anything"),
        ([ask(0, "g0"), ask(1, "g0")], 409, "GPU g0 is taken by worker red-0"),
        ([ask(0, "g0"), ask(0, "g1")], 409, "there is a worker red-0 already"),
    ):
        answer = namespace_rig.start(*wanted)
        assert answer.status_code == status
        assert text in answer.json()["detail"]
    assert namespace_rig.http.delete("/v1/workers/red-7").status_code == 404
    assert namespace_rig.report()["workers"] == []


def test_a_connection_outlives_its_client_s_patience(idle: Idle) -> None:
    """Else the controller may send on it as it is closed: httpx keeps an idle connection for 5 s."""
    assert idle.status_after(7.0) == 200


def test_release_writes_the_start_time(namespace_rig: Rig) -> None:
    namespace_rig.start(namespace_rig.request(0, "g0", do="wait")).raise_for_status()
    body = {"ids": ["red-0"], "at": 12.5}
    namespace_rig.http.post("/v1/workers/release", json=body).raise_for_status()
    written = namespace_rig.testbed.settings.state / "workers" / "red-0" / "go"
    assert json.loads(written.read_text()) == {"at": 12.5}
    namespace_rig.remove_all()


def test_an_optical_switch_that_dies_is_started_again_where_it_was_and_lit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running(build_fabric(FabricSpec.model_validate(OPTICAL)), "namespace") as rig:
        before = dict(rig.testbed.inventory["optical_switches"]["ocs0"])
        driver = make_driver("ocs0", before, 4)
        wanted = {CrossConnect(1, 7), CrossConnect(3, 5)}
        driver.open()
        converge(driver, wanted)
        os.kill(before["pid"], signal.SIGKILL)
        inventory = rig.testbed.settings.state / "inventory.json"

        def entry() -> dict[str, Any]:
            return dict(json.loads(inventory.read_text())["optical_switches"]["ocs0"])

        def lit() -> bool:
            try:
                return driver.snapshot().cross_connects.keys() == wanted
            except OpticalError:
                return False

        until(lambda: entry()["pid"] != before["pid"], 10)
        until(lit, 10)
        assert entry() == before | {"pid": entry()["pid"], "restarts": 1}
        converge(driver, {CrossConnect(1, 7)}, Mode.REPLACE)
        driver.close()
    assert (
        "optical switch ocs0 has ended (killed by SIGKILL); it is started again in 0.2 s"
        in caplog.messages
    )


def test_open_vswitch_is_made_to_keep_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What that does is tested with a daemon that no lab has been on (test_openvswitch)."""
    answered = []
    keep_memory = openvswitch.keep_memory
    monkeypatch.setattr(
        openvswitch, "keep_memory", lambda: answered.append(keep_memory())
    )
    with running(two_switches(), "namespace"):
        assert answered == ([] if has_kernel_datapath() else [True])


# -- the process


def launch(lab: Lab, fabric: Path, *more: str) -> forks.Command:
    return forks.Command(
        [
            *(
                sys.executable,
                "-m",
                "ringlight.testbed.emulation",
                "--fabric",
                str(fabric),
                "--lab",
                lab.id,
            ),
            *(
                "--payload-scale",
                "400",
                "--openflow",
                f"{NOBODY.host}:{NOBODY.port}",
                *more,
            ),
        ]
    )


@pytest.fixture
def fabric_file(tmp_path: Path) -> Path:
    path = tmp_path / "fabric.json"
    path.write_text(json.dumps(OPTICAL))
    return path


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = new_lab()
    yield made
    clean.clean(made.id)
    assert traces(made) == []


@pytest.mark.labs
def test_killed_outright_it_leaves_what_clean_removes_and_clean_touches_nothing_else(
    lab: Lab, fabric_file: Path, image: str
) -> None:
    foreign = f"rl{'zz9' if lab.id != 'zz9' else 'zz8'}-other"
    api = docker.APIClient(version="auto")

    def remove_foreign() -> None:
        namespaces.delete_namespace(foreign)
        openvswitch.vsctl("--if-exists", "del-br", foreign)
        with suppress(docker.errors.NotFound):
            api.remove_container(foreign, force=True)

    # It is nobody's, so a run that was killed here has left it for us.
    remove_foreign()
    container = api.create_container(
        image, ["sleep", "60"], labels={"other.lab": lab.id}, name=foreign
    )
    api.start(container)
    netns = os.open("/dev/null", os.O_RDONLY)
    process = launch(lab, fabric_file)
    try:
        os.close(netns)
        netns = namespaces.create_namespace(foreign)
        openvswitch.vsctl(
            "add-br", foreign, "--", "set", "bridge", foreign, "datapath_type=netdev"
        )
        until((lab.state_dir / "inventory.json").exists, 20)
        transport = httpx.HTTPTransport(uds=str(lab.state_dir / "agent.sock"))
        with httpx.Client(
            transport=transport, base_url="http://agent", timeout=30
        ) as client:
            # They wait for their job's start: one that ended at once would be refused.
            fabric = build_fabric(FabricSpec.model_validate(OPTICAL))
            peers = [gpu.ip for gpu in fabric.gpus.values()]
            spec = {"job": "red", "world_size": 2, "peers": peers[:2]}
            wanted = [
                {"job": "red", "rank": i, "gpu": f"g{i}", "spec": {**spec, "rank": i}}
                for i in range(2)
            ]
            answer = client.post("/v1/workers/batch", json=wanted)
            assert answer.is_success, answer.text
        process.kill()
        process.wait(10)
        assert not lab.is_alive()
        assert clean.is_stale(lab)
        removed = " ".join(clean.clean_stale())
        for kind in (
            "process",
            f"container {lab.container('red-1')}",
            "bridge",
            "interface",
            "namespace",
            "BPF",
        ):
            assert kind in removed
        assert traces(lab) == []
        assert clean.clean(lab.id) == []
        assert api.inspect_container(container)["State"]["Running"]
        assert (namespaces.NETNS_DIR / foreign).exists()
        assert foreign in openvswitch.vsctl("list-br").split()
    finally:
        process.kill()
        process.wait(10)
        os.close(netns)
        remove_foreign()
        api.close()


@pytest.mark.parametrize("delay_s", [0.3, 0.7, 1.0, 1.3])
def test_interrupted_at_any_moment_it_leaves_nothing(
    lab: Lab, fabric_file: Path, delay_s: float
) -> None:
    process = launch(lab, fabric_file, "--runtime", "namespace")
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0, errors
    assert traces(lab) == []


def test_it_ends_well_when_told_and_a_second_one_of_its_id_at_once(
    lab: Lab, fabric_file: Path
) -> None:
    process = launch(lab, fabric_file, "--runtime", "namespace")
    until((lab.state_dir / "inventory.json").exists, 20)
    second = launch(lab, fabric_file, "--runtime", "namespace")
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 1
    said = f"testbed: lab {lab.id} is already in use; stop it or choose another id"
    assert errors.splitlines()[-1] == said
    assert (lab.state_dir / "inventory.json").exists(), "the first one goes on"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert traces(lab) == []


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            ["--image", "ringlight-test:missing"],
            "there is no worker image ringlight-test:missing",
        ),
        (["--runtime", "namespace", "--fabric", "/dev/null"], "/dev/null: "),
        (
            ["--runtime", "namespace", "--payload-scale", "1"],
            "links[0]: 40 Gbit/s is emulated at 40 Gbit/s",
        ),
    ],
)
def test_what_cannot_be_built_gives_one_line_and_leaves_nothing(
    lab: Lab, fabric_file: Path, more: list[str], text: str
) -> None:
    process = launch(lab, fabric_file, *more)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    last = errors.splitlines()[-1]
    assert last.startswith("testbed: ")
    assert text in last
    assert "Traceback" not in errors
    assert traces(lab) == []


@pytest.mark.parametrize("service", ["DOCKER_SOCKET", "OVS_SOCKET"])
def test_a_service_that_is_stopped_is_named(
    lab: Lab, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, service, Path("/nonexistent.sock"))
    testbed = emulated.Testbed(
        Settings(lab=lab, fabric=two_switches(), state=lab.state_dir)
    )
    with pytest.raises(
        TestbedError,
        match=r"(Docker|Open vSwitch) is not running or does not answer",
    ):
        testbed.start()
    monkeypatch.undo()
    assert traces(lab) == []


def test_a_bring_up_that_fails_half_way_is_taken_back(lab: Lab, tmp_path: Path) -> None:
    # Bridges, cables and the optical switch are there when the agent's socket cannot be made.
    (tmp_path / "agent.sock").mkdir()
    fabric = build_fabric(FabricSpec.model_validate(OPTICAL))
    scale = Emulation(payload_scale=400)
    testbed = emulated.Testbed(
        Settings(
            lab=lab,
            fabric=fabric,
            state=tmp_path,
            runtime="namespace",
            emulation=scale,
            controller=NOBODY,
        )
    )
    with pytest.raises(OSError, match=r"agent\.sock"):
        testbed.start()
    assert traces(lab) == []
    assert [path.name for path in tmp_path.iterdir()] == ["agent.sock"]


def test_a_namespace_can_be_removed_after_the_machine_s_first_ip_netns_add() -> None:
    program = """
import os, subprocess
from ringlight.testbed.emulation.kernel import namespaces
umount = ["umount", "--lazy", "--recursive", str(namespaces.NETNS_DIR)]
subprocess.run(umount, check=False, capture_output=True)
for name in ("one", "two"):
    os.close(namespaces.create_namespace(f"rlfirst-{name}"))
subprocess.run(["ip", "netns", "add", "rlfirst-three"], check=True)
assert len([*namespaces.NETNS_DIR.glob("rlfirst-*")]) == 3
for name in ("one", "two", "three"):
    namespaces.delete_namespace(f"rlfirst-{name}")
assert not [*namespaces.NETNS_DIR.glob("rlfirst-*")]
"""
    # In a mount namespace of its own, where /run/netns is as on a fresh machine.
    command = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        sys.executable,
        "-c",
        program,
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False
        )
    finally:
        for path in namespaces.NETNS_DIR.glob("rlfirst-*"):
            path.unlink()
    assert done.returncode == 0, done.stderr


def test_a_port_that_is_not_there_is_named_when_it_is_shaped() -> None:
    with pytest.raises(
        network_errors.NetworkError,
        match=r"the rate of 1 port cannot be set: .*rlgone-1",
    ):
        shaping.shape_shared([("rlgone-1", 1e7, 0.01, "src")], ["10.82.0.1"])
