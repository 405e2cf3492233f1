"""Ring all-reduce of the worker against gloo: processes on loopback, interleaved in the same run.

Both are real processes that wait for their turn on a pipe. Each round runs ours and gloo once each, in
alternating order, because only ratios within one run mean anything on a machine that does other work, and
waits a while for that other work to pause; ``busy_turns`` counts the turns for which it did not. gloo comes
with torch, in an environment of its own under build/ (made by ``--install-torch``). ``bytes_lent``: those
that ours sent without copying them (containers/worker/lending.py); none where the machine does not allow it.
Congestion control is the same for both: as root, both run on the loopback of one network namespace with what
the testbed gives its workers (reno); ``--congestion-control host`` takes the host's loopback as it is. Bus
bandwidth is 2(n-1)/n * S / t (nccl-tests), t from the first start to the last end of a rank.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, in_turns, spread
from ringlight.testbed.load import machine_ticks
from tests.integration.controller_rig import free_port

TORCH = "torch==2.13.0"
ENVIRONMENT = ROOT / "build" / "gloo"
CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
CLONE_NEWNET = 0x40000000  # linux/sched.h
#: Of bus bandwidths, in the median of rounds.
TARGET_RATIO = 1.6


def allreduce(
    processes: int = 4,
    mebibytes: float = 64,
    rounds: int = 41,
    congestion_control: str = "reno",
    gloo: bool = True,
    install_torch: bool = False,
) -> dict[str, Any]:
    """Compare with gloo; without torch, measure ours alone."""
    length = int(mebibytes * 2**18)
    pythons = {"ringlight": Path(sys.executable)}
    if gloo and (python := torch_python(install_torch)):
        pythons["gloo"] = python
    if congestion_control != "host":
        enter_own_network(congestion_control)
    busy_turns = 0
    with ExitStack() as stack:
        teams = {
            name: Team(name, path, processes, length) for name, path in pythons.items()
        }
        for team in teams.values():
            stack.callback(team.close)
            team.turn()

        def turn(team: Team) -> dict[str, float]:
            nonlocal busy_turns
            busy_turns += not wait_for_idle()
            return team.turn()

        found = in_turns(
            {name: partial(turn, team) for name, team in teams.items()}, rounds
        )
    bus = {name: [one["bus_GBps"] for one in turns] for name, turns in found.items()}
    result: dict[str, Any] = {
        "processes": processes, "bytes": length * 4, "dtype": "float32", "rounds": rounds,
        "congestion_control": CONGESTION_CONTROL.read_text().strip(), "busy_turns": busy_turns, "gloo": None,
    }  # fmt: skip
    for name, turns in found.items():
        figures = {
            key: spread(one[key] for one in turns)
            for key in ("bus_GBps", "seconds", "cpu_s")
        }
        result[name] = {**figures, "bytes_lent": turns[-1]["bytes_lent"]}
    if "gloo" not in bus:
        return result | {
            "note": "no torch: run with --install-torch to compare with gloo"
        }
    ratios = [
        ours / theirs
        for ours, theirs in zip(bus["ringlight"], bus["gloo"], strict=True)
    ]
    ratio = statistics.median(ratios)
    return result | {
        "ratio_per_round": [round(ratio, 3) for ratio in ratios],
        "ratio_median": ratio,
        "ratio_of_medians": statistics.median(bus["ringlight"])
        / statistics.median(bus["gloo"]),
        "target_ratio": TARGET_RATIO,
        "missed": [f"{ratio:.2f} times gloo, not {TARGET_RATIO}"]
        if ratio < TARGET_RATIO
        else [],
    }


PARTS = (allreduce,)


class Team:
    """One back end's processes, one per rank."""

    def __init__(self, name: str, python: Path, ranks: int, length: int) -> None:
        self.name, self.length = name, length
        environment = os.environ | {
            "PYTHONPATH": str(ROOT / "src"),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        program, port = str(Path(__file__).with_name("allreduce_rank.py")), free_port()
        self.members = [
            subprocess.Popen(
                [str(python), program, name, *map(str, (rank, ranks, port, length))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            )
            for rank in range(ranks)
        ]  # fmt: skip

    def turn(self) -> dict[str, float]:
        """Figures of one all-reduce on all ranks. Raises RuntimeError for a wrong sum."""
        self._tell("prepare")
        answers = self._tell("run")
        # Only when all are done: whoever is done first would else take the processors from the others.
        if not all(answer["right"] for answer in self._tell("check")):
            raise RuntimeError(f"{self.name} gave a wrong sum")
        seconds = max(a["end"] for a in answers) - min(a["start"] for a in answers)
        n = len(answers)
        return {
            "seconds": seconds,
            "bus_GBps": 2 * (n - 1) / n * 4 * self.length / seconds / 1e9,
            "cpu_s": sum(a["cpu_s"] for a in answers),
            "bytes_lent": sum(a["bytes_lent"] for a in answers),
        }

    def _tell(self, word: str) -> list[dict[str, Any]]:
        for member in self.members:
            assert member.stdin is not None
            member.stdin.write(word + "\n")
            member.stdin.flush()
        return [self._answer(member) for member in self.members]

    def _answer(self, member: subprocess.Popen[str]) -> dict[str, Any]:
        assert member.stdout is not None
        line = member.stdout.readline()
        if not line:
            raise RuntimeError(
                f"a {self.name} process ended with code {member.wait(10)}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        for member in self.members:
            member.kill()
            member.wait(10)


def torch_python(install: bool) -> Path | None:
    """The interpreter that has torch; None when it is not there and may not be installed."""
    python = ENVIRONMENT / "bin" / "python"
    probe = [
        str(python),
        "-c",
        "import torch.distributed as d; assert d.is_gloo_available()",
    ]
    if (
        python.exists()
        and subprocess.run(probe, capture_output=True, timeout=120).returncode == 0
    ):
        return python
    if not install:
        return None
    subprocess.run(
        [sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True, timeout=120
    )
    words = [str(python), "-m", "pip", "install", "--quiet", "numpy", TORCH]
    subprocess.run(words, check=True, timeout=1800)
    return python


def wait_for_idle(share: float = 0.9, timeout_s: float = 5.0) -> bool:
    """Wait until the machine was idle for ``share`` of 0.15 s; False when it was not in ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        before = machine_ticks()
        time.sleep(0.15)
        total, idle, _ = (b - a for a, b in zip(before, machine_ticks(), strict=True))
        if idle >= share * total:
            return True
    return False


def enter_own_network(algorithm: str) -> None:
    """Move this process and its children to a new network namespace; it ends with the last of them."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        error = os.strerror(ctypes.get_errno())
        raise SystemExit(
            f"no network namespace: {error}; be root or use --congestion-control host"
        )
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=10)
    CONGESTION_CONTROL.write_text(algorithm)
