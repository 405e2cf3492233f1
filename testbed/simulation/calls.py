"""Requests of the operations that communicate: the schedule of a collective, the ends of a message."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ringlight.fabric.kinds import matrix_bounds, vector_bytes
from ringlight.fabric.steps import Steps
from ringlight.testbed.simulation.merged_steps import in_bytes
from ringlight.workloads.graph import Kind, Workload
from ringlight.workloads.splits import split_bytes


class Call(NamedTuple):
    """A collective of one group: its schedule and the bytes of a chunk.

    ``once``: it was drawn for this call, and others of the group differ.
    """

    steps: Steps
    chunk_bytes: float
    once: bool = False


class Calls:
    """The collectives of a workload; each is done in ``splits`` equal parts, one after the other."""

    def __init__(self, workload: Workload, splits: int) -> None:
        self._workload, self.splits = workload, splits
        self._steps: dict[tuple[int, int], Steps] = {}

    def call(
        self, collective: int, size: int, ranks: int, key: tuple[int, int, int]
    ) -> Call:
        """Return one part of a collective of ``ranks`` ranks, ``size`` bytes in all.

        ``key``: the group, the number of this call on the communicator in the iteration, and the iteration,
        by which an all-to-all-v is drawn. Raises ValueError naming a kind or algorithm.
        """
        what = self._workload.collectives[collective]
        steps = self._steps.get((collective, ranks))
        if steps is None:
            steps = what.steps(ranks)
            if what.sizes is not None:
                steps = in_bytes(steps, matrix_bounds(what.sizes))
            self._steps[collective, ranks] = steps
        if what.sizes is not None:
            return Call(steps, 1 / self.splits)
        if what.split is not None and what.split.skew:
            bounds = matrix_bounds(split_bytes(what.split, ranks, size, key).tolist())
            return Call(in_bytes(steps, bounds), 1 / self.splits, once=True)
        return Call(
            steps, vector_bytes(what.kind, ranks, size) / steps.chunks / self.splits
        )


class End(NamedTuple):
    """Identity of a message: the ``ordinal``-th of an iteration between these ranks with a tag."""

    source: int
    destination: int
    tag: int
    ordinal: int


def ends_of(workload: Workload, rank: int) -> dict[int, End]:
    """Return the message ends of a rank's program by operation."""
    program = workload.programs[int(workload.program_of[rank])]
    seen: Counter[tuple[int, int, int]] = Counter()
    ends = {}
    columns = (program.kind, program.slot, program.tag)
    for k, (kind, slot, tag) in enumerate(
        zip(*(c.tolist() for c in columns), strict=True)
    ):
        if kind not in (Kind.SEND, Kind.RECEIVE):
            continue
        peer = int(workload.peers[rank, slot])
        source, destination = (rank, peer) if kind == Kind.SEND else (peer, rank)
        ends[k] = End(source, destination, tag, seen[source, destination, tag])
        seen[source, destination, tag] += 1
    return ends
