"""Compute the remaining demand, and the lightpath tables sent to the O-NICs. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringlight.extensions.sip_ml.divided.lightpaths import setting_of
from ringlight.extensions.sip_ml.divided.planes import Lightpath, Paths
from ringlight.extensions.sip_ml.phases import PhasePlan
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.steps import FloatArray
from ringlight.fabric.topology import Fabric

#: By GPU and the IP address of each of its peers, as the server agent takes and shows it.
Tables = Mapping[str, Mapping[str, Mapping[str, Any]]]
#: By GPU and the IP address of each of its peers: bytes ``posted`` and, of them, sent for the first time
#: (``fresh``), among others.
Traffic = Mapping[str, Mapping[str, Mapping[str, int]]]
#: Size assumed for data that waits to be sent again, bytes: a frame.
FRAME_BYTES = 9000


@dataclass(frozen=True, eq=False)
class Phased:
    """The phases of a job of so many iterations, and the lightpaths of each by numbers of all GPUs.

    ``guard_s``: from the last byte of a phase until what carried it may be taken, emulated seconds.
    """

    plan: PhasePlan
    paths: tuple[Paths, ...]
    iterations: int
    guard_s: float


@dataclass(frozen=True, eq=False)
class DividedLight:
    """Light of a job.

    ``demand``: bytes that the job sends in an iteration, [gpus, gpus] by numbers of all GPUs. ``interval_s``:
    time between divisions, None if light is divided once. ``dark_s``: dark time before each division. Both in
    emulated seconds. ``phased``: set if light follows the job's phases.
    """

    place: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    demand: FloatArray
    interval_s: float | None
    dark_s: float
    phased: Phased | None = None


def left(fabric: Fabric, nodes: Sequence[str], traffic: Traffic) -> FloatArray:
    """Return the bytes [gpus, gpus] that the nodes have begun to send each other and not sent, by numbers of
    all GPUs.

    Workers are not trusted: nonsensical counts count as nothing left.
    """
    left_bytes = np.zeros((len(fabric.gpus), len(fabric.gpus)))
    for pair, _, _, counts in _pairs(fabric, nodes, traffic):
        left_bytes[pair] = max(0, counts["posted"] - counts["fresh"])
    return left_bytes


def stranded(
    fabric: Fabric,
    nodes: Sequence[str],
    traffic: Traffic,
    before: Traffic,
    lit_pairs: Container[tuple[int, int]],
) -> FloatArray:
    """Return one frame, in bytes [gpus, gpus], for each pair with data waiting that was sent once and lost.

    TCP sends such data again, which does not increase the bytes that remain to be sent, so without light it
    would wait for ever. A pair is recognised by three conditions: everything posted has left; the pair is not
    in ``lit_pairs``, the pairs that have had light since the reading ``before``; packets have circulated in
    the dark since then.
    """
    stranded_bytes = np.zeros((len(fabric.gpus), len(fabric.gpus)))
    for pair, node, ip, counts in _pairs(fabric, nodes, traffic):
        then = before.get(node, {}).get(ip)
        if then is None or pair in lit_pairs or counts["posted"] > counts["fresh"]:
            continue
        if counts["held"] > then["held"]:
            stranded_bytes[pair] = FRAME_BYTES
    return stranded_bytes


def _pairs(
    fabric: Fabric, nodes: Sequence[str], traffic: Traffic
) -> Iterator[tuple[tuple[int, int], str, str, Mapping[str, int]]]:
    """Yield pairs of nodes that report traffic: their numbers, sender's name, receiver's
    address, counters.
    """
    number = {gpu: index for index, gpu in enumerate(fabric.gpus)}
    number_of_ip = {fabric.gpus[node].ip: number[node] for node in nodes}
    for node in nodes:
        for ip, counts in traffic.get(node, {}).items():
            if ip in number_of_ip and number_of_ip[ip] != number[node]:
                yield (number[node], number_of_ip[ip]), node, ip, counts


def by_name(
    gpus: Sequence[str], counts: Mapping[tuple[int, int], int]
) -> dict[str, dict[str, int]]:
    """Return counts of pairs of GPUs, given by GPU numbers, as a mapping by GPU names."""
    by_source: dict[str, dict[str, int]] = {}
    for (source, destination), count in sorted(counts.items()):
        by_source.setdefault(gpus[source], {})[gpus[destination]] = count
    return by_source


def tables(fabric: Fabric, nodes: Sequence[str], paths: Paths) -> Tables:
    """Return each node's table of peers by IP address: lit on the pair's lightpaths, dark
    if there are none.
    """
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
    """Return the lightpaths for which every switch on their way passes what they need.

    ``carried``: function that returns the cross-connects a switch passes.
    """

    def passes(pair: tuple[int, int], path: Lightpath) -> bool:
        needed = setting_of(fabric, {pair: (path,)})
        return all(
            group <= carried(switch) for switch, group in needed.items() if group
        )

    passing = {
        pair: tuple(path for path in own if passes(pair, path))
        for pair, own in paths.items()
    }
    return {pair: own for pair, own in passing.items() if own}
