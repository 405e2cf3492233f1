"""Tables of the folder ``data``: what was stated beforehand, and the outcomes."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Collection
from pathlib import Path

from ringlight.extensions.judge.contract import ReadTable

DATA = Path(__file__).parent / "data"
STATED, OUTCOMES = DATA / "stated", DATA / "outcomes"
#: Largest table, bytes after decompression.
LARGEST_BYTES = 16 << 20


class TableError(ValueError):
    """A table that cannot be read; one line with its name."""


def table_reader(folder: Path, names: Collection[str]) -> ReadTable:
    """Return a function that reads tables of a folder, only those named. Its errors are TableErrors."""

    def read(name: str) -> list[dict[str, str]]:
        if name not in names:
            raise TableError(f"{name}: the judge does not list this table")
        return read_table(folder / name)

    return read


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, which may be compressed (.gz). Raises TableError."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            data = file.read(LARGEST_BYTES + 1)
        if len(data) > LARGEST_BYTES:
            raise TableError(f"{path}: longer than {LARGEST_BYTES:,} bytes")
        return list(csv.DictReader(io.StringIO(data.decode())))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path}: cannot be read: {error}") from None
