"""The network of an interconnect described as a whole, and the demand that it is built for."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np

from ringlight.extensions.sip_ml.allocation.arcs import Divisions
from ringlight.extensions.sip_ml.allocation.circuits import check_degree, single_shot
from ringlight.extensions.sip_ml.allocation.demand import placed
from ringlight.extensions.sip_ml.allocation.dividing import PlanesDivider
from ringlight.extensions.sip_ml.allocation.one_shot import circuits, one_shot
from ringlight.extensions.sip_ml.divided.demand_ring import DemandRing
from ringlight.extensions.sip_ml.divided.hop_ring import HopRing
from ringlight.extensions.sip_ml.divided.planes import ParallelOcs
from ringlight.extensions.sip_ml.simulation.hop_ring import HopRingNetwork
from ringlight.extensions.sip_ml.simulation.zoo import (
    CircuitNetwork,
    RelayedGridNetwork,
    TorusNetwork,
    WavelengthRingNetwork,
    rotor_network,
)
from ringlight.extensions.sip_ml.wholes.electrical import Ideal, Servers
from ringlight.extensions.sip_ml.wholes.interconnect import Interconnect
from ringlight.extensions.sip_ml.wholes.one_shot import OneShot
from ringlight.extensions.sip_ml.wholes.rotor import Rotors
from ringlight.extensions.sip_ml.wholes.torus import TorusOfGpus
from ringlight.extensions.sip_ml.wholes.whole_grid import GridOfGpus
from ringlight.extensions.sip_ml.wholes.whole_ring import WavelengthRing
from ringlight.fabric.steps import IntArray, Steps, sent_in_steps
from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.testbed.simulation.networks import IdealNetwork, Network
from ringlight.workloads.graph import Workload
from ringlight.workloads.traffic import all_reduce_groups, sent


@dataclass(frozen=True, eq=False)
class Demand:
    """Bytes [gpus, gpus] that jobs send from each GPU (row) to each other, in one iteration each.

    ``groups``: GPUs of all-reduces that share no GPU, each sending ``group_bytes`` in them; ``rest``: what is
    sent in addition.
    """

    total: FloatArray
    rest: FloatArray
    groups: tuple[IntArray, ...] = ()
    group_bytes: float = 0.0


DemandOf = Callable[[], Demand]


class InterconnectCosts(TypedDict):
    """``latency_s``: seconds before a transfer's first byte counts; ``share``: payload's of a link's rate."""

    latency_s: float
    share: float


def demand_of_workload(workload: Workload, places: IntArray, gpus: int) -> Demand:
    """Return the demand of one iteration of a workload in bytes, with rank i on GPU number ``places[i]`` of
    ``gpus``.

    Raises ValueError for too many ranks, and for an unknown kind or algorithm.
    """
    groups, group_bytes, apart = all_reduce_groups(workload)
    return Demand(
        placed(sent(workload), places, gpus),
        placed(apart, places, gpus),
        tuple(places[group] for group in groups),
        group_bytes,
    )


def demand_of_steps(
    steps: Steps, vector_bytes: float, places: IntArray, gpus: int
) -> Demand:
    """Return the demand of one all-reduce over all ranks of a job, in bytes."""
    sent_bytes = sent_in_steps(steps, vector_bytes)
    most = float(sent_bytes.sum(axis=1).max())
    return Demand(
        placed(sent_bytes, places, gpus), np.zeros((gpus, gpus)), (places,), most
    )


def together(demands: Iterable[Demand], gpus: int) -> Demand:
    """Return the sum of the demands of several jobs. Each all-reduce counts like the one with the most
    bytes.
    """
    total, rest = np.zeros((gpus, gpus)), np.zeros((gpus, gpus))
    groups: list[IntArray] = []
    most = 0.0
    for demand in demands:
        total += demand.total
        rest += demand.rest
        groups += demand.groups
        most = max(most, demand.group_bytes)
    return Demand(total, rest, tuple(groups), most)


def interconnect_network(
    interconnect: Interconnect,
    gpus: Sequence[str],
    demand_of: DemandOf,
    *,
    latency_s: float = 0.0,
    share: float = 1.0,
    phases: bool = False,
) -> Network:
    """Return the network of an interconnect.

    ``demand_of`` is called if the interconnect is built for a demand. ``phases``: its light is set for each
    phase of a job. Raises ValueError if that is impossible.
    """
    if phases:
        return _divided(interconnect, gpus, demand_of, latency_s=latency_s, share=share)
    return _NETWORKS[type(interconnect)](
        interconnect, gpus, demand_of, latency_s=latency_s, share=share
    )


def _ideal(
    interconnect: Ideal,
    gpus: Sequence[str],
    _: DemandOf,
    **costs: Unpack[InterconnectCosts],
) -> Network:
    return IdealNetwork(gpus, interconnect.gpu_bps, **costs)


def _servers(
    interconnect: Servers,
    gpus: Sequence[str],
    _: DemandOf,
    **costs: Unpack[InterconnectCosts],
) -> Network:
    return IdealNetwork(
        gpus,
        interconnect.gpu_bps,
        per_server=interconnect.gpus_each,
        server_bps=interconnect.inside_bps,
        **costs,
    )


def _torus(
    interconnect: TorusOfGpus,
    gpus: Sequence[str],
    _: DemandOf,
    **costs: Unpack[InterconnectCosts],
) -> Network:
    return TorusNetwork(
        gpus,
        interconnect.torus,
        interconnect.link_bps,
        hop_s=interconnect.hop_s,
        **costs,
    )


def _parallel_ocs(
    interconnect: ParallelOcs,
    gpus: Sequence[str],
    demand_of: DemandOf,
    **costs: Unpack[InterconnectCosts],
) -> Network:
    if interconnect.division is not None:
        return _divided(interconnect, gpus, demand_of, **costs)
    total = demand_of().total
    check_degree(total, interconnect.switches, gpus)
    return CircuitNetwork(
        gpus,
        single_shot(total, interconnect.switches).counts,
        interconnect.circuit_bps,
        **costs,
    )


def _one_shot(
    interconnect: OneShot,
    gpus: Sequence[str],
    demand_of: DemandOf,
    **costs: Unpack[InterconnectCosts],
) -> Network:
    demand = demand_of()
    counts = circuits(
        one_shot(demand.rest, interconnect.degree, demand.groups, demand.group_bytes)
    )
    circuit_bps = interconnect.gpu_bps / interconnect.degree
    return CircuitNetwork(
        gpus, counts, circuit_bps, forward=True, hop_s=interconnect.hop_s, **costs
    )


def _grid(
    interconnect: GridOfGpus,
    gpus: Sequence[str],
    _: DemandOf,
    *,
    latency_s: float,
    share: float,
) -> Network:
    return RelayedGridNetwork(
        gpus,
        interconnect.columns,
        interconnect.gpu_bps / interconnect.transceivers,
        shared=interconnect.transceivers == 1,
        hop_s=interconnect.handshake_s,
        latency_s=latency_s + interconnect.handshake_s,
        share=share,
    )


def _wavelength_ring(
    interconnect: WavelengthRing,
    gpus: Sequence[str],
    _: DemandOf,
    **costs: Unpack[InterconnectCosts],
) -> Network:
    return WavelengthRingNetwork(gpus, interconnect.gpu_bps / 2, **costs)


def _rotors(
    interconnect: Rotors,
    gpus: Sequence[str],
    _: DemandOf,
    **costs: Unpack[InterconnectCosts],
) -> Network:
    return rotor_network(
        gpus, interconnect.rotor, indirect=interconnect.indirect, **costs
    )


def _hop_ring(
    interconnect: HopRing,
    gpus: Sequence[str],
    _: DemandOf,
    **costs: Unpack[InterconnectCosts],
) -> Network:
    return HopRingNetwork(gpus, interconnect, **costs)


def _divided(
    interconnect: Interconnect,
    gpus: Sequence[str],
    demand_of: DemandOf,
    **costs: Unpack[InterconnectCosts],
) -> Network:
    """Return a network with a link for every pair that ever sends. Its rate is set by the present
    division.
    """
    pairs = (demand_of().total > 0).astype(np.int64)
    return CircuitNetwork(gpus, pairs, interconnect.gpu_bps, **costs)


#: By the kind of interconnect.
_NETWORKS: Mapping[type[Interconnect], Callable[..., Network]] = {
    Ideal: _ideal,
    Servers: _servers,
    TorusOfGpus: _torus,
    ParallelOcs: _parallel_ocs,
    OneShot: _one_shot,
    DemandRing: _divided,
    GridOfGpus: _grid,
    WavelengthRing: _wavelength_ring,
    Rotors: _rotors,
    HopRing: _hop_ring,
}


#: Where divisions take turns, pairs' shares of the demand are rounded to powers of two, or each of
#: thousands of decisions would need turns of its own.
_ALIKE = math.log(2)
#: Most of them that are kept.
_KEPT = 64


class LightDivision:
    """Divides light by what has yet to be sent over each link of ``network``, again and again.

    Called with bytes [links], it gives bits per second [links], of which payload gets ``share``; a lightpath
    carries ``rate_bps`` of it. If there is not light for all pairs at the same time, some get none until
    others have sent. With ``turns`` divisions take turns instead, each for those that the ones before left
    dark, and what each link gets is the mean: ranks in lock-step continue only when all pairs have something.
    """

    def __init__(
        self,
        interconnect: Interconnect,
        network: CircuitNetwork,
        share: float = 1.0,
        *,
        turns: bool = False,
    ) -> None:
        self._links = tuple(network.pairs.T)
        lightpath_bps, self._counts = _COUNTS[type(interconnect)](
            interconnect, self._links, len(network.gpus)
        )
        self.rate_bps = lightpath_bps * share
        self._turns = turns
        self._in_turns: OrderedDict[bytes, FloatArray] = OrderedDict()

    def __call__(self, left: FloatArray) -> FloatArray:
        return np.asarray(
            (self._mean(left) if self._turns else self._counts(left)) * self.rate_bps
        )

    def of(self, demand: FloatArray) -> FloatArray:
        """Return the rates of the links in bits per second for a demand in bytes [gpus, gpus]."""
        return self(demand[self._links])

    def _mean(self, left: FloatArray) -> FloatArray:
        """Return the lightpaths [links], as the mean of as many divisions as are needed until each pair had
        light.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            levels = np.round(np.log(left / left.max(initial=0.0)) / _ALIKE)
        known = levels.tobytes()
        if known not in self._in_turns:
            first = self._counts(left)
            if first[left > 0].all():
                return first.astype(np.float64)
            dark, counts = np.exp(levels * _ALIKE), []
            while dark.any():
                counts.append(self._counts(dark))
                dark = np.where(counts[-1] > 0, 0.0, dark)
            self._in_turns[known] = np.mean(counts, axis=0, dtype=np.float64)
            while len(self._in_turns) > _KEPT:
                self._in_turns.popitem(last=False)
        return self._in_turns[known]


#: Lightpaths [links] for what is left to send over each link, a source and a destination each.
_Counts = Callable[[FloatArray], IntArray]


def _of_ring(
    interconnect: DemandRing, links: tuple[IntArray, ...], gpus: int
) -> tuple[float, _Counts]:
    sources, destinations = links
    return interconnect.wavelength_bps, Divisions(
        gpus, sources, destinations, interconnect.wavelengths
    ).counts


def _of_circuits(
    interconnect: ParallelOcs, links: tuple[IntArray, ...], gpus: int
) -> tuple[float, _Counts]:
    divider = PlanesDivider(interconnect)

    def counts(left: FloatArray) -> IntArray:
        demand = np.zeros((gpus, gpus))
        demand[links] = left
        return np.asarray(divider.counts(demand)[links])

    return divider.rate_bps, counts


#: Bits per second of a lightpath, and how many each link gets, by the kind of interconnect.
_COUNTS: Mapping[type[Interconnect], Callable[..., tuple[float, _Counts]]] = {
    DemandRing: _of_ring,
    ParallelOcs: _of_circuits,
}
