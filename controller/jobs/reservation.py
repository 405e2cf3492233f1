"""Reserve GPUs: one book of who has which, and the choice of GPUs for whoever asks. No I/O, no clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ringlight.controller.errors import ConflictError, InvalidError
from ringlight.fabric.gpu_choice import gpus_together
from ringlight.fabric.planes.base import Plane
from ringlight.fabric.planes.choice import candidates, lit_planes
from ringlight.fabric.topology import Fabric

#: Kinds of holders.
JOB, CLAIM = "job", "claim"


@dataclass(frozen=True)
class Holder:
    """Holder of GPUs: a job or a claim, by its id or name."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Reservations:
    """Book of who has each GPU of a fabric. Any thread may call.

    Each kind of holder keeps its own holders, over restarts too, and the book reads them. ``choosing``: held
    from the choice of GPUs until the chooser has them in the book, so that no two choose the same GPUs.
    """

    def __init__(self) -> None:
        self.choosing = threading.Lock()
        self._kinds: dict[str, Callable[[], Mapping[str, str]]] = {}

    def add(self, kind: str, names: Callable[[], Mapping[str, str]]) -> None:
        """Add a kind of holders. ``names``: returns the name of the holder of each GPU that the kind has."""
        self._kinds[kind] = names

    def holders(self) -> dict[str, Holder]:
        """Return the holder of each GPU that somebody has.

        The caller does not hold the lock of the jobs: that of the claims is taken before it.
        """
        return {
            gpu: Holder(kind, name)
            for kind, names in self._kinds.items()
            for gpu, name in names().items()
        }


def reserve(
    gpus: Sequence[str],
    holders: Mapping[str, Holder],
    switch_of: Mapping[str, str | None],
    gpus_or_count: Sequence[str] | int,
    *,
    out: Collection[str] = (),
    place: str = "rank {}",
) -> tuple[str, ...]:
    """Return the GPUs of a job in rank order, or of a claim in ring order.

    ``gpus``: all GPUs of the fabric. ``holders``: holder of each taken GPU. ``switch_of``: the packet switch
    that each GPU is lit to. ``gpus_or_count``: the GPUs by name, or their number: then the GPUs of the switch
    that they fill most tightly, or of as few switches as possible, without the GPUs ``out``. ``place``: name
    of a GPU's place in the caller's list, for errors. Raises InvalidError for what can never be reserved,
    ConflictError for what cannot be reserved now.
    """
    if isinstance(gpus_or_count, int):
        return _choose(gpus, {*holders, *out}, switch_of, gpus_or_count)
    seen: set[str] = set()
    for rank, gpu in enumerate(gpus_or_count):
        if gpu not in gpus:
            raise InvalidError(f"{place.format(rank)}: there is no GPU {gpu}")
        if gpu in seen:
            raise InvalidError(f"{place.format(rank)}: GPU {gpu} is used twice")
        seen.add(gpu)
    for rank, gpu in enumerate(gpus_or_count):
        if gpu in holders:
            raise ConflictError(
                f"{place.format(rank)}: GPU {gpu} is reserved by {holders[gpu]}"
            )
    return tuple(gpus_or_count)


def planes_for(
    fabric: Fabric, gpus_or_count: Sequence[str] | int, name: str | None
) -> list[Plane]:
    """Return the planes with light that a job may get, in the order in which they are tried.

    That is the named plane, if ``name`` is given, and none for a job on packet switches. Raises InvalidError
    for an unknown name.
    """
    if name is None:
        return candidates(
            fabric, () if isinstance(gpus_or_count, int) else gpus_or_count
        )
    matches = [plane for plane in lit_planes(fabric) if plane.name == name]
    if not matches:
        raise InvalidError(f"there is no plane {name}")
    return matches


def placed(
    plane: Plane,
    gpus_or_count: Sequence[str] | int,
    holders: Mapping[str, Holder],
    *,
    alone: bool,
) -> tuple[str, ...]:
    """Return the nodes of a job on a plane with light, in rank order.

    ``gpus_or_count``: GPUs by name, or their number. ``holders``: holder of each taken GPU. ``alone``: only
    one job at a time has the plane. Raises InvalidError for what can never be reserved, ConflictError
    for what cannot be reserved now.
    """
    if isinstance(gpus_or_count, int):
        nodes = _chosen(plane, gpus_or_count, holders)
    else:
        nodes = reserve(tuple(plane.fabric.gpus), {}, {}, gpus_or_count)
        for rank, gpu in enumerate(nodes):
            if gpu not in plane.nodes:
                raise InvalidError(
                    f"rank {rank}: GPU {gpu} is not on {plane}; a job stays on one plane"
                )
        if plane.whole and len(nodes) != len(plane.nodes):
            raise InvalidError(f"{len(nodes)} ranks: {_rule(plane)}")
    if alone and (
        other := next((holders[node] for node in plane.nodes if node in holders), None)
    ):
        raise ConflictError(f"the light of {plane} is that of {other}")
    return reserve(nodes, holders, {}, nodes)


def _chosen(plane: Plane, count: int, holders: Mapping[str, Holder]) -> tuple[str, ...]:
    if plane.whole:
        if count != len(plane.nodes):
            raise InvalidError(f"{count} GPUs: {_rule(plane)}")
        return plane.nodes
    try:
        plane.fit.place(count, plane.nodes)
    except ValueError as error:
        raise InvalidError(str(error)) from error
    try:
        nodes = plane.fit.place(
            count, [node for node in plane.nodes if node not in holders]
        )
    except ValueError as error:
        raise ConflictError(str(error)) from error
    return reserve(plane.nodes, holders, {}, count) if nodes is None else nodes


def _rule(plane: Plane) -> str:
    nodes = plane.nodes
    return (
        f"a job on {plane} uses all its {len(nodes)} nodes, {nodes[0]} to {nodes[-1]}"
    )


def _choose(
    gpus: Sequence[str],
    taken: Collection[str],
    switch_of: Mapping[str, str | None],
    count: int,
) -> tuple[str, ...]:
    if count > len(gpus):
        raise InvalidError(f"{count} GPUs are requested; the fabric has {len(gpus)}")
    free = [gpu for gpu in gpus if gpu not in taken]
    if count > len(free):
        raise ConflictError(
            f"{count} GPUs are requested; {len(free)} of {len(gpus)} are free"
        )
    return gpus_together(free, switch_of, count)
