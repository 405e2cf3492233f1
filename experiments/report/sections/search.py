"""The best value of a swept path on each fabric: a picture side by side, and what won where."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from ringlight.experiments.analysis.rows import Row, key_of
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.spec import quantity
from ringlight.experiments.report.charts import along, prefixed, sheet
from ringlight.experiments.report.drawing import PALETTE
from ringlight.experiments.report.page import NOTHING, Columns, mark, table_of, tag, text
from ringlight.experiments.report.view import Draw, Point, View, short
from ringlight.experiments.report.words import called, figure, said, upper_first

ORDER = 19
TITLE = "Best against best"
_LOOKS = list(itertools.product(("-", (0, (4, 2))), PALETTE))


def wanted(view: View) -> bool:
    return view.experiment.spec.search is not None and bool(_found(view))


def _found(view: View) -> list[Row]:
    search = view.experiment.spec.search
    assert search is not None
    return [row for row in view.rows if row.metric == search.made[0] and row.label == view.label]


def _point_of(view: View, arm: str, point: Point) -> Point:
    """What of a point is swept for this arm."""
    return next(
        (row.point for row in _found(view) if row.arm == arm and row.point.items() <= point.items()), point
    )


def render(view: View, draw: Draw) -> str:
    search = view.experiment.spec.search
    assert search is not None
    rows = _found(view)
    paths = list(dict.fromkeys(path for row in rows for path in row.point))
    what, where = upper_first(called(search.metric)), short(search.along, [search.along, *paths])
    caption = f"{what} with the best {where} of each arm, {view.label}."
    picture = draw("search", caption, _figure, view, rows, paths) if _across(rows, paths) else ""
    whole = {key_of(row.point): row.point for row in rows if len(row.point) == len(paths)}
    arms = [arm for arm in view.arms if any(row.arm == arm for row in rows)]
    columns: Columns[Point] = [(text(short(path, paths)), _said(path)) for path in paths]
    columns = [*columns, *((text(view.title(arm)), _best(view, arm, arms)) for arm in arms)]
    return (
        f"<p>{text(what)} of each arm where its {text(where)} is best, in brackets which {tag(view.label)}."
        f"</p>{view.paragraph('search')}{picture}{table_of(list(whole.values()), columns, len(paths))}"
    )


def _said(path: str) -> Callable[[Point], str]:
    return lambda point: text(said(point[path]))


def _best(view: View, arm: str, arms: Sequence[str]) -> Callable[[Point], str]:
    search = view.experiment.spec.search
    assert search is not None
    best, where = search.made

    def number(other: str, point: Point) -> float | None:
        subject = f"job {view.plans[other].jobs[0].name}"
        return view.at(other, subject, _point_of(view, other, point)).number(best)

    def shown(point: Point) -> str:
        at = view.at(arm, f"job {view.plans[arm].jobs[0].name}", _point_of(view, arm, point))
        mine = at.number(best)
        if mine is None:
            return NOTHING
        words = f"{at.figure(best)} ({figure(at.row(where))})"
        least = min(value for other in arms if (value := number(other, point)) is not None)
        return mark("good", words) if mine <= least * (1 + 1e-9) else words

    return shown


def _across(rows: Sequence[Row], paths: Sequence[str]) -> str | None:
    """The path of numbers with the most values, two at least."""
    values = {path: {str(row.point[path]) for row in rows if path in row.point} for path in paths}
    long = [path for path in paths if len(values[path]) > 1 and all(map(quantity, values[path]))]
    return max(long, key=lambda path: len(values[path]), default=None)


def _figure(view: View, rows: Sequence[Row], paths: Sequence[str]) -> Figure:
    """Side by side for the values of what else is swept; an arm that is not swept is a level line."""
    x = _across(rows, paths)
    assert x is not None
    xs = list({str(row.point[x]): row.point[x] for row in rows if x in row.point}.values())
    others = [{path: value for path, value in row.point.items() if path != x} for row in rows]
    rests = {key_of(rest): rest for rest in others}
    arms = [arm for arm in view.arms if any(row.arm == arm for row in rows)]
    values = {(row.arm, key_of(row.point)): row.value for row in rows}
    top = 0.3 + 0.19 * -(-len(arms) // 4)
    figure, (axes,) = sheet(
        2.9 + top, columns=len(rests), left=0.8, top=top + 0.15, bottom=0.6, gap=(0.6, 0.5)
    )
    for axis, rest in zip(axes, rests.values(), strict=True):
        at_x = along(axis, xs, [said(value) for value in xs], short(x, paths), 4)
        for arm, (dash, colour) in zip(arms, itertools.cycle(_LOOKS), strict=False):
            level = values.get((arm, key_of(rest)))
            found = [values.get((arm, key_of({**rest, x: value})), level) for value in xs]
            ys = [float(value) if is_number(value) else float("nan") for value in found]
            axis.plot(
                at_x, ys, color=colour, linestyle=dash, marker="o", markersize=2.5, label=view.title(arm)
            )
        axis.set_title(", ".join(said(value) for value in rest.values()), fontsize=8)
        axis.set_yscale("log")
        prefixed(axis.yaxis, rows[0].unit)
    axes[0].set_ylabel(called(rows[0].metric))
    handles = axes[0].get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.02, 1.0), ncols=4, fontsize=7.5)
    return figure
