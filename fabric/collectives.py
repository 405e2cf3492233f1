"""Collectives as schedules: who sends which chunk to whom in which step.

A vector is cut into ``chunks`` parts, nearly equal ones unless the caller says. A schedule is a list of
transfers; in each step a transfer takes the sender's present value of one chunk and at the receiver either
adds it to what is there (``reduce``) or puts it in its place (``replace``). Worker, simulator and planner all
read the same schedule: a collective is one function in ``fabric.schedules``, ``fabric.gathers`` or
``fabric.alltoall``, and here it is written out transfer by transfer. Nothing but numpy is imported.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringlight.fabric.algorithms import parse_collective, steps_named
from ringlight.fabric.steps import Op, Steps


@dataclass(frozen=True)
class Transfer:
    """One chunk from one rank to another in one step."""

    step: int
    source: int
    destination: int
    chunk: int
    op: Op


@dataclass(frozen=True)
class Schedule:
    """Transfers in order of step. Within a step every sender sends what it had before the step.

    ``step_by_step``: as in :class:`fabric.steps.Steps`.
    """

    world_size: int
    chunks: int
    transfers: tuple[Transfer, ...]
    step_by_step: bool = False

    @property
    def steps(self) -> int:
        return 1 + max((t.step for t in self.transfers), default=-1)


def chunk_bounds(
    length: int, chunks: int, bounds: Sequence[int] | None = None
) -> list[tuple[int, int]]:
    """Return the half-open element ranges that cut ``length`` elements into ``chunks`` parts.

    Sizes differ by at most one element; the first parts are the longer ones. With ``bounds``, chunks + 1
    offsets from 0 to ``length``, chunk k is from the k-th of them to the next, and may be empty. Raises
    ValueError for bounds that are no such offsets.
    """
    if bounds is not None:
        offsets = [int(bound) for bound in bounds]
        if len(offsets) != chunks + 1 or offsets != sorted(offsets):
            raise ValueError(
                f"bounds of {chunks} chunks are {chunks + 1} numbers in order, not {offsets}"
            )
        if (offsets[0], offsets[-1]) != (0, length):
            raise ValueError(
                f"bounds from {offsets[0]} to {offsets[-1]} of a vector of {length} elements"
            )
        return list(itertools.pairwise(offsets))
    size, longer = divmod(length, chunks)
    starts = [k * size + min(k, longer) for k in range(chunks + 1)]
    return list(itertools.pairwise(starts))


def all_reduce(name: str, ranks: int) -> Schedule:
    """Return an all-reduce written out, transfer by transfer.

    Raises ValueError for a name or ranks that :func:`fabric.algorithms.steps_named` rejects, and for whole
    numbers, which no single vector holds.
    """
    if parse_collective(name).bits is not None:
        raise ValueError(
            f"collective {name}: its sums and means are not of one size, so it has no one schedule"
        )
    return schedule_of(steps_named(name, ranks))


def schedule_of(steps: Steps) -> Schedule:
    """Return the schedule that a worker runs: every transfer of every chunk, in order of step."""
    transfers = []
    for number, step in enumerate(steps):
        columns = (step.sources, step.destinations, step.first, step.count)
        for source, destination, first, count in zip(
            *(c.tolist() for c in columns), strict=True
        ):
            transfers += [
                Transfer(number, source, destination, chunk, step.op)
                for chunk in range(first, first + count)
            ]
    return Schedule(
        steps.world_size, steps.chunks, tuple(transfers), steps.step_by_step
    )


def local_bounds(
    schedule: Schedule, rank: int, bounds: Sequence[int], keep: npt.NDArray[np.bool_]
) -> list[int]:
    """Return ``bounds`` for a vector of which ``rank`` has only the chunks that it transfers or keeps.

    ``keep`` [chunks]: chunks that it keeps. Other chunks are empty there. So in an all-to-all each rank has
    its row and its column instead of all rows.
    """
    touched = {t.chunk for t in schedule.transfers if rank in (t.source, t.destination)}
    touched |= set(np.flatnonzero(keep).tolist())
    spans = enumerate(itertools.pairwise(bounds))
    sizes = (end - start if chunk in touched else 0 for chunk, (start, end) in spans)
    return [0, *itertools.accumulate(sizes)]


def apply_schedule(
    schedule: Schedule,
    vectors: Sequence[npt.NDArray[np.float32]],
    bounds: Sequence[int] | None = None,
) -> list[npt.NDArray[np.float32]]:
    """Return the vector of every rank after the schedule.

    It is computed in one process with the schedule's order of summation. ``vectors``: one 1-D array of equal
    length per rank; they are not changed. ``bounds``: of the chunks, as in :func:`chunk_bounds`. Raises
    ValueError when there are not as many as the schedule has ranks, their lengths differ, or the bounds do
    not fit.
    """
    if len(vectors) != schedule.world_size:
        raise ValueError(
            f"{len(vectors)} vectors for a schedule of {schedule.world_size} ranks"
        )
    lengths = sorted({len(vector) for vector in vectors})
    if len(lengths) > 1:
        raise ValueError(
            f"vectors of {lengths[0]} and of {lengths[-1]} elements; all must be equally long"
        )
    held = [np.array(vector, copy=True) for vector in vectors]
    spans = chunk_bounds(len(held[0]), schedule.chunks, bounds)
    for _, transfers in itertools.groupby(schedule.transfers, key=lambda t: t.step):
        now = list(transfers)
        in_flight = [held[t.source][slice(*spans[t.chunk])].copy() for t in now]
        for transfer, values in zip(now, in_flight, strict=True):
            part = held[transfer.destination][slice(*spans[transfer.chunk])]
            if transfer.op == "reduce":
                part += values
            else:
                part[:] = values
    return held


def lendable(schedule: Schedule) -> tuple[bool, ...]:
    """Return for each transfer whether its receiver may read the sender's memory instead of a copy.

    It may if the sender's next receive into the chunk cannot come before this transfer has been received,
    because what that receive brings was computed from this transfer. A chunk that the sender does not receive
    into again during the schedule may be lent, too: the sender must know by other means when the last
    transfers have been received.
    """
    may = [True] * len(schedule.transfers)
    # All by (rank, chunk). Bits stand for the chunk's transfers, in order: a chunk depends on no other.
    known: defaultdict[tuple[int, int], int] = defaultdict(int)
    lent: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    bits: defaultdict[int, Iterator[int]] = defaultdict(itertools.count)
    for _, transfers in itertools.groupby(
        enumerate(schedule.transfers), key=lambda pair: pair[1].step
    ):
        now = [
            (k, next(bits[t.chunk]), t, known[t.source, t.chunk]) for k, t in transfers
        ]
        for k, bit, transfer, _ in now:
            lent[transfer.source, transfer.chunk].append((k, bit))
        for _, bit, transfer, brings in now:
            place = (transfer.destination, transfer.chunk)
            for earlier, its_bit in lent.pop(place, ()):
                may[earlier] = bool(brings >> its_bit & 1)
            known[place] |= brings | 1 << bit
    return tuple(may)
