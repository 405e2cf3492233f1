"""The best value of a swept path on each fabric, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from ringlight.experiments.analysis.rows import Row, key_of
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.spec import SearchSpec, quantity
from ringlight.experiments.report.charts import along, curves, prefixed, sheet
from ringlight.experiments.report.columns import of_points, short, swept
from ringlight.experiments.report.page import (
    NOTHING,
    Columns,
    mark,
    table_of,
    tag,
    text,
)
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, Figures, Point, View
from ringlight.experiments.report.words import as_text, called, figure, upper_first


@section(19, "Best against best")
def search(view: View, draw: Draw) -> str:
    """Return HTML that shows the best value of a swept path on each fabric: a picture side by side, and
    the winners by point."""
    spec = view.experiment.spec.search
    made = "" if spec is None else spec.made[0]
    rows = [row for row in view.rows if row.metric == made and row.label == view.label]
    if spec is None or not rows:
        return ""
    paths = swept(row.point for row in rows)
    what = upper_first(called(spec.metric))
    where = " and ".join(short(path, [*spec.along, *paths]) for path in spec.along)
    caption = f"{what} with the best {where} of each arm, {view.label}."
    x = _across(rows, paths)
    picture = draw("search", caption, _side_by_side, view, rows, paths, x) if x else ""
    whole = {
        key_of(row.point): row.point for row in rows if len(row.point) == len(paths)
    }
    arms = [arm for arm in view.arms if any(row.arm == arm for row in rows)]
    columns: Columns[Point] = of_points(paths)
    columns = [
        *columns,
        *((text(view.title(arm)), _best(view, spec, rows, arm, arms)) for arm in arms),
    ]
    return (
        f"<p>{text(what)} of each arm with its best {text(where)}, in brackets which {tag(view.label)}."
        f"</p>{view.paragraph('search')}{picture}{table_of(list(whole.values()), columns, len(paths))}"
    )


def _best(
    view: View, spec: SearchSpec, rows: Sequence[Row], arm: str, arms: Sequence[str]
) -> Callable[[Point], str]:
    best, where = spec.made

    def figures_at(other: str, point: Point) -> Figures:
        mine = (
            row.point
            for row in rows
            if row.arm == other and row.point.items() <= point.items()
        )
        return view.figures_at(
            other, f"job {view.plans[other].jobs[0].name}", next(mine, point)
        )

    def shown(point: Point) -> str:
        mine = figures_at(arm, point)
        if (value := mine.number(best)) is None:
            return NOTHING
        least = min(
            number
            for other in arms
            if (number := figures_at(other, point).number(best)) is not None
        )
        words = f"{mine.figure(best)} ({figure(mine.row(where))})"
        return mark("good", words) if value <= least * (1 + 1e-9) else words

    return shown


def _across(rows: Sequence[Row], paths: Sequence[str]) -> str | None:
    """Return the swept path of numbers with the most values; None if no path has two."""
    values = {
        path: {str(row.point[path]) for row in rows if path in row.point}
        for path in paths
    }
    long = [
        path
        for path in paths
        if len(values[path]) > 1 and all(map(quantity, values[path]))
    ]
    return max(long, key=lambda path: len(values[path]), default=None)


def _side_by_side(
    view: View, rows: Sequence[Row], paths: Sequence[str], x: str
) -> Figure:
    """Curves over one path, a picture for each value of the others; an arm not swept is a level line."""
    xs = list(
        {str(row.point[x]): row.point[x] for row in rows if x in row.point}.values()
    )
    points = [
        {path: value for path, value in row.point.items() if path != x} for row in rows
    ]
    rests = {key_of(rest): rest for rest in points}
    arms = [arm for arm in view.arms if any(row.arm == arm for row in rows)]
    values = {
        (row.arm, key_of(row.point)): float(row.value)
        for row in rows
        if is_number(row.value)
    }
    top = 0.3 + 0.19 * -(-len(arms) // 4)
    margins: Any = {"left": 0.8, "top": top + 0.15, "bottom": 0.6, "gap": (0.6, 0.5)}
    figure, (axes,) = sheet(2.9 + top, columns=len(rests), **margins)
    for axis, rest in zip(axes, rests.values(), strict=True):
        at_x = along(axis, xs, [as_text(value) for value in xs], short(x, paths), 4)
        keys = [key_of({**rest, x: value}) for value in xs]
        lines = [
            [values.get((arm, key), values.get((arm, key_of(rest)))) for key in keys]
            for arm in arms
        ]
        curves(axis, at_x, zip(map(view.title, arms), lines, strict=True))
        axis.set_title(", ".join(as_text(value) for value in rest.values()), fontsize=8)
        axis.set_yscale("log")
        prefixed(axis.yaxis, rows[0].unit)
    axes[0].set_ylabel(called(rows[0].metric))
    handles = axes[0].get_legend_handles_labels()[0]
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.02, 1.0),
        ncols=4,
        fontsize=7.5,
    )
    return figure
