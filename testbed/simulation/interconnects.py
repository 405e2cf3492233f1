"""The network of an interconnect that is described as a whole, and the demand for which it may be built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fabric.allocation.arcs import Decisions
from fabric.allocation.circuits import single_shot
from fabric.interconnect import DemandRing, Ideal, Interconnect, OneShot, ParallelOcs, TorusOfGpus
from fabric.steps import IntArray, Steps
from fabric.zoo.one_shot import circuits, one_shot
from testbed.simulation.arrays import FloatArray
from testbed.simulation.networks import IdealNetwork, Network
from testbed.simulation.zoo import CircuitNetwork, TorusNetwork, rotor_network
from workloads.formats.matrix import all_reduce_groups, sent
from workloads.graph import Workload


@dataclass(frozen=True, eq=False)
class Demand:
    """Bytes [gpus, gpus] that jobs send from each GPU (row) to each other, in one iteration each.

    ``groups``: GPUs of all-reduces that share no GPU, each sending ``group_bytes`` in them; ``rest``: what is
    sent besides.
    """

    total: FloatArray
    rest: FloatArray
    groups: tuple[IntArray, ...] = ()
    group_bytes: float = 0.0


def demand_of_workload(workload: Workload, at: IntArray, gpus: int) -> Demand:
    """Rank i on GPU number ``at[i]`` of ``gpus``. Raises ValueError as ``traffic``."""
    groups, group_bytes, apart = all_reduce_groups(workload)
    return Demand(
        _placed(sent(workload), at, gpus),
        _placed(apart, at, gpus),
        tuple(at[group] for group in groups),
        group_bytes,
    )


def demand_of_steps(steps: Steps, vector_bytes: float, at: IntArray, gpus: int) -> Demand:
    """Of one all-reduce of all ranks of a job."""
    found = np.zeros((len(at), len(at)))
    for step in steps:
        np.add.at(found, (step.sources, step.destinations), step.count * vector_bytes / steps.chunks)
    sent = float(found.sum(axis=1).max())
    return Demand(_placed(found, at, gpus), np.zeros((gpus, gpus)), (at,), sent)


def together(demands: Iterable[Demand], gpus: int) -> Demand:
    """Of several jobs; each all-reduce counts as the one with the most bytes."""
    total, rest = np.zeros((gpus, gpus)), np.zeros((gpus, gpus))
    groups: list[IntArray] = []
    most = 0.0
    for one in demands:
        total += one.total
        rest += one.rest
        groups += one.groups
        most = max(most, one.group_bytes)
    return Demand(total, rest, tuple(groups), most)


def _placed(found: FloatArray | IntArray, at: IntArray, gpus: int) -> FloatArray:
    placed = np.zeros((gpus, gpus))
    placed[np.ix_(at, at)] = found
    return placed


def interconnect_network(
    one: Interconnect, gpus: Sequence[str], demand_of: Callable[[], Demand], *,
    latency_s: float = 0.0, share: float = 1.0,
) -> Network:  # fmt: skip
    """``demand_of`` is called where one is built for a demand. Raises ValueError where that cannot be."""
    if isinstance(one, Ideal):
        return IdealNetwork(gpus, one.gpu_bps, latency_s=latency_s, share=share)
    if isinstance(one, TorusOfGpus):
        return TorusNetwork(gpus, one.torus, one.link_bps, hop_s=one.hop_s, latency_s=latency_s, share=share)
    if isinstance(one, ParallelOcs):
        counts = single_shot(demand_of().total, one.switches).counts
        return CircuitNetwork(gpus, counts, one.circuit_bps, latency_s=latency_s, share=share)
    if isinstance(one, OneShot):
        demand = demand_of()
        counts = circuits(one_shot(demand.rest, one.degree, demand.groups, demand.group_bytes))
        return CircuitNetwork(
            gpus, counts, one.gpu_bps / one.degree, forward=True, hop_s=one.hop_s,
            latency_s=latency_s, share=share,
        )  # fmt: skip
    if isinstance(one, DemandRing):
        # Every pair that ever sends has a link, whose rate is what the present division gives it.
        pairs = (demand_of().total > 0).astype(np.int64)
        return CircuitNetwork(gpus, pairs, one.gpu_bps, latency_s=latency_s, share=share)
    return rotor_network(gpus, one.rotor, indirect=one.indirect, latency_s=latency_s, share=share)


class RingDivision:
    """Divides a ring's wavelengths by what has yet to be sent over each link of ``network``.

    Called with bytes [links], it gives bits per second [links], of which payload gets ``share``.
    """

    def __init__(self, ring: DemandRing, network: CircuitNetwork, share: float = 1.0) -> None:
        self._links = tuple(network.pairs.T)
        self._gpus = len(network.gpus)
        self._rate_bps = ring.wavelength_bps * share
        self._decisions = Decisions(ring.wavelengths)

    def __call__(self, left: FloatArray) -> FloatArray:
        demand = np.zeros((self._gpus, self._gpus))
        demand[self._links] = left
        return self.of(demand)

    def of(self, demand: FloatArray) -> FloatArray:
        """Likewise by bytes [gpus, gpus]."""
        plan = self._decisions.decide(demand, partial=True)
        given: FloatArray = plan.counts()[self._links] * self._rate_bps
        return given
