"""Check that a schedule does what its kind of collective has to do: counted, not computed.

Of every chunk at every rank the checker counts how often the value of each rank that contributed to it is in
there. It knows nothing of algorithms, so it judges any schedule, also one that was read from a file.
"""

from __future__ import annotations

import numpy as np

from ringlight.fabric.kinds import holds, needs
from ringlight.fabric.steps import BoolArray, IntArray, Step, Steps

#: Numbers that the checker may need: those of an all-reduce of 256 ranks in 256 chunks.
CHECK_LIMIT = 1 << 24


def checkable(kind: str, ranks: int, chunks: int) -> None:
    """Raise ValueError if a schedule of so many ranks and chunks is too large for :func:`verify`."""
    contributors = ranks if kind in ("all-reduce", "reduce-scatter", "reduce") else 1
    if ranks * chunks * contributors > CHECK_LIMIT:
        raise ValueError(
            f"{ranks} GPUs and {chunks} chunks are more than can be checked"
        )


def verify(kind: str, steps: Steps, root: int = 0) -> Steps:
    """Return the schedule, if it is one for ``kind`` (``fabric.kinds``).

    Raises ValueError, naming step, rank and chunk, when a transfer is none of these ranks and chunks, sends
    or adds to what is not there, or fills a place that another fills in the same step, and when a rank does
    not end with all contributions, each exactly once, in every chunk that it needs. Takes memory for ranks *
    chunks * (ranks that contribute to one chunk) integers.
    """
    n, chunks = steps.world_size, steps.chunks
    before, after = holds(kind, n, chunks, root), needs(kind, n, chunks, root)
    counts = _own(before)
    there = before.copy()
    number = -1
    for number, step in enumerate(steps):
        try:
            _apply(step, counts, there)
        except ValueError as error:
            raise ValueError(f"{steps.name}, step {number}: {error}") from None
    if number + 1 != steps.steps:
        raise ValueError(
            f"{steps.name}: it says {steps.steps} steps and has {number + 1}"
        )
    expected = _own(before).sum(axis=0)
    wrong = np.argwhere(after & (~there | (counts != expected).any(axis=2)))
    if len(wrong):
        rank, chunk = wrong[0].tolist()
        detail = "nothing"
        if there[rank, chunk]:
            owners = np.flatnonzero(before[:, chunk]).tolist()
            times = counts[rank, chunk, : len(owners)].tolist()
            off = [
                (owner, count)
                for owner, count in zip(owners, times, strict=True)
                if count != 1
            ]
            detail = f"the value of rank {off[0][0]} {off[0][1]} times"
        raise ValueError(
            f"{steps.name}: rank {rank} ends with {detail} in chunk {chunk}"
        )
    return steps


def _own(before: BoolArray) -> IntArray:
    """Return counts at the start, [ranks, chunks, contributor].

    The k-th contributor is the chunk's k-th rank that holds it.
    """
    place = np.cumsum(before, axis=0) - 1
    contributors = max(1, int(before.sum(axis=0).max(initial=0)))
    counts = np.zeros((*before.shape, contributors), dtype=np.int64)
    ranks, chunks = np.nonzero(before)
    counts[ranks, chunks, place[ranks, chunks]] = 1
    return counts


def _apply(step: Step, counts: IntArray, there: BoolArray) -> None:
    """Apply a step to the counts and to what is defined. Raises ValueError for what cannot be done."""
    n, chunks = there.shape
    arrays = (step.sources, step.destinations, step.first, step.count)
    if len({len(a) for a in arrays}) > 1:
        raise ValueError("its arrays differ in length")
    ends = np.concatenate((step.sources, step.destinations))
    if ((ends < 0) | (ends >= n)).any():
        raise ValueError(f"a transfer to or from a rank that is none of {n}")
    if (step.sources == step.destinations).any():
        raise ValueError("a transfer from a rank to itself")
    if ((step.first < 0) | (step.count < 1) | (step.first + step.count > chunks)).any():
        raise ValueError(f"a transfer of chunks that are none of {chunks}")
    sources, destinations = (
        np.repeat(a, step.count) for a in (step.sources, step.destinations)
    )
    within = np.arange(len(sources)) - np.repeat(
        np.cumsum(step.count) - step.count, step.count
    )
    chunk = np.repeat(step.first, step.count) + within
    for ranks, what in (
        (sources, "sends"),
        *([(destinations, "adds to")] if step.op == "reduce" else []),
    ):
        if not there[ranks, chunk].all():
            k = int(np.argmin(there[ranks, chunk]))
            raise ValueError(
                f"rank {ranks[k]} {what} chunk {chunk[k]}, which it does not have"
            )
    sent = counts[sources, chunk]
    if step.op == "reduce":
        np.add.at(counts, (destinations, chunk), sent)
        return
    places, times = np.unique(destinations * chunks + chunk, return_counts=True)
    if (times > 1).any():
        rank, piece = divmod(int(places[np.argmax(times)]), chunks)
        raise ValueError(f"rank {rank} gets chunk {piece} twice at once")
    counts[destinations, chunk] = sent
    there[destinations, chunk] = True
