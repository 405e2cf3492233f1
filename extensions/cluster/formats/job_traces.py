"""Traces of jobs as CSV, in the dialects that are published: read line by line, whatever the size of the
file.

RFold (shuoshuc/RFold, MIT): ``job id, arrival time (sec), topology, shape, size, duration (sec)``, as it has
the traces of Philly and Crux. Helios and Acme (CC-BY-4.0): ``job_id, user, …, gpu_num, …, submit_time, …,
duration``. A file whose name ends in ``.gz`` is uncompressed while it is read.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import math
import os
import stat
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import numpy as np

from ringlight.extensions.cluster.job_traces import JobTrace
from ringlight.workloads.formats.files import FILE_LIMIT, printable

#: Most jobs of a trace, and characters of a line: three figures of each job are kept.
MOST_JOBS, MOST_LINE = 20_000_000, 10_000
#: The largest number of GPUs, and of seconds, that is no mistake.
MOST_GPUS, MOST_S = 1 << 24, 1e12


@dataclass(frozen=True)
class Dialect:
    """``columns``: all that a file may have. ``arrival``, ``gpus``, ``duration``, ``shape``: of what is
    read. ``sources``: whose traces have these columns."""

    name: str
    sources: str
    columns: tuple[str, ...]
    arrival: str
    gpus: str
    duration: str
    shape: str | None = None

    @property
    def described(self) -> str:
        """The columns of a file of this dialect as a clause, those that it must have first."""
        needed = (self.arrival, self.gpus, self.duration)
        optional = [column for column in self.columns if column not in needed]
        return f"{self.sources}: {', '.join(needed)}, and perhaps {', '.join(optional)}"


_RFOLD = ("job id", "arrival time (sec)", "topology", "shape", "size", "duration (sec)")
_SLURM = (
    *(
        "job_id",
        "user",
        "vc",
        "gpu_num",
        "cpu_num",
        "node_num",
        "mem_per_pod_GB",
        "shared_mem_per_pod",
    ),
    *(
        "type",
        "state",
        "submit_time",
        "start_time",
        "end_time",
        "fail_time",
        "stop_time",
        "duration",
    ),
    *("queue", "gpu_time"),
)
DIALECTS = (
    Dialect(
        "rfold",
        "RFold",
        _RFOLD,
        "arrival time (sec)",
        "size",
        "duration (sec)",
        "shape",
    ),
    Dialect("slurm", "Helios and Acme", _SLURM, "submit_time", "gpu_num", "duration"),
)

#: The columns that a file may have, for who has others.
DESCRIBED = "columns of " + "; of ".join(dialect.described for dialect in DIALECTS)


@dataclass
class _Read:
    arrival: array[float] = field(default_factory=lambda: array("d"))
    gpus: array[int] = field(default_factory=lambda: array("q"))
    duration: array[float] = field(default_factory=lambda: array("d"))
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def read_job_trace(
    path: Path, *, skip_bad: bool = False, keep_shapes: bool = False
) -> JobTrace:
    """Return the jobs of a file, by arrival.

    ``skip_bad``: rows that cannot be read are counted and left out. Jobs without a GPU are counted and left
    out always. Raises ValueError naming the file, and the line and column of the error.
    """
    jobs = _Read()
    with _opened(path) as lines:
        rows = csv.reader(_bounded(lines, path))
        try:
            head = next(rows, None)
            if head is None:
                raise ValueError(f"{path}: it is empty")
            dialect, places = _dialect(path, head)
            take = _taker(dialect, places, jobs, keep_shapes)
            for row in rows:
                if not row:
                    continue
                try:
                    take(row)
                except _BadCellError as error:
                    if not skip_bad:
                        raise ValueError(
                            f"{path}, line {rows.line_num}, {error}"
                        ) from None
                    jobs.counts["bad_row"] += 1
                if len(jobs.gpus) > MOST_JOBS:
                    raise ValueError(f"{path}: it has more than {MOST_JOBS} jobs")
        except (csv.Error, UnicodeDecodeError, OSError, EOFError) as error:
            raise ValueError(f"{path}, line {rows.line_num + 1}: {error}") from None
    if not jobs.gpus:
        raise ValueError(f"{path}: it has no job that wants a GPU")
    return JobTrace(
        np.array(jobs.arrival),
        np.array(jobs.gpus, dtype=np.int64),
        np.array(jobs.duration),
        tuple(jobs.shapes),
        dict(jobs.counts),
    ).sorted()


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    try:
        with path.open("rb") as file:
            kind = os.fstat(file.fileno())
            if not stat.S_ISREG(kind.st_mode):
                raise ValueError(f"{path}: it is no regular file")
            if kind.st_size > FILE_LIMIT:
                raise ValueError(
                    f"{path}: it has {kind.st_size} bytes, {FILE_LIMIT} are allowed"
                )
            data = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            yield io.TextIOWrapper(data, encoding="utf-8", newline="")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None


def _bounded(lines: IO[str], path: Path) -> Iterator[str]:
    number = 0
    while line := lines.readline(MOST_LINE + 1):
        number += 1
        if len(line) > MOST_LINE:
            raise ValueError(
                f"{path}, line {number}: it has more than {MOST_LINE} characters"
            )
        yield line


def _dialect(path: Path, head: Sequence[str]) -> tuple[Dialect, dict[str, int]]:
    names = [name.strip().lstrip("#\ufeff").strip() for name in head]
    dialect = max(
        DIALECTS, key=lambda candidate: len(set(names) & set(candidate.columns))
    )
    for number, name in enumerate(names, 1):
        if name not in dialect.columns:
            near = difflib.get_close_matches(name, dialect.columns, 1, 0.0)
            unknown = (
                f"{path}, line 1, column {number}: unknown column {printable(name)}"
            )
            raise ValueError(f"{unknown}; the nearest is {near[0]}; {DESCRIBED}")
        if name in names[: number - 1]:
            raise ValueError(
                f"{path}, line 1, column {number}: a second column {printable(name)}"
            )
    for name in (dialect.arrival, dialect.gpus, dialect.duration):
        if name not in names:
            raise ValueError(f"{path}, line 1: there is no column {name}; {DESCRIBED}")
    return dialect, {name: number for number, name in enumerate(names)}


class _BadCellError(ValueError):
    """Cell that cannot be read: its column, and its content."""


def _taker(
    dialect: Dialect, places: dict[str, int], jobs: _Read, keep_shapes: bool
) -> Callable[[Sequence[str]], None]:
    arrival, gpus, duration = (
        places[name] for name in (dialect.arrival, dialect.gpus, dialect.duration)
    )
    shape = places.get(dialect.shape or "") if keep_shapes else None
    width = len(places)

    def take(row: Sequence[str]) -> None:
        if len(row) != width:
            raise _BadCellError(
                f"column {min(len(row), width) + 1}: {len(row)} columns where there are {width}"
            )
        size = _number(row[gpus], dialect.gpus, MOST_GPUS)
        if size != int(size):
            raise _BadCellError(
                f"column {dialect.gpus}: {printable(row[gpus])} is no whole number"
            )
        arrival_s, took = (
            _time(row[arrival], dialect.arrival),
            _number(row[duration], dialect.duration, MOST_S),
        )
        sides = (
            _sides(row[shape], dialect.shape or "", int(size))
            if shape is not None
            else ()
        )
        if not size:
            jobs.counts["no_gpu"] += 1
            return
        jobs.arrival.append(arrival_s)
        jobs.gpus.append(int(size))
        jobs.duration.append(took)
        if sides:
            jobs.shapes.append(sides)

    return take


def _number(text: str, column: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _BadCellError(
            f"column {column}: {printable(text)} is no number"
        ) from None
    if not 0 <= value <= most:
        what = (
            "is negative"
            if value < 0
            else "is no number"
            if math.isnan(value)
            else f"is above {most:g}"
        )
        raise _BadCellError(f"column {column}: {printable(text)} {what}")
    return value


def _time(text: str, column: str) -> float:
    """Return the seconds of a number, or of a moment as ``2020-04-18 09:11:33``, with a zone or without."""
    if text[4:5] == "-" and text[7:8] == "-":
        try:
            moment = datetime.fromisoformat(text)
            # Without a zone, one that has no summer time keeps the gaps as they were.
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except ValueError:
            raise _BadCellError(
                f"column {column}: {printable(text)} is no time"
            ) from None
    return _number(text, column, MOST_S)


def _sides(text: str, column: str, size: int) -> tuple[int, ...]:
    sides = (
        tuple(int(side) for side in text.split("x"))
        if all(map(str.isdigit, text.split("x")))
        else ()
    )
    if math.prod(sides) != size:
        raise _BadCellError(
            f"column {column}: {printable(text)} is no block of {size} GPUs"
        )
    return sides
