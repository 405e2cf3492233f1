"""Choose the plane that carries a job's bytes. No other module decides it."""

from __future__ import annotations

from collections.abc import Sequence

from ringlight.fabric.algorithms import parse_collective
from ringlight.fabric.planes.base import Misfit, Plane
from ringlight.fabric.planes.kinds import parts_of_planes
from ringlight.fabric.planes.packets import packets
from ringlight.fabric.topology import Fabric


def lit_planes(fabric: Fabric) -> list[Plane]:
    """Return all planes with light of their own, in the order in which they are tried for a job.

    These are first the planes that one job has whole, then others; each in the order of the extensions.
    """
    finders = parts_of_planes("planes").values()
    planes = [plane for planes_in in finders for plane in planes_in(fabric)]
    return sorted(planes, key=lambda plane: not plane.whole)


def candidates(fabric: Fabric, ranks: Sequence[str] = ()) -> list[Plane]:
    """Return the planes with light that a job may get.

    These are the planes with any of its GPUs ``ranks``. Without ``ranks`` these are all, or none if some GPU
    does without light.
    """
    if ranks:
        return [
            plane
            for plane in lit_planes(fabric)
            if not set(ranks).isdisjoint(plane.nodes)
        ]
    planes = lit_planes(fabric)
    nodes = {node for plane in planes for node in plane.nodes}
    return planes if fabric.gpus.keys() <= nodes else []


def plane_of(fabric: Fabric, ranks: Sequence[str] = (), collective: str = "") -> Plane:
    """Return the plane of a job on GPUs ``ranks``.

    Without ``ranks`` the GPUs of the job are still to be chosen. ``collective``: the collective with which it
    trains, if any. Raises Misfit, naming a GPU that is not on the plane of the others, or what is missing
    that the collective needs. Raises ValueError for an unknown collective.
    """
    if collective and (own := parse_collective(collective).kind.plane) is not None:
        plane: Plane = own(fabric, ranks)
        return plane
    for plane in candidates(fabric, ranks):
        if off := set(ranks).difference(plane.nodes):
            raise Misfit(
                "ranks",
                f"GPU {min(off)} is not on {plane.name}, as others of the job are",
            )
        return plane
    return packets(fabric)
