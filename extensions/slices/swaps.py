"""The event ``swap`` of a scenario: a spare cube takes the place of one of a slice."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ringlight.experiments.language.light_events import LightEvent, SimulatedLight
from ringlight.extensions.slices.fabric_key import CubesPart, cubes_of
from ringlight.extensions.slices.light import moves
from ringlight.extensions.slices.pool import Pool, used_cubes
from ringlight.fabric.parts import Port, canonical
from ringlight.fabric.topology import Fabric

if TYPE_CHECKING:
    from ringlight.experiments.client import Api

Names = Sequence[str]

#: Longest wait in one call, seconds.
_WAIT_S = 20.0
#: Longest time for all circuits of a swap, and for the controller to notice that a GPU is back, seconds.
_LIT_S, _BACK_S = 60.0, 20.0
_PAUSE_S = 0.05


def _check(fabric: Fabric, names: Names) -> None:
    """Raise ValueError unless the fabric has the slice and both cubes."""
    slice_, *cubes = names
    part = _part(fabric)
    if slice_ not in part.slices:
        there = ", ".join(part.slices) or "none"
        raise ValueError(f"there is no slice {slice_}; there are {there}")
    for cube in cubes:
        if cube not in part.cubes.names:
            first, last = part.cubes.names[0], part.cubes.names[-1]
            raise ValueError(
                f"there is no partition {cube}; they are {first} to {last}"
            )


def _part(fabric: Fabric) -> CubesPart:
    part = cubes_of(fabric)
    if part is None:
        raise ValueError("the fabric has no cubes")
    return part


def _move(api: Api, names: Names) -> Mapping[str, Any]:
    """Swap the cube in a lab. Return the slice's cubes. Raises ValueError if the light could not be moved."""
    slice_, cube, spare = names
    path = f"/v1/slices/{slice_}"
    body = {"partition": cube, "spare": spare}
    deadline = time.monotonic() + _LIT_S
    document = api.post(f"{path}/swap?wait_s={_WAIT_S:g}", body)
    while (ready := document["status"]["conditions"][0])["reason"] == "ACTIVATING":
        if time.monotonic() > deadline:
            raise ValueError(f"slice {slice_} is not lit after {_LIT_S:g} s")
        time.sleep(_PAUSE_S)
        document = api.get(path)
    cubes = document["spec"]["partitionIds"]
    if cube in cubes:
        raise ValueError(f"slice {slice_} is {ready['reason']}: {ready['message']}")
    return {"slice": slice_, "partitions": cubes}


def _undo(api: Api, names: Names) -> None:
    """Put the cube back if the spare has its place. Raises ValueError as :func:`_move`.

    The cube's GPUs may only just have come back, and a swap may only just have begun.
    """
    from ringlight.experiments.client import ApiError

    slice_, cube, spare = names
    deadline = time.monotonic() + _BACK_S
    while True:
        if cube in api.get(f"/v1/slices/{slice_}")["spec"]["partitionIds"]:
            return
        try:
            _move(api, (slice_, spare, cube))
            return
        except ApiError as error:
            if error.status != 409 or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)


def _circuits(
    fabric: Fabric, names: Names, now: SimulatedLight
) -> list[tuple[str, str]]:
    """Return the circuits after a swap. Raises ValueError if the controller would refuse the swap."""
    part = _part(fabric)
    pool = Pool(part.cubes)
    joined = {name: slice_.cubes for name, slice_ in part.slices.items()}
    for name, slice_ in part.slices.items():
        pool.take(name, slice_.shape, slice_.cubes)
    for name, cube, spare in now.earlier:
        joined[name] = pool.swapped(name, joined[name], cube, spare, {})
    pool.out = {part.cubes.cube_of(gpu) for gpu in now.lost}
    name, cube, spare = names
    after = pool.swapped(
        name, joined[name], cube, spare, used_cubes(part.cubes, now.users)
    )
    present = [(Port.parse(a), Port.parse(b)) for a, b in now.circuits]
    planned = moves(part.cubes, present, part.slices[name].shape, after, (cube,))
    gone = set(map(frozenset, planned.remove))
    kept = [pair for pair in now.circuits if frozenset(pair) not in gone]
    return canonical([*kept, *planned.add])


SWAP = LightEvent(
    target="slice",
    names=("SLICE", "CUBE", "SPARE"),
    does="swap a cube of a slice",
    check=_check,
    move=_move,
    undo=_undo,
    circuits=_circuits,
)
