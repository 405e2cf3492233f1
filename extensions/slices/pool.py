"""Assignment of cubes to slices, for the controller and for the replay of a trace. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ringlight.extensions.slices.cubes import Cubes
from ringlight.extensions.slices.shapes import Shape, shape_of, squarest

if TYPE_CHECKING:
    from ringlight.controller.jobs.reservation import Holder


class Pool:
    """Cubes of a fabric, each free, out of service, or of one slice."""

    def __init__(self, cubes: Cubes) -> None:
        self.cubes = cubes
        self.holders: dict[str, str] = {}
        self.out: set[str] = set()

    @property
    def free(self) -> list[str]:
        """Return the cubes that are in service and of no slice, in order."""
        return [
            cube
            for cube in self.cubes.names
            if cube not in self.holders and cube not in self.out
        ]

    def cubes_of(self, name: str) -> list[str]:
        """Return the cubes of a slice."""
        return [cube for cube, holder in self.holders.items() if holder == name]

    def shape(self, topology: str, *, twisted: bool = False) -> Shape:
        """Return the shape of a topology. Raises ValueError for one that these cubes cannot have."""
        return shape_of(self.cubes.sides, topology, twisted=twisted)

    def shape_for(self, gpus: int, sides: Sequence[int] = ()) -> Shape:
        """Return the least shape of whole cubes for a box of these sides, or for so many GPUs the squarest."""
        own = self.cubes.sides
        if len(sides) != len(own):
            return squarest(own, -(-gpus // self.cubes.size))
        pairs = zip(sorted(sides), own, strict=True)
        return Shape(own, tuple(-(-side // each) * each for side, each in pairs))

    def fits(self, shape: Shape) -> bool:
        """Return whether enough cubes are free: light joins any of them."""
        return shape.cubes <= len(self.free)

    def chosen(self, shape: Shape) -> tuple[str, ...]:
        """Return the first free cubes for a slice. Raises ValueError if too few are free."""
        free = self.free
        if shape.cubes > len(free):
            raise ValueError(
                f"topology {shape} needs {_partitions(shape.cubes)}; {len(free)} are free"
            )
        return tuple(free[: shape.cubes])

    def take(self, name: str, shape: Shape, cubes: Sequence[str]) -> None:
        """Give a slice its cubes. Raises ValueError if it cannot have them; nothing is changed then."""
        if len(cubes) != shape.cubes:
            raise ValueError(
                f"topology {shape} needs {_partitions(shape.cubes)}, and {len(cubes)} are given"
            )
        for index, cube in enumerate(cubes):
            self._check_free(cube)
            if cube in cubes[:index]:
                raise ValueError(f"partition {cube} is given twice")
        self.holders |= dict.fromkeys(cubes, name)

    def give(self, name: str) -> None:
        """Take all cubes from a slice."""
        self.holders = {
            cube: holder for cube, holder in self.holders.items() if holder != name
        }

    def swap(self, name: str, lost: str, spare: str | None = None) -> str:
        """Put a spare cube in the place of a slice's cube, by default the first free one. Return the spare.

        Raises ValueError if the slice does not have the cube, or no spare is free.
        """
        if self.holders.get(lost) != name:
            raise ValueError(f"slice {name} has no partition {lost}")
        if spare is None:
            if not (free := self.free):
                raise ValueError("no partition is free")
            spare = free[0]
        self._check_free(spare)
        del self.holders[lost]
        self.holders[spare] = name
        return spare

    def swapped(
        self,
        name: str,
        cubes: Sequence[str],
        lost: str,
        spare: str | None,
        used: Mapping[str, str],
    ) -> tuple[str, ...]:
        """Put a spare cube in the place of one of the ``cubes`` of a slice. Return the cubes after that.

        ``used``: as of :func:`used_cubes`. Raises ValueError as :meth:`swap`, and if either cube is in use.
        """
        if spare is None:
            self.out |= used.keys()
        if lost in cubes:
            check_idle((lost,), used)
        spare = self.swap(name, lost, spare)
        check_idle((spare,), used)
        return tuple(spare if cube == lost else cube for cube in cubes)

    def _check_free(self, cube: str) -> None:
        if cube not in self.cubes.names:
            raise ValueError(
                f"there is no partition {cube}; they are {self.cubes.names[0]} to {self.cubes.names[-1]}"
            )
        if cube in self.holders:
            raise ValueError(f"partition {cube} is used by slice {self.holders[cube]}")
        if cube in self.out:
            raise ValueError(f"partition {cube} is out of service")


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


def used_cubes(cubes: Cubes, users: Mapping[str, Holder]) -> dict[str, str]:
    """Return the cubes in use, each with a text that names a GPU and its user.

    ``users``: holder of each taken GPU.
    """
    return {
        cubes.cube_of(gpu): f"GPU {gpu} is used by {user}"
        for gpu, user in users.items()
    }


def check_idle(cubes: Sequence[str], used: Mapping[str, str]) -> None:
    """Raise ValueError for the first cube in use. ``used``: as of :func:`used_cubes`."""
    for cube in cubes:
        if cube in used:
            raise ValueError(f"partition {cube}: {used[cube]}")
