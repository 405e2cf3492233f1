"""Fabrics as the simulator sees them: directed links with a capacity, and the links of each transfer.

The engine knows nothing else of a fabric. One class for each way in which a fabric finds its paths: packets
along the controller's rules, O-NICs in a grid of WSSs, lightpaths on a ring of wavelengths.

Every network may be given ``share``, the part of a link's rate that payload gets (headers take the rest),
and ``latency_s``, seconds that pass before the first byte of a transfer counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from fabric.grid import lines
from fabric.schedules import Step
from fabric.topology import (
    CrossConnects,
    Fabric,
    Gpu,
    Grid,
    Link,
    PacketSwitch,
    Port,
    WdmRing,
    circuit_cross_connects,
    electrical_graph,
)
from fabric.wdm import check_wavelengths, segments
from testbed.simulation.maxmin import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Routes:
    """The links of each transfer of a step: transfer k passes ``links[offsets[k]:offsets[k + 1]]``.

    ``latency_s`` [transfers]: seconds before the first byte of each counts.
    """

    offsets: IntArray
    links: IntArray
    latency_s: FloatArray


class Network(Protocol):
    """Directed links, numbered from 0, with ``capacity_bps`` in bits per second of payload."""

    @property
    def capacity_bps(self) -> FloatArray: ...

    def key(self, link: int) -> Hashable:
        """What a link is called; links of two networks with the same key are the same fibre."""
        ...

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        """The way of every transfer of the step; ``ranks``: GPU of each rank, ``number``: the step's.

        Raises ValueError naming what has no path or does not fit.
        """
        ...


def _positive(name: str, capacity_bps: float) -> float:
    if not capacity_bps > 0:
        raise ValueError(f"link {name}: its capacity is {capacity_bps:g} bit/s; it must be above 0")
    return capacity_bps


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise ValueError(f"share is {share:g}; it must be above 0 and at most 1")


class PacketNetwork:
    """Packets over GPUs' links, packet switches and the light of optical circuit switches.

    They take the paths of :func:`fabric.routing.forwarding_rules`. ``cross_connects`` are by default those
    of the fabric's own circuits. Raises ValueError naming a link without capacity.
    """

    def __init__(
        self,
        fabric: Fabric,
        cross_connects: CrossConnects | None = None,
        *,
        latency_s: float = 0.0,
        share: float = 1.0,
    ) -> None:
        _check_share(share)
        if cross_connects is None:
            cross_connects = circuit_cross_connects(fabric, fabric.circuits)
        self._latency_s = latency_s
        graph = electrical_graph(fabric, cross_connects)
        self._keys: list[tuple[Port, Port]] = []
        capacity = []
        self._link: dict[tuple[str, str], int] = {}
        for tail, head, data in graph.edges(data=True):
            key = (Port(tail, data["out_port"]), Port(head, data["in_port"]))
            capacity.append(_positive(f"{key[0]} to {key[1]}", data["rate_bps"] * share))
            self._link[tail, head] = len(self._keys)
            self._keys.append(key)
        self.capacity_bps: FloatArray = np.array(capacity, dtype=np.float64)
        # A GPU has one way out (the first, as fabric.routing has it) and is entered from some nodes.
        self._out = {gpu: next(iter(graph.successors(gpu)), None) for gpu in fabric.gpus}
        self._into = {gpu: sorted(graph.predecessors(gpu)) for gpu in fabric.gpus}
        self._before = {
            switch: sorted(n for n in graph.predecessors(switch) if n in fabric.packet_switches)
            for switch in fabric.packet_switches
        }
        self._towards: dict[tuple[str, ...], dict[str, str]] = {}
        self._ways: dict[tuple[str | None, tuple[str, ...]], list[int] | None] = {}

    def key(self, link: int) -> Hashable:
        return self._keys[link]

    def _next_hops(self, doors: tuple[str, ...]) -> dict[str, str]:
        """Next hop of every packet switch towards the nearest of ``doors``, the last switches of a way."""
        if doors not in self._towards:
            hops: dict[str, str] = {}
            seen = set(doors)
            frontier = list(doors)
            while frontier:
                reached = []
                for node in sorted(frontier):
                    for before in self._before[node]:
                        if before not in seen:
                            seen.add(before)
                            hops[before] = node
                            reached.append(before)
                frontier = reached
            self._towards[doors] = hops
        return self._towards[doors]

    def _between(self, start: str | None, doors: tuple[str, ...]) -> list[int] | None:
        """Links between the first switch of a way and one of its last ones; None when there is no way."""
        if (start, doors) not in self._ways:
            hops = self._next_hops(doors)
            way: list[int] | None = []
            node = start
            while way is not None and node not in doors:
                after = None if node is None else hops.get(node)
                if node is None or after is None:
                    way = None
                else:
                    way.append(self._link[node, after])
                    node = after
            self._ways[start, doors] = way
        return self._ways[start, doors]

    def path(self, source: str, destination: str) -> list[int]:
        """The links from one GPU to another. Raises ValueError naming both when there is no way."""
        for gpu in (source, destination):
            if gpu not in self._out:
                raise ValueError(f"there is no GPU {gpu}")
        first = self._out[source]
        if first == destination:
            return [self._link[source, destination]]
        doors = tuple(n for n in self._into[destination] if n in self._before)
        way = self._between(first, doors) if first in self._before else None
        if first is None or way is None:
            dark = [gpu for gpu in (source, destination) if self._out[gpu] is None and not self._into[gpu]]
            why = f": {dark[0]} is dark" if dark else ""
            raise ValueError(f"no path from {source} to {destination}{why}")
        nodes = [first, *(self._keys[link][1].node for link in way)]
        return [self._link[source, first], *way, self._link[nodes[-1], destination]]

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        ways = [
            self.path(ranks[source], ranks[destination])
            for source, destination in zip(step.sources.tolist(), step.destinations.tolist(), strict=True)
        ]
        return Routes(*_listed(ways), np.full(len(step), self._latency_s))


def _listed(ways: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    offsets = np.cumsum([0, *(len(way) for way in ways)], dtype=np.int64)
    return offsets, np.fromiter(itertools.chain.from_iterable(ways), np.int64, int(offsets[-1]))


class GridNetwork:
    """O-NICs in a grid of WSSs: a transfer takes the sender's and the receiver's port of their row or column.

    Nothing is shared inside a WSS, because on each wavelength it is a matching. That a transmitter has one
    colour and a receiver one flow at a time is the agents' work (``testbed.simulation.onics``); without
    them flows would share the ports. Raises ValueError naming a node without link or capacity.
    """

    def __init__(self, fabric: Fabric, grid: Grid, *, latency_s: float = 0.0, share: float = 1.0) -> None:
        _check_share(share)
        self.grid = grid
        self._latency_s = latency_s
        self._at = {node: index for index, node in enumerate(grid.nodes)}
        nodes = len(grid.nodes)
        self._ports = len(lines(grid))
        self.capacity_bps: FloatArray = np.empty(2 * self._ports * nodes)
        for index, node in enumerate(grid.nodes):
            for port in range(self._ports):
                link = fabric.link_at.get(Port(node, port))
                if link is None:
                    raise ValueError(f"grid {grid.name}: nothing is plugged into {node}:{port}")
                rate = _positive(f"{node}:{port}", link.rate_bps * share)
                self.capacity_bps[[self._ports * i + port for i in (index, nodes + index)]] = rate

    def key(self, link: int) -> Hashable:
        nodes = len(self.grid.nodes)
        index, port = divmod(link, self._ports)
        return ("from" if index < nodes else "to", Port(self.grid.nodes[index % nodes], port))

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        for rank, node in enumerate(ranks):
            if node not in self._at:
                raise ValueError(f"rank {rank}: grid {self.grid.name} has no node {node}")
        at = np.array([self._at[node] for node in ranks], dtype=np.int64)
        a, b = at[step.sources], at[step.destinations]
        columns = self.grid.columns
        row, column = a // columns == b // columns, a % columns == b % columns
        stray = np.flatnonzero(~(row ^ column))
        if len(stray):
            s, d = int(step.sources[stray[0]]), int(step.destinations[stray[0]])
            raise ValueError(
                f"step {number}: ranks {s} and {d} ({ranks[s]}, {ranks[d]}) share neither row nor column"
            )
        port = np.where(row, 0, self._ports - 1)
        links = np.empty(2 * len(a), dtype=np.int64)
        links[0::2] = self._ports * a + port
        links[1::2] = self._ports * (len(self.grid.nodes) + b) + port
        return Routes(2 * np.arange(len(a) + 1), links, np.full(len(a), self._latency_s))


class RingNetwork:
    """Lightpaths on a ring of wavelengths; a link is one wavelength of one fibre of one segment.

    Rank i is the ring's node i. ``segment_s``: seconds that light takes for a segment. Raises ValueError
    naming a node or segment without link or capacity.
    """

    def __init__(
        self, fabric: Fabric, ring: WdmRing, *,
        segment_s: float = 0.0, latency_s: float = 0.0, share: float = 1.0,
    ) -> None:  # fmt: skip
        _check_share(share)
        self.ring = ring
        self._segment_s, self._latency_s = segment_s, latency_s
        rates = []
        for switch in ring.switches:
            # The fibre to the next node: port 2 of each node's WSS.
            link = fabric.link_at.get(Port(switch, 2))
            if link is None:
                raise ValueError(f"ring {ring.name}: no fibre leads on from {switch}")
            rates.append(_positive(f"{link.a} to {link.b}", link.rate_bps * share))
        self.capacity_bps: FloatArray = np.repeat(np.array(rates), 2 * ring.wavelengths)

    def key(self, link: int) -> Hashable:
        fibre, wavelength = divmod(link, self.ring.wavelengths)
        segment, counter = divmod(fibre, 2)
        nodes = self.ring.nodes
        ends = (nodes[segment], nodes[(segment + 1) % len(nodes)])
        return (ends[counter], ends[1 - counter], wavelength)

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        nodes = len(self.ring.nodes)
        if tuple(ranks) != self.ring.nodes:
            wrong = [r for r, (a, b) in enumerate(zip(ranks, self.ring.nodes, strict=False)) if a != b]
            detail = f"rank {wrong[0]} is {ranks[wrong[0]]}" if wrong else f"there are {len(ranks)} ranks"
            raise ValueError(f"ring {self.ring.name}: rank i must be node i of {nodes}, but {detail}")
        check_wavelengths(step, nodes, self.ring.wavelengths, number)
        assert step.clockwise is not None
        assert step.wavelengths is not None
        offsets, passed = segments(step.sources, step.destinations, step.clockwise, nodes)
        length = np.diff(offsets)
        links = passed * self.ring.wavelengths + np.repeat(step.wavelengths, length)
        return Routes(offsets, links, self._latency_s + self._segment_s * length)


def network_of(
    fabric: Fabric,
    ranks: Iterable[str],
    *,
    cross_connects: CrossConnects | None = None,
    latency_s: float = 0.0,
    share: float = 1.0,
) -> Network:
    """The network that joins some GPUs: their grid where they are in one, else the packets' paths."""
    wanted = set(ranks)
    for grid in fabric.grids.values():
        if wanted <= set(grid.nodes):
            return GridNetwork(fabric, grid, latency_s=latency_s, share=share)
    return PacketNetwork(fabric, cross_connects, latency_s=latency_s, share=share)


def without_link(fabric: Fabric, port: Port) -> Fabric:
    """The fabric with one fibre cut. Raises ValueError when nothing is plugged into the port."""
    link = fabric.link_at.get(port)
    if link is None:
        raise ValueError(f"nothing is plugged into {port}")
    left = tuple(other for other in fabric.links if other is not link)
    return replace(fabric, links=left)


def scaled(fabric: Fabric, factor: float) -> Fabric:
    """The fabric with every rate divided by ``factor``, as the emulation runs it (D * S)."""
    links = tuple(replace(link, rate_bps=link.rate_bps / factor) for link in fabric.links)
    return replace(fabric, links=links)


def leaf_spine(
    leaves: int, gpus_per_leaf: int, rate_bps: float, oversubscription: float, *, prefix: str = "g"
) -> Fabric:
    """A two-level tree: every leaf has one trunk to the one spine, of rate
    ``gpus_per_leaf * rate_bps / oversubscription``. GPUs are numbered leaf by leaf.

    Raises ValueError for an oversubscription below 1 or an empty tree.
    """
    if leaves < 1 or gpus_per_leaf < 1:
        raise ValueError(f"a tree of {leaves} leaves with {gpus_per_leaf} GPUs each is empty")
    if not oversubscription >= 1:
        raise ValueError(f"oversubscription is {oversubscription:g}; it must be at least 1")
    gpus = {}
    links = []
    switches: Mapping[str, PacketSwitch] = {
        f"leaf{i}": PacketSwitch(f"leaf{i}", i + 1, gpus_per_leaf + 1) for i in range(leaves)
    } | ({"spine0": PacketSwitch("spine0", leaves + 1, leaves)} if leaves > 1 else {})
    for i in range(leaves * gpus_per_leaf):
        leaf, place = divmod(i, gpus_per_leaf)
        high, low = divmod(i + 1, 250)
        name = f"{prefix}{i}"
        gpus[name] = Gpu(
            name, f"s{i}", "gpu", f"10.82.{high}.{low + 1}", f"02:52:4c:00:{high:02x}:{low + 1:02x}"
        )
        links.append(Link(Port(name, 0), Port(f"leaf{leaf}", place + 1), rate_bps, 0.02))
    trunk = gpus_per_leaf * rate_bps / oversubscription
    if leaves > 1:
        links += [
            Link(Port(f"leaf{i}", gpus_per_leaf + 1), Port("spine0", i + 1), trunk, 0.02)
            for i in range(leaves)
        ]
    return Fabric(gpus, switches, {}, tuple(links))
