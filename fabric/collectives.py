"""Collectives as schedules: who sends which chunk to whom in which step.

A vector is cut into ``chunks`` nearly equal parts. A schedule is a list of transfers; in each step a
transfer takes the sender's present value of one chunk and at the receiver either adds it to what is
there (``reduce``) or puts it in its place (``replace``). Worker, simulator and planner all read the same
schedule, so a collective is one function here. numpy is the only import.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Op = Literal["reduce", "replace"]


@dataclass(frozen=True)
class Transfer:
    """One chunk from one rank to another in one step; ``wavelength`` where the fabric has them."""

    step: int
    source: int
    destination: int
    chunk: int
    op: Op
    wavelength: int | None = None


@dataclass(frozen=True)
class Schedule:
    """Transfers in order of step. Within a step every sender sends what it had before the step."""

    world_size: int
    chunks: int
    transfers: tuple[Transfer, ...]

    @property
    def steps(self) -> int:
        return 1 + max((t.step for t in self.transfers), default=-1)


def chunk_bounds(length: int, chunks: int) -> list[tuple[int, int]]:
    """Half-open element ranges that cut ``length`` elements into ``chunks`` parts.

    Sizes differ by at most one element; the first parts are the longer ones.
    """
    size, longer = divmod(length, chunks)
    starts = [k * size + min(k, longer) for k in range(chunks + 1)]
    return list(itertools.pairwise(starts))


def ring_all_reduce(world_size: int) -> Schedule:
    """Ring all-reduce: reduce-scatter then all-gather, each in ``world_size - 1`` steps.

    Every rank sends ``2 (n-1)/n`` of the vector to rank + 1 (Patarasuk and Yuan, 2009). One rank needs no
    transfer. Raises ValueError for a world size below 1.
    """
    n = world_size
    if n < 1:
        raise ValueError(f"a ring needs at least one rank, not {n}")
    transfers = [
        Transfer(step, rank, (rank + 1) % n, (rank - step) % n, "reduce")
        for step in range(n - 1)
        for rank in range(n)
    ]
    transfers += [
        Transfer(n - 1 + step, rank, (rank + 1) % n, (rank + 1 - step) % n, "replace")
        for step in range(n - 1)
        for rank in range(n)
    ]
    return Schedule(n, n, tuple(transfers))


#: Collectives by the name that a scenario uses.
ALL_REDUCE: dict[str, Callable[[int], Schedule]] = {"ring": ring_all_reduce}


def bytes_sent(schedule: Schedule, vector_bytes: float) -> list[float]:
    """Bytes that each rank sends for a vector of ``vector_bytes`` bytes, taking chunks as equal."""
    sent = [0.0] * schedule.world_size
    for transfer in schedule.transfers:
        sent[transfer.source] += vector_bytes / schedule.chunks
    return sent


def apply_schedule(
    schedule: Schedule, vectors: Sequence[npt.NDArray[np.float32]]
) -> list[npt.NDArray[np.float32]]:
    """What every rank holds afterwards, computed in one process with the schedule's order of summation.

    ``vectors``: one 1-D array of equal length per rank; they are not changed. Raises ValueError when
    their number is not the schedule's world size or their lengths differ.
    """
    if len(vectors) != schedule.world_size:
        raise ValueError(f"{len(vectors)} vectors for a schedule of {schedule.world_size} ranks")
    lengths = sorted({len(vector) for vector in vectors})
    if len(lengths) > 1:
        raise ValueError(f"vectors of {lengths[0]} and of {lengths[-1]} elements; all must be equally long")
    held = [np.array(vector, copy=True) for vector in vectors]
    bounds = chunk_bounds(len(held[0]), schedule.chunks)
    for _, transfers in itertools.groupby(schedule.transfers, key=lambda t: t.step):
        now = list(transfers)
        in_flight = [held[t.source][slice(*bounds[t.chunk])].copy() for t in now]
        for transfer, values in zip(now, in_flight, strict=True):
            part = held[transfer.destination][slice(*bounds[transfer.chunk])]
            if transfer.op == "reduce":
                part += values
            else:
                part[:] = values
    return held
