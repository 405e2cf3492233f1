"""Finds the value of a swept path up to which one arm has less of a metric than another.

Between two swept values, and beyond the first and the last, the metric is taken to be a straight line: as the
time of an all-reduce in step is over the size of its gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ringlight.experiments.analysis.rows import Row, key_of, lines, without
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.language.spec import CrossoverSpec, quantity

#: (value of the path along which, the metric there), by that value.
Series = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class _Line:
    """An arm's metric along the path where all else stands still. ``row``: the first of its rows."""

    arm: str
    rest: Mapping[str, object]
    fabric: str
    gpus: int
    series: Series
    row: Row
    unit: str


def crossover_rows(
    spec: CrossoverSpec, rows: Sequence[Row], plans: Sequence[RunPlan]
) -> Iterator[Row]:
    """Yield ``faster_up_to.OTHER`` of each arm, in the unit of the path, or ``always`` or ``never``.

    Yield ``faster_from.OTHER`` instead if the other arm is ahead only at first.
    """
    lines = list(_lines(spec, rows, plans))
    for mine in (line for line in lines if line.arm in spec.arms):
        for other in lines:
            if other.arm not in spec.arms and _alike(mine, other):
                yield from _crossing(mine, other)


def _lines(
    spec: CrossoverSpec, rows: Sequence[Row], plans: Sequence[RunPlan]
) -> Iterator[_Line]:
    plan_at = {(plan.arm, key_of(plan.point)): plan for plan in plans}
    for mine in lines(rows, spec.metric, [spec.along]):
        known = [(quantity(row.point[spec.along]), row.value) for row in mine]
        series = sorted(
            (x[0], value) for x, value in known if x is not None and is_number(value)
        )
        if len(series) < 2:
            continue
        first, plan = mine[0], plan_at[mine[0].arm, key_of(mine[0].point)]
        rest, unit = (
            without(first.point, spec.along),
            next(x[1] for x, _ in known if x is not None),
        )
        yield _Line(
            first.arm,
            rest,
            plan.setting.name,
            len(plan.setting.fabric.gpus),
            series,
            first,
            unit,
        )


def _alike(mine: _Line, other: _Line) -> bool:
    """Return whether two lines differ only in the arm and in swept values of a fabric that just one of
    them has."""
    if mine.gpus != other.gpus or mine.row.subject != other.row.subject:
        return False
    apart = {
        path
        for path in mine.rest.keys() | other.rest.keys()
        if mine.rest.get(path, _NOTHING) != other.rest.get(path, _NOTHING)
    }
    own = (
        {line.fabric for line in (mine, other)}
        if mine.fabric != other.fabric
        else set()
    )
    return all(
        any(path.startswith(f"fabrics.{name}.") for name in own) for path in apart
    )


_NOTHING = object()


def _crossing(mine: _Line, other: _Line) -> Iterator[Row]:
    there = dict(other.series)
    ahead = [(x, value - there[x]) for x, value in mine.series if x in there]
    if len(ahead) < 2:
        return
    word, change = crossing(ahead)
    point = {**other.rest, **mine.rest}
    value: float | str = (
        change if 0 < change < math.inf else "always" if change else "never"
    )
    yield Row(
        mine.arm,
        mine.row.subject,
        f"faster_{word}.{other.arm}",
        value,
        mine.unit if value == change else "",
        mine.row.label,
        point,
    )


def crossing(difference: Series) -> tuple[str, float]:
    """Return (``up_to`` or ``from``, the value at which a difference changes its sign).

    With ``up_to``, 0 is never and infinity always.
    """
    first, last = difference[0], difference[-1]
    for (a, low), (b, high) in itertools.pairwise(difference):
        if (low < 0) != (high < 0):
            return "up_to" if low < 0 else "from", a + (b - a) * low / (low - high)
    ahead = first[1] < 0
    before, beyond = _root(first, difference[1]), _root(difference[-2], last)
    # A line through the origin misses it by rounding.
    if 1e-9 * first[0] < before <= first[0]:
        return "from" if ahead else "up_to", before
    if beyond >= last[0]:
        return "up_to" if ahead else "from", beyond
    return "up_to", math.inf if ahead else 0.0


def _root(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Return the zero of the line through two points; NaN if the line is level."""
    rise = b[1] - a[1]
    return a[0] - a[1] * (b[0] - a[0]) / rise if rise else math.nan
