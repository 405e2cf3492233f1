"""Results as tidy rows: one figure each, with what it is of, its unit and how it is known."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Label = Literal["measured", "simulated", "analytic", "published"]
#: What agreement with a published figure is worth: the paper's own figure went in (fitted), it did not
#: (predicted), or nothing is published (free).
Standing = Literal["fitted", "predicted", "free"]
Value = float | int | bool | str | None


@dataclass(frozen=True)
class Row:
    """``subject``: what the figure is of, a kind and a name (``job red``, ``fabric oddl``, ``event 1``), or
    ``run``. ``unit``: s, bit/s, bytes, %, 1 (a ratio or a share), count, or empty for words and truths.
    ``repeat`` is None where a figure stands for all repeats; then ``spread`` is half the width of the 95 %
    interval of their mean, None for fewer than two."""

    arm: str
    subject: str
    metric: str
    value: Value
    unit: str
    label: Label
    point: Mapping[str, Any] = field(default_factory=dict)
    repeat: int | None = None
    spread: float | None = None
    standing: Standing = "free"


#: Columns of rows.csv after the arm and a column for each swept path.
COLUMNS = ("repeat", "subject", "metric", "value", "unit", "label", "spread", "standing")


def as_json(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Rows for result.json."""
    return [asdict(row) for row in rows]


def from_json(found: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows of a result.json."""
    return [Row(**entry) for entry in found]


def as_csv(rows: Sequence[Row]) -> str:
    """The text of rows.csv."""
    paths = list(dict.fromkeys(path for row in rows for path in row.point))
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["arm", *paths, *COLUMNS])
    for row in rows:
        swept = (row.point.get(path) for path in paths)
        writer.writerow([row.arm, *swept, *(getattr(row, column) for column in COLUMNS)])
    return text.getvalue()


def key_of(point: Mapping[str, Any]) -> str:
    """What tells a point of a sweep from others."""
    return str(sorted(point.items())) if point else ""


def where(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows whose fields are as wanted, in order."""
    return [row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]
