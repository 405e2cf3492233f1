"""An MSCCL file as a schedule of ours, judged by the checker that judges our own (``fabric.verify``).

MSCCL has an input, an output and scratch; a schedule has one vector, in which what arrives is added or put in
its place at once. So what a file keeps in scratch and adds later, the schedule adds when it comes. It comes
in the first step in which that is right: a rank sends a chunk when all that is in it has come, and before
anything else of that chunk has. A file of ours says its own steps. What does not fit in place, such as two
sums of a chunk that pass through a rank at once, is refused.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ringlight.extensions.msccl.buffers import chunks_of
from ringlight.extensions.msccl.elements import Program, parse
from ringlight.extensions.msccl.play import Piece, Played, play
from ringlight.fabric.steps import Row, Step, Steps, WrittenSteps, frozen
from ringlight.fabric.verify import checkable, verify
from ringlight.workloads.formats.files import read_text
from ringlight.workloads.graph import Collective

#: Steps of all thread blocks; a file of 64 ranks' ring has 16,000, the longest of others that we know 5,300.
STEPS_LIMIT = 1 << 16


@dataclass(frozen=True)
class Algorithm:
    """A schedule for a kind of collective (``fabric.kinds``); ``root`` of a broadcast or a reduce."""

    kind: str
    steps: Steps
    root: int = 0

    def collective(self) -> Collective:
        """Return the collective that a workload calls."""
        return Collective(self.kind, root=self.root, own=WrittenSteps.of(self.steps))


def read_msccl(path: Path) -> Algorithm:
    """Return the algorithm of a file.

    Raises ValueError, in one line with the file's name, also for a wrong algorithm.
    """
    return algorithm_of(read_text(path).encode(), str(path))


def algorithm_of(data: bytes, file: str) -> Algorithm:
    """Return the algorithm in ``data``, which is called ``file``.

    Raises ValueError, in one line with the file's name, also for a wrong algorithm.
    """
    program = parse(data, file)
    n, chunks = program.ranks, chunks_of(program)
    try:
        checkable(program.kind, n, chunks)
    except ValueError as error:
        program.wrong(program.line, str(error))
    length = sum(
        len(block.actions)
        for gpu in program.gpus.values()
        for block in gpu.blocks.values()
    )
    if length > STEPS_LIMIT:
        program.wrong(program.line, f"{length} steps; {STEPS_LIMIT} can be checked")
    steps = _steps(program, chunks, play(program))
    try:
        verify(program.kind, steps, program.root)
    except ValueError as error:
        raise ValueError(f"{file}: as a schedule in place, {error}") from None
    return Algorithm(program.kind, steps, program.root)


def _steps(program: Program, chunks: int, played: Played) -> Steps:
    """Return the transfers, step by step; of a level first what is added, then what takes a place."""
    pieces = played.pieces
    stated = all(piece.our_step >= 0 for piece in pieces)
    levels = (
        [piece.our_step for piece in pieces] if stated else _levels(program, pieces)
    )
    rows: defaultdict[tuple[int, bool], list[Row]] = defaultdict(list)
    last = (-1, -1, -1, False)
    for piece, level, added in zip(pieces, levels, played.added, strict=True):
        key = (level, not added)
        if last == (piece.message, level, piece.chunk - 1, added):
            source, destination, first, count = rows[key][-1]
            rows[key][-1] = (source, destination, first, count + 1)
        else:
            rows[key].append((piece.source, piece.destination, piece.chunk, 1))
        last = (piece.message, level, piece.chunk, added)
    made = []
    for (_, replaces), transfers in sorted(rows.items()):
        columns = (
            frozen(column) for column in np.array(sorted(transfers), dtype=np.int64).T
        )
        made.append(Step(*columns, op="replace" if replaces else "reduce"))  # type: ignore[misc, arg-type]
    name, together = program.name, program.step_by_step
    return Steps(
        name,
        program.ranks,
        chunks,
        len(made),
        lambda: iter(made),
        step_by_step=together,
    )


def _levels(program: Program, pieces: list[Piece]) -> list[int]:
    """Return the earliest step of each piece for which its sender has exactly its content in place."""
    levels = [0] * len(pieces)
    of_chunk: defaultdict[int, list[int]] = defaultdict(list)
    for k, piece in enumerate(pieces):
        of_chunk[piece.chunk].append(k)
    for chunk, members in of_chunk.items():
        came: defaultdict[int, list[int]] = defaultdict(list)
        for k in members:
            came[pieces[k].destination].append(k)
        # The first not before the second, or after it.
        later: list[tuple[int, int, int]] = []
        for sent in members:
            for arrived in came[pieces[sent].source]:
                if pieces[sent].through >> pieces[arrived].bit & 1:
                    later.append((sent, arrived, 1))
                else:
                    later.append((arrived, sent, 0))
        changed = True
        while changed:
            changed = False
            for later_piece, other, more in later:
                if levels[later_piece] < levels[other] + more:
                    levels[later_piece], changed = levels[other] + more, True
                    if levels[later_piece] > len(members):
                        what = f"two sums of chunk {chunk} are at gpu {pieces[later_piece].source} at once"
                        program.wrong(
                            program.line, f"{what}, which does not fit in place"
                        )
    return levels
