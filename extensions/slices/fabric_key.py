"""The key ``cubes`` of a fabric file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from ringlight.extensions.slices.cubes import Cubes
from ringlight.extensions.slices.pool import Pool
from ringlight.extensions.slices.shapes import TOPOLOGY, Shape, sides_of
from ringlight.fabric.keys import Assembly, FabricKey
from ringlight.fabric.parts import Link, OpticalSwitch, Plugged, Port
from ringlight.fabric.topology import Fabric
from ringlight.fabric.trees import Tree
from ringlight.fabric.values import Duration, Rate, Strict

if TYPE_CHECKING:
    from ringlight.extensions.cluster.clusters import Slices

#: Name of a slice, as GKE has it.
NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
#: Longest name of a slice.
NAME_LENGTH = 49

SliceName = Annotated[str, Field(pattern=NAME, max_length=NAME_LENGTH)]


class SliceSpec(Strict):
    """A slice that is lit when the fabric is switched on.

    ``cubes``: in the order of their places in the ``topology``, the last side fastest; without them the first
    free ones.
    """

    topology: Annotated[str, Field(pattern=TOPOLOGY)]
    twisted: bool = False
    cubes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Slice:
    """Cubes that are joined into a torus, in the order of the shape's places."""

    shape: Shape
    cubes: tuple[str, ...]


@dataclass(frozen=True)
class CubesPart:
    """Cubes of a fabric, of GPUs of a ``model``, and the slices of the beginning by name."""

    cubes: Cubes
    model: str
    slices: Mapping[str, Slice] = field(default_factory=dict)

    def pool(self) -> Slices:
        """Return all cubes, free, for the jobs of a trace."""
        return Pool(self.cubes)


class CubesSpec(Strict):
    """``count`` cubes of GPUs, each of sides ``cube``, joined by light into slices.

    ``rate``: that of a link of the torus; a GPU sends to its router as fast as the router to all neighbours.
    ``profile``: that of the optical switches.
    """

    cube: Annotated[str, Field(pattern=TOPOLOGY)]
    count: Annotated[int, Field(ge=1, le=144)]
    gpu: Annotated[str, Field(min_length=1)]
    rate: Rate
    queue: Duration = 0.02
    profile: str = "mems"
    slices: dict[SliceName, SliceSpec] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_slices(self) -> CubesSpec:
        self.made()
        return self

    def made(self) -> CubesPart:
        """Return the cubes with their slices. Raises ValueError, which names the slice."""
        cubes = Cubes(sides_of(self.cube), self.count)
        pool, slices = Pool(cubes), dict[str, Slice]()
        for name, spec in self.slices.items():
            try:
                shape = pool.shape(spec.topology, twisted=spec.twisted)
                chosen = spec.cubes or pool.chosen(shape)
                pool.take(name, shape, chosen)
            except ValueError as error:
                raise ValueError(f"slices.{name}: {error}") from None
            slices[name] = Slice(shape, chosen)
        return CubesPart(cubes, self.gpu, slices)


def _tree(spec: CubesSpec) -> Tree:
    """Return the GPUs, their routers, all links, and the light of the slices of the beginning."""
    part = spec.made()
    cubes = part.cubes
    routers = [f"r{number}" for number in range(len(cubes.gpus))]
    nic_bps = spec.rate * (cubes.router_ports - 1)
    nics = [
        Link(Port(gpu, 0), Port(router, 1), nic_bps, spec.queue)
        for gpu, router in zip(cubes.gpus, routers, strict=True)
    ]
    joined = [
        Link(a, b, spec.rate, spec.queue) for a, b in (*cubes.cables(), *cubes.fibres())
    ]
    circuits = [
        circuit
        for slice_ in part.slices.values()
        for circuit in cubes.circuits(slice_.shape, slice_.cubes)
    ]
    return Tree(
        gpus=cubes.gpus,
        switches=dict.fromkeys(routers, cubes.router_ports),
        links=(*nics, *joined),
        circuits=tuple(circuits),
    )


def _add(spec: CubesSpec, assembly: Assembly) -> None:
    """Add the optical switches, and the cubes for whoever asks the fabric for them."""
    part = spec.made()
    switches = [
        OpticalSwitch(name, ports, "scpi", spec.profile)
        for name, ports in part.cubes.switches.items()
    ]
    assembly.plug("cubes", "cubes", part, Plugged((), switches, [], []))


def cubes_of(fabric: Fabric) -> CubesPart | None:
    """Return the cubes of a fabric; None if it has none."""
    part: CubesPart | None = fabric.parts.get("cubes", {}).get("cubes")
    return part


CUBES = FabricKey(CubesSpec | None, add=_add, tree=_tree)
