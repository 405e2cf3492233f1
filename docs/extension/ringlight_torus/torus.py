"""Cubes of a torus: which ports are joined by cables, which by light. Pure functions of a few figures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ringlight.fabric.parts import Port

#: Name of the optical switch.
SWITCH = "ocs"


@dataclass(frozen=True)
class Torus:
    """``cubes`` cubes of GPUs g0, g1, …, cube by cube, the last side of ``cube`` first.

    GPU g3 hangs at port 1 of router r3. Side d of the torus has the router's ports 2d + 2, forwards, and
    2d + 3, backwards. Cables close all sides of a cube but the first, whose ends lead to the optical switch.
    ``tori``: the cubes that light joins along that side, each torus in its order and closed.
    """

    cube: tuple[int, ...]
    cubes: int
    tori: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Return the number of GPUs in a cube."""
        return math.prod(self.cube)

    @property
    def face(self) -> int:
        """Return the number of GPUs on a face that leads to the optical switch."""
        return self.size // self.cube[0]

    @property
    def ports(self) -> int:
        """Return the number of ports of a router."""
        return 1 + 2 * len(self.cube)

    def cables(self) -> Iterator[tuple[Port, Port]]:
        """Yield the cables between routers of a cube."""
        for cube, (side, length) in itertools.product(range(self.cubes), enumerate(self.cube)):
            stride = math.prod(self.cube[side + 1 :])
            for place in range(self.size):
                at = place // stride % length
                ends_here = at == length - 1
                if length == 1 or (ends_here and side == 0):
                    continue
                after = place + stride * (1 - length if ends_here else 1)
                yield self._forwards(cube, place, side), self._backwards(cube, after, side)

    def fibres(self) -> Iterator[tuple[Port, Port]]:
        """Yield the fibres from the faces of all cubes to the optical switch."""
        ports = itertools.count(1)
        for cube, place in itertools.product(range(self.cubes), range(self.face)):
            for end in (self._last(cube, place), self._first(cube, place)):
                yield end, Port(SWITCH, next(ports))

    def circuits(self) -> Iterator[tuple[Port, Port]]:
        """Yield the circuits that join cubes: a cube's last face to the first one of the next."""
        for cubes in self.tori:
            if len(cubes) * self.cube[0] > 1:
                for cube, after in zip(cubes, (*cubes[1:], cubes[0]), strict=True):
                    for place in range(self.face):
                        yield self._last(cube, place), self._first(after, place)

    def _forwards(self, cube: int, place: int, side: int) -> Port:
        return Port(f"r{cube * self.size + place}", 2 * side + 2)

    def _backwards(self, cube: int, place: int, side: int) -> Port:
        return Port(f"r{cube * self.size + place}", 2 * side + 3)

    def _last(self, cube: int, place: int) -> Port:
        return self._forwards(cube, self.size - self.face + place, 0)

    def _first(self, cube: int, place: int) -> Port:
        return self._backwards(cube, place, 0)
