"""Changes of light over three emulated optical switches, each behind a relay that can make it refuse.

All or none; a controller killed in between; somebody else's changes under each policy; a damaged database.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ringlight.fabric.optical_profiles import profiles
from ringlight.testbed.emulation.optical.datapath import remove_pins
from ringlight.testbed.lab import new_lab
from ringlight.testbed.process_start import Process, start_process
from ringlight.testbed.rigs.network import run
from tests.forks import ringlight
from tests.integration.controller_rig import free_port

pytestmark = pytest.mark.root

NAMES = ("a", "b", "c")
SIZE = 8
FABRIC: dict[str, Any] = {
    "servers": {"s0": {"gpus": {f"g{i}": "tesla-m40" for i in range(3)}}},
    "packet_switches": {"tor0": {"ports": 3}},
    "optical_switches": {name: {"size": SIZE, "profile": "ideal"} for name in NAMES},
    "links": [
        {"ends": [node, f"{name}:{port}"], "rate": "10 Gbit/s"}
        for index, name in enumerate(NAMES)
        for port, node in ((1, f"g{index}"), (2, f"tor0:{index + 1}"))
    ],
}
#: Longest that anything here may take, seconds.
PATIENCE_S = 20.0
#: A change that the controller did not make is to be noticed in this time.
NOTICED_S = 2.0


class Relay:
    """Between the controller and a switch's SCPI port. ``deny``: what the next so many writes say is such
    that the switch refuses it; ``hold``: writes wait until it is cleared; ``drop``: they never get there.
    ``clients``: so many are connected."""

    def __init__(self, target: int) -> None:
        self.deny = self.clients = 0
        self.drop = False
        self.hold = threading.Event()
        self.hold.set()
        self.held = threading.Event()
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(
                    target=self._serve, args=(client,), daemon=True
                ).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            client,
            socket.create_connection(("127.0.0.1", self._target)) as device,
        ):
            threading.Thread(
                target=self._copy, args=(device, client), daemon=True
            ).start()
            self.clients += 1
            try:
                for line in client.makefile("rb"):
                    device.sendall(self._passed(line))
            finally:
                self.clients -= 1

    def _passed(self, line: bytes) -> bytes:
        words = line.decode().lower()
        if not any(f":conn:{verb} " in words for verb in ("add", "sub", "only")):
            return line
        self.held.set()
        self.hold.wait(PATIENCE_S)
        if self.drop:
            return b""
        if self.deny:
            self.deny -= 1
            command, _, rest = line.partition(b" ")
            return command + b" (@999),(@999)" + rest[rest.index(b";") :]
        return line

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.hold.set()
        self._server.close()


class Rig:
    """Three switch processes without a fibre in them, the relays, a packet switch, the controller process."""

    def __init__(self) -> None:
        self.lab = new_lab()
        self._held = self.lab.hold()
        self.state = self.lab.state_dir
        self.controller: Process | None = None
        self.optical: list[Process] = []
        self.relays: dict[str, Relay] = {}
        self.direct: dict[str, int] = {}
        self.rest, self.openflow = free_port(), free_port()
        self.api = httpx.Client(
            base_url=f"http://127.0.0.1:{self.rest}",
            timeout=PATIENCE_S,
            trust_env=False,
        )
        try:
            for name in NAMES:
                self._start_optical(name)
            bridge = self.lab.bridge("tor0")
            command = [
                "--",
                "add-br",
                bridge,
                "--",
                "set",
                "bridge",
                bridge,
                "datapath_type=netdev",
            ]
            command += [
                "fail_mode=secure",
                "protocols=OpenFlow13",
                f"external_ids:ringlight={self.lab.id}",
            ]
            command += [
                "other_config:datapath-id=0000000000000001",
                "other_config:disable-in-band=true",
            ]
            command += [
                "--",
                "set-controller",
                bridge,
                f"tcp:127.0.0.1:{self.openflow}",
            ]
            run("ovs-vsctl", "--timeout=15", *command[1:])
            run("ovs-vsctl", "set", "controller", bridge, "max_backoff=1000")
            self._write_files()
            self.start()
        except BaseException:
            self.close()
            raise

    def _start_optical(self, name: str) -> None:
        run("ip", "netns", "add", self.lab.namespace(name))
        port, ready = free_port(), self.state / f"{name}.ready"
        with (self.state / f"{name}.log").open("ab") as log:
            process = start_process(
                [
                    *(
                        sys.executable,
                        "-m",
                        "ringlight.testbed.emulation.optical",
                        "--name",
                        name,
                        "--lab",
                        self.lab.id,
                    ),
                    *(
                        "--size",
                        str(SIZE),
                        "--listen",
                        f"127.0.0.1:{port}",
                        "--profile",
                        "ideal",
                    ),
                    *(
                        "--netns",
                        self.lab.namespace(name),
                        "--pins",
                        str(self.lab.bpf_dir / name),
                    ),
                    *("--ready", str(ready), "--seed", "1"),
                ],
                self.lab.environment(),
                log,
            )
        self.optical.append(process)
        self.wait(ready.exists, f"{name} is not ready")
        self.direct[name] = port
        self.relays[name] = Relay(port)

    def _write_files(self) -> None:
        (self.state / "fabric.json").write_text(json.dumps(FABRIC))
        switches = {
            name: {
                "driver": "scpi",
                "address": f"127.0.0.1:{relay.port}",
                "profile": profiles()["ideal"].declared(),
            }
            for name, relay in self.relays.items()
        }
        inventory = {
            "lab": self.lab.id,
            "packet_switches": {"tor0": {"dpid": 1}},
            "optical_switches": switches,
        }
        (self.state / "inventory.json").write_text(json.dumps(inventory))
        (self.state / "tokens").write_text(
            "ann 0123456789abcdef\nbob fedcba9876543210\n"
        )

    def start(self, wait: bool = True) -> None:
        with (self.state / "controller.log").open("ab") as log:
            self.controller = start_process(
                [
                    *(
                        sys.executable,
                        "-m",
                        "ringlight.controller",
                        "--fabric",
                        str(self.state / "fabric.json"),
                    ),
                    *(
                        "--inventory",
                        str(self.state / "inventory.json"),
                        "--state",
                        str(self.state),
                    ),
                    *(
                        "--rest",
                        f"127.0.0.1:{self.rest}",
                        "--openflow",
                        f"127.0.0.1:{self.openflow}",
                    ),
                    *("--token-file", str(self.state / "tokens")),
                ],
                self.lab.environment(),
                log,
            )
        self.api.headers["authorization"] = "Bearer 0123456789abcdef"
        if wait:
            self.wait(self._answers, "the controller does not answer")

    def _answers(self) -> bool:
        assert self.controller is not None
        assert self.controller.poll() is None, self.log()[-2000:]
        with contextlib.suppress(httpx.TransportError):
            return bool(self.api.get("/v1/health").json()["packet_switches"]["tor0"])
        return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self.controller is not None
        self.controller.send_signal(number)
        self.controller.wait(15)

    def log(self) -> str:
        return (self.state / "controller.log").read_text()

    def wait(
        self, condition: Any, complaint: str, timeout_s: float = PATIENCE_S
    ) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            assert time.monotonic() < deadline, complaint
            time.sleep(0.01)
        return value

    def scpi(self, name: str, line: str) -> str:
        """Somebody else's word to a switch, past the controller's."""
        with socket.create_connection(
            ("127.0.0.1", self.direct[name]), timeout=5
        ) as connection:
            connection.sendall(line.encode() + b"\n")
            return connection.makefile().readline().strip()

    def stands(self) -> dict[str, str]:
        return {name: self.scpi(name, ":oxc:swit:conn:stat?") for name in NAMES}

    def change(
        self, pairs: dict[str, list[tuple[int, int]]], **more: Any
    ) -> httpx.Response:
        targets = {
            name: {
                "mode": "replace",
                "cross_connects": [{"ingress": i, "egress": e} for i, e in group],
            }
            for name, group in pairs.items()
        }
        return self.api.post(
            "/v1/optical-changes", json={"optical_switches": targets, **more}
        )

    def reasons(self) -> list[str]:
        """Why the controller's health is not ok, besides the fibres that are not plugged."""
        found = self.api.get("/v1/health").json()["reasons"]
        return [text for text in found if not text.endswith("is down")]

    def alarms(self) -> list[dict[str, Any]]:
        """Alarms of whole switches; with no fibre plugged there is no light in any port."""
        found = self.api.get("/v1/optical-alarms").json()
        return [alarm for alarm in found if alarm["kind"] == "SWITCH"]

    def audit(self, **query: Any) -> list[dict[str, Any]]:
        return list(self.api.get("/v1/optical-audit", params=query).json())

    def close(self) -> None:
        self.api.close()
        for relay in self.relays.values():
            relay.close()
        for process in (self.controller, *self.optical):
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(5)
        with contextlib.suppress(RuntimeError):
            run(
                "ovs-vsctl",
                "--timeout=15",
                "--if-exists",
                "del-br",
                self.lab.bridge("tor0"),
            )
        for name in NAMES:
            remove_pins(self.lab.bpf_dir / name)
            if Path("/run/netns", self.lab.namespace(name)).exists():
                run("ip", "netns", "del", self.lab.namespace(name))
        if self.lab.bpf_dir.exists():
            os.rmdir(self.lab.bpf_dir)
        for path in sorted(self.state.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        self.state.rmdir()
        self._held.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    rig = Rig()
    try:
        yield rig
    finally:
        rig.close()


FIRST = {name: [(1, 9), (2, 10)] for name in NAMES}
SECOND = {name: [(1, 10), (2, 9), (3, 11)] for name in NAMES}
FIRST_SCPI = dict.fromkeys(NAMES, "(@1,2),(@9,10)")
SECOND_SCPI = dict.fromkeys(NAMES, "(@1,2,3),(@10,9,11)")


@pytest.fixture
def rig(shared: Rig) -> Rig:
    """All three carry FIRST, and so they should."""
    assert (
        shared.api.put("/v1/optical-policy", json={"policy": "mend"}).status_code == 200
    )
    for relay in shared.relays.values():
        relay.deny = 0
        relay.hold.set()
        relay.held.clear()
    answer = shared.change(FIRST)
    assert (answer.status_code, shared.stands()) == (200, FIRST_SCPI), answer.text
    return shared


@pytest.mark.parametrize("name", NAMES)
def test_one_of_three_refuses_and_all_are_as_before(rig: Rig, name: str) -> None:
    rig.relays[name].deny = 1
    answer = rig.change(SECOND)
    assert answer.status_code == 502
    found = answer.json()
    assert (found["undone"], found["left"]) == (True, [])
    assert found["detail"].startswith(f"optical switch {name}: ")
    assert found["detail"].endswith("; all was taken back")
    assert rig.stands() == FIRST_SCPI
    assert (
        rig.api.get(f"/v1/optical-switches/{name}/intent").json()["drift"]["missing"]
        == []
    )
    newest = rig.audit(limit=3)
    assert {(e["who"], e["action"], e["outcome"]) for e in newest} == {
        ("ann", "change", "undone")
    }
    assert {e["switch"] for e in newest} == set(NAMES)
    assert rig.change(SECOND).status_code == 200
    assert rig.stands() == SECOND_SCPI


def test_what_cannot_be_taken_back_is_named_and_made_right_later(rig: Rig) -> None:
    """a refuses; b has done its part and then refuses everything for a while."""
    rig.relays["a"].deny = 1
    rig.relays["b"].hold.clear()
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(rig.change(SECOND)))
    thread.start()
    assert rig.relays["b"].held.wait(PATIENCE_S)
    rig.relays["b"].hold.set()
    # What it has just been told it does; what comes next it does not.
    rig.wait(
        lambda: rig.stands()["b"] != FIRST_SCPI["b"] or not thread.is_alive(),
        "b did nothing",
    )
    rig.relays["b"].deny = 2
    thread.join(PATIENCE_S)
    found = answers[0].json()
    assert found["undone"]
    for one in found["left"]:
        assert one["switch"] == "b"
        assert one["found"] in ("STANDS", "GONE")
    if not found["left"]:
        assert rig.stands() == FIRST_SCPI
    # The reconciler goes on by itself; it waits 5 s after a failure.
    rig.wait(lambda: rig.stands() == FIRST_SCPI, "it was not mended")
    rig.wait(lambda: rig.alarms() == [], "an alarm still stands")


@pytest.mark.parametrize("denies", [False, True], ids=["goes on", "goes back"])
def test_a_controller_killed_between_intent_and_write(rig: Rig, denies: bool) -> None:
    """Two of three switches have lost their old light when it dies; a third is at its first write."""
    rig.relays["c"].hold.clear()

    def ask() -> None:
        with contextlib.suppress(httpx.HTTPError):
            rig.change(SECOND)

    thread = threading.Thread(target=ask)
    thread.start()
    rig.wait(
        lambda: (
            rig.relays["c"].held.is_set()
            and [rig.stands()[n] for n in "ab"] == ["(@),(@)"] * 2
        ),
        "a and b were not written",
    )
    rig.stop(signal.SIGKILL)
    thread.join(PATIENCE_S)
    # What the dead controller had sent never gets there; on a slow machine it had tried twice.
    relay = rig.relays["c"]
    relay.drop = True
    relay.hold.set()
    rig.wait(lambda: relay.clients == 0, "its last words were not read")
    relay.drop, relay.deny = False, int(denies)
    assert rig.stands()["c"] == FIRST_SCPI["c"]
    rig.start()
    wanted = FIRST_SCPI if denies else SECOND_SCPI
    rig.wait(lambda: rig.stands() == wanted, f"not as wanted: {rig.stands()}")
    entry = next(e for e in rig.audit() if e["action"] in ("finish", "take back"))
    assert (entry["who"], entry["action"]) == (
        "reconciler",
        "take back" if denies else "finish",
    )
    assert "ann" in json.dumps(entry["detail"])
    assert rig.reasons() == []


@pytest.mark.parametrize(
    ("policy", "stands"),
    [
        ("mend", "(@1,2,4),(@9,10,12)"),
        ("repair", "(@1,2),(@9,10)"),
        ("adopt", "(@1,4),(@13,12)"),
        ("alarm", "(@1,4),(@13,12)"),
    ],
)
def test_somebody_else_s_change_is_noticed_and_meets_the_policy(
    rig: Rig, policy: str, stands: str
) -> None:
    """1 is moved, 2 is removed, 4 is added on b; also over a restart."""
    answer = rig.api.put("/v1/optical-switches/b/policy", json={"policy": policy})
    assert answer.json()["optical_switches"] == {"a": "mend", "b": policy, "c": "mend"}
    try:
        since = rig.audit(limit=1)[0]["id"]
        began = time.monotonic()
        assert rig.scpi("b", ":oxc:swit:conn:only (@1,4),(@13,12);*opc?") == "1"

        def noticed() -> bool:
            return any(
                e["action"] == "drift" and e["id"] > since
                for e in rig.audit(switch="b")
            )

        rig.wait(noticed, "it went unnoticed")
        # A timed assertion only as loose as the machine needs; the benchmark has the figure.
        assert time.monotonic() - began < 3 * NOTICED_S
        rig.wait(lambda: rig.stands()["b"] == stands, "the policy did not do its part")
        assert rig.stands() == {**FIRST_SCPI, "b": stands}
        alarms = {"mend": 1, "alarm": 1}.get(policy, 0)

        def told() -> bool:
            return len(rig.alarms()) == alarms

        rig.wait(told, "not as many alarms as there should be")
        assert len(rig.reasons()) == (policy == "alarm")
        rig.stop(signal.SIGKILL)
        rig.start()
        rig.wait(told, "not as many alarms after a restart")
        assert rig.stands()["b"] == stands
        found = rig.api.get("/v1/optical-switches/b/intent").json()
        assert len(found["cross_connects"]) == 2
        assert {key for key, group in found["drift"].items() if group} == {
            "mend": {"foreign"},
            "alarm": {"missing", "foreign"},
        }.get(policy, set())
        rig.api.headers["authorization"] = "Bearer fedcba9876543210"
        settled = rig.api.post(
            "/v1/optical-switches/b/settle", json={"how": "repair"}
        ).json()
        assert not any(settled["drift"].values())
        assert rig.stands()["b"] == (
            "(@1,4),(@13,12)" if policy == "adopt" else FIRST_SCPI["b"]
        )
        if policy in ("mend", "alarm"):
            assert [(e["who"], e["action"]) for e in rig.audit(limit=1)] == [
                ("bob", "repair")
            ]
    finally:
        rig.api.headers["authorization"] = "Bearer 0123456789abcdef"
        rig.api.put("/v1/optical-switches/b/policy", json={"policy": None})


def test_metrics_tell_of_changes_failures_drift_and_power(rig: Rig) -> None:
    rig.relays["a"].deny = 1
    assert rig.change(SECOND).status_code == 502
    assert rig.change(SECOND).status_code == 200
    rig.wait(
        lambda: "ringlight_optical_port_power_dbm{" in rig.api.get("/metrics").text,
        "no power",
    )
    text = rig.api.get("/metrics").text
    for wanted in (
        'ringlight_reconfigurations_total{outcome="undone"}',
        'ringlight_reconfigurations_total{outcome="done"}',
        'ringlight_reconfiguration_seconds_bucket{le="+Inf"}',
        'ringlight_optical_apply_seconds_count{switch="b"}',
        'ringlight_cross_connect_dark_seconds_count{switch="c"}',
        'ringlight_optical_failures_total{class="',
        'ringlight_optical_port_power_dbm{port="1",switch="a"}',
    ):
        assert wanted in text, wanted


def test_a_damaged_database_ends_the_start_in_one_line(rig: Rig) -> None:
    rig.stop()
    path = rig.state / "controller" / "circuits.sqlite"
    whole = path.read_bytes()
    said = len(rig.log())
    try:
        path.write_bytes(whole[: len(whole) // 2])
        rig.start(wait=False)
        assert rig.controller is not None
        assert rig.controller.wait(PATIENCE_S) == 1
        (line,) = [
            text
            for text in rig.log()[said:].splitlines()
            if text.startswith("ringlight controller")
        ]
        assert line.startswith(f"ringlight controller: {path}: damaged (")
        assert "Traceback" not in rig.log()[said:]
    finally:
        path.write_bytes(whole)
    rig.start()
    assert rig.stands() == FIRST_SCPI


def test_the_shell_shows_and_changes_the_same(rig: Rig) -> None:
    def shell(*words: str, code: int = 0) -> Any:
        place = ("--controller", f"127.0.0.1:{rig.rest}", "ocs")
        done = ringlight(
            *place, *words, environment={"RINGLIGHT_TOKEN": "fedcba9876543210"}
        )
        assert done.returncode == code, done.stderr
        if code:
            return done.stderr
        return json.loads(done.stdout) if "--json" in words else done.stdout

    plan = shell("plan", "a:1-10", "b:2-", "--json")
    assert (plan["applied"], rig.stands()) == (False, FIRST_SCPI)
    assert (
        plan["optical_switches"]["a"]["plan"]["add"][0] | {"ingress": 1, "egress": 10}
        == plan["optical_switches"]["a"]["plan"]["add"][0]
    )
    assert shell("apply", "a:1-10", "b:2-", "--json")["applied"]
    assert rig.stands() == {"a": "(@1),(@10)", "b": "(@1),(@9)", "c": FIRST_SCPI["c"]}
    rig.relays["c"].deny = 1
    assert "all was taken back" in shell("apply", "a:3-11", "c:3-11", code=1)
    assert shell("policy", "alarm", "--switch", "c", "--json")["own"] == ["c"]
    assert "c alarm its own" in " ".join(shell("policy").split())
    assert shell("policy", "default", "--switch", "c", "--json")["own"] == []
    ports = {p["port"]: p for p in shell("ports", "a", "--json")}
    assert ports[1]["power_dbm"] is not None
    assert shell("disable", "a", "5", "6", "--json")[1] | {"port": 6, "enabled": False}
    assert {a["port"] for a in shell("alarms", "--json") if a["switch"] == "a"} >= {
        5,
        6,
    }
    shell("enable", "a", "5", "6")
    assert "policy: mend" in shell("intent", "a")
    assert {e["who"] for e in shell("audit", "--json", "--limit", "5")} == {"bob"}
    assert "ocs0" in shell("apply", "ocs0:1-10", code=1)
    assert "'a:1' is not SWITCH:INGRESS-EGRESS" in shell("plan", "a:1", code=2)
