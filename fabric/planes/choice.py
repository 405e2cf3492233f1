"""Which plane carries a job's bytes. Nobody else decides it."""

from __future__ import annotations

from collections.abc import Sequence

from ringlight.fabric.planes.averagers import averagers
from ringlight.fabric.planes.base import Plane
from ringlight.fabric.planes.grids import grids
from ringlight.fabric.planes.packets import packets
from ringlight.fabric.planes.rings import rings
from ringlight.fabric.planes.wholes import wholes
from ringlight.fabric.topology import Fabric


def lit_planes(fabric: Fabric) -> list[Plane]:
    """All planes with light of their own, in the order in which they are asked for a job."""
    return [*wholes(fabric), *rings(fabric), *grids(fabric)]


def plane_of(fabric: Fabric, ranks: Sequence[str] = (), *, averaged: bool = False) -> Plane:
    """The plane of a job on GPUs ``ranks``; of one whose GPUs are still to be chosen where there are none.

    Such a job gets light only where no GPU does without. ``averaged``: averagers sum its gradients. Raises
    ValueError naming a GPU that is not where the others are.
    """
    if averaged:
        return averagers(fabric, ranks)
    found = lit_planes(fabric)
    if not ranks and not fabric.gpus.keys() <= fabric.onics.keys() and fabric.interconnect is None:
        found = []
    for plane in found:
        off = set(ranks).difference(plane.nodes)
        if not off:
            return plane
        if len(off) < len(set(ranks)):
            raise ValueError(f"GPU {min(off)} is not on {plane.name}, as others of the job are")
    return packets(fabric)
