"""Which wavelength reaches whom in a two-dimensional grid of wavelength-selective switches (ODDL).

Every row and every column of the grid is one WSS. Its wavelengths form a Latin square: position i reaches
position j on wavelength (j - i) mod W. So for each wavelength the switch is a partial matching, and from
one position every other is reached on a wavelength of its own, whatever the others do. That takes at least
as many wavelengths as ports; wavelength 0 would lead back to the sender and is not used.

With row-major ranks on a grid whose sides are powers of two, rank i and rank i XOR 2^k share a row or a
column: every step of halving-doubling is one optical hop (Li et al., OFC 2024, use this layout).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fabric.collectives import Schedule
from fabric.crossconnect import CrossConnect
from fabric.topology import Fabric, Grid

#: O-NIC port that is plugged into the row's and into the column's WSS.
ROW_PORT, COLUMN_PORT = 0, 1


@dataclass(frozen=True, order=True)
class Reach:
    """How a node reaches another in one hop: by its O-NIC port ``port`` on channel ``wavelength``."""

    port: int
    wavelength: int


def switch_count(nodes: int) -> tuple[int, int]:
    """(number of WSSs, ports of each) of a square grid: 2 sqrt(N) switches of sqrt(N) ports.

    Raises ValueError when ``nodes`` is not a square of at least 2 × 2.
    """
    side = math.isqrt(max(nodes, 0))
    if side < 2 or side * side != nodes:
        raise ValueError(f"{nodes} nodes do not make a square grid of at least 2 × 2")
    return 2 * side, side


def position(grid: Grid, node: str) -> tuple[int, int]:
    """(row, column) of a node. Raises ValueError naming it when the grid does not have it."""
    try:
        return divmod(grid.nodes.index(node), grid.columns)
    except ValueError:
        raise ValueError(f"grid {grid.name} has no node {node}") from None


def reach(grid: Grid, a: str, b: str) -> Reach | None:
    """The port and wavelength by which ``a`` reaches ``b``; None when they share neither row nor column.

    Also None for ``a == b``. Raises ValueError naming a node that the grid does not have.
    """
    (row_a, column_a), (row_b, column_b) = position(grid, a), position(grid, b)
    if a == b:
        return None
    if row_a == row_b:
        return Reach(ROW_PORT, (column_b - column_a) % grid.wavelengths)
    if column_a == column_b:
        return Reach(COLUMN_PORT, (row_b - row_a) % grid.wavelengths)
    return None


def wavelength_map(grid: Grid, nodes: Sequence[str]) -> dict[str, dict[str, Reach]]:
    """For each of a job's nodes the peers that it reaches in one hop, and how; only pairs inside the job.

    Raises ValueError naming a node that the grid does not have or that is named twice.
    """
    rows: dict[int, dict[int, str]] = {}
    columns: dict[int, dict[int, str]] = {}
    at = {node: index for index, node in enumerate(grid.nodes)}
    for node in nodes:
        if node not in at:
            raise ValueError(f"grid {grid.name} has no node {node}")
        row, column = divmod(at[node], grid.columns)
        if column in rows.setdefault(row, {}):
            raise ValueError(f"node {node} is named twice")
        rows[row][column] = node
        columns.setdefault(column, {})[row] = node
    found: dict[str, dict[str, Reach]] = {node: {} for node in nodes}
    for port, lines in ((ROW_PORT, rows), (COLUMN_PORT, columns)):
        for line in lines.values():
            for i, a in line.items():
                for j, b in line.items():
                    if i != j:
                        found[a][b] = Reach(port, (j - i) % grid.wavelengths)
    return found


def cross_connects(grid: Grid, fabric: Fabric, nodes: Sequence[str]) -> dict[str, frozenset[CrossConnect]]:
    """The cross-connects that a job's nodes need, by WSS; nothing leads out of the job or into it.

    Only switches that carry something have an entry. Raises ValueError as :func:`wavelength_map`.
    """
    wanted: dict[str, set[CrossConnect]] = {}
    at = {node: divmod(index, grid.columns) for index, node in enumerate(grid.nodes)}
    for a, peers in wavelength_map(grid, nodes).items():
        row, column = at[a]
        for b, way in peers.items():
            row_b, column_b = at[b]
            if way.port == ROW_PORT:
                name, near, far = grid.row_switches[row], column + 1, column_b + 1
            else:
                name, near, far = grid.column_switches[column], row + 1, row_b + 1
            switch = fabric.optical_switches[name]
            wanted.setdefault(name, set()).add(
                CrossConnect(switch.ingress(near), switch.egress(far), way.wavelength)
            )
    return {name: frozenset(group) for name, group in wanted.items()}


def choose_nodes(grid: Grid, free: Collection[str], count: int) -> tuple[str, ...]:
    """A rectangular sub-grid of ``count`` free nodes, row-major.

    The squarest rectangle is preferred, then the topmost and leftmost. Where ``count`` is a power of two
    both sides are. Raises ValueError naming what does not fit.
    """
    if count < 1:
        raise ValueError(f"a job needs at least one node, not {count}")
    wanted = frozenset(free)
    usable = [node in wanted for node in grid.nodes]
    if sum(usable) < count:
        raise ValueError(f"grid {grid.name} has {sum(usable)} free nodes of {len(usable)}, not {count}")
    sides = [
        (height, count // height)
        for height in range(1, grid.rows + 1)
        if count % height == 0 and count // height <= grid.columns
    ]
    if not sides:
        raise ValueError(
            f"{count} nodes do not make a rectangle in grid {grid.name} of {grid.rows} × {grid.columns}"
        )
    for height, width in sorted(sides, key=_preference):
        for top in range(grid.rows - height + 1):
            for left in range(grid.columns - width + 1):
                cells = [
                    (top + row) * grid.columns + left + column
                    for row in range(height)
                    for column in range(width)
                ]
                if all(usable[cell] for cell in cells):
                    return tuple(grid.nodes[cell] for cell in cells)
    shapes = ", ".join(f"{height} × {width}" for height, width in sorted(sides, key=_preference))
    raise ValueError(f"grid {grid.name}: no rectangle of {count} free nodes ({shapes}) is left")


def _preference(sides: tuple[int, int]) -> tuple[int, int]:
    height, width = sides
    return abs(height - width), height


def check_schedule(grid: Grid, ranks: Sequence[str], schedule: Schedule) -> None:
    """Every transfer of the schedule is one optical hop between ``ranks`` (node names by rank).

    Raises ValueError naming the ranks that share neither row nor column, or a world size that differs.
    """
    if len(ranks) != schedule.world_size:
        raise ValueError(f"{len(ranks)} nodes for a schedule of {schedule.world_size} ranks")
    ways: Mapping[str, Mapping[str, Reach]] = wavelength_map(grid, ranks)
    for transfer in schedule.transfers:
        a, b = ranks[transfer.source], ranks[transfer.destination]
        if b not in ways[a]:
            raise ValueError(
                f"ranks {transfer.source} and {transfer.destination} ({a}, {b}) share neither row nor column"
            )
