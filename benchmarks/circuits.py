"""Time and quality of decisions about circuits of parallel optical switches; prints one JSON object.

Run ``python benchmarks/circuits.py``; ``--only divided`` for one part of it. ``decisions``: seconds of
``single_shot`` and of ``permutations``, the median of several, with the limit of both together and, for a
busy machine, their processor time. ``highs``: the integer program over counts of circuits and over
permutations, with how often its z is the same, proved by HiGHS or not, and how often it found less in its
time. ``divided``: seconds that a controller takes to divide light once, of circuits and of a ring, for
demands that it has not seen, and the processor time of that.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from sys import path as import_path
from typing import Any

import_path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import numpy.typing as npt

from ringlight.fabric.allocation.circuits import permutations, single_shot
from ringlight.fabric.allocation.dividing import Divider, PlanesDivider, RingDivider
from ringlight.fabric.planes.divided.demand_ring import DemandRing
from ringlight.fabric.planes.divided.planes import ParallelOcs
from tests.circuits_program import highs_single_shot

Matrix = npt.NDArray[np.float64]
LIMITS_S = {8: 0.01, 1024: 1.0, 4096: 10.0}
WINDOW = 16


def window(rng: np.random.Generator, gpus: int, partners: int) -> Matrix:
    """Demand of each GPU to its successors on a circle: bytes over two decades, a quarter of pairs 0."""
    demand = np.zeros((gpus, gpus))
    everyone = np.arange(gpus)
    for step in range(1, min(partners, gpus - 1) + 1):
        demand[everyone, (everyone + step) % gpus] = np.where(
            rng.random(gpus) < 0.75, np.ceil(10 ** rng.uniform(4, 6, gpus)), 0
        )
    return demand


def placed(rng: np.random.Generator, gpus: int, model_parallel: int) -> Matrix:
    """A job of replicas of so many GPUs: the same bytes within each, and rings from each to the next."""
    inside = np.ceil(10 ** rng.uniform(4, 6, (model_parallel, model_parallel)))
    np.fill_diagonal(inside, 0)
    demand: Matrix = np.kron(np.eye(gpus // model_parallel), inside).astype(np.float64)
    everyone = np.arange(gpus)
    demand[everyone, (everyone + model_parallel) % gpus] = 1e6
    return demand


def seconds(
    action: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    took = []
    for _ in range(times):
        began = clock()
        action()
        took.append(clock() - began)
    return median(took)


def decision(kind: str, demand: Matrix, switches: int, times: int) -> dict[str, Any]:
    gpus = len(demand)
    plan = single_shot(demand, switches)
    shot = seconds(lambda: single_shot(demand, switches), times)
    dealt = seconds(lambda: permutations(plan.counts, switches), times)
    cpu = seconds(
        lambda: permutations(single_shot(demand, switches).counts, switches), times, time.process_time
    )
    return {
        "demand": kind,
        "gpus": gpus,
        "switches": switches,
        "pairs": int(np.count_nonzero(demand)),
        "circuits": int(plan.counts.sum()),
        "z": round(plan.z, 4),
        "single_shot_s": round(shot, 4),
        "permutations_s": round(dealt, 4),
        "together_s": round(shot + dealt, 4),
        "together_cpu_s": round(cpu, 4),
        "limit_s": LIMITS_S[gpus],
    }


def compare(
    gpus: int, switches: int, times: int, limit_s: float, seed: int, *, by_switch: bool
) -> dict[str, Any]:
    """How often z is the same; ``highs_less``: HiGHS found less in its time."""
    found = {"equal_proved": 0, "equal_not_proved": 0, "highs_less": 0, "highs_more": 0, "above_its_bound": 0}
    took, gaps = [], []
    rng = np.random.default_rng(seed)
    for _ in range(times):
        demand = window(rng, gpus, switches)
        exact = single_shot(demand, switches)
        began = time.perf_counter()
        other = highs_single_shot(demand, switches, limit_s, by_switch=by_switch)
        took.append(time.perf_counter() - began)
        gaps.append(other.bound / exact.z - 1)
        found["above_its_bound"] += exact.z > other.bound * (1 + 1e-6)
        if abs(other.z - exact.z) <= 1e-6 * exact.z:
            found["equal_proved" if gaps[-1] <= 1e-4 else "equal_not_proved"] += 1
        else:
            found["highs_less" if other.z < exact.z else "highs_more"] += 1
    return {
        "program": "permutations" if by_switch else "counts",
        "gpus": gpus,
        "switches": switches,
        "demands": times,
        **found,
        "highs_s_median": round(median(took), 3),
        "highs_s_most": round(max(took), 3),
        "highs_bound_above_z_most": round(max(gaps), 4),
    }


def divided(kind: str, divider: Divider, rng: np.random.Generator, gpus: int, times: int) -> dict[str, Any]:
    demands = iter([window(rng, gpus, 7) for _ in range(2 * times)])

    def decide() -> object:
        return divider.division(next(demands))

    return {
        "light": kind,
        "gpus": gpus,
        "decision_s": round(seconds(decide, times), 6),
        "decision_cpu_s": round(seconds(decide, times, time.process_time), 6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--times", type=int, default=5, help="demands or repeats of each kind")
    parser.add_argument("--only", choices=["divided"], help="this part alone")
    parser.add_argument("--highs-s", type=float, default=5.0, help="time limit of one program")
    chosen = parser.parse_args()
    rng = np.random.default_rng(chosen.seed)
    single_shot([[0, 1], [1, 0]], 3)
    permutations([[0, 1], [1, 0]], 3)
    lights: list[tuple[str, Divider]] = [
        ("20 switches", PlanesDivider(ParallelOcs(20, 2e12, 1e-4, 0.0))),
        ("80 wavelengths of a ring", RingDivider(DemandRing(40, 25e9, 1e-4, 0.0))),
    ]
    divisions = [
        divided(kind, light, np.random.default_rng(chosen.seed), gpus, times)
        for gpus, times in ((8, 40 * chosen.times), (64, 4 * chosen.times), (1024, chosen.times))
        for kind, light in lights
    ]
    if chosen.only:
        print(json.dumps({"benchmark": "circuits", "divided": divisions}, indent=2))
        return
    decisions = [
        decision("window", window(rng, 8, 4), 4, chosen.times),
        decision("placed", placed(rng, 8, 4), 4, chosen.times),
        decision("window", window(rng, 8, 7), 20, chosen.times),
        decision("window", window(rng, 1024, WINDOW), 20, chosen.times),
        decision("placed", placed(rng, 1024, 8), 20, chosen.times),
        decision("window", window(rng, 4096, WINDOW), 20, chosen.times),
        decision("placed", placed(rng, 4096, 8), 20, chosen.times),
    ]
    result = {
        "benchmark": "circuits",
        "decisions": decisions,
        "divided": divisions,
        "highs": [
            compare(gpus, switches, chosen.times, chosen.highs_s, chosen.seed, by_switch=by_switch)
            for by_switch in (False, True)
            for gpus, switches in [(4, 3), (8, 4), (8, 8), (16, 4), (16, 8), (32, 4), (32, 8)]
        ],
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
