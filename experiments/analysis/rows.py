"""Results as tidy rows: one figure each, with what it is of, its unit and how it is known."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ringlight.experiments.language.text import ScenarioError

if TYPE_CHECKING:
    import pandas as pd

Label = Literal["measured", "simulated", "analytic", "published"]
#: What agreement with a published figure is worth.
Standing = Literal["fitted", "predicted", "identity", "range", "unjudged", "free"]
WORTH: Mapping[Standing, str] = {
    "fitted": "a parameter was derived from this very figure, so that agreement is no evidence",
    "predicted": "no parameter was, and ours could have come out otherwise",
    "identity": "ours follows by arithmetic from what went in and could not have come out otherwise",
    "range": "our settings spread so widely that some agree whatever is true",
    "unjudged": "the scenario does not say",
    "free": "nothing is published that is of the same thing",
}
Value = float | int | bool | str | None


@dataclass(frozen=True)
class Row:
    """One figure of a run.

    ``arm``: the arm of the run. ``subject``: a kind and a name (``job red``, ``fabric ideal``, ``event 1``),
    or ``run``. ``value`` is in ``unit``: s, bit/s, bytes, %, 1 (a ratio or a share), count, or empty for
    words and truths. ``label``: measured, simulated, analytic or published. ``point``: values of what was
    swept, by dotted path. ``repeat``: number of the repeat, None for the figure of all repeats; then
    ``spread`` is half the width of the 95 % interval of their mean, None for fewer than two. ``standing``:
    what agreement with a published figure shows.
    """

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
_COLUMNS = (
    "repeat",
    "subject",
    "metric",
    "value",
    "unit",
    "label",
    "spread",
    "standing",
)


def as_json(rows: Iterable[Row]) -> dict[str, Any]:
    """Return ``points`` and ``rows`` of result.json, in which a row has the name of its point."""
    names: dict[str, str] = {}
    points: dict[str, Mapping[str, Any]] = {}
    listed = []
    for row in rows:
        name = names.setdefault(key_of(row.point), f"p{len(names)}")
        points.setdefault(name, row.point)
        listed.append({**vars(row), "point": name})
    return {"points": points, "rows": listed}


def from_json(result: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the object of result.json."""
    return [
        Row(**{**entry, "point": result["points"][entry["point"]]})
        for entry in result["rows"]
    ]


def _table(rows: Sequence[Row]) -> tuple[list[str], list[list[Any]]]:
    """Return the names of the columns, and a line for each row."""
    paths = list(dict.fromkeys(path for row in rows for path in row.point))
    lines = [
        [
            row.arm,
            *(row.point.get(path) for path in paths),
            *(getattr(row, name) for name in _COLUMNS),
        ]
        for row in rows
    ]
    return ["arm", *paths, *_COLUMNS], lines


def as_csv(rows: Sequence[Row]) -> str:
    """Return the text of rows.csv."""
    columns, lines = _table(rows)
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([columns, *lines])
    return text.getvalue()


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return rows as a pandas data frame, as in rows.csv. Raises ScenarioError if pandas is not installed."""
    try:
        import pandas as pd
    except ImportError:
        raise ScenarioError(
            "pandas is not installed; install it with: pip install pandas pyarrow"
        ) from None
    columns, lines = _table(rows)
    return pd.DataFrame(lines, columns=columns)


def polars_frame(rows: Sequence[Row]) -> Any:
    """Return rows as a polars data frame, as in rows.csv. Raises ScenarioError if polars is not installed.

    Values are numbers where all are; else their texts.
    """
    try:
        import polars
    except ImportError:
        raise ScenarioError(
            "polars is not installed; install it with: pip install polars"
        ) from None
    columns, lines = _table(rows)
    return polars.DataFrame(
        lines, schema=columns, orient="row", strict=False, infer_schema_length=None
    )


def write_parquet(rows: Sequence[Row], path: Path) -> None:
    """Write rows to a Parquet file.

    A value that is not a number is empty in the column ``value`` and is in the column ``text``. Raises
    ScenarioError if pandas or pyarrow is not installed.
    """
    table = frame(rows)
    import pandas as pd

    numbers = pd.to_numeric(table["value"], errors="coerce")
    table["text"] = [
        None if isinstance(value, int | float) else str(value)
        for value in table["value"]
    ]
    table["value"] = numbers
    for column in table.columns.difference(["value", "repeat", "spread"]):
        table[column] = table[column].map(
            lambda value: None if value is None else str(value)
        )
    try:
        table.to_parquet(path)
    except ImportError:
        raise ScenarioError(
            "pyarrow is not installed; install it with: pip install pyarrow"
        ) from None


def key_of(point: Mapping[str, Any]) -> str:
    """Return a key that distinguishes a point of a sweep from others; empty for a point without swept
    paths."""
    return str(sorted(point.items())) if point else ""


def defines(name: str, metric: str) -> bool:
    """Return whether ``name`` is a metric, or one of its definitions, which are named METRIC.DEFINITION."""
    return name == metric or name.startswith(f"{metric}.")


def without(point: Mapping[str, Any], *paths: str) -> dict[str, Any]:
    """Return a point without some swept paths."""
    return {other: value for other, value in point.items() if other not in paths}


def lines(rows: Iterable[Row], metric: str, along: Sequence[str]) -> list[list[Row]]:
    """Return the rows of a metric over all repeats that are swept over all paths in ``along``, in groups.

    Rows of a group differ in nothing but the values of these paths.
    """
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if (
            row.metric == metric
            and row.repeat is None
            and all(path in row.point for path in along)
        ):
            groups.setdefault(
                (row.arm, row.subject, key_of(without(row.point, *along))), []
            ).append(row)
    return list(groups.values())


def where(rows: Iterable[Row], **fields: Any) -> list[Row]:
    """Return the rows whose fields have the wanted values, in order."""
    return [
        row
        for row in rows
        if all(getattr(row, name) == value for name, value in fields.items())
    ]


def only_value(rows: Iterable[Row], metric: str, **fields: Any) -> Value:
    """Return the value of the only row of a metric whose fields have these values.

    Raises LookupError listing the rows that there are, unless exactly one row matches.
    """
    rows = list(rows)
    of_metric = [row for row in rows if row.metric == metric]
    matches = where(of_metric, **fields)
    if len(matches) == 1:
        return matches[0].value
    if not of_metric:
        known = ", ".join(sorted({row.metric for row in rows}))
        raise LookupError(f"there is no metric {metric}; there are {known}")
    among = "; ".join(
        f"{row.arm or '-'}, {row.subject}, repeat {row.repeat}" for row in of_metric
    )
    raise LookupError(
        f"{len(matches)} rows of {metric} are as asked; there are: {among}"
    )
