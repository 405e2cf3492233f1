"""Orders in which a pipeline stage computes: GPipe, 1F1B, interleaved 1F1B.

A chunk is a run of blocks that one stage computes in one go; with ``v`` chunks a stage, chunk c is on stage
c mod p, so a micro-batch passes all stages v times (Narayanan et al., SC 2021, section 2.2).
"""

from __future__ import annotations

from typing import NamedTuple

SCHEDULES = ("gpipe", "1f1b", "interleaved")


class Turn(NamedTuple):
    """One pass of one micro-batch through one chunk."""

    forward: bool
    chunk: int
    micro_batch: int


def schedule(
    name: str, stages: int, micro_batches: int, chunks_per_stage: int = 1
) -> list[list[Turn]]:
    """Return the turns of each stage, in order.

    Raises ValueError for a combination that the schedule cannot do.
    """
    if name not in SCHEDULES:
        raise ValueError(f"schedule: no {name}; there are {', '.join(SCHEDULES)}")
    if name != "interleaved" and chunks_per_stage != 1:
        raise ValueError(
            f"virtual_stages: {name} has one chunk a stage, not {chunks_per_stage}"
        )
    if name == "gpipe":
        return [_gpipe(stage, micro_batches) for stage in range(stages)]
    if name == "1f1b":
        warm = [stages - stage - 1 for stage in range(stages)]
    else:
        if micro_batches % stages:
            raise ValueError(
                f"micro_batches: interleaved needs a multiple of {stages} stages, not {micro_batches}"
            )
        warm = [
            2 * (stages - stage - 1) + (chunks_per_stage - 1) * stages
            for stage in range(stages)
        ]
    return [
        _one_f_one_b(stage, stages, micro_batches, chunks_per_stage, warm[stage])
        for stage in range(stages)
    ]


def _gpipe(stage: int, micro_batches: int) -> list[Turn]:
    """Return forward turns, then backward ones (Huang et al., GPipe, figure 2c).

    The backward turns begin with the last micro-batch.
    """
    forward = [Turn(True, stage, m) for m in range(micro_batches)]
    return forward + [Turn(False, stage, m) for m in reversed(range(micro_batches))]


def _one_f_one_b(
    stage: int, stages: int, micro_batches: int, chunks: int, warm: int
) -> list[Turn]:
    """Return ``warm`` forward passes, then one forward and one backward in turn, then the remaining backward.

    Micro-batches pass in rows of ``stages``, each row through all of a stage's chunks before the next.
    """
    total = micro_batches * chunks
    warm = min(warm, total)

    def turn(forward: bool, number: int) -> Turn:
        # With one chunk there are no rows to keep together, and any number of micro-batches will do.
        row = stages if chunks > 1 else 1
        rows, within = divmod(number, row * chunks)
        nth, place = divmod(within, row)
        nth = nth if forward else chunks - 1 - nth
        return Turn(forward, nth * stages + stage, rows * row + place)

    turns = [turn(True, k) for k in range(warm)]
    for k in range(warm, total):
        turns += [turn(True, k), turn(False, k - warm)]
    return turns + [turn(False, k) for k in range(total - warm, total)]
