"""The links that a flow's packets pass, hop by hop, and the share of its packets on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ringlight.extensions.flows.transport import Transport
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import Hop, NoPathError, Router
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
        for edge in graph.edges:
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

    def way(self, source: str, destination: str) -> Way:
        """Return the way from one GPU to another. Raises NoPathError."""
        pair = source, destination
        if pair not in self._ways:
            self._ways[pair] = self._sprayed(*pair) if self._transport.spray else self._alone(*pair)
        return self._ways[pair]

    def _alone(self, source: str, destination: str) -> Way:
        links = [self._number[hop.out] for hop in self._router.path(source, destination)]
        following = {a: (b,) for a, b in zip(links, links[1:], strict=False)}
        return Way(tuple({link: 1.0} for link in links), following)

    def _sprayed(self, source: str, destination: str) -> Way:
        """Return all shortest paths; each switch divides packets evenly over its next links."""
        first = self._router.path(source, destination)[0]
        hops: list[dict[int, float]] = []
        following: dict[int, tuple[int, ...]] = {}
        frontier: dict[Hop, float] = {first: 1.0}
        while True:
            hops.append({self._number[hop.out]: share for hop, share in frontier.items()})
            if any(hop.into.node == destination for hop in frontier):
                return Way(tuple(hops), following)
            further: dict[Hop, float] = {}
            for hop, share in frontier.items():
                options = self._options(hop.into.node, destination)
                following[self._number[hop.out]] = tuple(
                    self._number[option.out] for option in options
                )
                for option in options:
                    further[option] = further.get(option, 0.0) + share / len(options)
            frontier = further

    def _options(self, switch: str, destination: str) -> Sequence[Hop]:
        options = self._router.options(switch, destination)
        if not options:
            raise NoPathError(f"no path from {switch} to {destination}")
        return options
