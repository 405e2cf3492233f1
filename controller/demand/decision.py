"""What is still to be sent, and what a decision about light took. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ringlight.fabric.allocation.demand import FloatArray
from ringlight.fabric.topology import Fabric

#: By GPU and the IP address of each of its peers: bytes ``posted`` and, of them, sent for the first time
#: (``fresh``), among others.
Traffic = Mapping[str, Mapping[str, Mapping[str, int]]]
#: What waits to be sent again counts as so much, bytes: a frame.
FRAME_BYTES = 9000


@dataclass(frozen=True)
class Decision:
    """One division of light. ``t``: when it began, monotonic; ``left_bytes``: for how much it was made.

    ``changed``: whether a switch passes anything else than before. Seconds: ``read_s`` to learn what is left,
    ``decide_s`` to divide, ``hold_s`` to have the O-NICs hold everything, ``write_s`` until the last switch
    had read back what it was told, its declared dark time included; ``dark_s`` from when all was held until
    the O-NICs sent again. ``problem``: what did not work.
    """

    number: int
    t: float
    left_bytes: int
    changed: bool
    read_s: float
    decide_s: float
    hold_s: float
    write_s: float
    dark_s: float
    problem: str | None


def left(fabric: Fabric, nodes: Sequence[str], traffic: Traffic) -> FloatArray:
    """Bytes [gpus, gpus] that the nodes have begun to send each other and not sent, by numbers of all GPUs.

    A worker is not trusted: what makes no sense counts as nothing left.
    """
    found = np.zeros((len(fabric.gpus), len(fabric.gpus)))
    for pair, _, _, counts in _pairs(fabric, nodes, traffic):
        found[pair] = max(0, counts["posted"] - counts["fresh"])
    return found


def stranded(
    fabric: Fabric, nodes: Sequence[str], traffic: Traffic, before: Traffic, lit: Container[tuple[int, int]]
) -> FloatArray:
    """A frame [gpus, gpus] for each pair where something waits that has left once and was lost.

    TCP sends it again, which leaves no more to be sent than before, so without light it would wait for ever.
    It is seen where all that was posted has left, the pair is none of those that have been ``lit`` since the
    reading ``before``, and packets have gone round in the dark since then.
    """
    found = np.zeros((len(fabric.gpus), len(fabric.gpus)))
    for pair, node, ip, counts in _pairs(fabric, nodes, traffic):
        then = before.get(node, {}).get(ip)
        if then is None or pair in lit or counts["posted"] > counts["fresh"]:
            continue
        if counts["held"] > then["held"]:
            found[pair] = FRAME_BYTES
    return found


def _pairs(
    fabric: Fabric, nodes: Sequence[str], traffic: Traffic
) -> Iterator[tuple[tuple[int, int], str, str, Mapping[str, int]]]:
    """Pairs of nodes that report traffic: their numbers, sender's name, receiver's address, counters."""
    number = {gpu: index for index, gpu in enumerate(fabric.gpus)}
    at = {fabric.gpus[node].ip: number[node] for node in nodes}
    for node in nodes:
        for ip, counts in traffic.get(node, {}).items():
            if ip in at and at[ip] != number[node]:
                yield (number[node], at[ip]), node, ip, counts
