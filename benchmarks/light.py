"""Measures changes of light over REST, and how soon others' changes are noticed. Root; prints JSON.

    python benchmarks/light.py to-light [--count N]
    python benchmarks/light.py drift [--switches N] [--size N] [--count N]

``to-light``: four GPUs as namespaces, two packet switches and one emulated optical switch (profile `ideal`)
in the kernel. A GPU sends a frame every 0.1 ms. ``PUT …/cross-connects/1`` moves its light to and fro between
two other GPUs; the time runs from the call until the first frame arrives at the other one, by the receiver's
kernel, and beside it until the answer.

``drift``: emulated optical switches, model and protocol, without fibres, and one controller that watches all.
Somebody else removes a cross-connect on one; the time runs from the switch's acknowledgement until the event
is on the stream. Beside it what the watching costs, of one processor: by the controller and by the switches.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing import Event, Process
from pathlib import Path
from sys import path as import_path
from typing import Any

import_path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx

from benchmarks.rest import Caller, Listener, milliseconds
from ringlight.fabric.optical_profiles import PROFILES
from ringlight.testbed.emulation.optical.datapath import remove_pins
from ringlight.testbed.emulation.optical.netns import entered
from ringlight.testbed.lab import Lab, new_lab
from tests.integration.controller_rig import ControllerRig, free_port

#: Milliseconds, median and 99th percentile.
TO_LIGHT_MS = (5.0, 20.0)
NOTICED_MS = 2000.0
_PACE_S = 1e-4
_SO_TIMESTAMPNS = 35
_MARK = b"\x88\xb5" + b"light" * 10


def send(netns: str, mac: bytes, stop: Any) -> None:
    """Frames out of a namespace's eth0, one every `_PACE_S`, until told to stop."""
    with entered(netns), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
        link.bind(("eth0", 0))
        due = time.monotonic()
        while not stop.is_set():
            link.send(b"\xff" * 6 + mac + _MARK)
            due += _PACE_S
            time.sleep(max(0.0, due - time.monotonic()))


class Receiver:
    """The end of some light: when the first frame came after a moment, wall-clock seconds of the kernel."""

    def __init__(self, netns: str) -> None:
        with entered(netns):
            self._link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
        self._link.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._link.settimeout(5.0)

    def empty(self) -> None:
        self._link.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._link.recv(256)
        self._link.settimeout(5.0)

    def first(self) -> float:
        _, extra, _, _ = self._link.recvmsg(256, 128)
        ((_, _, stamp),) = extra
        seconds, nanoseconds = struct.unpack("qq", stamp[:16])
        return float(seconds + nanoseconds * 1e-9)


def to_light(count: int) -> dict[str, Any]:
    rig = ControllerRig("ideal")
    stop = Event()
    sender: Process | None = None
    try:
        rig.start_controller()
        mac = bytes.fromhex(rig.fabric.gpus["g0"].mac.replace(":", ""))
        sender = Process(target=send, args=(rig.lab.namespace("g0"), mac, stop))
        sender.start()
        ends = [(13, Receiver(rig.lab.namespace("g2"))), (14, Receiver(rig.lab.namespace("g3")))]
        api = Caller(f"http://127.0.0.1:{rig.rest}")
        path = "/v1/optical-switches/ocs0/cross-connects/1"
        lit, answered = [], []
        for number in range(count + 10):
            egress, receiver = ends[number % 2]
            time.sleep(0.005)
            receiver.empty()
            began, began_wall = time.perf_counter(), time.time()
            api.call("PUT", path, {"egress": egress})
            answered.append(time.perf_counter() - began)
            lit.append(receiver.first() - began_wall)
        api.close()
        return {
            "to the first frame": {**milliseconds(lit[10:]), "limit_ms": TO_LIGHT_MS},
            "to the answer": milliseconds(answered[10:]),
            "count": count,
            "frame_every_ms": 1e3 * _PACE_S,
        }
    finally:
        stop.set()
        if sender is not None:
            sender.join(10)
        rig.close()


# Drift


def fabric_of(names: Sequence[str], size: int) -> dict[str, Any]:
    return {
        "servers": {"s0": {"gpus": {"g0": "tesla-m40"}}},
        "packet_switches": {"tor0": {"ports": 1}},
        "optical_switches": {name: {"size": size, "profile": "ideal"} for name in names},
        "links": [
            {"ends": ["g0", f"{names[0]}:1"], "rate": "10 Gbit/s"},
            {"ends": ["tor0:1", f"{names[0]}:2"], "rate": "10 Gbit/s"},
        ],
    }


def started(words: Sequence[str], lab: Lab, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            env=lab.environment(),
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


@contextlib.contextmanager
def watched(names: Sequence[str], size: int) -> Iterator[tuple[str, dict[str, int], dict[str, int]]]:
    """The controller's URL, the switches' SCPI ports, and process ids by name (and ``controller``)."""
    lab = new_lab()
    held, state = lab.hold(), lab.state_dir
    processes: dict[str, subprocess.Popen[bytes]] = {}
    ports = {name: free_port() for name in names}
    try:
        for name, port in ports.items():
            words = [
                "ringlight.testbed.emulation.optical",
                "--name",
                name,
                "--lab",
                lab.id,
                "--size",
                str(size),
            ]
            words += ["--listen", f"127.0.0.1:{port}", "--profile", "ideal", "--seed", "1"]
            words += ["--pins", str(lab.bpf_dir / name), "--ready", str(state / f"{name}.ready")]
            processes[name] = started(words, lab, state / "optical.log")
        until(lambda: all((state / f"{name}.ready").exists() for name in names), "the switches are not ready")
        (state / "fabric.json").write_text(json.dumps(fabric_of(names, size)))
        entries = {
            name: {"driver": "scpi", "address": f"127.0.0.1:{port}", "profile": PROFILES["ideal"].declared()}
            for name, port in ports.items()
        }
        inventory = {"lab": lab.id, "packet_switches": {"tor0": {"dpid": 1}}, "optical_switches": entries}
        (state / "inventory.json").write_text(json.dumps(inventory))
        rest = free_port()
        words = ["controller", "--fabric", str(state / "fabric.json"), "--state", str(state)]
        words += ["--inventory", str(state / "inventory.json"), "--rest", f"127.0.0.1:{rest}"]
        words += ["--openflow", f"127.0.0.1:{free_port()}", "--switches-timeout", "0.5"]
        processes["controller"] = started(words, lab, state / "controller.log")
        url = f"http://127.0.0.1:{rest}"

        def answers() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{url}/v1/health", trust_env=False).status_code == 200
            return False

        until(answers, "the controller does not answer")
        yield url, ports, {name: process.pid for name, process in processes.items()}
    finally:
        for process in reversed(processes.values()):
            process.terminate()
        for process in processes.values():
            process.wait(20)
        for name in names:
            remove_pins(lab.bpf_dir / name)
        if lab.bpf_dir.exists():
            lab.bpf_dir.rmdir()
        for path in sorted(state.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        state.rmdir()
        held.close()


def until(condition: Any, complaint: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(complaint)
        time.sleep(0.05)


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drift(switches: int, size: int, count: int, seconds: float) -> dict[str, Any]:
    names = [f"o{number}" for number in range(switches)]
    with watched(names, size) as (url, ports, pids):
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as api:
            # Every switch full, by one change over all of them.
            pairs = [{"ingress": i, "egress": size + i} for i in range(1, size + 1)]
            body = {"optical_switches": {n: {"mode": "replace", "cross_connects": pairs} for n in names}}
            began = time.monotonic()
            answer = api.post("/v1/optical-changes", json=body)
            filled_s = time.monotonic() - began
            # The packet switch is not there; light is what matters here.
            lit = [r for c in answer.json()["optical_switches"].values() for r in c["results"] if r["t_lit"]]
            time.sleep(3.0)
            before, since = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
            time.sleep(seconds)
            passed = time.monotonic() - since
            shares = {name: (cpu_s(pid) - before[name]) / passed for name, pid in pids.items()}
            api.put("/v1/optical-policy", json={"policy": "alarm"})
            noticed = []
            listener = Listener(url)
            for number in range(count):
                # At a moment that has nothing to do with the controller's period.
                time.sleep(0.13 + 0.37 * (number % 5))
                name = names[number % switches]
                port = number // switches % size + 1
                with socket.create_connection(("127.0.0.1", ports[name]), timeout=10) as other:
                    other.sendall(f":oxc:swit:conn:sub (@{port}),(@{size + port});*opc?\n".encode())
                    assert other.recv(16).startswith(b"1")
                done = time.monotonic()
                word = f"{port}->{size + port}"

                def told(event: dict[str, Any], name: str = name, word: str = word) -> bool:
                    return event["event"] == "drift" and event["switch"] == name and word in event["text"]

                noticed.append(listener.wait(told)[0] - done)
        return {
            "switches": switches,
            "ports_each": 2 * size,
            "cross_connects": switches * size,
            "one change lights all, s": round(filled_s, 2),
            "lit": len(lit),
            "noticed": {
                **milliseconds(noticed),
                "most_ms": round(1e3 * max(noticed), 1),
                "limit_ms": NOTICED_MS,
            },
            "count": count,
            "watching, share of one processor": {
                "controller": round(shares.pop("controller"), 3),
                "all switches": round(sum(shares.values()), 3),
                "one switch, median": round(statistics.median(shares.values()), 4),
            },
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["to-light", "drift"])
    parser.add_argument("--count", type=int, help="changes (200, of drift 40)")
    parser.add_argument("--switches", type=int, default=32)
    parser.add_argument("--size", type=int, default=160, help="duplex faceplate ports of each (%(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of watching (%(default)s)")
    chosen = parser.parse_args()
    if chosen.what == "to-light":
        found = to_light(chosen.count or 200)
    else:
        found = drift(chosen.switches, chosen.size, chosen.count or 40, chosen.seconds)
    print(json.dumps({"benchmark": f"light {chosen.what}", **found}, indent=1))


if __name__ == "__main__":
    main()
