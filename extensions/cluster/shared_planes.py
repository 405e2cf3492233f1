"""Read off a plane the cluster that jobs of a trace share.

Planes and interconnects are told apart by the names of their kinds, so that neither they nor this know of
each other. No trace is replayed on kinds that are not here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ringlight.extensions.cluster.clusters import Cluster, Lattice
from ringlight.extensions.cluster.tiers import cluster_of
from ringlight.fabric.planes.base import Plane


def shared_by_jobs(plane: Plane) -> Cluster:
    """Return a plane as a cluster that jobs of a trace share. Raises ValueError if the plane is none."""
    if plane.kind not in _PLANES:
        raise ValueError(f"no trace is replayed on {plane}")
    return _PLANES[plane.kind](plane)


def _blocks(
    name: str, *sides: int, round_ends: bool = True, needed: bool = True
) -> Cluster:
    """Return a cluster of GPUs of which jobs have blocks."""
    return Cluster(
        (math.prod(sides),), (), (), lattice=Lattice(name, sides, round_ends, needed)
    )


def _grid(plane: Any) -> Cluster:
    return _blocks(str(plane), plane.grid.rows, plane.grid.columns, round_ends=False)


def _ring(plane: Any) -> Cluster:
    raise ValueError(
        f"ring {plane.name} carries one job on all its nodes; as interconnect: {{kind: wavelength-ring}} "
        "each job has an arc"
    )


def _interconnect(plane: Any) -> Cluster:
    whole = plane.interconnect
    if whole.kind not in _INTERCONNECTS:
        raise ValueError(
            f"no trace is replayed on an interconnect of kind {whole.kind}"
        )
    return _INTERCONNECTS[whole.kind](whole, len(plane.nodes))


def _servers(servers: Any, gpus: int) -> Cluster:
    """Return the cluster whose leaves are the servers; a GPU's rate is that inside."""
    each, count = servers.gpus_each, gpus // servers.gpus_each
    leaves = each * servers.gpu_bps / servers.inside_bps
    return Cluster((each,) * count, (tuple(range(count)),), ((leaves,) * count,))


def _packets(plane: Any) -> Cluster:
    """Return the switches of a fabric as a tree, or the cubes that light joins into slices."""
    for part in plane.fabric.parts.get("cubes", {}).values():
        if part.slices:
            raise ValueError(f"slice {min(part.slices)}: a trace needs all cubes")
        cubes = part.cubes
        return Cluster(
            (cubes.size,) * cubes.count, (), (), cubes.names, slices=part.pool
        )
    return cluster_of(plane.fabric)


_PLANES: Mapping[str, Callable[[Any], Cluster]] = {
    "packets": _packets,
    "grid": _grid,
    "ring": _ring,
    "interconnect": _interconnect,
}
_INTERCONNECTS: Mapping[str, Callable[[Any, int], Cluster]] = {
    "ideal": lambda _, gpus: Cluster((gpus,), (), ()),
    "servers": _servers,
    "grid": lambda grid, _: _blocks(
        "a grid", grid.rows, grid.columns, round_ends=False
    ),
    "wavelength-ring": lambda _, gpus: _blocks("a ring", gpus),
    "torus": lambda torus, _: _blocks("a torus", *torus.torus.sides, needed=False),
    "hop-ring": lambda _, gpus: _blocks("a ring of servers", gpus),
}
