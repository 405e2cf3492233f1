"""Rings of wavelengths as the simulator sees them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from ringlight.extensions.wrht.ring import WdmRing
from ringlight.extensions.wrht.wdm import check_power, check_wavelengths, segments
from ringlight.fabric.parts import Port
from ringlight.fabric.steps import Step, frozen
from ringlight.fabric.topology import Fabric
from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.testbed.simulation.networks import (
    NetworkForCollectives,
    Places,
    Routes,
    capacity_of,
)


class RingNetwork(NetworkForCollectives):
    """Lightpaths on a ring of wavelengths; a link is one wavelength of one fibre of one segment.

    Wavelengths of a step are those of its ranks at their places. ``segment_s``: seconds that light takes for
    a segment. Raises ValueError naming a node or segment without link or capacity.
    """

    name = "a ring of wavelengths"

    def __init__(
        self,
        fabric: Fabric,
        ring: WdmRing,
        *,
        segment_s: float = 0.0,
        latency_s: float = 0.0,
        share: float = 1.0,
    ) -> None:
        self.ring, self._fabric, self._places = ring, fabric, Places(ring.nodes)
        self._segment_s, self._latency_s = segment_s, latency_s
        rates = []
        for switch in ring.switches:
            # The fibre to the next node: port 2 of each node's WSS.
            link = fabric.link_at.get(Port(switch, 2))
            if link is None:
                raise ValueError(f"ring {ring.name}: no fibre leads on from {switch}")
            rates.append(capacity_of(f"{link.a} to {link.b}", link.rate_bps, share))
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
            if len(ranks) != nodes:
                raise ValueError(
                    f"ring {self.ring.name}: {len(ranks)} ranks, but it has {nodes} nodes"
                )
            sources, destinations = self._places.ends(ranks, step)
            step = replace(
                step, sources=frozen(sources), destinations=frozen(destinations)
            )
        check_wavelengths(step, nodes, self.ring.wavelengths, number)
        check_power(self._fabric, self.ring, step, number)
        assert step.clockwise is not None
        assert step.wavelengths is not None
        offsets, passed = segments(
            step.sources, step.destinations, step.clockwise, nodes
        )
        length = np.diff(offsets)
        links = passed * self.ring.wavelengths + np.repeat(step.wavelengths, length)
        return Routes(offsets, links, self._latency_s + self._segment_s * length)
