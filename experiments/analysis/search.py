"""Find the best values of swept paths, for each arm and each point of the other swept paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ringlight.experiments.analysis.rows import Row, Value, lines, without
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.spec import SearchSpec, quantity

#: Figures this close are alike: sums of the same numbers in another order.
_ALIKE = 1e-9


def search_rows(spec: SearchSpec, rows: Sequence[Row]) -> Iterator[Row]:
    """Yield rows METRIC``_best`` and METRIC``_best_at`` for each arm, subject and point of the other swept
    paths.

    The rows are the least figure over the values of the searched paths, and the values that gave this figure:
    the number of a single path, or the words of several paths with commas between. Of equal figures the first
    counts. A figure that is not swept over all of the searched paths is left out.
    """
    numbers = (row for row in rows if is_number(row.value))
    for mine in lines(numbers, spec.metric, spec.along):
        least = min(_number(row) for row in mine)
        best = next(row for row in mine if _number(row) <= least * (1 + _ALIKE))
        value, unit = _searched_values([best.point[path] for path in spec.along])
        best = replace(best, point=without(best.point, *spec.along))
        yield replace(best, metric=f"{spec.metric}_best")
        yield replace(
            best, metric=f"{spec.metric}_best_at", value=value, unit=unit, spread=None
        )


def _number(row: Row) -> float:
    return float(row.value)  # type: ignore[arg-type]


def _searched_values(values: Sequence[object]) -> tuple[Value, str]:
    """Return the values of the searched paths as a row has them, and their unit."""
    if len(values) == 1:
        return quantity(values[0]) or (str(values[0]), "")
    return ", ".join(map(str, values)), ""
