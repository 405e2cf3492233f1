"""Choose the GPUs of a job. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ringlight.controller.errors import ConflictError, InvalidError
from ringlight.fabric.clusters import gpus_together
from ringlight.fabric.planes.base import Plane
from ringlight.fabric.planes.choice import candidates, lit_planes
from ringlight.fabric.topology import Fabric


def reserve(
    gpus: Sequence[str],
    holders: Mapping[str, str],
    switch_of: Mapping[str, str | None],
    wanted: Sequence[str] | int,
) -> tuple[str, ...]:
    """Return the GPUs of a job in rank order.

    ``gpus``: all GPUs of the fabric. ``holders``: the job that has each taken GPU. ``switch_of``: the packet
    switch that each GPU is lit to. ``wanted``: the GPUs by name, or their number: then the GPUs of the switch
    that they fill most tightly, or of as few switches as possible. Raises InvalidError for what can never be
    reserved, ConflictError for what cannot be reserved now.
    """
    if isinstance(wanted, int):
        return _choose(gpus, holders, switch_of, wanted)
    seen: set[str] = set()
    for rank, gpu in enumerate(wanted):
        if gpu not in gpus:
            raise InvalidError(f"rank {rank}: there is no GPU {gpu}")
        if gpu in seen:
            raise InvalidError(f"rank {rank}: GPU {gpu} is used twice")
        seen.add(gpu)
    for rank, gpu in enumerate(wanted):
        if gpu in holders:
            raise ConflictError(f"rank {rank}: GPU {gpu} is reserved by job {holders[gpu]}")
    return tuple(wanted)


def planes_for(fabric: Fabric, wanted: Sequence[str] | int, name: str | None) -> list[Plane]:
    """Return the planes with light that a job may get, in the order in which they are tried.

    That is the named plane, if ``name`` is given, and none for a job on packet switches. Raises InvalidError
    for an unknown name.
    """
    if name is None:
        return candidates(fabric, () if isinstance(wanted, int) else wanted)
    found = [plane for plane in lit_planes(fabric) if plane.name == name]
    if not found:
        raise InvalidError(f"there is no plane {name}")
    return found


def placed(
    plane: Plane, wanted: Sequence[str] | int, holders: Mapping[str, str], *, alone: bool
) -> tuple[str, ...]:
    """Return the nodes of a job on a plane with light, in rank order.

    ``wanted``: GPUs by name, or their number. ``holders``: the job that has each taken GPU. ``alone``: only
    one job at a time has the plane. Raises InvalidError for what can never be reserved, ConflictError for
    what cannot be reserved now.
    """
    if isinstance(wanted, int):
        nodes = _chosen(plane, wanted, holders)
    else:
        nodes = reserve(tuple(plane.fabric.gpus), {}, {}, wanted)
        for rank, gpu in enumerate(nodes):
            if gpu not in plane.nodes:
                raise InvalidError(f"rank {rank}: GPU {gpu} is not on {plane}; a job stays on one plane")
        if plane.whole and len(nodes) != len(plane.nodes):
            raise InvalidError(f"{len(nodes)} ranks: {_rule(plane)}")
    if alone and (other := next((holders[node] for node in plane.nodes if node in holders), None)):
        raise ConflictError(f"the light of {plane} is that of job {other}")
    return reserve(nodes, holders, {}, nodes)


def _chosen(plane: Plane, count: int, holders: Mapping[str, str]) -> tuple[str, ...]:
    if plane.built:
        raise InvalidError(
            f"{count} GPUs: name them (ranks); the light of {plane} is divided for what they send"
        )
    if plane.whole:
        if count != len(plane.nodes):
            raise InvalidError(f"{count} GPUs: {_rule(plane)}")
        return plane.nodes
    try:
        plane.place(count, plane.nodes)
    except ValueError as error:
        raise InvalidError(str(error)) from error
    try:
        found = plane.place(count, [node for node in plane.nodes if node not in holders])
    except ValueError as error:
        raise ConflictError(str(error)) from error
    return reserve(plane.nodes, holders, {}, count) if found is None else found


def _rule(plane: Plane) -> str:
    nodes = plane.nodes
    return f"a job on {plane} uses all its {len(nodes)} nodes, {nodes[0]} to {nodes[-1]}"


def _choose(
    gpus: Sequence[str], holders: Mapping[str, str], switch_of: Mapping[str, str | None], count: int
) -> tuple[str, ...]:
    if count > len(gpus):
        raise InvalidError(f"the job wants {count} GPUs; the fabric has {len(gpus)}")
    free = [gpu for gpu in gpus if gpu not in holders]
    if count > len(free):
        raise ConflictError(f"the job wants {count} GPUs; {len(free)} of {len(gpus)} are free")
    return gpus_together(free, switch_of, count)
