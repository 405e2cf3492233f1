"""Choose the plane that carries a job's bytes. No other module decides it."""

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
    """Return all planes with light of their own, in the order in which they are tried for a job."""
    return [*wholes(fabric), *rings(fabric), *grids(fabric)]


def candidates(fabric: Fabric, ranks: Sequence[str] = ()) -> list[Plane]:
    """Return the planes with light that a job may get.

    These are the planes with any of its GPUs ``ranks``. Without ``ranks`` these are all, or none if some GPU
    does without light.
    """
    if ranks:
        return [plane for plane in lit_planes(fabric) if not set(ranks).isdisjoint(plane.nodes)]
    all_lit = fabric.gpus.keys() <= fabric.onics.keys() or fabric.interconnect is not None
    return lit_planes(fabric) if all_lit else []


def plane_of(fabric: Fabric, ranks: Sequence[str] = (), collective: str = "") -> Plane:
    """Return the plane of a job on GPUs ``ranks``.

    Without ``ranks`` the GPUs of the job are still to be chosen. ``collective``: the collective with which it
    trains, if any. Raises Misfit, naming a GPU that is not on the plane of the others, or what is missing in
    the averagers that the collective needs. Raises ValueError for an unknown collective.
    """
    if collective and parse_collective(collective).averaged:
        return averagers(fabric, ranks)
    for plane in candidates(fabric, ranks):
        if off := set(ranks).difference(plane.nodes):
            raise Misfit("ranks", f"GPU {min(off)} is not on {plane.name}, as others of the job are")
        return plane
    return packets(fabric)
