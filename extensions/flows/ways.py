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
    Fabric,
    circuit_cross_connects,
    electrical_graph,
)


@dataclass(frozen=True)
class Way:
    """The hops of a flow: of each hop its links with the share of packets, which together are 1.

    ``next_links``: by link, the links that packets may take next.
    """

    hops: tuple[dict[int, float], ...]
    next_links: dict[int, tuple[int, ...]]

    @cached_property
    def shares(self) -> dict[int, float]:
        """Return the share of packets by link."""
        return {link: share for hop in self.hops for link, share in hop.items()}


class DirectedLinks(Protocol):
    """Directed links, numbered from 0, and the ways of pairs. Rates in bytes per second, propagation in seconds."""

    bytes_per_s: list[float]
    delay_s: list[float]

    def way(self, source: str, destination: str) -> Way:
        """Return the way of a pair."""
        ...


#: Hops between two switches, and by link the links that packets may take next.
Middle = tuple[list[dict[int, float]], dict[int, tuple[int, ...]]]


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
        self._out: dict[str, Hop | None] = {}
        self._into: dict[str, Hop | None] = {}
        for edge in graph.edges:
            for gpu, links in ((edge.out.node, self._out), (edge.into.node, self._into)):
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
        if not out or not into or (out.into.node, into.out.node) not in self._between:
            out, *_, into = self._router.path(source, destination)
        first, last = self._number[out.out], self._number[into.out]
        ends = out.into.node, into.out.node
        if ends not in self._between:
            self._between[ends] = self._middle(ends, destination)
        hops, following = self._between[ends]
        begin = {first: tuple(hops[0]) if hops else (last,)}
        end = dict.fromkeys(hops[-1], (last,)) if hops else {}
        return Way(({first: 1.0}, *hops, {last: 1.0}), following | begin | end)

    def _middle(self, ends: tuple[str, str], destination: str) -> Middle:
        """Return the hops between two switches, and the next links by link."""
        hops: list[dict[int, float]] = []
        following: dict[int, tuple[int, ...]] = {}
        frontier = {ends[0]: 1.0}
        while ends[1] not in frontier:
            hop: dict[int, float] = {}
            further: dict[str, float] = {}
            for switch, share in frontier.items():
                options = self._router.options(switch, destination)
                for option in options:
                    link, part = self._number[option.out], share / len(options)
                    hop[link] = part
                    further[option.into.node] = (
                        further.get(option.into.node, 0.0) + part
                    )
                    after = self._router.options(option.into.node, destination)
                    following[link] = tuple(self._number[next_.out] for next_ in after)
            hops.append(hop)
            frontier = further
        return hops, following
