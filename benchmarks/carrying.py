"""Measures what messages and frames cost the processors. Needs root.

Ring all-reduces of four ranks, messages of four sizes, over one packet switch and over three. The processor
time of the lab's processes and of Open vSwitch while they run is fitted to so much a message, so much a
frame that a worker sends and receives, and so much a frame and packet switch. The fastest call of the
smallest messages gives the latency of a step. ``experiments/analysis/carrying.py`` has the result. Takes two
minutes.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import need_root, processor_s
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.record.events import Operations, Record
from ringlight.experiments.runner.experiment import run_alone
from ringlight.extensions.bench.measuring import bench_plan
from ringlight.testbed.addresses import Addresses
from ringlight.workloads.graph import Collective
from tests.integration.controller_rig import free_port

SCENARIO = """
name: carrying
description: Four GPUs on two leaves.
scale: {time: 1, payload: 400}
fabric:
  leaf_spine: {leaves: 2, spines: 1, gpus_per_leaf: %d, gpu: g, rate: 40 Gbit/s, uplink_rate: 80 Gbit/s}
training: {model: resnet50, compute: 1 ms, batch: 8, iterations: 1}
link_test: {duration: 500 ms}
"""
#: GPUs of a leaf and ranks in order: neighbours in the ring are behind one packet switch, or behind three.
ONE, THREE = (4, ["g0", "g1", "g2", "g3"]), (2, ["g0", "g2", "g1", "g3"])
#: Bytes of a message as emulated, calls, and where.
CASES = [
    (256, 1500, ONE), (4096, 1000, ONE), (65536, 120, ONE), (524288, 16, ONE),
    (4096, 600, THREE), (65536, 120, THREE), (524288, 16, THREE),
]  # fmt: skip
#: Bytes of the headers of TCP and IP with time stamps in a frame; frames that one acknowledgement covers.
HEADERS, ACKED = 52, 2
#: Tells the processes that this one started, and those that they start, from others.
MARK = "RINGLIGHT_CARRYING"


def carrying() -> dict[str, Any]:
    """Cases, the costs that fit them, and the fitted over the measured processor time of each."""
    need_root()
    os.environ[MARK] = str(os.getpid())
    found = [measure(*case) for case in CASES]
    table = np.array(
        [[case["messages"], case["frames"], case["switched"]] for case in found],
        dtype=float,
    )
    busy = np.array([case["busy_s"] for case in found])
    costs, *_ = np.linalg.lstsq(table / busy[:, None], np.ones(len(busy)), rcond=None)
    fit = dict(zip(("message_s", "frame_s", "switched_s"), costs.tolist(), strict=True))
    fit["step_s"] = found[0]["call_s"] / 6
    return {
        "cases": found,
        "fit": fit,
        "fitted_over_busy": (table @ costs / busy).tolist(),
    }


PARTS = (carrying,)


class Processes:
    """The processor time of all processes of labs of this process, and of Open vSwitch."""

    def __init__(self) -> None:
        self._ours: dict[int, bool] = {}
        self._ended_s = 0.0
        self._last: dict[int, float] = {}

    def used_s(self) -> float:
        """Seconds so far; what processes used that have ended stays counted."""
        pids = map(int, filter(str.isdigit, os.listdir("/proc")))
        now = {pid: used for pid in pids if (used := self._of(pid))}
        self._ended_s += sum(used for pid, used in self._last.items() if pid not in now)
        self._last = now
        return self._ended_s + sum(now.values())

    def _of(self, pid: int) -> float:
        try:
            if pid not in self._ours:
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                self._ours[pid] = (
                    f"{MARK}={os.getpid()}".encode() in environment
                    or name == "ovs-vswitchd"
                )
            return processor_s(pid) if self._ours[pid] else 0.0
        except OSError:
            return 0.0


def measure(message: int, calls: int, where: tuple[int, list[str]]) -> dict[str, Any]:
    """Processor seconds of one case, and what was carried in them."""
    per_leaf, ranks = where
    (plan,) = parse(SCENARIO % per_leaf, "carrying.yaml").plans
    made = bench_plan(
        plan, Collective("all-reduce", "ring"), [4 * message * 400], calls, ranks
    )
    samples: list[tuple[float, float]] = []
    ended, processes = threading.Event(), Processes()

    def sample() -> None:
        while not ended.wait(0.1):
            samples.append((time.monotonic(), processes.used_s()))

    watching = threading.Thread(target=sample)
    watching.start()
    try:
        addresses = Addresses(f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
        records, failures = run_alone(EmulationBackend("namespace", addresses), made)
    finally:
        ended.set()
        watching.join()
    assert not failures, failures
    ends = ends_of(records)
    used = np.interp(ends[[0, -1]], *np.array(samples).T)
    mtu, messages, switches = (
        made.setting.frames.mtu_bytes,
        4 * 6 * calls,
        1 if where is ONE else 3,
    )
    frames = messages * -(-message // (mtu - HEADERS))
    return {
        "message_bytes": message, "switches": switches, "mtu_bytes": mtu,
        "seconds": float(ends[-1] - ends[0]), "call_s": float(np.diff(ends).min()),
        "busy_s": float(used[1] - used[0]),
        "messages": messages, "frames": frames, "switched": frames * (1 + 1 / ACKED) * switches,
    }  # fmt: skip


def ends_of(records: list[Record]) -> np.ndarray:
    """End of each call at its last rank."""
    timed = [record for record in records if isinstance(record, Operations)]
    ends: np.ndarray = np.max(
        [[rank.begin + end for _, end in rank.times_s] for rank in timed], axis=0
    )
    return ends
