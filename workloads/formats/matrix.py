"""Traffic matrices as CSV: row i, column j has the bytes that rank i sends to rank j.

In: one all-to-all-v. Out: of any workload, what each rank sends to each other in one iteration.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fabric.kinds import collective_steps, matrix_bounds, vector_bytes
from fabric.steps import IntArray
from workloads.formats.files import printable, read_text, write_bytes
from workloads.graph import TOO_MUCH, Book, Collective, FloatArray, Kind, Program, Workload, Writer
from workloads.splits import split_bytes

#: A workload keeps each number of a matrix that is read.
READ_LIMIT = 2048
BYTES_LIMIT = 80 << 20
WRITE_LIMIT = 4096


def read(path: Path) -> Workload:
    """The matrix as one all-to-all-v of all ranks. Empty lines and those that begin with # are passed over.

    Raises ValueError with file, line and column.
    """
    rows: list[tuple[int, tuple[int, ...]]] = []
    for number, line in enumerate(io.StringIO(read_text(path, BYTES_LIMIT)), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if len(rows) == READ_LIMIT:
            raise ValueError(f"{path}, line {number}: a matrix may have {READ_LIMIT} ranks")
        rows.append((number, _row(path, number, line)))
    if not rows:
        raise ValueError(f"{path}: it has no rows")
    for number, row in rows:
        if len(row) != len(rows):
            raise ValueError(f"{path}, line {number}: it has {len(row)} columns, there are {len(rows)} rows")
    book = Book()
    writer = Writer(book)
    group = book.group(range(len(rows)))
    sizes = tuple(row for _, row in rows)
    size = max(map(sum, sizes))
    if size >= TOO_MUCH:
        raise ValueError(f"{path}: a rank sends {size} bytes, less than {TOO_MUCH} are allowed")
    writer.collective("traffic", Collective("all-to-all-v", sizes=sizes), size, 0)
    return book.workload(
        path.stem, [writer.done()], np.zeros(len(rows)), [[group]] * len(rows), [[]] * len(rows)
    )


def _row(path: Path, number: int, line: str) -> tuple[int, ...]:
    if line.count(",") >= READ_LIMIT:
        raise ValueError(f"{path}, line {number}: a matrix may have {READ_LIMIT} ranks")
    row = []
    for column, word in enumerate(line.split(","), 1):
        try:
            value = int(word)
        except ValueError:
            value = -1
        if not 0 <= value < TOO_MUCH:
            raise ValueError(
                f"{path}, line {number}, column {column}: {printable(word.strip())} is no number of bytes"
            )
        row.append(value)
    return tuple(row)


def write(workload: Workload, path: Path) -> None:
    """Writes :func:`traffic`, and reads it again. Raises ValueError."""
    found = traffic(workload)
    lines = [",".join(map(str, row)) for row in found.tolist()]
    write_bytes(path, ("\n".join(lines) + "\n").encode())
    if not np.array_equal(np.loadtxt(path, dtype=np.int64, delimiter=",", ndmin=2), found):
        raise ValueError(f"{path}: what was written is not what is read from it")


def traffic(workload: Workload) -> IntArray:
    """[ranks, ranks]: bytes that each rank (row) sends to each (column) in one iteration.

    Collectives send by their schedules, unequal all-to-alls as those of iteration 0. Raises ValueError for
    more than ``WRITE_LIMIT`` ranks, and for a kind or an algorithm that there is not.
    """
    if workload.ranks > WRITE_LIMIT:
        raise ValueError(f"a matrix may have {WRITE_LIMIT} ranks, not {workload.ranks}")
    return np.rint(sent(workload)).astype(np.int64)


def sent(workload: Workload) -> FloatArray:
    """As :func:`traffic`, of any number of ranks, parts of bytes as they come."""
    return _of_messages(workload) + _of_slots(workload, _slots(workload))


def all_reduce_groups(workload: Workload) -> tuple[list[IntArray], float, FloatArray]:
    """The all-reduces that move the most bytes, by their groups, which share no rank: those of one slot.

    The groups, the most bytes that a rank sends in them in one iteration, and [ranks, ranks] the bytes of all
    else. No groups where there is no all-reduce.
    """
    slots = _slots(workload)
    only = [slot for slot in slots if _only_all_reduces(workload, slot)]
    of_slot = {slot: _of_slots(workload, [slot]) for slot in only}
    most = max(only, key=lambda slot: float(of_slot[slot].sum()), default=None)
    rest = _of_messages(workload) + _of_slots(workload, [slot for slot in slots if slot != most])
    if most is None:
        return [], 0.0, rest
    numbers = np.unique(workload.communicators[:, most])
    groups = [workload.groups[number] for number in numbers[numbers >= 0].tolist()]
    return groups, float(of_slot[most].sum(axis=1).max()), rest


def _slots(workload: Workload) -> list[int]:
    """Communicator slots that some rank has collectives on."""
    found = [program.slot[program.kind == Kind.COLLECTIVE] for program in workload.programs]
    return np.unique(np.concatenate(found)).tolist()  # type: ignore[no-any-return]


def _only_all_reduces(workload: Workload, slot: int) -> bool:
    return all(
        workload.collectives[which].kind == "all-reduce"
        for program in workload.programs
        for which in np.unique(
            program.collective[(program.kind == Kind.COLLECTIVE) & (program.slot == slot)]
        ).tolist()
    )


def _of_messages(workload: Workload) -> FloatArray:
    found = np.zeros((workload.ranks, workload.ranks))
    for rank, number in enumerate(workload.program_of.tolist()):
        program = workload.programs[number]
        sends = program.kind == Kind.SEND
        np.add.at(found[rank], workload.peers[rank, program.slot[sends]], program.bytes[sends])
    return found


def _of_slots(workload: Workload, slots: Sequence[int]) -> FloatArray:
    """[ranks, ranks]: bytes of all collectives on these communicator slots."""
    found = np.zeros((workload.ranks, workload.ranks))
    shares: dict[tuple[int, int], FloatArray] = {}
    for slot in slots:
        done = set()
        for rank, group in enumerate(workload.communicators[:, slot].tolist()):
            program = workload.programs[int(workload.program_of[rank])]
            if group in done or not ((program.kind == Kind.COLLECTIVE) & (program.slot == slot)).any():
                continue
            done.add(group)
            members = workload.groups[group]
            found[np.ix_(members, members)] += _collectives(workload, program, slot, group, shares)
    return found


def _collectives(
    workload: Workload, program: Program, slot: int, group: int, shares: dict[tuple[int, int], FloatArray]
) -> FloatArray:
    """[group ranks, group ranks]: bytes of all collectives of one group on one communicator."""
    calls = np.flatnonzero((program.kind == Kind.COLLECTIVE) & (program.slot == slot))
    ranks = len(workload.groups[group])
    found = np.zeros((ranks, ranks))
    for which in np.unique(program.collective[calls]).tolist():
        what = workload.collectives[which]
        mine = calls[program.collective[calls] == which]
        if what.sizes is not None:
            found += len(mine) * _sent(what, ranks, matrix_bounds(what.sizes))
        elif what.split is not None and what.split.skew:
            for ordinal in np.searchsorted(calls, mine).tolist():
                size = int(program.bytes[calls[ordinal]])
                parts = split_bytes(what.split, ranks, size, (group, ordinal, 0))
                found += _sent(what, ranks, matrix_bounds(parts.tolist()))
        else:
            if (which, ranks) not in shares:
                shares[which, ranks] = _sent(what, ranks)
            found += shares[which, ranks] * float(program.bytes[mine].sum())
    return found


def _sent(what: Collective, ranks: int, bounds: npt.NDArray[np.int64] | None = None) -> FloatArray:
    """[ranks, ranks]: bytes by a collective's schedule; without ``bounds`` those of a size of one byte."""
    steps = collective_steps(what.kind, what.algorithm, ranks, what.root)
    chunk = vector_bytes(what.kind, ranks, 1) / steps.chunks
    found = np.zeros((ranks, ranks))
    for step in steps:
        size = chunk * step.count if bounds is None else bounds[step.first + step.count] - bounds[step.first]
        np.add.at(found, (step.sources, step.destinations), size)
    return found
