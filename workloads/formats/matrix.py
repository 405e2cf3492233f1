"""Traffic matrices as CSV: row i, column j has the bytes that rank i sends to rank j.

In: one all-to-all-v. Out: of any workload, what each rank sends to each other in one iteration.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from ringlight.workloads.formats.files import printable, read_text, write_bytes
from ringlight.workloads.graph import Collective, Workload
from ringlight.workloads.graph_checks import TOO_MUCH
from ringlight.workloads.graph_writer import Book, Writer
from ringlight.workloads.traffic import traffic

#: A workload keeps each number of a matrix that is read.
READ_LIMIT = 2048
BYTES_LIMIT = 80 << 20


def read(path: Path) -> Workload:
    """Return the matrix as one all-to-all-v of all ranks.

    Empty lines and those that begin with # are skipped. The diagonal is the part that a rank keeps, which is
    not sent. Raises ValueError with file, line and column.
    """
    rows: list[tuple[int, tuple[int, ...]]] = []
    for number, line in enumerate(io.StringIO(read_text(path, BYTES_LIMIT)), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if len(rows) == READ_LIMIT:
            raise ValueError(
                f"{path}, line {number}: a matrix may have {READ_LIMIT} ranks"
            )
        rows.append((number, _row(path, number, line)))
    if not rows:
        raise ValueError(f"{path}: it has no rows")
    for number, row in rows:
        if len(row) != len(rows):
            raise ValueError(
                f"{path}, line {number}: it has {len(row)} columns, there are {len(rows)} rows"
            )
    book = Book()
    writer = Writer(book)
    group = book.group(range(len(rows)))
    sizes = tuple(
        (*row[:rank], 0, *row[rank + 1 :]) for rank, (_, row) in enumerate(rows)
    )
    size = max(map(sum, sizes))
    if size >= TOO_MUCH:
        raise ValueError(
            f"{path}: a rank sends {size} bytes, less than {TOO_MUCH} are allowed"
        )
    writer.collective("traffic", Collective("all-to-all-v", sizes=sizes), size, 0)
    return book.workload(
        path.stem,
        [writer.done()],
        np.zeros(len(rows)),
        [[group]] * len(rows),
        [[]] * len(rows),
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
    """Write :func:`workloads.traffic.traffic`, and read it again. Raises ValueError."""
    matrix = traffic(workload)
    lines = [",".join(map(str, row)) for row in matrix.tolist()]
    write_bytes(path, ("\n".join(lines) + "\n").encode())
    if not np.array_equal(
        np.loadtxt(path, dtype=np.int64, delimiter=",", ndmin=2), matrix
    ):
        raise ValueError(f"{path}: what was written is not what is read from it")
