"""Shapes of slices: topologies such as ``4x4x8``, the cubes that they need, and tori with a twist."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

#: A topology as GKE's Slice has it.
TOPOLOGY = r"^[0-9]{1,4}x[0-9]{1,4}(x[0-9]{1,4})?$"

Sides = tuple[int, ...]


def sides_of(topology: str) -> Sides:
    """Return the sides of a topology in GPUs. Raises ValueError for a text that is none."""
    if not re.fullmatch(TOPOLOGY, topology):
        raise ValueError(f"{topology!r} is no topology; write 4x4x8, for example")
    sides = tuple(map(int, topology.split("x")))
    if min(sides) < 1:
        raise ValueError(f"topology {topology}: a side is at least 1")
    if topology_of(sides) != topology:
        raise ValueError(f"topology {topology}: write {topology_of(sides)}")
    return sides


def topology_of(sides: Sides) -> str:
    """Return the text of a topology with these sides."""
    return "x".join(map(str, sides))


@dataclass(frozen=True)
class Shape:
    """Shape of a slice: a box of cubes, joined at their faces and round the ends.

    ``cube``: sides of a cube, in GPUs; ``sides``: those of the slice, which are multiples. ``twisted``: the links
    round the ends of the short sides lead to a row that lies half a long side further.
    """

    cube: Sides
    sides: Sides
    twisted: bool = False

    def __str__(self) -> str:
        return topology_of(self.sides) + (" twisted" if self.twisted else "")

    @property
    def grid(self) -> Sides:
        """Return the number of cubes along each side."""
        return tuple(a // b for a, b in zip(self.sides, self.cube, strict=True))

    @property
    def cubes(self) -> int:
        """Return the number of cubes."""
        return math.prod(self.grid)

    def places(self) -> Iterator[Sides]:
        """Yield the place of each cube in the box, the last dimension fastest."""
        yield from itertools.product(*map(range, self.grid))

    def number(self, place: Sides) -> int:
        """Return the number of a place in the order of :meth:`places`."""
        number = 0
        for n, length in zip(place, self.grid, strict=True):
            number = number * length + n
        return number

    def after(self, place: Sides, dimension: int) -> Sides:
        """Return the place whose first face the last face of ``place`` is joined to, in a dimension."""
        after = list(place)
        after[dimension] = (place[dimension] + 1) % self.grid[dimension]
        if not after[dimension]:
            for other, shift in self._shifts(dimension).items():
                after[other] = (place[other] + shift) % self.grid[other]
        return tuple(after)

    def _shifts(self, dimension: int) -> dict[int, int]:
        """Return how many cubes the links round the ends of a dimension shift, by dimension."""
        short, long = min(self.sides), max(self.sides)
        if not self.twisted or self.sides[dimension] != short:
            return {}
        return {
            other: self.grid[other] // 2
            for other, side in enumerate(self.sides)
            if side == long
        }


def shape_of(cube: Sides, topology: str, *, twisted: bool = False) -> Shape:
    """Return the shape of a slice of cubes. Raises ValueError, in one line, for one that there is not."""
    sides = sides_of(topology)
    where = f"topology {topology}"
    if len(sides) != len(cube):
        raise ValueError(
            f"{where}: it has {len(sides)} sides, and the cubes {topology_of(cube)} have {len(cube)}"
        )
    for side, own in zip(sides, cube, strict=True):
        if side % own:
            raise ValueError(
                f"{where}: {side} is no multiple of {own}, a side of the cubes {topology_of(cube)}"
            )
    if len(set(cube)) == 1 and list(sides) != sorted(sides):
        raise ValueError(
            f"{where}: write the sides in ascending order, {topology_of(tuple(sorted(sides)))}"
        )
    shape = Shape(cube, sides, twisted)
    if twisted:
        _check_twist(shape, where)
    return shape


def _check_twist(shape: Shape, where: str) -> None:
    short, long = min(shape.sides), max(shape.sides)
    if long != 2 * short or not set(shape.sides) <= {short, long}:
        raise ValueError(
            f"{where}: only a torus whose sides are n and 2n can be twisted, such as 4x4x8 or 4x8x8"
        )
    for side, length in zip(shape.sides, shape.grid, strict=True):
        if side == long and length % 2:
            raise ValueError(
                f"{where}: half of its long side is no whole number of cubes {topology_of(shape.cube)}"
            )


def squarest(cube: Sides, cubes: int) -> Shape:
    """Return the shape of so many cubes whose longest side is shortest; its sides ascend if the cube's do."""
    grids = _boxes(cubes, len(cube))
    shapes = (
        Shape(cube, tuple(a * b for a, b in zip(grid, cube, strict=True)))
        for grid in grids
    )
    return min(shapes, key=lambda shape: (max(shape.sides), shape.sides))


def _boxes(cells: int, dimensions: int) -> Iterator[Sides]:
    if dimensions == 1:
        yield (cells,)
        return
    for side in range(1, cells + 1):
        if cells % side == 0:
            for rest in _boxes(cells // side, dimensions - 1):
                yield (side, *rest)
