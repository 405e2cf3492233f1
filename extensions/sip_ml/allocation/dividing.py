"""Divides the light of an interconnect among pairs of GPUs, by what these have to send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ringlight.extensions.sip_ml.allocation.arcs import Decisions
from ringlight.extensions.sip_ml.allocation.circuits import (
    patient_shot,
    permutations,
    single_shot,
)
from ringlight.extensions.sip_ml.allocation.demand import check_demand
from ringlight.extensions.sip_ml.divided.demand_ring import DemandRing
from ringlight.extensions.sip_ml.divided.hop_ring import HopRing
from ringlight.extensions.sip_ml.divided.lightpaths import Division
from ringlight.extensions.sip_ml.divided.planes import Lightpath, ParallelOcs
from ringlight.extensions.wrht.ring import CLOCKWISE, COUNTER
from ringlight.fabric.steps import FloatArray, IntArray
from ringlight.fabric.topology import Fabric


class Divider(Protocol):
    """Divides light for a demand [gpus, gpus], row = source, in any unit. ``rate_bps``: of one lightpath, as
    in the real fabric. The same demand always gives the same division.
    """

    rate_bps: float

    def counts(self, demand: FloatArray) -> IntArray:
        """Return the number of lightpaths of each pair [gpus, gpus].

        Raises ValueError for a demand that ``check_demand`` rejects.
        """

    def division(self, demand: FloatArray) -> Division:
        """Return the number of lightpaths of each pair, and the lightpaths themselves.

        Raises ValueError for a demand that ``check_demand`` rejects.
        """


def divider(fabric: Fabric) -> Divider:
    """Return the divider of an interconnect, plugged or not.

    Raises ValueError if its light is not divided.
    """
    interconnect = fabric.parts.get("interconnect")
    made = _DIVIDERS.get(type(interconnect))
    if made is None:
        raise ValueError("the light of this fabric is not divided")
    return made(interconnect)


class PlanesDivider:
    """Circuits of parallel switches. Raises ValueError, too, naming the GPU that has more partners than there
    are switches; not if the switches are set again and again, as then somebody's turn comes later."""

    def __init__(self, interconnect: ParallelOcs) -> None:
        self.rate_bps = interconnect.circuit_bps
        self._switches = interconnect.switches
        self._shot = single_shot if interconnect.interval_s is None else patient_shot

    def counts(self, demand: FloatArray) -> IntArray:
        return self._shot(demand, self._switches).counts

    def division(self, demand: FloatArray) -> Division:
        counts = self.counts(demand)
        paths: dict[tuple[int, int], tuple[Lightpath, ...]] = {}
        for port, partners in enumerate(permutations(counts, self._switches).tolist()):
            for source, destination in enumerate(partners):
                if destination >= 0:
                    pair = (source, destination)
                    paths[pair] = (*paths.get(pair, ()), Lightpath(port))
        return Division(counts, paths)


class RingDivider:
    """Lightpaths of a ring of wavelengths; a pair may go without any if they do not suffice for all."""

    def __init__(self, ring: DemandRing) -> None:
        self.rate_bps = ring.wavelength_bps
        self._decisions = Decisions(ring.wavelengths)

    def counts(self, demand: FloatArray) -> IntArray:
        return self._decisions.decide(demand).counts()

    def division(self, demand: FloatArray) -> Division:
        plan = self._decisions.decide(demand)
        ports = np.where(plan.clockwise, CLOCKWISE, COUNTER)
        paths: dict[tuple[int, int], tuple[Lightpath, ...]] = {}
        rows = (plan.sources, plan.destinations, ports, plan.colours)
        for source, destination, port, colour in zip(
            *(row.tolist() for row in rows), strict=True
        ):
            pair = (source, destination)
            paths[pair] = (*paths.get(pair, ()), Lightpath(port, colour))
        return Division(plan.counts(), paths)


class HopDivider:
    """A path of a ring of servers for each pair that sends and can have one; who sends most chooses first."""

    def __init__(self, ring: HopRing) -> None:
        self.rate_bps = ring.path_bps
        self._ring = ring

    def counts(self, demand: FloatArray) -> IntArray:
        return self.division(demand).counts

    def division(self, demand: FloatArray) -> Division:
        matrix = check_demand(demand)
        sources, destinations = np.nonzero(matrix)
        order = np.argsort(-matrix[sources, destinations], kind="stable")
        ports, _ = self._ring.choose(
            zip(sources[order].tolist(), destinations[order].tolist(), strict=True)
        )
        counts = np.zeros(matrix.shape, dtype=np.int64)
        for pair in ports:
            counts[pair] = 1
        return Division(
            counts, {pair: (Lightpath(port),) for pair, port in ports.items()}
        )


#: By the kind of interconnect.
_DIVIDERS: Mapping[type, Callable[[Any], Divider]] = {
    ParallelOcs: PlanesDivider,
    DemandRing: RingDivider,
    HopRing: HopDivider,
}
