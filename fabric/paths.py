"""The path of a packet from one GPU to another: one of the shortest, chosen by one function.

The rules in the packet switches (``fabric.routing``), the simulator and the cost model all ask
:class:`Router`, so they cannot differ. Links are equal in cost: a path is as long as it has links. Where a
switch has several next links on shortest paths (cables side by side, several spines), the fabric's ``paths``
says how one is chosen for a pair of GPUs; every flow of a pair takes the same path.

``hash`` (the default): rendezvous hashing of the pair's addresses and the link's port (Thaler and
Ravishankar, 1998). It needs no memory and no knowledge of jobs. A pair keeps its path for as long as every
link of it stands and none shorter comes: a cut link moves the pairs that used it and no other. With few flows
it spreads them unevenly, as hashing does in real switches.

``even``: dealing. GPUs are numbered switch by switch. Towards GPU d the first switch with m next nodes to
choose from takes number d mod m, the next with n of them (d // m) mod n, and so on; of c cables to that
node, the one at what is then left, mod c. Consecutive GPUs so take different links. In a fat tree that is
D-mod-K routing, in which no two flows of a shift (rank i sends to i + s) share a link when ranks are
numbered in order (Zahavi, Journal of Parallel and Distributed Computing, 2012). It is as even as whole
flows can be for such traffic; other traffic may still collide. A link or a circuit that comes or goes may
move any pair. Splitting one flow over several links is no choice here: TCP takes the reordering for loss,
and Open vSwitch cannot do it.

The two directions of a pair choose by themselves and may take different paths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ringlight.fabric.parts import Port
from ringlight.fabric.topology import (
    CrossConnects,
    Edge,
    ElectricalGraph,
    Fabric,
    electrical_graph,
)


@dataclass(frozen=True, order=True)
class Hop:
    """One direction of a link: frames leave by port ``out`` and arrive at port ``into``.

    ``rate_bps``: bits per second of the slowest fibre on the way.
    """

    out: Port
    into: Port
    rate_bps: float

    @cached_property
    def text(self) -> bytes:
        """The port by which frames leave; written out once, as thousands of pairs choose among the same."""
        return str(self.out).encode()


def hashed(source_ip: str, destination_ip: str, options: Sequence[Hop]) -> Hop:
    """Return the option with the highest hash of both addresses and its port (rendezvous hashing)."""

    pair = f"{source_ip} {destination_ip} ".encode()
    weights = [
        hashlib.blake2b(pair + hop.text, digest_size=8).digest() for hop in options
    ]
    most = max(weights)
    if weights.count(most) == 1:
        return options[weights.index(most)]
    same = (hop for weight, hop in zip(weights, options, strict=True) if weight == most)
    return max(same, key=lambda hop: hop.out)


def dealt(number: int, options: Sequence[Hop]) -> tuple[int, Hop]:
    """Return what is left of a GPU's number, and its option: by next node, then by cable."""
    nodes = sorted({hop.into.node for hop in options})
    left, index = divmod(number, len(nodes))
    cables = sorted(hop for hop in options if hop.into.node == nodes[index])
    return left, cables[left % len(cables)]


class NoPathError(ValueError):
    """Packets do not get from one GPU to another."""


class Router:
    """Paths over ``graph``, an electrical graph of ``fabric``; what is worked out is kept."""

    def __init__(self, fabric: Fabric, graph: ElectricalGraph) -> None:
        self._fabric = fabric
        self._first: dict[str, Hop] = {}
        self._between: dict[str, list[Hop]] = {
            name: [] for name in fabric.packet_switches
        }
        self._last: dict[str, list[Hop]] = {name: [] for name in fabric.gpus}
        self._before: dict[str, set[str]] = {
            name: set() for name in fabric.packet_switches
        }
        for edge in graph.edges:
            tail, head = edge.out.node, edge.into.node
            hop = Hop(edge.out, edge.into, edge.rate_bps)
            if tail in fabric.gpus:
                self._first.setdefault(tail, hop)
            elif head in fabric.gpus:
                self._last[head].append(hop)
            else:
                self._between[tail].append(hop)
                self._before[head].add(tail)
        # The switches from which the last link leads to each GPU.
        self._doors = {
            gpu: tuple(sorted({h.out.node for h in last}))
            for gpu, last in self._last.items()
        }
        self._distances: dict[tuple[str, ...], dict[str, int]] = {}
        self._options: dict[tuple[str, tuple[str, ...]], tuple[Hop, ...]] = {}
        self._ways: dict[str, dict[str, int]] = {}

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The GPUs' numbers for dealing: by the place of their switch in the fabric, then by their own."""
        place = {name: index for index, name in enumerate(self._fabric.packet_switches)}
        dark = len(place)
        switch_place = {
            gpu: min((place[h.out.node] for h in last), default=dark)
            for gpu, last in self._last.items()
        }
        return {
            gpu: number
            for number, gpu in enumerate(
                sorted(switch_place, key=lambda gpu: switch_place[gpu])
            )
        }

    def distances(self, destination: str) -> Mapping[str, int]:
        """Return the number of links to a GPU from every packet switch that reaches it."""
        doors = self._doors[destination]
        if doors not in self._distances:
            links = dict.fromkeys(doors, 1)
            frontier = list(doors)
            while frontier:
                reached = []
                for node in frontier:
                    for before in self._before[node] - links.keys():
                        links[before] = links[node] + 1
                        reached.append(before)
                frontier = reached
            self._distances[doors] = links
        return self._distances[doors]

    def options(self, switch: str, destination: str) -> tuple[Hop, ...]:
        """Return the next links on shortest paths from a packet switch to a GPU, by next node, then port.

        Return () if the GPU cannot be reached.
        """
        doors = self._doors[destination]
        if switch in doors:
            return tuple(
                sorted(hop for hop in self._last[destination] if hop.out.node == switch)
            )
        if (switch, doors) not in self._options:
            links = self.distances(destination)
            nearer = links.get(switch, 0) - 1
            hops = [
                hop
                for hop in self._between.get(switch, ())
                if links.get(hop.into.node) == nearer
            ]
            hops.sort(key=lambda hop: (hop.into.node, hop.out))
            self._options[switch, doors] = tuple(hops)
        return self._options[switch, doors]

    def path(self, source: str, destination: str) -> tuple[Hop, ...]:
        """Return the links from one GPU to another.

        Raises NoPathError naming both when there is no way, and ValueError for a GPU that does not exist.
        """
        fabric = self._fabric
        for gpu in (source, destination):
            if gpu not in fabric.gpus:
                raise ValueError(f"there is no GPU {gpu}")
        hop = self._first.get(source)
        if hop is None:
            raise self._no_path(source, destination)
        way = [hop]
        number = self.numbers[destination] if fabric.paths == "even" else 0
        while hop.into.node != destination:
            options = self.options(hop.into.node, destination)
            if not options:
                raise self._no_path(source, destination)
            if len(options) == 1:
                hop = options[0]
            elif fabric.paths == "even":
                number, hop = dealt(number, options)
            else:
                hop = hashed(
                    fabric.gpus[source].ip, fabric.gpus[destination].ip, options
                )
            way.append(hop)
        return tuple(way)

    def ways(self, destination: str) -> Mapping[str, int]:
        """Return the number of shortest paths to a GPU by node.

        It is 1 from the GPU itself. Every packet switch that reaches the GPU has an entry.
        """
        if destination not in self._ways:
            ways = {destination: 1}
            for switch in self.distances(destination):  # the nearest come first
                ways[switch] = sum(
                    ways[hop.into.node] for hop in self.options(switch, destination)
                )
            self._ways[destination] = ways
        return self._ways[destination]

    def count(self, source: str, destination: str) -> int:
        """Return how many shortest paths lead from one GPU to another; 0 when there is no way."""
        hop = self._first.get(source)
        return self.ways(destination).get(hop.into.node, 0) if hop else 0

    def _no_path(self, source: str, destination: str) -> NoPathError:
        dark = [
            gpu
            for gpu in (source, destination)
            if gpu not in self._first and not self._last[gpu]
        ]
        why = f": {dark[0]} is dark" if dark else ""
        return NoPathError(f"no path from {source} to {destination}{why}")


class PacketView:
    """A fabric with its light set: what packets see, and their paths, each worked out once when asked for.

    ``cross_connects``: by optical switch. Raises ValueError as :func:`electrical_graph`, when asked.
    """

    def __init__(self, fabric: Fabric, cross_connects: CrossConnects) -> None:
        self.fabric, self.cross_connects = fabric, cross_connects

    @cached_property
    def graph(self) -> ElectricalGraph:
        return electrical_graph(self.fabric, self.cross_connects)

    @cached_property
    def router(self) -> Router:
        return Router(self.fabric, self.graph)


def most_paths(fabric: Fabric, graph: ElectricalGraph) -> int:
    """Return how many shortest paths there are between two GPUs, at most."""
    router = Router(fabric, graph)
    arriving: dict[str, dict[str, None]] = {}
    for edge in graph.edges:
        arriving.setdefault(edge.into.node, {})[edge.out.node] = None
    # GPUs on one switch have the same ways to all others.
    one_each = {
        tuple(arriving[gpu]): gpu for gpu in fabric.gpus if gpu in arriving
    }.values()
    return max(
        (router.count(a, b) for a in one_each for b in one_each if a != b), default=1
    )


def without_ports(
    fabric: Fabric, graph: ElectricalGraph, down: Collection[Port]
) -> ElectricalGraph:
    """Return the graph without the links between packet switches that end at a port of ``down``."""

    def stays(edge: Edge) -> bool:
        ends = edge.out, edge.into
        between = all(port.node in fabric.packet_switches for port in ends)
        return not (between and any(port in down for port in ends))

    return replace(graph, edges=tuple(filter(stays, graph.edges)))
