"""Cubes of GPUs: which ports cables join, and which circuits make a slice of them. Pure functions.

As in TPU v4 (Jouppi et al., ISCA 2023): links inside a cube are electrical, and every link at a face is a fibre.
Each dimension and each position on a face has an optical circuit switch, at which both faces of every cube end.
So any cubes can be joined, wherever they stand. Each GPU has a router, a packet switch, which forwards packets of
others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ringlight.extensions.slices.shapes import Shape, Sides
from ringlight.fabric.parts import Port

Circuit = tuple[Port, Port]
DIMENSIONS = "xyz"


@dataclass(frozen=True)
class Cubes:
    """``count`` cubes c0, c1, … of GPUs g0, g1, …, cube by cube, the last of ``sides`` fastest.

    GPU g3 hangs at port 1 of router r3. Dimension d has the router's ports 2d + 2, forwards, and 2d + 3, backwards.
    Optical switch y5 has position 5 of the faces of the second dimension: of cube c, port 2c + 1 is the first face
    and port 2c + 2 the last one.
    """

    sides: Sides
    count: int

    @property
    def size(self) -> int:
        """Return the number of GPUs of a cube."""
        return math.prod(self.sides)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Return the names of all GPUs, cube by cube."""
        return tuple(f"g{number}" for number in range(self.count * self.size))

    @property
    def router_ports(self) -> int:
        """Return the number of ports of a router."""
        return 1 + 2 * len(self.sides)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the cubes, which are a slice's ``partitionIds``."""
        return tuple(f"c{number}" for number in range(self.count))

    def gpus_of(self, cube: str) -> tuple[str, ...]:
        """Return the GPUs of a cube, the last side fastest."""
        first = self.names.index(cube) * self.size
        return tuple(f"g{number}" for number in range(first, first + self.size))

    def cube_of(self, gpu: str) -> str:
        """Return the cube of a GPU."""
        return self.names[int(gpu[1:]) // self.size]

    def faces(self, dimension: int) -> Iterator[tuple[Sides, Sides]]:
        """Yield the GPU on the first and that on the last face at each position of a dimension."""
        length = self.sides[dimension]
        for place in itertools.product(*map(range, self.sides)):
            if not place[dimension]:
                yield place, (*place[:dimension], length - 1, *place[dimension + 1 :])

    @cached_property
    def switches(self) -> Mapping[str, int]:
        """Ports of each optical switch, by its name."""
        return {
            f"{DIMENSIONS[dimension]}{position}": 2 * self.count
            for dimension in range(len(self.sides))
            for position, _ in enumerate(self.faces(dimension))
        }

    def cables(self) -> Iterator[Circuit]:
        """Yield the ends of the electrical links inside all cubes."""
        for cube, dimension in itertools.product(
            range(self.count), range(len(self.sides))
        ):
            for place in itertools.product(*map(range, self.sides)):
                if place[dimension] + 1 < self.sides[dimension]:
                    step = (n + (d == dimension) for d, n in enumerate(place))
                    yield (
                        self._forwards(cube, place, dimension),
                        self._backwards(cube, tuple(step), dimension),
                    )

    def fibres(self) -> Iterator[Circuit]:
        """Yield the ends of the fibres from the faces of all cubes to the optical switches."""
        for cube, dimension in itertools.product(
            range(self.count), range(len(self.sides))
        ):
            for position, (first, last) in enumerate(self.faces(dimension)):
                switch = f"{DIMENSIONS[dimension]}{position}"
                yield (
                    self._backwards(cube, first, dimension),
                    Port(switch, 2 * cube + 1),
                )
                yield (
                    self._forwards(cube, last, dimension),
                    Port(switch, 2 * cube + 2),
                )

    def circuits(self, shape: Shape, cubes: Sequence[str]) -> Iterator[Circuit]:
        """Yield the circuits of a slice: from the last face of each cube to the first one of the next.

        ``cubes``: in the order of the shape's places. A side of one GPU has no links.
        """
        numbers = [self.names.index(cube) for cube in cubes]
        for place, dimension in itertools.product(
            shape.places(), range(len(self.sides))
        ):
            if shape.sides[dimension] == 1:
                continue
            cube = numbers[shape.number(place)]
            after = numbers[shape.number(shape.after(place, dimension))]
            for first, last in self.faces(dimension):
                yield (
                    self._forwards(cube, last, dimension),
                    self._backwards(after, first, dimension),
                )

    def ring(self, shape: Shape, cubes: Sequence[str]) -> tuple[str, ...]:
        """Return the GPUs of a slice in a ring, in which each is a neighbour of the next.

        The last is a neighbour of the first if a side is even; of a twisted torus, its long sides are.
        """
        order = sorted(
            range(len(shape.sides)),
            key=lambda d: (shape.sides[d] % 2, -shape.sides[d]),
        )
        walk = _snake([shape.sides[d] for d in order])
        turned = [order.index(d) for d in range(len(order))]
        return tuple(
            self._gpu(shape, cubes, tuple(spot[d] for d in turned)) for spot in walk
        )

    def _gpu(self, shape: Shape, cubes: Sequence[str], spot: Sides) -> str:
        """Return the GPU at a position of a slice."""
        place = tuple(a // side for a, side in zip(spot, self.sides, strict=True))
        inside = tuple(a % side for a, side in zip(spot, self.sides, strict=True))
        cube = self.names.index(cubes[shape.number(place)])
        return f"g{self._number(cube, inside)}"

    def _number(self, cube: int, place: Sides) -> int:
        number = 0
        for n, side in zip(place, self.sides, strict=True):
            number = number * side + n
        return cube * self.size + number

    def _forwards(self, cube: int, place: Sides, dimension: int) -> Port:
        return Port(f"r{self._number(cube, place)}", 2 * dimension + 2)

    def _backwards(self, cube: int, place: Sides, dimension: int) -> Port:
        return Port(f"r{self._number(cube, place)}", 2 * dimension + 3)


def _snake(sides: Sequence[int]) -> list[Sides]:
    """Return all positions of a box, each beside the one before."""
    walk: list[Sides] = [()]
    for side in reversed(sides):
        walk = [
            (layer, *rest)
            for layer in range(side)
            for rest in (reversed(walk) if layer % 2 else walk)
        ]
    return walk
