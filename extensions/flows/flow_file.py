"""Files of flows: CSV with a head line."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ringlight.workloads.formats.files import printable, read_bytes

#: Columns of a file; further columns are ignored.
COLUMNS = ("source", "destination", "bytes", "start_s")
_N = TypeVar("_N", int, float)
#: Most flows of a file, and most bytes of the file and of a flow, which floats carry exactly.
MOST_FLOWS = 5_000_000
FILE_BYTES, FLOW_BYTES = 512 << 20, 1 << 53
#: Latest start, seconds: there floats still distinguish 0.1 ns.
LAST_START_S = 1_000_000


@dataclass(frozen=True)
class SizedFlow:
    """``size_bytes`` from GPU ``source`` to GPU ``destination``, from ``start_s`` seconds on."""

    source: str
    destination: str
    size_bytes: int
    start_s: float


class FlowFileError(ValueError):
    """A file of flows that cannot be used; one line with its name and the number of the line."""


def read_flows(path: Path, gpus: Collection[str]) -> list[SizedFlow]:
    """Return the flows of a file. ``gpus``: names that may stand there. Raises FlowFileError."""
    try:
        data = read_bytes(path, limit=FILE_BYTES, pipe=True)
    except ValueError as error:
        raise FlowFileError(str(error)) from None
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")
    reader = csv.DictReader(text, restval="")
    try:
        reader.fieldnames = _head(path, reader.fieldnames or ())
        flows = list(_flows(path, reader, gpus))
    except UnicodeDecodeError:
        raise FlowFileError(f"{path}: it is not text in UTF-8") from None
    except csv.Error as error:
        raise FlowFileError(f"{path}:{reader.line_num + 1}: {error}") from None
    if not flows:
        raise FlowFileError(f"{path}: there is no flow after the head line")
    return flows


def _head(path: Path, names: Sequence[str]) -> list[str]:
    """Return the names of the columns, each of ours once. Raises FlowFileError."""
    head = [name.strip() for name in names]
    for name in COLUMNS:
        if head.count(name) != 1:
            number = "no" if name not in head else "more than one"
            line = printable(",".join(names))
            raise FlowFileError(
                f"{path}:1: the head line {line} has {number} column {name}"
            )
    return head


def _flows(
    path: Path, rows: csv.DictReader[str], gpus: Collection[str]
) -> Iterable[SizedFlow]:
    for number, row in enumerate(rows, 1):
        if number > MOST_FLOWS:
            raise FlowFileError(f"{path}: more than {MOST_FLOWS:,} flows")
        try:
            yield _flow(row, gpus)
        except ValueError as error:
            raise FlowFileError(f"{path}:{rows.line_num}: {error}") from None


def _number(
    row: dict[str, str], column: str, convert: Callable[[str], _N], kind: str
) -> _N:
    """Return a column's number. Raises ValueError that names the column."""
    try:
        return convert(row[column])
    except ValueError:
        raise ValueError(f"{column}: {row[column]!r:.40} is not {kind}") from None


def _flow(row: dict[str | Any, str | Any], gpus: Collection[str]) -> SizedFlow:
    if None in row:
        raise ValueError("there are more fields than in the head line")
    flow = SizedFlow(
        row["source"].strip(),
        row["destination"].strip(),
        _number(row, "bytes", int, "a whole number of bytes"),
        _number(row, "start_s", float, "a number of seconds"),
    )
    for column, name in (("source", flow.source), ("destination", flow.destination)):
        if name not in gpus:
            raise ValueError(
                f"{column}: there is no GPU {printable(name)}; there are {len(gpus):,}, such as {min(gpus)}"
            )
    if flow.source == flow.destination:
        raise ValueError(f"{flow.source} sends to itself")
    if flow.size_bytes < 1:
        raise ValueError(f"bytes: {flow.size_bytes}; it must be 1 or more")
    if flow.size_bytes > FLOW_BYTES:
        raise ValueError(f"bytes: more than {FLOW_BYTES}")
    if not 0 <= flow.start_s <= LAST_START_S:
        raise ValueError(
            f"start_s: {flow.start_s}; it must be 0 to {LAST_START_S:,}, from the begin of the run"
        )
    return flow
