"""A job's light on an interconnect whose light is divided by demand, and its O-NICs' tables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringlight.controller.errors import ConflictError, InvalidError
from ringlight.controller.jobs.job import linktest_targets
from ringlight.controller.jobs.reservation import reserve
from ringlight.fabric.allocation.demand import FloatArray, sent_in_steps
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.planes.divided.lightpaths import Lightpath, Paths, setting_of
from ringlight.fabric.schedules import steps_named
from ringlight.fabric.topology import Fabric

#: By GPU and the IP address of each of its peers, as the server agent takes and shows it.
Tables = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, eq=False)
class DemandLight:
    """A job's light. ``demand``: bytes that it sends in an iteration, [gpus, gpus] by numbers of all GPUs.

    ``interval_s``: how long a division holds, None where light is divided once; ``dark_s``: how long all
    light is dark before it. Both in seconds as emulated.
    """

    place: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    demand: FloatArray
    interval_s: float | None
    dark_s: float


def choose(
    fabric: Fabric, wanted: Sequence[str] | int, holders: Mapping[str, str], place: str | None
) -> tuple[str, ...] | None:
    """The job's nodes in rank order; None for a job that is not meant for such a place.

    ``holders``: the job that has each taken node. Raises InvalidError for what can never be, ConflictError
    for what cannot be now.
    """
    divided = fabric.divided
    if place is not None and (divided is None or place != divided.name):
        raise InvalidError(f"there is no interconnect {place}")
    if divided is None:
        return None
    if isinstance(wanted, int):
        raise InvalidError(
            f"{wanted} GPUs: name them (ranks); the light of {divided.name} is divided for what they send"
        )
    nodes = reserve(divided.nodes, {}, {}, wanted)
    if other := next((holders[node] for node in divided.nodes if node in holders), None):
        raise ConflictError(f"the light of {divided.name} is that of job {other}")
    return nodes


def demand_of(settings: Mapping[str, Any], ranks: int, traffic: Callable[[str], FloatArray]) -> FloatArray:
    """Bytes [ranks, ranks] that a job sends in an iteration, row = sender; of a link test 1 for each pair.

    ``settings``: the workers' (``workload``, ``collective``, ``gradient_bytes``, ``graph``, ``linktest``);
    ``traffic``: of a graph, by its SHA-256. Raises InvalidError.
    """
    workload = settings.get("workload", "train")
    if workload == "graph":
        found = traffic(settings["graph"])
        if len(found) != ranks:
            raise InvalidError(f"graph: it is for {len(found)} ranks, and the job has {ranks}")
        return found
    if workload == "train":
        try:
            steps = steps_named(settings.get("collective", "ring"), ranks)
        except ValueError as error:
            raise InvalidError(f"collective {settings.get('collective')}: {error}") from error
        return sent_in_steps(steps, settings.get("gradient_bytes", 1.0))
    found = np.zeros((ranks, ranks))
    for rank, target in enumerate(linktest_targets(settings, ranks)):
        if target is not None:
            found[rank, target] = 1.0
    return found


def by_name(gpus: Sequence[str], counts: Mapping[tuple[int, int], int]) -> dict[str, dict[str, int]]:
    """What is counted for pairs of GPUs by their numbers, by their names."""
    found: dict[str, dict[str, int]] = {}
    for (source, destination), count in sorted(counts.items()):
        found.setdefault(gpus[source], {})[gpus[destination]] = count
    return found


def tables(fabric: Fabric, nodes: Sequence[str], paths: Paths) -> Tables:
    """Each node's table of peers by IP address: lit on the pair's lightpaths, dark if there are none."""
    number = {gpu: index for index, gpu in enumerate(fabric.gpus)}
    return {
        node: {
            fabric.gpus[peer].ip: _entry(paths.get((number[node], number[peer]), ()))
            for peer in nodes
            if peer != node
        }
        for node in nodes
    }


def _entry(paths: Sequence[Lightpath]) -> dict[str, Any]:
    return {"lit": bool(paths), "paths": [path._asdict() for path in paths]}


def passed(
    fabric: Fabric, paths: Paths, carried: Callable[[str], frozenset[CrossConnect]]
) -> dict[tuple[int, int], tuple[Lightpath, ...]]:
    """The lightpaths for which every switch on their way passes what they need.

    ``carried``: what a switch passes.
    """

    def passes(pair: tuple[int, int], path: Lightpath) -> bool:
        needed = setting_of(fabric, {pair: (path,)})
        return all(group <= carried(switch) for switch, group in needed.items() if group)

    lit = {pair: tuple(path for path in own if passes(pair, path)) for pair, own in paths.items()}
    return {pair: own for pair, own in lit.items() if own}
