"""Links that lose, delay and damage frames, by traffic against their settings. Needs root.

A lab with two GPUs on an optical switch, in network namespaces. One sends frames of 9,000 bytes to the other
at ``--rate`` Gbit/s; the link that is impaired is the sender's (``receives``: the program is where the switch
receives) or the receiver's (``sends``: where the switch sends), in turns.
"""

from __future__ import annotations

import math
import multiprocessing
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.harness import lab_up, need_root, show, spread
from ringlight.extensions.impairments.effect import Impairments
from ringlight.testbed.emulation.kernel.netns import entered
from ringlight.testbed.faults import FaultClient

FRAME_BYTES = 9014
PAYLOAD_BYTES = FRAME_BYTES - 14 - 20 - 8
PORT = 9000
#: How late a delay may be, and by how many standard deviations a share may be off.
LATE_S, SIGMAS = 100e-6, 3.0
#: Links that are impaired, by where the program is.
LINKS = {"receives": ("g0:0", "ocs0:1"), "sends": ("g1:0", "ocs0:2")}
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 33, 35
_STAMP = struct.Struct("=qq")
_SCENARIO = """
name: suffering
description: Two GPUs on an optical switch.
fabric:
  servers: {s0: {gpus: {g0: t}}, s1: {gpus: {g1: t}}}
  packet_switches: {tor0: {ports: 1}}
  optical_switches: {ocs0: {size: 4, profile: ideal}}
  links:
    - {ends: [g0, "ocs0:1"], rate: RATE Gbit/s}
    - {ends: [g1, "ocs0:2"], rate: RATE Gbit/s}
  circuits: [[g0, g1]]
training: {model: resnet50, compute: 1 ms, batch: 4, iterations: 1}
"""


def loss(rate: float = 1.1, frames: int = 100_000) -> dict[str, Any]:
    """Frames that do not come, of so many, with loss and with bit errors."""
    kinds = [
        {"loss": 0.01},
        {"loss": 0.0001},
        {"bit_errors": 1e-6},
        {"bit_errors": 1e-9},
        {},
    ]
    rows: list[dict[str, Any]] = []
    missed = []
    with _lab(rate) as (impair, pair):
        for where in LINKS:
            for kind in kinds:
                impair(where, kind)
                found = pair.send(frames, rate)
                share = Impairments(**kind).frame_loss(FRAME_BYTES)
                lost, sigma = (
                    frames - len(found.took_s),
                    math.sqrt(frames * share * (1 - share)),
                )
                rows.append(
                    {"at": where, **kind, "set": share * frames, "lost": lost, "sigma": sigma,
                     "gbit_per_s": found.gbit_per_s}
                )  # fmt: skip
                if abs(lost - share * frames) > SIGMAS * sigma:
                    missed.append(
                        f"{where} {kind}: {lost} of {frames} lost, set {share * frames:.1f}"
                    )
                if found.gbit_per_s < 0.9 * rate:
                    missed.append(
                        f"{where} {kind}: sent at {found.gbit_per_s:.2f} Gbit/s"
                    )
    _table(rows)
    return {"frames": frames, "rows": rows, "missed": missed}


def delay(rate: float = 1.1, frames: int = 20_000, rounds: int = 3) -> dict[str, Any]:
    """What frames take more than without a delay: medians, and their extremes with jitter."""
    kinds: list[dict[str, float]] = [
        {"delay_s": time_s} for time_s in (0.0005, 0.005, 0.05)
    ]
    kinds.append({"delay_s": 0.005, "jitter_s": 0.001})
    rows: list[dict[str, Any]] = []
    missed = []
    with _lab(rate) as (impair, pair):
        for number, where in enumerate([*LINKS] * rounds):
            impair(where, {})
            base_s = statistics.median(pair.send(frames, rate).took_s)
            for kind in kinds:
                impair(where, kind)
                # With jitter frames must come apart, or their order makes all of them late.
                slow = "jitter_s" in kind
                found = pair.send(
                    1000 if slow else frames, rate * (0.03 if slow else 1)
                )
                more = [took - base_s for took in found.took_s]
                late_s = statistics.median(more) - kind["delay_s"]
                rows.append(
                    {"at": where, **kind, "more": spread(more, "_ms", 1e3), "late_us": round(late_s * 1e6, 1),
                     "lost": found.frames - len(more), "gbit_per_s": found.gbit_per_s}
                )  # fmt: skip
                if abs(late_s) > LATE_S + (0.1 * kind["jitter_s"] if slow else 0):
                    missed.append(
                        f"{where} {kind}, round {number}: median {late_s * 1e6:.0f} us late"
                    )
                if not slow and found.gbit_per_s < 0.9 * rate:
                    missed.append(
                        f"{where} {kind}: sent at {found.gbit_per_s:.2f} Gbit/s"
                    )
                if found.frames != len(more):
                    missed.append(
                        f"{where} {kind}: {found.frames - len(more)} frames lost"
                    )
    shown = []
    for row in rows:
        more = row["more"]
        shown.append(
            {
                **row,
                "more": f"{more['median_ms']} ({more['min_ms']} to {more['p99_ms']}) ms",
            }
        )
    _table(shown)
    return {"frames": frames, "rows": rows, "missed": missed}


PARTS = (loss, delay)


class Found:
    """Frames sent, the rate at which they were, and what each that came took, seconds."""

    def __init__(self, frames: int, sent_s: float, took_s: Sequence[float]) -> None:
        self.frames, self.took_s = frames, took_s
        self.gbit_per_s = round(8 * FRAME_BYTES * frames / sent_s / 1e9, 3)


class Pair:
    """A sender and a receiver, each a process in a GPU's network."""

    def __init__(self, hosts: Mapping[str, Mapping[str, Any]]) -> None:
        make = multiprocessing.get_context("spawn")
        self._ends = []
        for role, gpu in ((_send, "g0"), (_receive, "g1")):
            ours, theirs = make.Pipe()
            make.Process(
                target=role,
                args=(hosts[gpu]["namespace"], hosts["g1"]["ip"], theirs),
                daemon=True,
            ).start()
            self._ends.append(ours)
        self._sender, self._receiver = self._ends
        assert self._receiver.recv() == "ready"

    def send(self, frames: int, rate_gbps: float) -> Found:
        self._receiver.send("begin")
        self._sender.send((frames, rate_gbps))
        sent_s = self._sender.recv()
        # The last are on their way.
        time.sleep(0.3)
        self._receiver.send("end")
        return Found(frames, sent_s, self._receiver.recv())

    def close(self) -> None:
        for end in self._ends:
            end.send(None)


@contextmanager
def _lab(rate_gbps: float) -> Iterator[tuple[Any, Pair]]:
    """What impairs one of the links, and only that, and the two ends."""
    need_root()
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "suffering.yaml"
        # A shaper that is never full does not delay.
        scenario.write_text(
            _SCENARIO.replace("RATE", f"{2 * rate_gbps:g}"), encoding="utf-8"
        )
        with (
            lab_up(scenario, "namespace") as lab,
            FaultClient(f"unix:{lab['state']}/agent.sock") as faults,
        ):
            hosts = {one["gpu"]: one for one in faults.hosts(fill=True)}

            def impair(where: str, kind: Mapping[str, float]) -> None:
                for one, link in LINKS.items():
                    wanted = kind if one == where else {}
                    made = faults.ask(
                        "impair", " ".join(("link", *link)), impairments=wanted
                    )
                    while faults.fault(made).state == "asked":
                        time.sleep(0.01)

            with closing(Pair(hosts)) as pair:
                yield impair, pair


def _send(namespace: str, ip: str, told: Connection) -> None:
    with entered(namespace):
        out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.connect((ip, PORT))
    rest = bytes(PAYLOAD_BYTES - _STAMP.size)
    while (asked := told.recv()) is not None:
        frames, rate_gbps = asked
        each_s = 8 * FRAME_BYTES / rate_gbps / 1e9
        began = time.monotonic()
        for number in range(frames):
            ahead_s = began + number * each_s - time.monotonic()
            if ahead_s > 200e-6:
                time.sleep(ahead_s - 100e-6)
            out.sendmsg([_STAMP.pack(number, time.time_ns()), rest])
        told.send(time.monotonic() - began)


def _receive(namespace: str, ip: str, told: Connection) -> None:
    with entered(namespace):
        into = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    into.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 30)
    into.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    into.bind((ip, PORT))
    into.settimeout(0.05)
    told.send("ready")
    while told.recv() is not None:
        took = []
        while not told.poll():
            try:
                while True:
                    frame, ancillary, _, _ = into.recvmsg(64, 64)
                    seconds, nanoseconds = struct.unpack("=qq", ancillary[0][2][:16])
                    took.append(
                        (seconds * 10**9 + nanoseconds - _STAMP.unpack(frame[:16])[1])
                        / 1e9
                    )
            except TimeoutError:
                continue
        told.recv()
        told.send(took)


def _table(rows: Sequence[Mapping[str, Any]]) -> None:
    heads = list(dict.fromkeys(key for row in rows for key in row))
    show(heads, ([row.get(key, "") for key in heads] for row in rows))
