"""The emulated optical switch's own REST: what it tells of light paths in the kernel, and faults by REST."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ringlight.testbed.emulation.optical.datapath import Datapath, remove_pins
from ringlight.testbed.lab import new_lab
from ringlight.testbed.process_start import start_process
from tests import forks

pytestmark = pytest.mark.root

ROOT = Path(__file__).resolve().parents[2]
SIZE = 8
START_S = 30.0
LIMIT_S = 120.0


class Emulated:
    """An emulated switch with packets' light paths, SCPI and REST, and nothing plugged in."""

    def __init__(self, *more: str) -> None:
        self.lab = new_lab()
        self._held = self.lab.hold()
        self.pins = self.lab.bpf_dir / "ocs0"
        ready = self.lab.state_dir / "ready"
        self.log = self.lab.state_dir / "log"
        with self.log.open("wb") as log:
            self.process = start_process(
                [
                    *(
                        sys.executable,
                        "-m",
                        "ringlight.testbed.emulation.optical",
                        "--name",
                        "ocs0",
                    ),
                    *("--lab", self.lab.id, "--size", str(SIZE), "--profile", "ideal"),
                    *("--listen", "127.0.0.1:0"),
                    *(
                        "--pins",
                        str(self.pins),
                        "--ready",
                        str(ready),
                        "--rest",
                        "127.0.0.1:0",
                        *more,
                    ),
                ],
                self.lab.environment(),
                log,
            )
        deadline = time.monotonic() + START_S
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError("the switch did not start")
            time.sleep(0.01)
        told = json.loads(ready.read_text())
        self.scpi, self.rest = told["address"], told["rest"]
        self.api = httpx.Client(base_url=f"http://{self.rest}", timeout=20.0)

    def close(self) -> None:
        if hasattr(self, "api"):
            self.api.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
        remove_pins(self.pins)
        for directory in (self.lab.bpf_dir, self.lab.state_dir):
            for path in directory.iterdir() if directory.is_dir() else ():
                path.unlink()
            if directory.is_dir():
                directory.rmdir()
        self._held.close()

    def get(self, path: str) -> Any:
        answer = self.api.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def inject(self, **fault: Any) -> httpx.Response:
        return self.api.post("/v1/faults", json=fault)

    def say(self, text: str) -> bytes:
        """An SCPI message's reply; empty where the connection ends without one."""
        host, port = self.scpi.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(f"{text}\n".encode())
            return client.recv(1000)

    def in_kernel(self) -> dict[int, int]:
        maps = Datapath.resume(self.pins)
        try:
            return {
                ingress: lit.egress
                for (ingress, _), lit in maps.cross_connects().items()
            }
        finally:
            maps.close()


@pytest.fixture(scope="module")
def emulated() -> Iterator[Emulated]:
    made = Emulated()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def switch(emulated: Emulated) -> Emulated:
    """Without faults and cross-connects."""
    assert emulated.api.delete("/v1/faults").status_code == 200
    assert emulated.say(":oxc:swit:disc:all;*opc?") == b"1\n"
    return emulated


def test_circuits_are_those_of_the_light_paths(switch: Emulated) -> None:
    before = switch.get("/v1/counters")["mirror_moves"]
    ghost = switch.inject(kind="ghost", count=1)
    assert ghost.status_code == 201
    switch.say(":oxc:swit:conn:add (@1),(@10);*opc?")
    switch.say(":oxc:swit:conn:add (@2),(@9);*opc?")
    found = {
        row["ingress"]: (row["reported"], row["lit"], row["tuned"])
        for row in switch.get("/v1/circuits")
    }
    assert found == {1: (True, False, False), 2: (True, True, True)}
    assert switch.in_kernel() == {2: 9}
    assert switch.get(f"/v1/faults/{ghost.json()['id']}")["left"] == 0
    assert switch.api.delete(f"/v1/faults/{ghost.json()['id']}").json() == {
        "cleared": [ghost.json()["id"]]
    }
    assert switch.in_kernel() == {1: 10, 2: 9}
    counters = switch.get("/v1/counters")
    assert counters["mirror_moves"] - before == 3
    assert [row["port"] for row in counters["ports"]] == list(range(1, 2 * SIZE + 1))
    shown = switch.get("/v1/switch")
    assert (shown["cross_connects"], shown["packets"], shown["mirror_moves"]) == (
        2,
        True,
        before + 3,
    )


def test_what_vanishes_leaves_the_kernel_with_nobody_asking(switch: Emulated) -> None:
    switch.inject(kind="vanish", seconds=0.2)
    assert switch.say(":oxc:swit:conn:add (@1,2),(@10,11);*opc?") == b"1\n"
    assert switch.in_kernel() == {1: 10, 2: 11}
    deadline = time.monotonic() + 10
    while switch.in_kernel() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert switch.in_kernel() == {}
    assert switch.get("/v1/circuits") == []


def test_a_port_fails_by_rest_and_works_again(switch: Emulated) -> None:
    made = switch.inject(kind="port-failed", port=10)
    assert switch.get("/v1/ports/10")["admin"] == "failed"
    assert {
        "port": 10,
        "kind": "FAILED",
        "reason": "the port has failed",
    } in switch.get("/v1/alarms")
    assert b"F" in switch.say(":oxc:swit:port:stat? (@10)")
    switch.api.delete(f"/v1/faults/{made.json()['id']}")
    assert switch.get("/v1/ports/10")["admin"] == "enabled"


def test_a_reply_lost_after_the_effect(switch: Emulated) -> None:
    switch.inject(kind="lose-reply", protocol="scpi", count=1)
    assert switch.say(":oxc:swit:conn:add (@3),(@12);*opc?") == b""
    assert switch.in_kernel() == {3: 12}
    switch.inject(kind="drop", count=1)
    assert switch.say(":oxc:swit:conn:add (@4,5),(@13,14);*opc?") == b""
    assert switch.in_kernel() == {3: 12, 4: 13}


def test_what_cannot_be_is_one_line(switch: Emulated) -> None:
    for method, path, body, status, said in (
        (
            "POST",
            "/v1/faults",
            {"kind": "nonsense"},
            422,
            "kind: Input should be 'deny'",
        ),
        (
            "POST",
            "/v1/faults",
            {"kind": "deny", "often": 1},
            422,
            "often: Extra inputs",
        ),
        (
            "POST",
            "/v1/faults",
            {"kind": "deny", "protocol": "other"},
            422,
            "protocol: other; the",
        ),
        (
            "POST",
            "/v1/faults",
            {"kind": "port-failed", "port": 99},
            422,
            "port: there is no port 99 (1..16)",
        ),
        ("GET", "/v1/ports/99", None, 404, "there is no port 99 (1..16)"),
        ("DELETE", "/v1/faults/999", None, 404, "there is no fault 999"),
        ("GET", "/v1/nothing", None, 404, "there is no path /v1/nothing"),
        ("PUT", "/v1/switch", None, 405, "/v1/switch does not know the method PUT"),
    ):
        answer = switch.api.request(method, path, json=body)
        assert (answer.status_code, answer.json()["detail"].startswith(said)) == (
            status,
            True,
        ), answer.text
    for _ in range(64):
        assert switch.inject(kind="deny", count=1).status_code == 201
    assert switch.inject(kind="deny", count=1).status_code == 409
    assert len(switch.get("/v1/faults")) == 64
    stranger = switch.api.get("/v1/switch", headers={"host": "evil.example"})
    assert stranger.status_code == 403
    assert switch.api.post("/v1/faults", content=b'{"kind":"deny"}').status_code == 415


def ringlight(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forks.ringlight(*arguments, environment={"NO_COLOR": "1"})


def test_faults_from_the_shell(switch: Emulated) -> None:
    place = ("--seed", "7", "--seconds", "1.5", "--protocol", "scpi")
    done = ringlight(
        "ocs", "fault", "add", switch.rest, "slow", "--probability", "0.5", *place
    )
    assert done.returncode == 0, done.stderr
    assert "until cleared" in done.stdout
    connects = ("--count", "1", "--connects", "1-10")
    assert (
        ringlight(
            "ocs", "fault", "add", switch.rest, "foreign-writer", *connects
        ).returncode
        == 0
    )
    assert switch.say(":oxc:swit:conn:stat?") == b"(@1),(@10)\n"
    found = json.loads(ringlight("ocs", "fault", "list", switch.rest, "--json").stdout)
    assert [(fault["kind"], fault["hits"], fault["left"]) for fault in found] == [
        ("slow", 0, None),
        ("foreign-writer", 1, 0),
    ]
    refused = ringlight("ocs", "fault", "add", switch.rest, "port-failed")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "port: a port-failed names one" in refused.stderr
    ended = ", ".join(str(fault["id"]) for fault in found)
    assert (
        ringlight("ocs", "fault", "clear", switch.rest).stdout == f"cleared: {ended}\n"
    )
    assert switch.get("/v1/faults") == []
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
    assert (
        f"no emulated switch answers at http://{nobody}"
        in ringlight("ocs", "fault", "list", nobody).stderr
    )


def test_beyond_loopback_a_token_is_needed(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "ringlight.testbed.emulation.optical",
        "--name",
        "ocs0",
        "--size",
        "4",
    ]
    command += [
        "--listen",
        "127.0.0.1:0",
        "--pins",
        str(tmp_path / "pins"),
        "--rest",
        "0.0.0.0:0",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert done.returncode == 2
    assert "not a loopback address; that needs --rest-token-file" in done.stderr
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    switch = Emulated("--rest-token-file", str(token))
    try:
        assert switch.api.get("/v1/switch").status_code == 401
        answer = switch.api.get(
            "/v1/switch", headers={"authorization": "Bearer 0123456789abcdef"}
        )
        assert answer.json()["name"] == "ocs0"
    finally:
        switch.close()


def test_it_ends_while_somebody_is_connected() -> None:
    switch = Emulated()
    try:
        assert switch.get("/v1/switch")["clients"] == 0
        started = time.monotonic()
        switch.process.send_signal(signal.SIGTERM)
        assert switch.process.wait(15) == 0
        assert time.monotonic() - started < 10
        assert "Traceback" not in switch.log.read_text()
    finally:
        switch.close()


def test_every_operation_answers_as_described(
    emulated: Emulated, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            *("--config-file", "tests/integration/schemathesis.toml", "run"),
            *(
                f"http://{emulated.rest}/openapi.json",
                "--no-color",
                "--no-shrink",
                "--seed",
                "1",
            ),
            *("--generation-database", "none", "--workers", "1", "--max-examples", "5"),
        ],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    log = emulated.log.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") :][:3000]
    assert emulated.api.delete("/v1/faults").status_code == 200
