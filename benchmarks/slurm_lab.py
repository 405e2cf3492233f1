"""Measures the time that a Slurm cluster adds to ``up`` and ``down``, and an all-reduce under srun. Needs root.

The all-reduce has the GPUs, the bytes, the algorithm and the light of a job of Ringlight that follows it: the
prolog's claim has brought four GPUs to two packet switches, and light stays.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import need_root, show, tell
from ringlight.controller.jobs.laps import Laps
from tests.extensions.slurm.slurm_lab import (
    RINGLIGHT,
    ROOT,
    SCENARIO,
    SlurmLab,
    slurm_lab,
)

#: Bars: seconds that a cluster adds to ``up``; share by which an all-reduce under srun may differ.
MORE_S, APART = 3.0, 0.05
_GPUS = ("g0", "g1", "g3", "g4")


def start(rounds: int = 3) -> dict[str, Any]:
    """Bring a lab of six GPUs up and down, without Slurm and with it, in turn. ``rounds``: of each."""
    need_root()
    times: dict[str, list[float]] = {}
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        for kind, more in (("plain", ["--hosts"]), ("slurm", ["--slurm"])):
            words = ["up", str(SCENARIO), "--runtime", "namespace", "--json", *more]
            up_s, text = _timed(words)
            down_s, _ = _timed(["down", json.loads(text)["lab"]])
            times.setdefault(f"{kind}_up_s", []).append(up_s)
            times.setdefault(f"{kind}_down_s", []).append(down_s)
    medians = {name: round(statistics.median(each), 2) for name, each in times.items()}
    more_s = round(medians["slurm_up_s"] - medians["plain_up_s"], 2)
    show(("", "without", "with Slurm"), [_row(medians, "up"), _row(medians, "down")])
    late = (
        [] if more_s <= MORE_S else [f"up takes {more_s:g} s more, limit {MORE_S:g} s"]
    )
    return {**medians, "more_s": more_s, "limit_s": MORE_S, "missed": late}


def _row(medians: dict[str, float], command: str) -> Sequence[str]:
    return command, *(
        f"{medians[f'{kind}_{command}_s']:g} s" for kind in ("plain", "slurm")
    )


def _timed(words: Sequence[str]) -> tuple[float, str]:
    """Run a command of ringlight. Return the seconds that it took, and its output."""
    began = time.monotonic()
    done = subprocess.run(
        [*RINGLIGHT, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return time.monotonic() - began, done.stdout


def allreduce(size: int = 4_000_000, repeat: int = 10) -> dict[str, Any]:
    """All-reduce under srun, and in a job of Ringlight. ``size``: bytes of the vector."""
    need_root()
    with slurm_lab("lead", "--runtime", "namespace") as lab:
        words = ["slurm", "allreduce", "--bytes", f"{size}B", "--repeat", str(repeat)]
        task = [*RINGLIGHT, *words, "--json"]
        text = lab.slurm("srun", "-N4", f"--nodelist={','.join(_GPUS)}", *task)
        slurm_s = json.loads(text)["times_s"]
        lab.until(lambda: not _claimed(lab), "a released claim")
        own_s = _own(lab, size, repeat)
    under, own = (statistics.median(each) for each in (slurm_s, own_s))
    apart = abs(under / own - 1)
    show(
        ("", "all-reduce"),
        [("srun", f"{under * 1e3:.1f} ms"), ("own job", f"{own * 1e3:.1f} ms")],
    )
    missed = [] if apart <= APART else [f"{apart:.1%} apart, limit {APART:.0%}"]
    return {"slurm_s": under, "own_s": own, "apart": apart, "missed": missed}


PARTS = (start, allreduce)


def _claimed(lab: SlurmLab) -> bool:
    return any(gpu["state"] != "free" for gpu in lab.call("GET", "/v1/gpus"))


def _own(lab: SlurmLab, size: int, repeat: int) -> list[float]:
    """Return the times of the all-reduces of a job of Ringlight, seconds."""
    spec = {"name": "ring", "ranks": list(_GPUS), "gradient_bytes": size}
    spec |= {"compute_s": 0, "iterations": repeat, "seed": 7}
    lab.call("POST", "/v1/jobs", spec)
    lab.until(
        lambda: _state(lab) not in ("PENDING", "STARTING", "READY", "RUNNING"),
        "the job",
    )
    if (state := _state(lab)) != "SUCCEEDED":
        sys.exit(f"the job is {state}")
    events = lab.call("GET", "/v1/jobs/ring/events")["events"]
    laps = Laps("ring", len(_GPUS)).of(e for e in events if e["event"] == "iteration")
    return [lap.allreduce_s for lap in laps]


def _state(lab: SlurmLab) -> str:
    return str(lab.call("GET", "/v1/jobs/ring")["state"])
