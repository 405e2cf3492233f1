"""Agents on real sockets: Unix sockets for workers and managers, UDP on loopback for each other. No root."""

from __future__ import annotations

import ast
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ringlight.controller.onic import agent as agent_module
from ringlight.controller.onic.agent import Agent
from ringlight.controller.onic.agent_settings import (
    FLOW_SOCKET,
    MANAGE_SOCKET,
    AgentError,
    AgentSettings,
)
from ringlight.controller.onic.control_messages import REQUEST, Message
from ringlight.controller.onic.kept_files import EPOCH_FILE, MAP_FILE
from ringlight.controller.onic.lease_times import Times
from ringlight.controller.onic.wire import VERSION, VERSION_MESSAGE, encode
from ringlight.testbed.process_start import Process, start_process
from tests.null_onic import NullLaser, NullRoutes

HOST = "127.83.7.1"
PATIENCE_S = 0.6
TIMES = Times(
    lease_s=0.8, guard_s=0.05, retry_s=0.02, refresh_s=0.2, patience_s=PATIENCE_S
)
WAIT_S = 10.0


class Light:
    """All lasers of a test: which receivers they light, and whether two ever lit one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lit: dict[tuple[str, int], tuple[int, float]] = {}
        self.collisions: list[str] = []
        self.tunings = 0

    def laser(self, gpu: str, target: Callable[[str, int, int], str]) -> OneLaser:
        return OneLaser(self, gpu, target)


class OneLaser:
    """The lasers of one O-NIC."""

    def __init__(
        self, light: Light, gpu: str, target: Callable[[str, int, int], str]
    ) -> None:
        self._light, self._gpu, self._target = light, gpu, target

    def tune(
        self, port: int, wavelength: int, ready_in_s: float, until_s: float
    ) -> float:
        now, light, here = time.monotonic(), self._light, (self._gpu, port)
        with light.lock:
            light.tunings += 1
            for (gpu, other), (colour, end_s) in light.lit.items():
                same = self._target(gpu, other, colour) == self._target(
                    self._gpu, port, wavelength
                )
                if (gpu, other) != here and port == other and same and now < end_s:
                    light.collisions.append(f"{gpu} and {self._gpu} port {port}")
            light.lit[here] = (wavelength, until_s)
        return now + ready_in_s

    def dark(self, port: int) -> None:
        with self._light.lock:
            self._light.lit.pop((self._gpu, port), None)

    def read(self, port: int) -> int | None:
        with self._light.lock:
            light = self._light.lit.get((self._gpu, port))
        return light[0] if light is not None and time.monotonic() < light[1] else None


class Worker:
    """A client of flow.sock."""

    def __init__(self, directory: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(str(directory / FLOW_SOCKET))

    def say(self, **document: Any) -> None:
        self.socket.send(json.dumps(document).encode())

    def hear(self) -> dict[str, Any]:
        data = self.socket.recv(8192)
        if not data:
            raise ConnectionResetError
        answer: dict[str, Any] = json.loads(data)
        return answer

    def ask(self, **document: Any) -> dict[str, Any]:
        self.say(**document)
        return self.hear()


def manage(directory: Path, **request: Any) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(WAIT_S)
        one.connect(str(directory / MANAGE_SOCKET))
        one.sendall(json.dumps(request).encode() + b"\n")
        with one.makefile("rb") as lines:
            answer: dict[str, Any] = json.loads(lines.readline())
    return answer


def until(what: str, condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_S
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.005)


def gpu_ip(index: int) -> str:
    return f"10.82.0.{index + 1}"


class Rig:
    """A row of O-NICs: all on port 0, j reached from i on wavelength j - i."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.light = Light()
        self.agents: list[Agent] = []
        self.threads: list[threading.Thread] = []
        self.workers: list[Worker] = []

    def directory(self, index: int) -> Path:
        return self.root / f"n{index}"

    def start(
        self, count: int, *, allow_faults: bool = True, tuning_s: float = 0.0
    ) -> None:
        for index in range(count):
            settings = AgentSettings(
                f"n{index}",
                self.directory(index),
                (HOST, 0),
                times=TIMES,
                allow_faults=allow_faults,
                tuning_s=tuning_s,
            )
            one = Agent(
                settings, self.light.laser(f"n{index}", self._target), NullRoutes()
            )
            self.agents.append(one)
        for index in range(count):
            assert self.set_map(index)["ok"]
        for one in self.agents:
            thread = threading.Thread(target=one.run)
            thread.start()
            self.threads.append(thread)

    def _target(self, gpu: str, port: int, wavelength: int) -> str:
        return f"n{(int(gpu[1:]) + wavelength) % 64}"

    def peers(self, index: int) -> dict[str, Any]:
        return {
            gpu_ip(peer): {
                "port": 0,
                "wavelength": (peer - index) % 64,
                "agent": self.address(peer),
            }
            for peer in range(len(self.agents))
            if peer != index
        }

    def set_map(self, index: int) -> dict[str, Any]:
        """Before the agent runs; afterwards through its socket."""
        line = json.dumps(
            {"op": "set_map", "job": "j", "version": 1, "peers": self.peers(index)}
        )
        return self.agents[index]._managers.answer(line.encode())

    def address(self, index: int) -> str:
        host, port = self.agents[index].address
        return f"{host}:{port}"

    def worker(self, index: int) -> Worker:
        worker = Worker(self.directory(index))
        self.workers.append(worker)
        return worker

    def ask(self, index: int, op: str, **request: Any) -> dict[str, Any]:
        return manage(self.directory(index), op=op, **request)

    def counters(self, index: int) -> dict[str, Any]:
        counters: dict[str, Any] = self.ask(index, "status")["counters"]
        return counters

    def laser(self, index: int) -> int | None:
        lasers: list[int | None] = self.ask(index, "status")["lasers"]
        return lasers[0]

    def stop(self) -> None:
        for worker in self.workers:
            worker.socket.close()
        for one in self.agents:
            one.stop()
        for thread in self.threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    one = Rig(tmp_path)
    try:
        yield one
    finally:
        one.stop()
    assert not one.light.collisions
    assert not one.light.lit


def test_a_flow_from_open_to_release(rig: Rig) -> None:
    rig.start(2)
    worker = rig.worker(0)
    assert worker.ask(open=1, peer=gpu_ip(1)) == {"lit": 1}
    assert rig.laser(0) == 1
    status = rig.ask(0, "status")
    assert [flow["state"] for flow in status["flows"]] == ["lit"]
    assert rig.ask(1, "status")["receivers"][0] == {
        "granted_to": gpu_ip(0),
        "waiting": [],
    }
    until("the confirmation", lambda: rig.counters(0)["sent"]["confirm"])
    assert worker.ask(close=1) == {"closed": 1}
    assert rig.laser(0) is None
    flow = until("the release", lambda: rig.ask(0, "trace", cursor=0)["flows"])[0]
    stamps = [
        flow[f"t_{name}"]
        for name in ("open", "request", "grant", "lit", "close", "released")
    ]
    assert stamps == sorted(stamps)
    assert (flow["flow"], flow["peer"], flow["port"], flow["wavelength"]) == (
        1,
        gpu_ip(1),
        0,
        1,
    )
    assert flow["waited"] is False
    assert rig.ask(0, "trace", cursor=1) == {
        "ok": True,
        "flows": [],
        "lit": [],
        "cursor": 1,
        "dropped": 0,
    }
    sent = rig.counters(0)["sent"]
    assert {kind for kind in sent if sent[kind]} == {"request", "confirm", "release"}
    sent = rig.counters(1)["sent"]
    assert {kind for kind in sent if sent[kind]} == {"grant", "released"}


def test_a_worker_that_vanishes_frees_what_it_held(rig: Rig) -> None:
    rig.start(3)
    first, second = rig.worker(0), rig.worker(1)
    assert first.ask(open=1, peer=gpu_ip(2)) == {"lit": 1}
    first.say(open=2, peer=gpu_ip(1))
    second.say(open="x", peer=gpu_ip(2))
    until(
        "the queue",
        lambda: rig.ask(2, "status")["receivers"][0]["waiting"] == [gpu_ip(1)],
    )
    first.socket.close()
    assert second.hear() == {"lit": "x"}
    assert rig.laser(0) is None
    assert rig.ask(0, "status")["flows"] == []


def test_incast_from_eight_is_served_one_at_a_time(rig: Rig) -> None:
    """``Light`` sees every laser; each source opens three flows of 2 ms."""
    rig.start(9)
    workers = {rig.worker(index): index for index in range(8)}
    asked, waits = dict.fromkeys(workers, 0.0), []
    left = dict.fromkeys(workers, 3)
    for worker in workers:
        asked[worker] = time.monotonic()
        worker.say(open=0, peer=gpu_ip(8))
    by_socket = {worker.socket: worker for worker in workers}
    while any(left.values()):
        ready, _, _ = select.select(
            [w.socket for w in workers if left[w]], [], [], WAIT_S
        )
        assert ready
        for one in ready:
            worker = by_socket[one]
            assert "lit" in worker.hear()
            waits.append(time.monotonic() - asked[worker])
            time.sleep(0.002)
            left[worker] -= 1
            assert "closed" in worker.ask(close=3 - left[worker] - 1)
            if left[worker]:
                asked[worker] = time.monotonic()
                worker.say(open=3 - left[worker], peer=gpu_ip(8))
    assert len(waits) == 24
    assert rig.counters(8)["grants"] == 24


def test_lost_copied_and_reordered_messages(rig: Rig) -> None:
    rig.start(3)
    for index in range(3):
        answer = rig.ask(
            index, "emulate", loss=0.1, duplicate=0.1, reorder=0.2, seed=index
        )
        assert answer["emulate"]["loss"] == 0.1
    workers = [rig.worker(index) for index in range(3)]
    for number in range(40):
        for index, worker in enumerate(workers):
            worker.say(open=number, peer=gpu_ip((index + 1 + number % 2) % 3))
        for worker in workers:
            assert worker.hear() == {"lit": number}
            assert worker.ask(close=number) == {"closed": number}
    faults = [rig.counters(index)["faults"] for index in range(3)]
    assert all(
        sum(one[kind] for one in faults) for kind in ("lost", "duplicated", "reordered")
    )
    assert rig.light.tunings >= 120


def test_a_partition_fails_flows_with_a_reason_and_heals(rig: Rig) -> None:
    rig.start(2)
    worker = rig.worker(0)
    rig.ask(0, "emulate", blocked=[rig.address(1)])
    began = time.monotonic()
    answer = worker.ask(open=1, peer=gpu_ip(1))
    assert answer == {
        "failed": 1,
        "reason": f"{gpu_ip(1)} (O-NIC {rig.address(1)}): no answer for {PATIENCE_S:g} s",
    }
    assert PATIENCE_S <= time.monotonic() - began < 3 * PATIENCE_S
    rig.ask(0, "emulate", blocked=[])
    assert worker.ask(open=2, peer=gpu_ip(1)) == {"lit": 2}
    assert rig.counters(0)["faults"]["blocked"] > 0


def test_a_partition_while_lit_darkens_at_the_leases_end_and_says_so(rig: Rig) -> None:
    rig.start(3)
    worker, other = rig.worker(0), rig.worker(1)
    assert worker.ask(open=1, peer=gpu_ip(2)) == {"lit": 1}
    rig.ask(0, "emulate", blocked=[rig.address(2)])
    other.say(open=1, peer=gpu_ip(2))
    answer = worker.hear()
    assert answer["lost"] == 1
    assert "the lease ran out and was not renewed" in answer["reason"]
    # The receiver waits for the guard time more, and then serves who waits.
    assert other.hear() == {"lit": 1}
    rig.ask(0, "emulate", blocked=[])
    assert other.ask(close=1) == {"closed": 1}
    assert worker.ask(open=2, peer=gpu_ip(2)) == {"lit": 2}


def test_a_lit_flow_outlives_many_leases(rig: Rig) -> None:
    rig.start(2)
    worker = rig.worker(0)
    assert worker.ask(open=1, peer=gpu_ip(1)) == {"lit": 1}
    time.sleep(3 * TIMES.lease_s)
    assert rig.laser(0) == 1
    assert worker.ask(close=1) == {"closed": 1}
    assert rig.counters(0)["sent"]["renew"] >= 3


def test_delay_of_the_control_network_and_of_the_laser(rig: Rig) -> None:
    rig.start(2)
    for index in (0, 1):
        rig.ask(index, "emulate", delay_s=0.02, tuning_s=0.03)
    worker = rig.worker(0)
    began = time.monotonic()
    assert worker.ask(open=1, peer=gpu_ip(1)) == {"lit": 1}
    assert 0.07 <= time.monotonic() - began < 2


class RawPeer:
    """A peer that a test plays by hand; it is n1 of the map of agent 0."""

    def __init__(self, rig: Rig) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.settimeout(WAIT_S)
        self.socket.bind((HOST, 0))
        host, port = self.socket.getsockname()
        peers = {gpu_ip(1): {"port": 0, "wavelength": 1, "agent": f"{host}:{port}"}}
        assert (
            rig.ask(0, "set_map", job="j", version=2, peers=peers)["map"]["peers"]
            == peers
        )
        self.agent = rig.agents[0].address


def test_a_peer_of_another_version_is_named_and_told(rig: Rig) -> None:
    rig.start(1)
    peer = RawPeer(rig)
    with peer.socket:
        worker = rig.worker(0)
        worker.say(open=1, peer=gpu_ip(1))
        request = peer.socket.recv(100)
        assert request[:4] == b"RL" + bytes([VERSION, REQUEST])
        peer.socket.sendto(b"RL\x07\x00", peer.agent)
        answer = worker.hear()
        assert answer["failed"] == 1
        assert answer["reason"].endswith(
            "it speaks protocol version 7, this O-NIC version 1"
        )
        # Only the first four bytes of an unknown version mean something.
        peer.socket.sendto(b"RL\x07\x01 whatever comes then", peer.agent)
        while peer.socket.recv(100) != VERSION_MESSAGE:
            # Its release of the request that failed.
            continue
        assert rig.counters(0)["other_version"] == 2


def test_malformed_messages_are_counted_and_dropped(rig: Rig) -> None:
    rig.start(2)
    whole = encode(Message(REQUEST, 0, 1, 1, 1))
    garbage = [b"", b"x", b"RL", bytes(48), os.urandom(2000), whole[:-1], whole + b"\0"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind((HOST, 0))
        for data in garbage:
            one.sendto(data, rig.agents[0].address)
        # Well formed, but from nobody in the map.
        one.sendto(whole, rig.agents[0].address)
    until("the counter", lambda: rig.counters(0)["malformed"] == len(garbage))
    until("the denial", lambda: rig.counters(0)["denies"] == 1)
    assert rig.worker(0).ask(open=1, peer=gpu_ip(1)) == {"lit": 1}


def test_bad_requests_of_a_worker_are_answered(rig: Rig) -> None:
    rig.start(2)
    worker = rig.worker(0)
    for data, reason in (
        (b"{", "Expecting property name"),
        (b"[" * 4000, "recursion"),
        (b"[1]", "not a JSON object"),
        (b"{}", 'neither "open" nor "close"'),
        (b'{"open": 1.5, "peer": "10.82.0.2"}', "must be a number or a text"),
        (b'{"close": 5}', "flow 5 is not open"),
        (b' {"close": 5}\n', "flow 5 is not open"),
        (b'{"close": 5}{}', "more than one JSON document"),
        (b"x" * 5000, "longer than 4096 bytes"),
    ):
        worker.socket.send(data)
        assert reason in worker.hear()["error"], data
    assert worker.ask(open=1, peer="10.82.9.9") == {
        "failed": 1,
        "reason": "10.82.9.9: is not in the wavelength map",
    }
    assert worker.ask(open=1, peer=gpu_ip(1)) == {"lit": 1}
    assert "already open" in worker.ask(open=1, peer=gpu_ip(1))["error"]
    assert worker.ask(close=True) == {"error": "close must be a number or a text"}
    assert worker.ask(close=1) == {"closed": 1}


def test_a_worker_that_does_not_listen_is_dropped_and_its_light_goes_out(
    rig: Rig,
) -> None:
    rig.start(2)
    worker = rig.worker(0)
    assert worker.ask(open=1, peer=gpu_ip(1)) == {"lit": 1}
    worker.socket.setblocking(False)
    with pytest.raises(OSError):  # noqa: PT012
        for _ in range(100_000):
            worker.socket.send(b"{}")
            if not select.select([], [worker.socket], [], 1.0)[1]:
                raise BlockingIOError
    until("darkness", lambda: rig.laser(0) is None)
    assert rig.ask(0, "status")["workers"] == 0


def test_the_map_belongs_to_a_job_and_is_read_back(rig: Rig) -> None:
    rig.start(2)
    peers = rig.peers(0)
    assert rig.ask(0, "set_map", job="j", version=3, peers=peers)["map"] == {
        "job": "j",
        "version": 3,
        "peers": peers,
    }
    assert rig.agents[0]._routes.routes == {gpu_ip(1): 0}  # type: ignore[attr-defined]
    for request, reason in (
        (
            {"job": "j", "version": 2, "peers": peers},
            "holds version 3 of the map, newer than 2",
        ),
        (
            {"job": "k", "version": 9, "peers": peers},
            "holds the map of job j; clear that first",
        ),
        ({"job": "", "version": 9, "peers": peers}, "job must be a name"),
        (
            {"job": "j", "version": 9, "peers": {"a": {"port": 2}}},
            "peers.a.port must be from 0 to 1",
        ),
        ({"job": "j", "version": 9, "peers": {"a": 3}}, "peers.a must be an object"),
        (
            {
                "job": "j",
                "version": 9,
                "peers": {"a": {"port": 1, "wavelength": 1, "agent": "x"}},
            },
            "peers.a.agent: 'x' is not HOST:PORT",
        ),
    ):
        answer = rig.ask(0, "set_map", **request)
        assert answer == {"ok": False, "error": f"O-NIC n0: {reason}"}
    worker = rig.worker(0)
    assert worker.ask(open=1, peer=gpu_ip(1)) == {"lit": 1}
    assert "not of k" in rig.ask(0, "clear_map", job="k")["error"]
    assert rig.ask(0, "clear_map", job="j") == {"ok": True, "map": None}
    assert worker.hear()["reason"].endswith("the wavelength map changed")
    assert worker.ask(open=2, peer=gpu_ip(1))["reason"].endswith(
        "this O-NIC has no wavelength map"
    )
    assert not (rig.directory(0) / MAP_FILE).exists()


def test_bad_management_requests_are_answered(rig: Rig) -> None:
    rig.start(1, allow_faults=False)
    assert "there is no operation" in rig.ask(0, "explode")["error"]
    assert "--allow-faults" in rig.ask(0, "emulate", loss=0.5)["error"]
    assert "cursor" in rig.ask(0, "trace", cursor=-1)["error"]
    status = rig.ask(0, "status")
    assert (status["gpu"], status["job"], status["version"]) == ("n0", "j", VERSION)
    assert status["timings"] == {**asdict(TIMES), "tuning_s": 0.0}
    assert (rig.directory(0) / MANAGE_SOCKET).stat().st_mode & 0o777 == 0o600


def test_bad_faults_are_refused(rig: Rig) -> None:
    rig.start(1)
    for request, reason in (
        ({"loss": 2}, "loss must be a share"),
        ({"speed": 2}, "no fault called speed"),
        ({"blocked": ["x"]}, "HOST:PORT"),
        ({"tuning_s": -1}, "tuning_s"),
        ({"delay_s": 1e9}, "delay_s"),
    ):
        assert reason in rig.ask(0, "emulate", **request)["error"]


def test_setting_the_wall_clock_changes_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall clock jumps by years at every look, and nobody looks."""
    looks: list[str] = []

    def jump(name: str) -> Callable[[], float]:
        def look() -> float:
            looks.append(sys._getframe(1).f_code.co_filename)
            return (-1.0) ** len(looks) * 1e9

        return look

    for name in ("time", "time_ns"):
        monkeypatch.setattr(time, name, jump(name))
    rig.start(2)
    worker = rig.worker(0)
    assert worker.ask(open=1, peer=gpu_ip(1)) == {"lit": 1}
    time.sleep(1.5 * TIMES.lease_s)
    assert worker.ask(close=1) == {"closed": 1}
    assert not [name for name in looks if os.sep + "onic" + os.sep in name]
    for path in Path(agent_module.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "time"
            ):
                assert node.attr in ("monotonic", "monotonic_ns"), (
                    f"{path.name}:{node.lineno}"
                )
            assert not (isinstance(node, ast.Name) and node.id == "datetime"), path.name


def test_a_laser_that_cannot_be_darkened_stops_the_start(tmp_path: Path) -> None:
    class Stuck(NullLaser):
        def dark(self, port: int) -> None:
            pass

    laser = Stuck()
    laser.tune(1, 5, 0.0, time.monotonic() + 60)
    with pytest.raises(AgentError, match="laser of port 1 stays lit on wavelength 5"):
        Agent(AgentSettings("n0", tmp_path, (HOST, 0)), laser, NullRoutes())
    assert not (tmp_path / FLOW_SOCKET).exists()


def test_a_taken_address_is_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind((HOST, 0))
        with pytest.raises(
            AgentError, match=re.escape(f"('{HOST}', {one.getsockname()[1]})")
        ):
            Agent(
                AgentSettings("n0", tmp_path, one.getsockname()),
                NullLaser(),
                NullRoutes(),
            )


def test_a_map_file_that_cannot_be_read_is_said_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / MAP_FILE).write_text("[3]")
    one = Agent(AgentSettings("n0", tmp_path, (HOST, 0)), NullLaser(), NullRoutes())
    one.close()
    assert "the map must be an object" in capsys.readouterr().err


def test_epochs_grow_even_when_the_file_is_lost(tmp_path: Path) -> None:
    epochs = []
    for round_ in range(3):
        one = Agent(AgentSettings("n0", tmp_path, (HOST, 0)), NullLaser(), NullRoutes())
        epochs.append(one.core.epoch)
        one.close()
        if round_ == 1:
            (tmp_path / EPOCH_FILE).unlink()
    assert epochs == sorted(set(epochs))


class Processes:
    """Agents as processes with lasers that outlive them."""

    def __init__(self, root: Path, count: int) -> None:
        self.root, self.count = root, count
        self.ports = []
        for _ in range(count):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
                one.bind((HOST, 0))
                self.ports.append(one.getsockname()[1])
        self.running: dict[int, Process] = {}

    def directory(self, index: int) -> Path:
        return self.root / f"n{index}"

    def start(self, index: int) -> None:
        command = [sys.executable, "-m", "tests.integration.onic_process", f"n{index}"]
        command += [
            str(self.directory(index)),
            HOST,
            str(self.ports[index]),
            json.dumps(asdict(TIMES)),
        ]
        with (self.root / "agents.log").open("ab") as log:
            self.running[index] = start_process(
                command, os.environ, log, directory=Path(__file__).parents[2]
            )

    def status(self, index: int) -> dict[str, Any]:
        def answer() -> dict[str, Any] | None:
            try:
                return manage(self.directory(index), op="status")
            except (OSError, ValueError):
                return None

        status: dict[str, Any] = until(f"agent n{index}", answer)
        return status

    def set_maps(self) -> None:
        for index in range(self.count):
            self.status(index)
            peers = {
                gpu_ip(peer): {
                    "port": 0,
                    "wavelength": peer,
                    "agent": f"{HOST}:{self.ports[peer]}",
                }
                for peer in range(self.count)
                if peer != index
            }
            assert manage(
                self.directory(index), op="set_map", job="j", version=1, peers=peers
            )["ok"]

    def kill(self, index: int) -> None:
        self.running[index].send_signal(signal.SIGKILL)
        self.running[index].wait(WAIT_S)

    def laser(self, index: int) -> dict[str, Any]:
        lit: dict[str, Any] = json.loads(
            (self.directory(index) / "laser.json").read_text()
        )
        return lit

    def stop(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait(WAIT_S)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    one = Processes(tmp_path, 3)
    try:
        for index in range(3):
            one.start(index)
        one.set_maps()
        yield one
    finally:
        one.stop()


def test_a_killed_agent_comes_back_dark_with_its_map_and_grants_nothing_for_a_lease(
    processes: Processes,
) -> None:
    source, other = Worker(processes.directory(0)), Worker(processes.directory(1))
    assert source.ask(open=1, peer=gpu_ip(2)) == {"lit": 1}
    before = processes.status(0)
    # The source dies: its light stays on until the watchdog, and the new life puts it out.
    processes.kill(0)
    assert processes.laser(0)["0"][0] == 2
    other.say(open=1, peer=gpu_ip(2))
    processes.start(0)
    after = processes.status(0)
    assert processes.laser(0) == {}
    assert after["epoch"] > before["epoch"]
    assert (after["job"], after["peers"]) == ("j", before["peers"])
    with pytest.raises(OSError):
        source.hear()
    source = Worker(processes.directory(0))
    assert other.hear() == {"lit": 1}
    assert other.ask(close=1) == {"closed": 1}
    assert source.ask(open=1, peer=gpu_ip(2)) == {"lit": 1}
    # The receiver dies while it is granted: nobody else gets it before the old lease has run out.
    processes.kill(2)
    killed = time.monotonic()
    processes.start(2)
    processes.status(2)
    started = time.monotonic()
    other.say(open=2, peer=gpu_ip(2))
    answer = source.hear()
    assert answer["lost"] == 1
    assert other.hear() == {"lit": 2}
    lit = time.monotonic()
    assert lit - killed >= TIMES.lease_s
    assert lit - started < 3 * (TIMES.lease_s + TIMES.guard_s)
    assert source.ask(open=2, peer=gpu_ip(1)) == {"lit": 2}
    source.socket.close()
    other.socket.close()


def test_an_agent_told_to_end_releases_darkens_and_removes_its_sockets(
    processes: Processes,
) -> None:
    source, other = Worker(processes.directory(0)), Worker(processes.directory(1))
    assert source.ask(open=1, peer=gpu_ip(2)) == {"lit": 1}
    other.say(open=1, peer=gpu_ip(2))
    processes.running[0].terminate()
    assert processes.running[0].wait(WAIT_S) == 0
    assert processes.laser(0) == {}
    assert not (processes.directory(0) / FLOW_SOCKET).exists()
    assert other.hear() == {"lit": 1}
    source.socket.close()
    other.socket.close()


@pytest.mark.root
def test_management_is_not_for_containers(rig: Rig) -> None:
    """A container sees the directory of the sockets, and lives in another PID namespace."""
    rig.start(1)
    code = (
        "import socket,sys; s=socket.socket(socket.AF_UNIX); s.settimeout(5); s.connect(sys.argv[1]);"
        's.sendall(b\'{"op":"status"}\\n\'); sys.exit(3 if s.recv(9) else 0)'
    )
    command = [sys.executable, "-c", code, str(rig.directory(0) / MANAGE_SOCKET)]
    assert subprocess.run(command, check=False).returncode == 3
    contained = ["unshare", "--pid", "--fork", *command]
    assert (
        subprocess.run(contained, check=False, stderr=subprocess.DEVNULL).returncode
        != 3
    )
    assert rig.counters(0)["refused_clients"] == 1
