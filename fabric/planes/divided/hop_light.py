"""Divides the paths of a ring of servers by what its GPUs send."""

from __future__ import annotations

import numpy as np

from ringlight.fabric.allocation.demand import FloatArray, check_demand
from ringlight.fabric.planes.divided.hop_ring import HopRing
from ringlight.fabric.planes.divided.lightpaths import Division, Lightpath
from ringlight.fabric.steps import IntArray


class HopDivider:
    """One path for each pair that sends and can have one; those that send most choose first."""

    def __init__(self, ring: HopRing) -> None:
        self.rate_bps = ring.path_bps
        self._ring = ring

    def counts(self, demand: FloatArray) -> IntArray:
        return self.division(demand).counts

    def division(self, demand: FloatArray) -> Division:
        matrix = check_demand(demand)
        sources, destinations = np.nonzero(matrix)
        order = np.argsort(-matrix[sources, destinations], kind="stable")
        ports, _ = self._ring.choose(zip(sources[order].tolist(), destinations[order].tolist(), strict=True))
        counts = np.zeros(matrix.shape, dtype=np.int64)
        for pair in ports:
            counts[pair] = 1
        return Division(counts, {pair: (Lightpath(port),) for pair, port in ports.items()})
