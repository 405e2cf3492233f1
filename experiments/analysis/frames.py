"""Rows as a pandas frame and as Parquet, where pandas is installed (``pip install ringlight[frames]``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.analysis.rows import COLUMNS, Row
from experiments.language.text import ScenarioError

if TYPE_CHECKING:
    import pandas as pd


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """One line for each row, a column for each swept path. Raises ScenarioError without pandas."""
    try:
        import pandas as pd
    except ImportError:
        raise ScenarioError("pandas is not installed; install it with: pip install pandas pyarrow") from None
    paths = list(dict.fromkeys(path for row in rows for path in row.point))
    return pd.DataFrame(
        [
            {
                "arm": row.arm,
                **{path: row.point.get(path) for path in paths},
                **{column: getattr(row, column) for column in COLUMNS},
            }
            for row in rows
        ]
    )


def write_parquet(rows: Sequence[Row], path: Path) -> None:
    """What is no number is empty in the column ``value`` and stands in ``text``. Raises ScenarioError."""
    found = frame(rows)
    import pandas as pd

    numbers = pd.to_numeric(found["value"], errors="coerce")
    found["text"] = [None if isinstance(value, int | float) else str(value) for value in found["value"]]
    found["value"] = numbers
    for column in found.columns.difference(["value", "repeat", "spread"]):
        found[column] = found[column].map(lambda value: None if value is None else str(value))
    try:
        found.to_parquet(path)
    except ImportError:
        raise ScenarioError("pyarrow is not installed; install it with: pip install pyarrow") from None
