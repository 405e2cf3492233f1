"""Files of flows: CSV with a head line."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ringlight.workloads.formats.files import read_bytes

#: Columns of a file; further columns are ignored.
COLUMNS = ("source", "destination", "bytes", "start_s")
_N = TypeVar("_N", int, float)
#: Most flows of a file, and most bytes of the file and of a flow, which floats carry exactly.
MOST_FLOWS = 5_000_000
FILE_BYTES, FLOW_BYTES = 512 << 20, 1 << 53


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
    try:
        text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline="")
        reader = csv.DictReader(text, restval="")
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise FlowFileError(f"{path}: the head line has no column {missing[0]}")
        return list(_flows(path, reader, gpus))
    except (UnicodeDecodeError, csv.Error) as error:
        raise FlowFileError(f"{path}: cannot be read: {error}") from None


def _flows(
    path: Path, rows: Iterable[dict[str, str]], gpus: Collection[str]
) -> Iterable[SizedFlow]:
    for number, row in enumerate(rows, 2):
        if number > MOST_FLOWS + 1:
            raise FlowFileError(f"{path}: more than {MOST_FLOWS:,} flows")
        try:
            yield _flow(row, gpus)
        except ValueError as error:
            raise FlowFileError(f"{path}:{number}: {error}") from None


def _number(
    row: dict[str, str], column: str, convert: Callable[[str], _N], kind: str
) -> _N:
    """Return a column's number. Raises ValueError that names the column."""
    try:
        return convert(row[column])
    except ValueError:
        raise ValueError(f"{column}: {row[column]!r:.40} is not {kind}") from None


def _flow(row: dict[str, str], gpus: Collection[str]) -> SizedFlow:
    flow = SizedFlow(
        row["source"],
        row["destination"],
        _number(row, "bytes", int, "a whole number of bytes"),
        _number(row, "start_s", float, "a number of seconds"),
    )
    for name in (flow.source, flow.destination):
        if name not in gpus:
            raise ValueError(f"there is no GPU {name}")
    if flow.source == flow.destination:
        raise ValueError(f"{flow.source} sends to itself")
    if flow.size_bytes < 1:
        raise ValueError(f"bytes: {flow.size_bytes}; it must be 1 or more")
    if flow.size_bytes > FLOW_BYTES:
        raise ValueError(f"bytes: more than {FLOW_BYTES}")
    if not (math.isfinite(flow.start_s) and flow.start_s >= 0):
        raise ValueError(f"start_s: {flow.start_s}; it must be 0 or more")
    return flow
