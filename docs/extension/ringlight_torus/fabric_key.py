"""The key ``torus`` of a fabric file."""

from __future__ import annotations

import itertools
from typing import Annotated

from pydantic import Field, model_validator

from ringlight.fabric.keys import Assembly, FabricKey
from ringlight.fabric.parts import Link, OpticalSwitch, Plugged, Port
from ringlight.fabric.trees import Tree
from ringlight.fabric.values import Duration, Rate, Strict

from .torus import SWITCH, Torus

Side = Annotated[int, Field(ge=1, le=8)]


class TorusSpec(Strict):
    """``cubes`` cubes of GPUs, a router beside each, whose first faces an optical switch joins.

    ``cube``: GPUs along each side. ``rate``: that of a link of the torus; a GPU sends to its router as fast
    as the router to all others. ``tori``: the cubes of each torus, in order; by default one of all.
    ``profile``: that of the optical switch.
    """

    cube: tuple[Side, ...] = Field(min_length=1, max_length=3)
    cubes: int = Field(ge=1, le=64)
    gpu: str = Field(min_length=1)
    rate: Rate
    queue: Duration = 0.02
    tori: tuple[tuple[int, ...], ...] = ()
    profile: str = "mems"

    @model_validator(mode="after")
    def _has_each_cube_once(self) -> TorusSpec:
        listed = list(itertools.chain(*self.tori))
        if len(set(listed)) < len(listed) or not all(0 <= cube < self.cubes for cube in listed):
            raise ValueError(f"tori: name each of the cubes 0 to {self.cubes - 1} at most once")
        return self

    def made(self) -> Torus:
        return Torus(self.cube, self.cubes, self.tori or (tuple(range(self.cubes)),))


def _tree(spec: TorusSpec) -> Tree:
    """Return the GPUs, the routers, all links, and the light of the beginning."""
    torus = spec.made()
    numbers = range(torus.cubes * torus.size)
    nic_bps = spec.rate * (torus.ports - 1)
    nics = [Link(Port(f"g{n}", 0), Port(f"r{n}", 1), nic_bps, spec.queue) for n in numbers]
    joined = [Link(a, b, spec.rate, spec.queue) for a, b in (*torus.cables(), *torus.fibres())]
    return Tree(
        gpus=tuple(f"g{n}" for n in numbers),
        switches={f"r{n}": torus.ports for n in numbers},
        links=(*nics, *joined),
        circuits=tuple(torus.circuits()),
    )


def _add(spec: TorusSpec, assembly: Assembly) -> None:
    """Add the optical switch, and the torus for whoever asks the fabric for it."""
    torus = spec.made()
    switch = OpticalSwitch(SWITCH, 2 * torus.cubes * torus.face, "scpi", spec.profile)
    assembly.plug("torus", SWITCH, torus, Plugged((), [switch], [], []))


TORUS = FabricKey(TorusSpec | None, add=_add, tree=_tree)
