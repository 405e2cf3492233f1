"""A grid of WSSs (ODDL): light is asked for, flow by flow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ringlight.extensions.oddl.grid import Grid, lines
from ringlight.extensions.oddl.wavelengths import (
    LightUse,
    choose_nodes,
    light_use,
    ways_for,
)
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.parts import Port
from ringlight.fabric.planes.base import Lighting, Plane, PlaneFit, PlaneTimes
from ringlight.fabric.planes.streams import LinkTestStream
from ringlight.fabric.steps import Steps
from ringlight.fabric.topology import Fabric

#: Taken for the handshake of a flow between two O-NICs that have nothing else to do, seconds.
HANDSHAKE_S = 1e-3


class GridTimes(PlaneTimes):
    """Each step waits for its light."""

    def set_ups(self, ranks: Sequence[str], collective: str) -> int:
        return steps_named(collective, len(ranks)).steps

    def wait_s(
        self, time: float, control_s: float, tuning_s: Mapping[str, float]
    ) -> float:
        return HANDSHAKE_S + 2 * control_s + max(tuning_s.values(), default=0.0)


@dataclass(frozen=True)
class GridFit(PlaneFit):
    """Judges what fits a grid."""

    plane: GridPlane

    untold: ClassVar[str] = (
        "a GPU has light for one flow at a time, once it has asked its O-NIC's agent, which only our workers "
        "do"
    )

    def check(self, ranks: Sequence[str], steps: Steps) -> None:
        if ranks:
            ways_for(self.plane.grid, ranks, steps)

    def place(self, count: int, free: Collection[str]) -> tuple[str, ...] | None:
        return choose_nodes(self.plane.grid, free, count)

    def streams(self) -> Iterator[list[LinkTestStream]]:
        """Yield streams of each O-NIC port to the next node of its row or column, all lit all the time."""
        fabric, grid = self.plane.fabric, self.plane.grid
        count = grid.rows * grid.columns
        next_in = {
            "row": [
                i - i % grid.columns + (i + 1) % grid.columns for i in range(count)
            ],
            "column": [(i + grid.columns) % count for i in range(count)],
        }
        for port, name in enumerate(lines(grid)):
            batch = []
            for i, j in enumerate(next_in[name]):
                ends = a, b = Port(grid.nodes[i], port), Port(grid.nodes[j], port)
                rate_bps = min(fabric.link_at[end].rate_bps for end in ends)
                link = f"O-NIC ports {a}, {b}", f"{a.node} to {b.node}"
                batch.append(LinkTestStream(a.node, b.node, (link,), rate_bps))
            yield batch


@dataclass(frozen=True)
class GridPlane(Plane):
    """Nodes in rows and columns, each line with one WSS."""

    grid: Grid

    kind: ClassVar[str] = "grid"
    light: ClassVar[Lighting] = "asked"

    @property
    def times(self) -> GridTimes:
        return GridTimes(self)

    @property
    def fit(self) -> GridFit:
        return GridFit(self)

    def use(self, ranks: Sequence[str], collective: str) -> LightUse:
        steps = steps_named(collective, len(ranks))
        return light_use(ways_for(self.grid, ranks, steps), ranks, steps)


def grids(fabric: Fabric) -> list[GridPlane]:
    return [
        GridPlane(fabric, grid.name, grid.nodes, grid)
        for grid in fabric.parts.get("grids", {}).values()
    ]
