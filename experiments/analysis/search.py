"""Finds the best value of a swept path, for each arm and each point of the other swept paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ringlight.experiments.analysis.rows import Row, key_of
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.spec import SearchSpec, quantity


def search_rows(spec: SearchSpec, rows: Sequence[Row]) -> Iterator[Row]:
    """Rows METRIC``_best`` and METRIC``_best_at`` for each arm, subject and point of the other swept paths.

    They are the least figure over the searched path's values, and the value that gave it. In a tie the first
    that was swept wins.
    """
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if (
            row.metric == spec.metric
            and row.repeat is None
            and spec.along in row.point
            and is_number(row.value)
        ):
            rest = {path: value for path, value in row.point.items() if path != spec.along}
            found.setdefault((row.arm, row.subject, key_of(rest)), []).append(row)
    for mine in found.values():
        best = min(mine, key=lambda row: float(row.value))  # type: ignore[arg-type]
        point = {path: value for path, value in best.point.items() if path != spec.along}
        yield replace(best, metric=f"{spec.metric}_best", point=point)
        at = best.point[spec.along]
        value, unit = quantity(at) or (str(at), "")
        yield replace(best, metric=f"{spec.metric}_best_at", point=point, value=value, unit=unit, spread=None)
