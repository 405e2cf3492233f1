"""Time and quality of decisions about circuits of parallel optical switches.

``decisions``: seconds of ``single_shot`` and of ``permutations``, with the limit of both together and, for a
busy machine, their processor time. ``divided``: seconds that a controller takes to divide light once, of
circuits and of a ring, for demands that it has not seen, and the processor time of that.
``highs``: the integer program over counts of circuits and over permutations, with how often its z is the
same, proved by HiGHS or not, and how often it found less in its time.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness import spread, timed
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


def decisions(times: int = 5, seed: int = 1) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        f"{kind.__name__}, {gpus} GPUs, {planes} switches": _decision(kind(rng, gpus, more), planes, times)
        for kind, gpus, more, planes in (
            (window, 8, 4, 4), (placed, 8, 4, 4), (window, 8, 7, 20), (window, 1024, WINDOW, 20),
            (placed, 1024, 8, 20), (window, 4096, WINDOW, 20), (placed, 4096, 8, 20),
        )
    }  # fmt: skip


def _decision(demand: Matrix, switches: int, times: int) -> dict[str, Any]:
    plan = single_shot(demand, switches)

    def both() -> object:
        return permutations(single_shot(demand, switches).counts, switches)

    return {
        "pairs": int(np.count_nonzero(demand)),
        "circuits": int(plan.counts.sum()),
        "z": round(plan.z, 4),
        "single_shot_s": spread(timed(lambda: single_shot(demand, switches), times, warm=1)),
        "permutations_s": spread(timed(lambda: permutations(plan.counts, switches), times, warm=1)),
        "together_s": spread(timed(both, times)),
        "together_cpu_s": spread(timed(both, times, clock=time.process_time)),
        "limit_s": LIMITS_S[len(demand)],
    }


def divided(times: int = 5, seed: int = 1) -> dict[str, Any]:
    dividers: dict[str, Divider] = {
        "20 switches": PlanesDivider(ParallelOcs(20, 2e12, 1e-4, 0.0)),
        "80 wavelengths of a ring": RingDivider(DemandRing(40, 25e9, 1e-4, 0.0)),
    }
    found = {}
    for gpus, count in ((8, 40 * times), (64, 4 * times), (1024, times)):
        for light, divider in dividers.items():
            rng = np.random.default_rng(seed)
            demands = iter([window(rng, gpus, 7) for _ in range(2 * count)])

            def decide(divider: Divider = divider, demands: Any = demands) -> object:
                return divider.division(next(demands))

            found[f"{light}, {gpus} GPUs"] = {
                "decision_s": spread(timed(decide, count)),
                "decision_cpu_s": spread(timed(decide, count, clock=time.process_time)),
            }
    return found


def highs(times: int = 5, seed: int = 1, highs_s: float = 5.0) -> dict[str, Any]:
    """``highs_s``: time limit of one program."""
    return {
        f"{program}, {gpus} GPUs, {switches} switches": _highs(
            gpus, switches, times, highs_s, seed, by_switch
        )
        for program, by_switch in (("counts", False), ("permutations", True))
        for gpus, switches in ((4, 3), (8, 4), (8, 8), (16, 4), (16, 8), (32, 4), (32, 8))
    }


def _highs(
    gpus: int, switches: int, times: int, limit_s: float, seed: int, by_switch: bool
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
    return {**found, "highs_s": spread(took), "highs_bound_above_z_most": round(max(gaps), 4)}


PARTS = (decisions, divided, highs)
