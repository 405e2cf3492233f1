"""Plug together a grid of wavelength-selective switches."""

from __future__ import annotations

from dataclasses import dataclass

from ringlight.fabric.parts import (
    Link,
    Onic,
    OpticalSwitch,
    Plugged,
    Port,
    Wss,
    servers_of_one,
)


@dataclass(frozen=True)
class Grid:
    """Nodes in rows and columns, each with one port on its row's WSS and one on its column's.

    ``nodes``: GPU names, row-major. Node (r, c) has port 0 on faceplate c + 1 of ``row_switches[r]`` and
    port 1 on faceplate r + 1 of ``column_switches[c]``. A grid of one row has no column switches, one of one
    column no row switches; its nodes have port 0 only. ``wavelengths``: channels of every WSS.
    """

    name: str
    rows: int
    columns: int
    nodes: tuple[str, ...]
    row_switches: tuple[str, ...]
    column_switches: tuple[str, ...]
    wavelengths: int


def make_grid(
    name: str, rows: int, columns: int, wavelengths: int | None = None
) -> Grid:
    """Return a grid: nodes <name>0… row by row, row switches <name>-r0…, column switches <name>-c0…

    If ``wavelengths`` is not given, there are as many as the longer side.
    """
    return Grid(
        name,
        rows,
        columns,
        tuple(f"{name}{index}" for index in range(rows * columns)),
        tuple(f"{name}-r{row}" for row in range(rows) if columns > 1),
        tuple(f"{name}-c{column}" for column in range(columns) if rows > 1),
        wavelengths or max(rows, columns),
    )


def plugged_grid(
    grid: Grid,
    model: str,
    rate_bps: float,
    queue_s: float,
    tuning_s: float,
    wss: Wss,
    first: int = 0,
) -> Plugged:
    """Return the parts of a grid with GPUs of a model.

    ``first``: how many GPUs the fabric has before them.
    """
    switches = [
        OpticalSwitch(
            name,
            size,
            wss.driver,
            wss.profile,
            grid.wavelengths,
            wss.loss_db,
            wss.dark_s,
        )
        for names, size in (
            (grid.row_switches, grid.columns),
            (grid.column_switches, grid.rows),
        )
        for name in names
    ]
    links = [
        Link(Port(node, port), end, rate_bps, queue_s)
        for node in grid.nodes
        for port, end in enumerate(sockets(grid, node))
    ]
    onics = [Onic(node, len(lines(grid)), tuning_s) for node in grid.nodes]
    return Plugged(
        servers_of_one(grid.name, grid.nodes, model, first), switches, onics, links
    )


def position(grid: Grid, node: str) -> tuple[int, int]:
    """Return the (row, column) of a node. Raises ValueError naming it when the grid does not have it."""
    try:
        return divmod(grid.nodes.index(node), grid.columns)
    except ValueError:
        raise ValueError(f"grid {grid.name} has no node {node}") from None


def sockets(grid: Grid, node: str) -> tuple[Port, ...]:
    """Return the WSS faceplate of each port of a node's O-NIC: in its row's WSS, in its column's.

    Port 0 is first. A grid of one row or one column has only one of them. Raises ValueError naming a node
    that the grid does not have.
    """
    row, column = position(grid, node)
    in_row = [Port(name, column + 1) for name in grid.row_switches[row : row + 1]]
    in_column = [
        Port(name, row + 1) for name in grid.column_switches[column : column + 1]
    ]
    return (*in_row, *in_column)


def lines(grid: Grid) -> tuple[str, ...]:
    """Return the line that each O-NIC port is plugged into, port 0 first.

    These are ``row`` and ``column``, or only one of them.
    """
    there = (("row", grid.row_switches), ("column", grid.column_switches))
    return tuple(name for name, switches in there if switches)
