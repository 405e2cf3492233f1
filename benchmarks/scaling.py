"""How long `ringlight simulate` of thousands of GPUs takes as a whole command, and how much memory.

Fabrics are leaf-spine with 32 GPUs a leaf and four spines. ``jobs``: of eight GPUs each, a quarter of them on
two leaves, with or without one regroup and a lost GPU; ``ring``: all GPUs in one, in order or shuffled, 64
MiB; ``all-to-all`` of 512 MB; ``experts``: Mixtral 8x22B by data, tensor, pipeline and expert parallelism.
Limits are stated for a quiet machine with two processors. ``simgrid``: the shuffled ring's first all-reduce
by messages in SimGrid (package python3-simgrid), where that is installed.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.harness import RINGLIGHT, ROOT, tell
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.trees import leaf_spine
from ringlight.testbed.simulation.jobs import Job
from ringlight.testbed.simulation.networks import PacketNetwork
from ringlight.testbed.simulation.simulation import Simulation

#: GPUs of a leaf; of a job.
LEAF, JOB = 32, 8


@dataclass(frozen=True)
class Case:
    """``limit``: seconds of the whole command, and megabytes; None where only growth is of interest."""

    spec: Mapping[str, Any]
    limit: tuple[float, float] | None = None


def fabric(gpus: int, oversubscription: float, **more: Any) -> dict[str, Any]:
    shape = {
        "leaves": gpus // LEAF,
        "spines": 4,
        "gpus_per_leaf": LEAF,
        "gpu": "a100",
        "rate": "100 Gbit/s",
    }
    return {
        "paths": "even",
        "leaf_spine": {**shape, "oversubscription": oversubscription, **more},
    }


def jobs(
    gpus: int, *, regroup: bool = False, loss: bool = False, iterations: int = 10
) -> dict[str, Any]:
    leaves = gpus // LEAF
    named: dict[str, Any] = {}
    for leaf in range(leaves):
        base, beside = leaf * LEAF, (leaf + 1) % leaves * LEAF
        for block in range(LEAF // JOB - 1):
            named[f"j{len(named)}"] = {
                "ranks": [f"g{base + JOB * block + i}" for i in range(JOB)]
            }
        ends = [
            (base + LEAF - JOB + i, beside + LEAF - JOB // 2 + i)
            for i in range(JOB // 2)
        ]
        named[f"j{len(named)}"] = {
            "ranks": [f"g{gpu}" for pair in ends for gpu in pair]
        }
    training = {"compute": "60 ms", "batch": 64, "iterations": iterations}
    made = _file(f"jobs-{gpus}", fabric(gpus, 2), training, named)
    if regroup:
        made["fabric"] = fabric(gpus, 2, through="ocs0", spare_ports=1)
        switch = {"size": 2 * gpus + leaves, "driver": "scpi", "profile": "mems"}
        made["fabric"]["optical_switches"] = {"ocs0": switch}
        when = {"job": f"j{LEAF // JOB - 1}", "iteration": iterations // 2}
        made["arms"] = {"live": {"events": [{"when": when, "do": "regroup"}]}}
    if loss:
        when = {"job": "j0", "iteration": 2}
        lost = {
            "name": "loss",
            "when": when,
            "do": "lose",
            "target": "gpu g1",
            "then": "shrink",
        }
        made["arms"]["live"]["events"].append(lost)
    return made


def ring(gpus: int, *, shuffled: bool = False) -> dict[str, Any]:
    ranks = [f"g{gpu}" for gpu in range(gpus)]
    if shuffled:
        random.Random(1).shuffle(ranks)
    training = {"compute": "60 ms", "batch": 64, "iterations": 2, "gradient": "64 MiB"}
    return _file(f"ring-{gpus}", fabric(gpus, 4), training, {"big": {"ranks": ranks}})


def one_workload(
    name: str, gpus: int, workload: Mapping[str, Any], **shape: Any
) -> dict[str, Any]:
    made = _file(
        f"{name}-{gpus}",
        fabric(gpus, 2, **shape),
        {},
        {"one": {"ranks": "all", "workload": workload}},
    )
    del made["training"]
    return made


def _file(
    name: str, fabric: Mapping[str, Any], training: Mapping[str, Any], jobs: Any
) -> dict[str, Any]:
    training = {"model": "resnet50", "collective": "ring", **training}
    scale = {"time": 1, "payload": 1}
    about = {"name": name, "description": "A fabric that grows.", "scale": scale}
    return {**about, "fabric": dict(fabric), "training": training, "jobs": jobs}


TOKENS = {"collective": "all-to-all", "size": "512 MB", "iterations": 3}
EXPERTS = {
    "model": "mixtral-8x22b", "dp": 2, "tp": 8, "pp": 8, "ep": 8, "sequence": 4096, "micro_batches": 32,
    "device": "h100", "iterations": 2,
}  # fmt: skip
CASES = {
    "ring-1024": Case(ring(1024), (3, 250)),
    "ring-256-shuffled": Case(ring(256, shuffled=True), (3, 500)),
    "ring-1024-shuffled": Case(ring(1024, shuffled=True), (8, 500)),
    "ring-4096-shuffled": Case(ring(4096, shuffled=True), (60, 500)),
    "all-to-all-256": Case(one_workload("all-to-all", 256, TOKENS), (10, 500)),
    "experts-1024": Case(
        one_workload("experts", 1024, EXPERTS, spines=32, rate="400 Gbit/s"), (30, 500)
    ),
    "jobs-256": Case(jobs(256)),
    "jobs-1024": Case(jobs(1024), (5, 500)),
    "jobs-1024-regroup": Case(jobs(1024, regroup=True), (8, 500)),
    "jobs-4096-regroup": Case(jobs(4096, regroup=True), (20, 1000)),
    "jobs-16384-regroup-loss": Case(jobs(16384, regroup=True, loss=True), (120, 4000)),
}


def scaling(cases: list[str] = [*CASES], patience_s: float = 300.0) -> dict[str, Any]:
    """Simulate each case with one whole command; one that takes longer than ``patience_s`` is ended."""
    found: dict[str, Any] = {}
    missed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ringlight-scaling-") as folder:
        for name in cases:
            case = CASES[name]
            file = Path(folder) / f"{name}.yaml"
            file.write_text(yaml.safe_dump(dict(case.spec), sort_keys=False))
            took = found[name] = _measured(file, patience_s)
            seconds, megabytes = case.limit or (math.inf, math.inf)
            tell(f"{name}: {took}, limits {seconds:g} s, {megabytes:g} MB")
            if (
                took["exit"]
                or took["seconds"] > seconds
                or took["megabytes"] > megabytes
            ):
                missed.append(
                    f"{name}: {took['seconds']:.1f} s, {took['megabytes']:.0f} MB"
                )
    return {"cases": found, "missed": missed}


def simgrid(ranks: int = 256, patience_s: float = 300.0) -> dict[str, Any]:
    """Simulate one all-reduce of the shuffled ring here and in SimGrid, without a latency."""
    spec = ring(ranks, shuffled=True)
    made = leaf_spine(ranks // LEAF, LEAF, 100e9, spines=4, oversubscription=4).fabric()
    network = PacketNetwork(made)
    job = Job(
        "big",
        tuple(spec["jobs"]["big"]["ranks"]),
        steps_named("ring", ranks),
        64 * 2**20,
    )
    run = Simulation(network)
    began = time.perf_counter()
    run.add(job)
    run.begin(job.name)
    run.run()
    seconds = time.perf_counter() - began
    routes = network.routes(job.ranks, next(iter(job.steps)))
    ways = [way.tolist() for way in np.split(routes.links, routes.offsets[1:-1])]
    case = {
        "capacity": (network.capacity_bps / 8).tolist(),
        "paths": ways,
        "size": 64 * 2**20 / ranks,
    }
    done = subprocess.run(
        ["/usr/bin/python3", str(ROOT / "tests" / "simgrid_ring.py")], input=json.dumps(case),
        capture_output=True, text=True, timeout=patience_s, check=True,
    )  # fmt: skip
    theirs = json.loads(done.stdout.splitlines()[-1])
    found = {
        "ranks": ranks, "end_s": run.results["big"].end_s, "seconds": round(seconds, 2),
        "simgrid_end_s": theirs["end_s"], "simgrid_seconds": round(theirs["seconds"], 2),
    }  # fmt: skip
    tell(str(found))
    return found


PARTS = (scaling, simgrid)


def _measured(file: Path, patience_s: float) -> dict[str, Any]:
    """Seconds of a command, until its table and as a whole, and megabytes of its largest process."""
    began = time.perf_counter()
    command = [*RINGLIGHT, "simulate", str(file), "--runs", str(file.parent)]
    command = ["timeout", "-k", "5", str(patience_s), *command]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    table_s = None
    for _ in process.stdout:
        table_s = table_s or time.perf_counter() - began
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "table_s": None if table_s is None else round(table_s, 2),
        "megabytes": round(used.ru_maxrss / 1000),
        "exit": process.returncode,
    }
