"""How a grid of wavelength-selective switches is plugged together."""

from __future__ import annotations

from dataclasses import dataclass


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
