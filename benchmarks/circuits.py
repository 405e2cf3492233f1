"""How long a controller takes to divide light once, of circuits and of a ring of wavelengths.

Demands are such as it has not seen; for a busy machine beside the time, the processor time of that.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness import spread, timed
from ringlight.extensions.sip_ml.allocation.dividing import (
    Divider,
    PlanesDivider,
    RingDivider,
)
from ringlight.extensions.sip_ml.divided.demand_ring import DemandRing
from ringlight.extensions.sip_ml.divided.planes import ParallelOcs

Matrix = npt.NDArray[np.float64]


def window(rng: np.random.Generator, gpus: int, partners: int) -> Matrix:
    """Demand of each GPU to its successors on a circle: bytes over two decades, a quarter of pairs 0."""
    demand = np.zeros((gpus, gpus))
    everyone = np.arange(gpus)
    for step in range(1, min(partners, gpus - 1) + 1):
        demand[everyone, (everyone + step) % gpus] = np.where(
            rng.random(gpus) < 0.75, np.ceil(10 ** rng.uniform(4, 6, gpus)), 0
        )
    return demand


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


PARTS = (divided,)
