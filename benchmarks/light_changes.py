"""Measures changes of light over REST, and how soon others' changes are noticed. Needs root.

``to-light``: four GPUs as namespaces, two packet switches and one emulated optical switch (profile `ideal`)
in the kernel. A GPU sends a frame every 0.1 ms. ``PUT …/cross-connects/1`` moves its light to and fro between
two other GPUs; the time runs from the call until the first frame arrives at the other one, by the receiver's
kernel, and beside it until the answer.

``drift``: a lab of emulated optical switches without fibres, and one controller that watches all.
Somebody else removes a cross-connect on one; the time runs from the switch's acknowledgement until the event
is on the stream. Beside it what the watching costs, of one processor: by the controller and by the switches.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing import Event, Process
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.harness import lab_up, milliseconds, need_root, processor_s
from benchmarks.rest_latency import Caller, Listener, Scpi
from ringlight.testbed.emulation.kernel.netns import entered
from tests.integration.controller_rig import ControllerRig

#: Milliseconds, median and 99th percentile.
TO_LIGHT_MS = (5.0, 20.0)
NOTICED_MS = 2000.0
_PACE_S = 1e-4
_SO_TIMESTAMPNS = 35
_MARK = b"\x88\xb5" + b"light" * 10


def to_light(count: int = 200) -> dict[str, Any]:
    """``count`` changes, of which ten more to warm up do not count."""
    need_root()
    with contextlib.closing(ControllerRig("ideal")) as rig:
        rig.start_controller()
        mac, stop = bytes.fromhex(rig.fabric.gpus["g0"].mac.replace(":", "")), Event()
        sender = Process(
            target=send, args=(rig.lab.namespace("g0"), mac, stop), daemon=True
        )
        sender.start()
        ends = [
            (13, Receiver(rig.lab.namespace("g2"))),
            (14, Receiver(rig.lab.namespace("g3"))),
        ]
        lit, answered = [], []
        with contextlib.closing(Caller(f"http://127.0.0.1:{rig.rest}")) as api:
            for number in range(count + 10):
                egress, receiver = ends[number % 2]
                time.sleep(0.005)
                receiver.empty()
                began, began_wall = time.perf_counter(), time.time()
                api.call(
                    "PUT",
                    "/v1/optical-switches/ocs0/cross-connects/1",
                    {"egress": egress},
                )
                answered.append(time.perf_counter() - began)
                lit.append(receiver.first() - began_wall)
        stop.set()
        sender.join(10)
    return {
        "to the first frame": {**milliseconds(lit[10:]), "limit_ms": TO_LIGHT_MS},
        "to the answer": milliseconds(answered[10:]),
        "frame_every_ms": 1e3 * _PACE_S,
    }


def drift(
    switches: int = 32, size: int = 160, count: int = 40, seconds: float = 20.0
) -> dict[str, Any]:
    """``size``: duplex faceplate ports of each switch; ``seconds``: of watching."""
    need_root()
    names = [f"o{number}" for number in range(switches)]
    with watched(names, size) as (url, addresses, pids):
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as api:
            # Every switch full, by one change over all of them.
            pairs = [{"ingress": i, "egress": size + i} for i in range(1, size + 1)]
            body = {
                "optical_switches": {
                    n: {"mode": "replace", "cross_connects": pairs} for n in names
                }
            }
            began = time.monotonic()
            answer = api.post("/v1/optical-changes", json=body)
            filled_s = time.monotonic() - began
            lit = [
                r
                for c in answer.json()["optical_switches"].values()
                for r in c["results"]
                if r["t_lit"]
            ]
            time.sleep(3.0)
            before, since = (
                {name: processor_s(pid) for name, pid in pids.items()},
                time.monotonic(),
            )
            time.sleep(seconds)
            passed = time.monotonic() - since
            shares = {
                name: (processor_s(pid) - before[name]) / passed
                for name, pid in pids.items()
            }
            api.put("/v1/optical-policy", json={"policy": "alarm"})
        noticed, listener = [], Listener(url)
        for number in range(count):
            # At a moment that has nothing to do with the controller's period.
            time.sleep(0.13 + 0.37 * (number % 5))
            name = names[number % switches]
            port = number // switches % size + 1
            with contextlib.closing(Scpi(addresses[name])) as other:
                assert other.ask(
                    f":oxc:swit:conn:sub (@{port}),(@{size + port});*opc?"
                ).startswith("1")
            done = time.monotonic()
            word = f"{port}->{size + port}"

            def told(event: dict[str, Any], name: str = name, word: str = word) -> bool:
                return (
                    event["event"] == "drift"
                    and event["switch"] == name
                    and word in event["text"]
                )

            noticed.append(listener.wait(told)[0] - done)
    return {
        "switches": switches,
        "ports_each": 2 * size,
        "cross_connects": switches * size,
        "one change lights all, s": round(filled_s, 2),
        "lit": len(lit),
        "noticed": {**milliseconds(noticed), "limit_ms": NOTICED_MS},
        "watching, share of one processor": {
            "controller": round(shares.pop("controller"), 3),
            "all switches": round(sum(shares.values()), 3),
            "one switch, median": round(statistics.median(shares.values()), 4),
        },
    }


PARTS = (to_light, drift)


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
            self._link = socket.socket(
                socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5)
            )
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


@contextlib.contextmanager
def watched(
    names: Sequence[str], size: int
) -> Iterator[tuple[str, dict[str, str], dict[str, int]]]:
    """The controller's URL, the switches' SCPI addresses, and process ids by name (and ``controller``)."""
    scenario = {
        "name": "drift",
        "description": "Optical switches without fibres.",
        "fabric": {
            "servers": {"s0": {"gpus": {"g0": "gpu", "g1": "gpu"}}},
            "packet_switches": {"tor0": {"ports": 2}},
            "optical_switches": {
                name: {"size": size, "profile": "ideal"} for name in names
            },
            "links": [
                {"ends": [f"g{n}", f"tor0:{n + 1}"], "rate": "10 Gbit/s"}
                for n in range(2)
            ],
        },
        "training": {
            "model": "resnet50",
            "compute": "1 s",
            "batch": 1,
            "iterations": 1,
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "drift.yaml")
        file.write_text(yaml.safe_dump(scenario), encoding="utf-8")
        with lab_up(file, "namespace") as lab:
            found = json.loads(Path(lab["state"], "inventory.json").read_text())[
                "optical_switches"
            ]
            pids = {name: found[name]["pid"] for name in names}
            addresses = {name: found[name]["address"] for name in names}
            yield (
                lab["url"],
                addresses,
                {**pids, "controller": lab["pids"]["controller"]},
            )
