"""Which plane carries a job's bytes. Nobody else decides it."""

from __future__ import annotations

from collections.abc import Sequence

from ringlight.fabric.planes.averagers.averager_plane import averagers
from ringlight.fabric.planes.base import Misfit, Plane
from ringlight.fabric.planes.grid.grid_plane import grids
from ringlight.fabric.planes.packets import packets
from ringlight.fabric.planes.ring.ring_plane import rings
from ringlight.fabric.planes.wholes.whole_plane import wholes
from ringlight.fabric.schedules import parse_collective
from ringlight.fabric.topology import Fabric


def lit_planes(fabric: Fabric) -> list[Plane]:
    """All planes with light of their own, in the order in which they are asked for a job."""
    return [*wholes(fabric), *rings(fabric), *grids(fabric)]


def candidates(fabric: Fabric, ranks: Sequence[str] = ()) -> list[Plane]:
    """The planes with light that a job may get: those with any of its GPUs ``ranks``, or where there are none
    all, unless some GPU does without light."""
    if ranks:
        return [plane for plane in lit_planes(fabric) if not set(ranks).isdisjoint(plane.nodes)]
    lit = fabric.gpus.keys() <= fabric.onics.keys() or fabric.interconnect is not None
    return lit_planes(fabric) if lit else []


def plane_of(fabric: Fabric, ranks: Sequence[str] = (), collective: str = "") -> Plane:
    """The plane of a job on GPUs ``ranks``; of one whose GPUs are still to be chosen where there are none.

    ``collective``: that it trains with, if it does. Raises Misfit, naming a GPU that is not where others are
    or what the averagers of a collective that is theirs lack; ValueError for a collective that there is not.
    """
    if collective and parse_collective(collective).averaged:
        return averagers(fabric, ranks)
    for plane in candidates(fabric, ranks):
        if off := set(ranks).difference(plane.nodes):
            raise Misfit("ranks", f"GPU {min(off)} is not on {plane.name}, as others of the job are")
        return plane
    return packets(fabric)
