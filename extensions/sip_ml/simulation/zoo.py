"""The networks that optical fabrics are compared with, for thousands of GPUs.

Each gives a GPU its bandwidth in its own way: circuits between pairs, straight or over GPUs that forward;
a torus; rotors as a fluid; a grid with one node in between. Leaf-spine fabrics and fat trees are
:class:`~testbed.simulation.networks.PacketNetwork`, an electrical network at a cap per GPU is
:class:`~testbed.simulation.networks.IdealNetwork`.

``hop_s``: seconds that each GPU on the way takes to forward. What a GPU's processor has to do for that is not
modelled, and a way is one way: a transfer is not divided over several.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property

import numpy as np

from ringlight.extensions.sip_ml.wholes import hops, torus
from ringlight.extensions.sip_ml.wholes.rotor import Rotor
from ringlight.extensions.wrht.wdm import segments
from ringlight.fabric.steps import BoolArray, IntArray, Step
from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.testbed.simulation.networks import (
    IdealNetwork,
    Places,
    Routes,
    capacity_of,
)


class CircuitNetwork:
    """Directed circuits of ``circuit_bps`` bits per second each; those of a pair are one link.

    ``counts`` [gpus, gpus]: from each GPU (row) to each other. ``forward``: transfers between others go over
    GPUs that forward, on a way with the fewest hops (:func:`sip_ml.wholes.hops.ways`); without it they
    are an error. Raises ValueError for a rate that is not above 0.
    """

    def __init__(
        self,
        gpus: Sequence[str],
        counts: IntArray,
        circuit_bps: float,
        *,
        forward: bool = False,
        hop_s: float = 0.0,
        latency_s: float = 0.0,
        share: float = 1.0,
    ) -> None:
        self._places, self._counts, self._forward = Places(gpus), counts, forward
        self._hop_s, self._latency_s = hop_s, latency_s
        self._ends = np.argwhere(counts)
        self._link = np.full(counts.shape, -1, dtype=np.int32)
        self._link[tuple(self._ends.T)] = np.arange(len(self._ends))
        rate = capacity_of("a circuit", circuit_bps, share)
        self.capacity_bps: FloatArray = rate * counts[tuple(self._ends.T)].astype(
            np.float64
        )

    @property
    def gpus(self) -> tuple[str, ...]:
        return self._places.gpus

    @property
    def pairs(self) -> IntArray:
        """[links, 2]: numbers of the GPUs that each link leads from and to."""
        return self._ends

    def key(self, link: int) -> Hashable:
        a, b = self._ends[link].tolist()
        return ("circuits", self._places.gpus[a], self._places.gpus[b])

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        a, b = self._places.ends(ranks, step)
        links = self._link[a, b].astype(np.int64)
        if (links >= 0).all():
            return Routes(
                np.arange(len(a) + 1), links, np.full(len(a), self._latency_s)
            )
        if not self._forward:
            raise _no_way(ranks, step, number, links < 0, "have no circuit")
        far, next_to = self._graph
        apart = far[a, b] < 0
        if apart.any():
            raise _no_way(ranks, step, number, apart, "have no way over circuits")
        way = hops.ways(far, next_to, a, b).T
        passed = self._link[way[:, :-1], way[:, 1:]][way[:, 1:] >= 0].astype(np.int64)
        length = far[a, b].astype(np.int64)
        offsets = np.concatenate(([0], np.cumsum(length)))
        between = (length - 1).astype(np.float64)
        return Routes(offsets, passed, self._latency_s + self._hop_s * between)

    @cached_property
    def _graph(self) -> tuple[hops.HopArray, hops.HopArray]:
        return hops.hops_between(self._counts), hops.neighbours(self._counts)


def _no_way(
    ranks: Sequence[str], step: Step, number: int, wrong: BoolArray, why: str
) -> ValueError:
    transfer = int(wrong.argmax())
    s, d = int(step.sources[transfer]), int(step.destinations[transfer])
    return ValueError(
        f"step {number}: ranks {s} and {d} ({ranks[s]}, {ranks[d]}) {why}"
    )


class TorusNetwork:
    """A torus whose links have ``link_bps`` bits per second each way (:mod:`extensions.sip_ml.wholes.torus`).

    Raises ValueError for GPUs that do not fill it, and for a rate that is not above 0.
    """

    def __init__(
        self,
        gpus: Sequence[str],
        shape: torus.Torus,
        link_bps: float,
        *,
        hop_s: float = 0.0,
        latency_s: float = 0.0,
        share: float = 1.0,
    ) -> None:
        if len(gpus) != shape.gpus:
            raise ValueError(
                f"a torus of {' × '.join(map(str, shape.sides))} has no {len(gpus)} GPUs"
            )
        self._places, self._torus, self._hop_s, self._latency_s = (
            Places(gpus),
            shape,
            hop_s,
            latency_s,
        )
        rate = capacity_of("of the torus", link_bps, share)
        self.capacity_bps: FloatArray = np.full(shape.gpus * shape.ports, rate)

    def key(self, link: int) -> Hashable:
        gpu, port = divmod(link, self._torus.ports)
        names = self._places.gpus
        return (names[gpu], names[self._torus.neighbour(gpu, port)])

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        offsets, gpus, ports = torus.ways(self._torus, *self._places.ends(ranks, step))
        latency_s = self._latency_s + self._hop_s * (np.diff(offsets) - 1)
        return Routes(offsets, gpus * self._torus.ports + ports, latency_s)


class RelayedGridNetwork:
    """A grid of WSSs (row-major) for workloads: between nodes without a common line over one in between.

    Each node has a port of ``port_bps`` bits per second to its row's WSS and one to its column's; with
    ``shared`` these are one transceiver's. A transfer between lines goes along the sender's row, then along
    the receiver's column; the node in between forwards while it receives. Assumptions: light for all pairs of
    a line (as many wavelengths as ports), and flows that share a port do so fairly, where agents would let
    one after the other through. Raises ValueError for GPUs that do not fill it, and for a rate that is not
    above 0.
    """

    def __init__(
        self,
        gpus: Sequence[str],
        columns: int,
        port_bps: float,
        *,
        shared: bool = False,
        hop_s: float = 0.0,
        latency_s: float = 0.0,
        share: float = 1.0,
    ) -> None:
        if columns < 1 or len(gpus) % columns:
            raise ValueError(
                f"{len(gpus)} GPUs do not fill a grid of {columns} columns"
            )
        self._places, self._columns, self._hop_s, self._latency_s = (
            Places(gpus),
            columns,
            hop_s,
            latency_s,
        )
        # A node's row port, out and in, then its column port.
        self._per_node = 2 if shared else 4
        self.capacity_bps: FloatArray = np.full(
            self._per_node * len(gpus), capacity_of("of a port", port_bps, share)
        )

    def key(self, link: int) -> Hashable:
        node, port = divmod(link, self._per_node)
        line = "line" if self._per_node == 2 else "column" if port > 1 else "row"
        return ("to" if port % 2 else "from", self._places.gpus[node], line)

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        a, b = self._places.ends(ranks, step)
        corner = a - a % self._columns + b % self._columns
        first, column = self._per_node * np.stack((a, corner, b)), self._per_node - 2
        links = np.stack(
            (first[0], first[1] + 1, first[1] + column, first[2] + column + 1), axis=1
        )
        taken = np.repeat(np.stack((a != corner, corner != b), axis=1), 2, axis=1)
        length = taken.sum(axis=1)
        latency_s = self._latency_s + self._hop_s * (length // 2 - 1)
        return Routes(np.concatenate(([0], np.cumsum(length))), links[taken], latency_s)


class WavelengthRingNetwork:
    """A ring of fibres, one in each direction, of ``fibre_bps`` bits per second each; all transfers go the
    short way round, and of those half round the ones of even GPUs clockwise.

    Transfers that pass a fibre share its light fairly: a fluid, which is exact for a tree's full groups,
    whose transfers have a wavelength each and all wavelengths are in use, and no slower than any wavelengths
    that could be given to others. Raises ValueError for a rate that is not above 0.
    """

    def __init__(
        self,
        gpus: Sequence[str],
        fibre_bps: float,
        *,
        latency_s: float = 0.0,
        share: float = 1.0,
    ) -> None:
        self._places, self._latency_s = Places(gpus), latency_s
        self.capacity_bps: FloatArray = np.full(
            2 * len(gpus), capacity_of("of a fibre", fibre_bps, share)
        )

    def key(self, link: int) -> Hashable:
        segment, counter = divmod(link, 2)
        names = self._places.gpus
        ends = (names[segment], names[(segment + 1) % len(names)])
        return (ends[counter], ends[1 - counter])

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        a, b = self._places.ends(ranks, step)
        nodes = len(self._places.gpus)
        ahead = (b - a) % nodes
        clockwise = (2 * ahead < nodes) | ((2 * ahead == nodes) & (a % 2 == 0))
        return Routes(
            *segments(a, b, clockwise, nodes), np.full(len(a), self._latency_s)
        )


def rotor_network(
    gpus: Sequence[str],
    rotor: Rotor,
    *,
    indirect: bool = False,
    latency_s: float = 0.0,
    share: float = 1.0,
) -> CircuitNetwork | IdealNetwork:
    """Return a rotor fabric as a fluid over many cycles: straight, or over one GPU in between
    (:class:`Rotor`).

    Every transfer first waits for half a cycle, which is the mean until a light comes by. That is right for
    transfers that one light can take; larger ones end half a cycle late in the mean, and one and a half at
    most. Straight, each pair has a link of its own. Indirectly, each GPU has one link out and one in, with a
    rate that suits any traffic pattern. These links count a byte once, though it passes two lights. Raises
    ValueError if the number of GPUs is not the rotor's.
    """
    if len(gpus) != rotor.gpus:
        raise ValueError(
            f"a rotor fabric of {rotor.gpus} GPUs, and there are {len(gpus)}"
        )
    wait_s = latency_s + rotor.cycle_s / 2
    if indirect:
        return IdealNetwork(gpus, rotor.indirect_bps, latency_s=wait_s, share=share)
    pairs = 1 - np.eye(rotor.gpus, dtype=np.int64)
    return CircuitNetwork(gpus, pairs, rotor.direct_bps, latency_s=wait_s, share=share)
