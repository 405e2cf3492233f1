"""A fabric: its parts as they are plugged together, and where light comes out.

A :class:`Fabric` is what a person plugged together; it never changes while jobs run. What changes is the
set of cross-connects inside the optical switches (``fabric.crossconnect``). :func:`trace` follows light
from one electrical port through fibres and cross-connects to the electrical port where it comes out, and
:func:`electrical_graph` does so for every port: the graph that packets see.

A wavelength-selective switch (WSS) is an optical switch with ``wavelengths``: where light goes depends on
its colour, which the sender chooses per flow. So it makes no circuit: :func:`trace` ends at its port, and
packets do not see it. What can be reached over it is known to the planes that have one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Literal

from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.light import Optics, received_dbm
from ringlight.fabric.parts import Gpu, Link, Onic, OpticalSwitch, PacketSwitch, Port

#: How one of several shortest paths is chosen.
PathChoice = Literal["hash", "even"]


@dataclass(frozen=True)
class Fabric:
    """Everything that is plugged together. Names are unique over all kinds of node.

    ``circuits`` are the duplex circuits lit when the fabric is first switched on, each a pair of
    electrical ports. ``onics`` are by GPU. ``parts``: what planes need besides, by the key of the fabric file
    that it comes from (``fabric.keys``); a fabric of which all is described by one such key may have GPUs
    and no links. ``paths``: how one of several shortest paths is chosen, see ``fabric.paths``. ``optics``: of
    its transmitters, receivers and fibres. ``devices``: other nodes, each with its kind, and their
    ``cables``, which no packet and no circuit passes.
    """

    gpus: Mapping[str, Gpu]
    packet_switches: Mapping[str, PacketSwitch]
    optical_switches: Mapping[str, OpticalSwitch]
    links: tuple[Link, ...]
    circuits: tuple[tuple[Port, Port], ...] = field(default=())
    onics: Mapping[str, Onic] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)
    paths: PathChoice = "hash"
    optics: Optics = field(default_factory=Optics)
    cables: tuple[Link, ...] = ()
    devices: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def link_at(self) -> dict[Port, Link]:
        """The link plugged into each port that has one."""
        return {port: link for link in self.links for port in (link.a, link.b)}

    def link_between(self, a: str, b: str) -> Link:
        """Return the link between two ports, or between two nodes that one link joins.

        Raises ValueError, in one line that says what there is.
        """
        ends = Port.parse(a), Port.parse(b)
        link = self.link_at.get(ends[0])
        if link is not None and link.other(ends[0]) == ends[1]:
            return link
        if ":" not in a and ":" not in b:
            links = [
                link for link in self.links if {link.a.node, link.b.node} == {a, b}
            ]
            if len(links) == 1:
                return links[0]
            if links:
                listed = ", ".join(f"{link.a} {link.b}" for link in links)
                raise ValueError(
                    f"there are {len(links)} links between {a} and {b}: {listed}; name one by its ports"
                )
            raise ValueError(f"there is no link between {a} and {b}")
        if link is None:
            raise ValueError(f"there is no link at {ends[0]}")
        raise ValueError(
            f"the link at {ends[0]} leads to {link.other(ends[0])}, not to {ends[1]}"
        )

    @cached_property
    def electrical_ports(self) -> tuple[Port, ...]:
        """The ports of packet switches and of GPUs without an O-NIC that have a link, in order."""
        return tuple(
            sorted(
                port
                for port in self.link_at
                if port.node not in self.onics and is_electrical(self, port)
            )
        )

    @cached_property
    def has_link_effects(self) -> bool:
        """Return whether any link does something to frames besides its rate."""
        return any(link.effects for link in self.links)

    @cached_property
    def packet_gpus(self) -> tuple[str, ...]:
        """GPUs without an O-NIC, which send packets."""
        return tuple(gpu for gpu in self.gpus if gpu not in self.onics)

    @cached_property
    def agents(self) -> tuple[str, ...]:
        """GPUs whose O-NIC has tunable lasers, and so an agent, which asks for light."""
        return tuple(
            gpu for gpu, onic in self.onics.items() if onic.transmitters == "tunable"
        )

    @cached_property
    def foreign_switches(self) -> tuple[str, ...]:
        """Packet switches whose tables are not ours to write, in order."""
        return tuple(
            name for name, switch in self.packet_switches.items() if not switch.is_ours
        )

    def gpu_by_ip(self, ip: str) -> Gpu | None:
        return next((gpu for gpu in self.gpus.values() if gpu.ip == ip), None)


def port_name(fabric: Fabric, port: Port) -> str:
    """Return ``"g0"`` for a GPU's NIC port 0, else ``node:number``."""
    return port.node if port.node in fabric.gpus and port.number == 0 else str(port)


#: Cross-connects of every optical switch, by switch name.
CrossConnects = Mapping[str, Iterable[CrossConnect]]


def trace(
    fabric: Fabric, cross_connects: CrossConnects, source: Port
) -> tuple[Port, ...]:
    """Return the ports that light sent at ``source`` passes, ending where it stops.

    The first entry is ``source``. The last is a port of a GPU or packet switch when the light arrives
    somewhere, else the optical port where it goes dark or where its colour decides (a WSS). Raises ValueError
    when the light runs in a loop.
    """
    return tracer(fabric, cross_connects)(source)


def tracer(
    fabric: Fabric, cross_connects: CrossConnects
) -> Callable[[Port], tuple[Port, ...]]:
    """Return :func:`trace` as a function of the source, for many sources of one light."""
    return partial(_trace, fabric, _by_ingress(cross_connects))


def _by_ingress(cross_connects: CrossConnects) -> dict[tuple[str, int], CrossConnect]:
    return {
        (name, xc.ingress): xc for name, group in cross_connects.items() for xc in group
    }


def _trace(
    fabric: Fabric, by_ingress: Mapping[tuple[str, int], CrossConnect], source: Port
) -> tuple[Port, ...]:
    path = [source]
    seen = {source}
    while (link := fabric.link_at.get(path[-1])) is not None:
        arrived = link.other(path[-1])
        path.append(arrived)
        switch = fabric.optical_switches.get(arrived.node)
        if switch is None or switch.wavelengths is not None:
            return tuple(path)
        xc = by_ingress.get((switch.name, switch.ingress(arrived.number)))
        if xc is None:
            return tuple(path)
        out = Port(switch.name, xc.egress - switch.size)
        if out in seen:
            raise ValueError(f"light from {source} runs in a loop through {out}")
        seen.add(out)
        path.append(out)
    return tuple(path)


def path_dbm(fabric: Fabric, path: Sequence[Port]) -> float:
    """Return the power of light (dBm) at the end of a path as :func:`trace` returns it.

    The path passes a switch wherever two consecutive ports belong to one.
    """
    fibres = [fabric.optics.fibre_db for a, b in pairwise(path) if a.node != b.node]
    passed = [
        fabric.optical_switches[a.node].insertion_loss_db
        for a, b in pairwise(path)
        if a.node == b.node
    ]
    return received_dbm(fabric.optics.launch_dbm, [*fibres, *passed])


def is_electrical(fabric: Fabric, port: Port) -> bool:
    """Return whether the port belongs to a GPU or a packet switch."""
    return port.node in fabric.gpus or port.node in fabric.packet_switches


@dataclass(frozen=True)
class Edge:
    """One direction of a connection as packets see it.

    ``rate_bps``: bits per second of the slowest link on the way. ``path``: every port passed, both ends too.
    """

    out: Port
    into: Port
    rate_bps: float
    path: tuple[Port, ...]


@dataclass(frozen=True)
class ElectricalGraph:
    """GPUs and packet switches, and what joins them; edges of one tail are together, and so are those of one
    head among them."""

    gpus: tuple[str, ...]
    packet_switches: tuple[str, ...]
    edges: tuple[Edge, ...]

    @cached_property
    def leaving(self) -> Mapping[str, Sequence[Edge]]:
        """The edges from each node that has any."""
        edges: dict[str, list[Edge]] = {}
        for edge in self.edges:
            edges.setdefault(edge.out.node, []).append(edge)
        return edges

    def heads(self, tail: str) -> list[str]:
        """Return the nodes that a node's edges lead to, each once."""
        return list(
            dict.fromkeys(edge.into.node for edge in self.leaving.get(tail, ()))
        )


def electrical_graph(fabric: Fabric, cross_connects: CrossConnects) -> ElectricalGraph:
    """Return the graph that packets see: GPUs and packet switches, joined where light or copper arrives.

    Light that is too weak for the receiver joins nothing (:func:`path_dbm`). Raises ValueError when light
    runs in a loop.
    """
    gpus, switches = tuple(sorted(fabric.gpus)), tuple(sorted(fabric.packet_switches))
    joined: dict[str, dict[str, list[Edge]]] = {name: {} for name in (*gpus, *switches)}
    path_from = tracer(fabric, cross_connects)
    for port in fabric.electrical_ports:
        path = path_from(port)
        end = path[-1]
        if end == port or not is_electrical(fabric, end):
            continue
        if len(path) > 2 and not fabric.optics.reads(path_dbm(fabric, path)):
            continue
        rate_bps = min(fabric.link_at[p].rate_bps for p in path if p in fabric.link_at)
        joined[port.node].setdefault(end.node, []).append(
            Edge(port, end, rate_bps, path)
        )
    edges = tuple(
        edge
        for heads in joined.values()
        for between in heads.values()
        for edge in between
    )
    return ElectricalGraph(gpus, switches, edges)


def optical_neighbour(fabric: Fabric, port: Port) -> Port | None:
    """Return the faceplate port of the optical circuit switch that a port's fibre is plugged into, if any.

    Return None for an O-NIC, whose light is not of circuits between ports.
    """
    link = fabric.link_at.get(port)
    if link is None or port.node in fabric.onics:
        return None
    other = link.other(port)
    switch = fabric.optical_switches.get(other.node)
    return None if switch is None or switch.wavelengths is not None else other


def channels(fabric: Fabric, port: Port) -> int | None:
    """Return the wavelengths of the optical switch that a port is plugged into.

    Return None if the port is on no such switch, or on one that does not distinguish wavelengths.
    """
    switch = fabric.optical_switches.get(fabric.link_at[port].other(port).node)
    return None if switch is None else switch.wavelengths


def circuit_switches(fabric: Fabric) -> list[str]:
    """Return the optical switches that join ports by circuits: no WSS, and none that is a plane's."""
    switches = fabric.optical_switches.values()
    return [
        switch.name
        for switch in switches
        if switch.wavelengths is None and switch.duplex
    ]


def circuit_cross_connects(
    fabric: Fabric, circuits: Iterable[tuple[Port, Port]]
) -> dict[str, frozenset[CrossConnect]]:
    """Return the cross-connects that light the given duplex circuits, by optical switch.

    Each circuit is a pair of electrical ports on one common optical circuit switch. Every such switch of the
    fabric has an entry, if only an empty one. A WSS makes no circuits and has no entry, nor has a switch
    whose light goes one way. Raises ValueError naming the ports when a circuit cannot be made or two
    circuits want one port.
    """
    groups: dict[str, set[CrossConnect]] = {
        name: set() for name in circuit_switches(fabric)
    }
    holder: dict[Port, str] = {}
    for a, b in circuits:
        near, far = optical_neighbour(fabric, a), optical_neighbour(fabric, b)
        if near is None or far is None or near.node != far.node:
            raise ValueError(f"no optical switch joins {a} and {b}")
        if a == b:
            raise ValueError(f"circuit {a}-{b}: both ends are one port")
        for port in (a, b):
            if port in holder:
                raise ValueError(
                    f"port {port} is used by circuits {holder[port]} and {a}-{b}"
                )
            holder[port] = f"{a}-{b}"
        switch = fabric.optical_switches[near.node]
        for here, there in ((near, far), (far, near)):
            groups[switch.name].add(
                CrossConnect(switch.ingress(here.number), switch.egress(there.number))
            )
    return {name: frozenset(group) for name, group in groups.items()}
