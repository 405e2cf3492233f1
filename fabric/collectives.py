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


def halving_doubling(world_size: int) -> Schedule:
    """Halving-doubling all-reduce: reduce-scatter, then all-gather, with partners i XOR 2^k.

    The reduce-scatter halves the vector and doubles the distance in each step, the all-gather goes the
    same way back (Thakur, Rabenseifner and Gropp, 2005). For a power of two P: 2 log2(P) steps, in which
    every rank sends 2 (P-1)/P of the vector.

    For another world size let P be the largest power of two below it. The ranks from P on are folded in
    and out: rank P + i first gives its whole vector to rank i, sits the exchange out, and takes the result
    from rank i at the end. That is two steps more; a rank that is folded sends one vector, its partner
    one more than the others. Raises ValueError for a world size below 1.
    """
    n = world_size
    if n < 1:
        raise ValueError(f"halving-doubling needs at least one rank, not {n}")
    rounds = n.bit_length() - 1
    core = 1 << rounds
    folds = 1 if n > core else 0
    transfers = [Transfer(0, core + i, i, chunk, "reduce") for i in range(n - core) for chunk in range(core)]
    for k in range(rounds):
        for rank in range(core):
            partner = rank ^ 1 << k
            transfers += [
                Transfer(folds + k, rank, partner, chunk, "reduce") for chunk in _held(partner, k + 1, core)
            ]
    for k in reversed(range(rounds)):
        step = folds + 2 * rounds - 1 - k
        for rank in range(core):
            partner = rank ^ 1 << k
            transfers += [
                Transfer(step, rank, partner, chunk, "replace") for chunk in _held(rank, k + 1, core)
            ]
    last = folds + 2 * rounds
    transfers += [
        Transfer(last, i, core + i, chunk, "replace") for i in range(n - core) for chunk in range(core)
    ]
    return Schedule(n, core, tuple(transfers))


def _held(rank: int, halvings: int, chunks: int) -> range:
    """The chunks that a rank still adds up after so many halvings: bit k of its number says which half."""
    first = sum(chunks >> (k + 1) for k in range(halvings) if rank >> k & 1)
    return range(first, first + (chunks >> halvings))


#: Collectives by the name that a scenario uses.
ALL_REDUCE: dict[str, Callable[[int], Schedule]] = {
    "ring": ring_all_reduce,
    "halving-doubling": halving_doubling,
}


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


# Further collectives enter themselves into ALL_REDUCE; last, because they import this module.
import fabric.schedules  # noqa: E402, F401
