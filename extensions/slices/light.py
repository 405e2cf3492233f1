"""Plan the circuits of a slice against what is lit. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ringlight.extensions.slices.cubes import Circuit, Cubes
from ringlight.extensions.slices.shapes import Shape
from ringlight.fabric.parts import Port

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Moves:
    """Circuits to add and to remove, each by the names of its ends."""

    add: Pairs
    remove: Pairs

    def __bool__(self) -> bool:
        return bool(self.add or self.remove)


def moves(
    cubes: Cubes,
    present: Iterable[Circuit],
    shape: Shape,
    joined: Collection[str],
    leaving: Collection[str] = (),
) -> Moves:
    """Return what makes a slice of the cubes ``joined``, in order, and leaves those that are ``leaving`` dark.

    ``present``: lit duplex circuits as pairs of ports. Circuits between other cubes are not touched. With no cubes
    joined, the slice ends.
    """
    requested = _by_ends(cubes.circuits(shape, list(joined)) if joined else ())
    circuits = _by_ends(present)
    mine = {*joined, *leaving}
    add = [pair for ends, pair in requested.items() if ends not in circuits]
    remove = [
        pair
        for ends, pair in circuits.items()
        if ends not in requested and any(_cube(cubes, port) in mine for port in ends)
    ]
    return Moves([_names(pair) for pair in add], [_names(pair) for pair in remove])


def _by_ends(circuits: Iterable[Circuit]) -> dict[frozenset[Port], Circuit]:
    return {frozenset(pair): pair for pair in circuits}


def _cube(cubes: Cubes, port: Port) -> str:
    """Return the cube of a router's port; router r3 is GPU g3's."""
    return cubes.cube_of(port.node)


def _names(pair: Circuit) -> tuple[str, str]:
    return str(pair[0]), str(pair[1])
