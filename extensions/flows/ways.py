"""The links that a flow's packets pass, hop by hop, and the share of its packets on each."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from ringlight.extensions.flows.transport import Transport
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import Router
from ringlight.fabric.topology import (
    Edge,
    Fabric,
    circuit_cross_connects,
    electrical_graph,
)


@dataclass(frozen=True)
class Way:
    """The hops of a flow: of each hop its links with the share of packets, which together are 1.

    ``next_links``: by link, the links that packets may take next, where these are not the whole second or the
    whole last hop.
    """

    hops: tuple[dict[int, float], ...]
    next_links: dict[int, tuple[int, ...]]

    @cached_property
    def shares(self) -> dict[int, float]:
        """Return the share of packets by link."""
        return dict(itertools.chain.from_iterable(hop.items() for hop in self.hops))

    def after(self, link: int) -> tuple[int, ...]:
        """Return the links that a packet may take after a link; () after the last hop."""
        if (known := self.next_links.get(link)) is not None:
            return known
        if link in self.hops[-1]:
            return ()
        return self._second if link in self.hops[0] else self._last

    @cached_property
    def _second(self) -> tuple[int, ...]:
        return tuple(self.hops[1])

    @cached_property
    def _last(self) -> tuple[int, ...]:
        return tuple(self.hops[-1])


class DirectedLinks(Protocol):
    """Directed links, numbered from 0, and the ways of pairs. Rates in bytes per second, propagation in seconds."""

    bytes_per_s: list[float]
    delay_s: list[float]

    def way(self, source: str, destination: str) -> Way:
        """Return the way of a pair."""
        ...


#: Hops between two switches, and by link the links that packets may take next.
Middle = tuple[list[dict[int, float]], dict[int, tuple[int, ...]]]
#: Links from a switch, and the nodes to which they lead.
Next = tuple[tuple[int, ...], tuple[str, ...]]


class Ways:
    """Directed links of a fabric, numbered from 0, and the ways of its pairs of GPUs.

    ``bytes_per_s`` and ``delay_s``: rate and propagation of each link.
    """

    def __init__(self, fabric: Fabric, transport: Transport) -> None:
        self._fabric, self._transport = fabric, transport
        graph = electrical_graph(
            fabric, circuit_cross_connects(fabric, fabric.circuits)
        )
        self._router = Router(fabric, graph)
        self._number: dict[Port, int] = {}
        self.bytes_per_s: list[float] = []
        self.delay_s: list[float] = []
        #: The links of GPUs that have one, to their switch and from there.
        self._out: dict[str, Edge | None] = {}
        self._into: dict[str, Edge | None] = {}
        for edge in graph.edges:
            for gpu, links in (
                (edge.out.node, self._out),
                (edge.into.node, self._into),
            ):
                links[gpu] = None if gpu in links else edge
            self._number[edge.out] = len(self.bytes_per_s)
            self.bytes_per_s.append(edge.rate_bps / 8)
            passed = {
                fabric.link_at[port] for port in edge.path if port in fabric.link_at
            }
            of_gpu = edge.out.node in fabric.gpus or edge.into.node in fabric.gpus
            propagation_s = (
                transport.nic_delay_s if of_gpu else transport.switch_delay_s
            )
            self.delay_s.append(propagation_s + sum(link.delay_s for link in passed))
        self._ways: dict[tuple[str, str], Way] = {}
        self._between: dict[tuple[str, str], Middle] = {}
        self._options: dict[tuple[str, str], Next] = {}

    def way(self, source: str, destination: str) -> Way:
        """Return the way from one GPU to another. Raises NoPathError."""
        pair = source, destination
        if pair not in self._ways:
            self._ways[pair] = (
                self._sprayed(*pair) if self._transport.spray else self._alone(*pair)
            )
        return self._ways[pair]

    def _alone(self, source: str, destination: str) -> Way:
        links = [
            self._number[hop.out] for hop in self._router.path(source, destination)
        ]
        following: dict[int, tuple[int, ...]] = {
            a: (b,) for a, b in itertools.pairwise(links)
        }
        return Way(tuple({link: 1.0} for link in links), following)

    def _sprayed(self, source: str, destination: str) -> Way:
        """Return all shortest paths; each switch divides packets evenly over its next links."""
        out, into = self._out.get(source), self._into.get(destination)
        if out and into and (out.into.node, into.out.node) in self._between:
            ends, ports = (out.into.node, into.out.node), (out.out, into.out)
        else:
            path = self._router.path(source, destination)
            ends, ports = (
                (path[0].into.node, path[-1].out.node),
                (path[0].out, path[-1].out),
            )
        first, last = self._number[ports[0]], self._number[ports[1]]
        if ends not in self._between:
            self._between[ends] = self._middle(ends, destination)
        hops, following = self._between[ends]
        return Way(({first: 1.0}, *hops, {last: 1.0}), following)

    def _middle(self, ends: tuple[str, str], destination: str) -> Middle:
        """Return the hops between two switches, and the next links by link."""
        hops: list[dict[int, float]] = []
        following: dict[int, tuple[int, ...]] = {}
        frontier = {ends[0]: 1.0}
        while ends[1] not in frontier:
            hop: dict[int, float] = {}
            further: dict[str, float] = {}
            for switch, share in frontier.items():
                links, nodes = self._next(switch, ends[1], destination)
                for link, node in zip(links, nodes, strict=True):
                    hop[link] = part = share / len(links)
                    further[node] = further.get(node, 0.0) + part
                    if node != ends[1]:
                        following[link], _ = self._next(node, ends[1], destination)
            hops.append(hop)
            frontier = further
        return hops, following

    def _next(self, switch: str, end: str, destination: str) -> Next:
        """Return the links on shortest paths from a switch to another, that of ``destination``."""
        if (switch, end) not in self._options:
            hops = self._router.options(switch, destination)
            links = tuple(self._number[hop.out] for hop in hops)
            self._options[switch, end] = links, tuple(hop.into.node for hop in hops)
        return self._options[switch, end]
