"""Finds the best value of a swept path, for each arm and each point of the other swept paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ringlight.experiments.analysis.rows import Row, lines, without
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.spec import SearchSpec, quantity


def search_rows(spec: SearchSpec, rows: Sequence[Row]) -> Iterator[Row]:
    """Rows METRIC``_best`` and METRIC``_best_at`` for each arm, subject and point of the other swept paths.

    They are the least figure over the searched path's values, and the value that gave it. In a tie the first
    that was swept wins.
    """
    numbers = (row for row in rows if is_number(row.value))
    for mine in lines(numbers, spec.metric, spec.along):
        best = min(mine, key=lambda row: float(row.value))  # type: ignore[arg-type]
        at = best.point[spec.along]
        best = replace(best, point=without(best.point, spec.along))
        yield replace(best, metric=f"{spec.metric}_best")
        value, unit = quantity(at) or (str(at), "")
        yield replace(best, metric=f"{spec.metric}_best_at", value=value, unit=unit, spread=None)
