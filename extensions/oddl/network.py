"""A grid as the simulator sees it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ringlight.extensions.oddl.grid import Grid, lines
from ringlight.extensions.oddl.wavelengths import check_power
from ringlight.fabric.parts import Port
from ringlight.fabric.steps import Step
from ringlight.fabric.topology import Fabric
from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.testbed.simulation.networks import (
    NetworkForCollectives,
    Routes,
    capacity_of,
)


class GridNetwork(NetworkForCollectives):
    """O-NICs in a grid of WSSs: a transfer takes the sender's and the receiver's port of their row or column.

    Nothing is shared inside a WSS, because on each wavelength it is a matching. That a transmitter has one
    colour and a receiver one flow at a time is the agents' work (:mod:`extensions.oddl.control_units`);
    without them flows would share the ports. Raises ValueError naming a node without link or capacity.
    """

    name = "a grid of O-NICs"

    def __init__(
        self, fabric: Fabric, grid: Grid, *, latency_s: float = 0.0, share: float = 1.0
    ) -> None:
        check_power(fabric, grid)
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
                    raise ValueError(
                        f"grid {grid.name}: nothing is plugged into {node}:{port}"
                    )
                rate = capacity_of(f"{node}:{port}", link.rate_bps, share)
                self.capacity_bps[
                    [self._ports * i + port for i in (index, nodes + index)]
                ] = rate

    def key(self, link: int) -> Hashable:
        nodes = len(self.grid.nodes)
        index, port = divmod(link, self._ports)
        return (
            "from" if index < nodes else "to",
            Port(self.grid.nodes[index % nodes], port),
        )

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        for rank, node in enumerate(ranks):
            if node not in self._at:
                raise ValueError(
                    f"rank {rank}: grid {self.grid.name} has no node {node}"
                )
        places = np.array([self._at[node] for node in ranks], dtype=np.int64)
        a, b = places[step.sources], places[step.destinations]
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
        return Routes(
            2 * np.arange(len(a) + 1), links, np.full(len(a), self._latency_s)
        )
