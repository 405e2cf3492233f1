"""Pictures of a metric for scripts, with the look of the report."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.figure import Figure

from ringlight.experiments.analysis.rows import Row, key_of
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.report.charts import (
    LOOKS,
    along,
    chart,
    curves,
    legend,
    prefixed,
)
from ringlight.experiments.report.columns import short
from ringlight.experiments.report.drawing import STYLE
from ringlight.experiments.report.words import as_text, called, upper_first

#: Units whose values are written with a prefix, such as ms.
_PREFIXED = ("s", "bit/s", "bytes")


def picture(rows: Sequence[Row], metric: str, by: str, x_path: str | None) -> Figure:
    """Return a figure of the rows of one metric: lines along a swept path, bars if nothing was swept.

    ``by``: what has a colour: arm, job or a swept path. ``x_path``: path of the x axis; None for that with
    most values. Raises ScenarioError naming the argument.
    """
    numbers = [row for row in rows if is_number(row.value)]
    if not numbers:
        raise ScenarioError(f"metric: {metric} has no numbers")
    swept = _varied(numbers)
    x_path = x_path or max(
        (path for path in swept if path != by),
        key=lambda p: len(swept[p]),
        default=None,
    )
    if x_path is None and by in swept:
        # Nothing else was swept: then it is what the axis shows.
        x_path, by = by, "arm"
    for name, path in (
        ("along", x_path),
        ("by", by if by not in ("arm", "job") else None),
    ):
        if path is not None and path not in swept:
            raise ScenarioError(
                f"{name}: {path} was not swept; swept were {', '.join(swept) or 'no paths'}"
            )
    with matplotlib.rc_context(STYLE):
        drawn = (
            _bars(numbers, by)
            if x_path is None
            else _lines(numbers, by, x_path, swept[x_path])
        )
        axis = drawn.axes[0]
        unit = numbers[0].unit
        axis.set_ylabel(
            upper_first(called(metric)) + (f", {unit}" if unit == "%" else "")
        )
        if unit in _PREFIXED:
            prefixed(axis.yaxis, unit)
        axis.set_ylim(bottom=0)
    return drawn


def _varied(rows: Sequence[Row]) -> Mapping[str, list[object]]:
    """Return the swept paths with their values, those with more than one value."""
    values: dict[str, list[object]] = {}
    for row in rows:
        for path, value in row.point.items():
            known = values.setdefault(path, [])
            if value not in known:
                known.append(value)
    return {path: known for path, known in values.items() if len(known) > 1}


def _named(row: Row, by: str, rest: Sequence[str], jobs: bool) -> str:
    """Return the label of a row's line or bar: the value of ``by``, and what else varies."""
    job = _job(row)
    first = {"arm": row.arm, "job": job}.get(by)
    if first is None:
        first = f"{by.rpartition('.')[2]} {as_text(row.point.get(by))}"
    words = [
        first,
        *(f"{path.rpartition('.')[2]} {as_text(row.point[path])}" for path in rest),
    ]
    if jobs and by != "job":
        words.append(job)
    return ", ".join(words)


def _job(row: Row) -> str:
    """Return the name of what a row is of: ``red`` of ``job red``."""
    return row.subject.partition(" ")[2] or row.subject


def _lines(
    rows: Sequence[Row], by: str, x_path: str, values: Sequence[object]
) -> Figure:
    rest = [path for path in _varied(rows) if path not in (x_path, by)]
    jobs, arms = (
        len({row.subject for row in rows}) > 1,
        len({row.arm for row in rows}) > 1,
    )
    figures: dict[str, dict[str, float]] = {}
    for row in rows:
        label = _named(row, by, rest, jobs)
        if arms and by != "arm":
            label += f", {row.arm}"
        figures.setdefault(label, {})[key_of({x_path: row.point.get(x_path)})] = float(
            row.value or 0
        )
    drawn, axis = chart(3.2)
    keys = [key_of({x_path: value}) for value in values]
    name = short(x_path, {x_path, *_varied(rows)})
    positions = along(axis, values, [as_text(value) for value in values], name)
    curves(
        axis,
        positions,
        [(label, [line.get(k) for k in keys]) for label, line in figures.items()],
    )
    legend(drawn, by if by in ("arm", "job") else "")
    return drawn


def _bars(rows: Sequence[Row], by: str) -> Figure:
    """Return bars: groups by ``by``, a colour for each of what else differs."""
    placed = [
        (*((row.arm, _job(row)) if by == "arm" else (_job(row), row.arm)), row)
        for row in rows
    ]
    groups = list(dict.fromkeys(group for group, _, _ in placed))
    colours = list(dict.fromkeys(name for _, name, _ in placed))
    value = {(group, name): float(row.value or 0) for group, name, row in placed}
    spread = {(group, name): row.spread for group, name, row in placed}
    drawn, axis = chart(3.2)
    wide = 0.8 / len(colours)
    for number, (name, (_, colour)) in enumerate(
        zip(colours, itertools.cycle(LOOKS[:6]), strict=False)
    ):
        places = [
            k + (number - (len(colours) - 1) / 2) * wide for k in range(len(groups))
        ]
        heights = [value.get((group, name), math.nan) for group in groups]
        errors = [spread.get((group, name)) or 0.0 for group in groups]
        axis.bar(
            places,
            heights,
            wide,
            color=colour,
            label=name,
            yerr=errors if any(errors) else None,
        )
    axis.set_xticks(range(len(groups)), groups)
    if len(colours) > 1:
        legend(drawn, "job" if by == "arm" else "arm")
    return drawn
