"""Sweeps that have a title: a picture and a table each, a line and a column for each arm."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ringlight.experiments.analysis.metrics import metrics
from ringlight.experiments.language.spec import SweepSpec, quantity
from ringlight.experiments.report.charts import (
    along,
    curves,
    legend,
    prefixed,
    scaled,
    sheet,
)
from ringlight.experiments.report.columns import of_points, short
from ringlight.experiments.report.page import Columns, folded, mark, table_of, text
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.sections.sweeps import MOST_ROWS
from ringlight.experiments.report.view import Draw, Figures, Point, View
from ringlight.experiments.report.words import as_text, called, is_share, upper_first

#: So many values of a second path stand side by side.
_MOST_PANELS = 4
#: Where the largest value is more than so many times the smallest, the y axis is logarithmic.
_MUCH = 15
#: Beside the metric there is room for these where there are few arms; few panels have room for more ticks.
_BESIDE = ("steps", "wavelengths_lit", "longest_lightpath", "received_at_once")
_FEW = 2


@dataclass(frozen=True)
class _Series:
    """``path``: on the axis; ``beside``: the path whose values stand side by side; ``fixed``: all others."""

    view: View
    spec: SweepSpec
    arms: Sequence[str]
    subject: str
    metric: str
    path: str
    beside: str | None
    fixed: Point

    def figures(self, arm: str, changed: Point) -> Figures:
        return self.view.figures_at(arm, self.subject, self.point(changed))

    def point(self, changed: Point) -> Point:
        """Return the point with changed values, its paths in the order in which the file sweeps them."""
        values = {**self.fixed, **changed}
        return {path: values[path] for path in self.spec.over}

    def name(self, path: str) -> str:
        return short(path, self.spec.over)


@section(10, "What was swept")
def series(view: View, draw: Draw) -> str:
    """Return HTML that shows sweeps that have a title: one picture and one table each, a line and a column
    for each arm."""
    parts = []
    for number, spec in enumerate(view.experiment.spec.sweep, start=1):
        arms = [arm for arm in view.arms if spec.arms is None or arm in spec.arms]
        if spec.title is None or not arms:
            continue
        parts.append(f"<h3>{text(spec.title)}</h3>")
        for metric in spec.metrics or [_usual(view)]:
            drawn = _series(view, spec, arms, metric)
            kept = [
                f"{drawn.name(path)} {as_text(value)}"
                for path, value in drawn.fixed.items()
            ]
            # A metric that the file asks for is told, the usual ones are known.
            what = (
                metrics()[metric].help if spec.metrics else upper_first(called(metric))
            )
            label = next(
                (row.label for row in view.rows if row.metric == metric), view.label
            )
            caption = f"{what}, {label}{''.join(f'; {words}' for words in kept)}."
            file = f"series-{number}{f'-{metric}' if len(spec.metrics) > 1 else ''}"
            parts += [draw(file, caption, _panels, drawn), _points(drawn)]
    return "".join([view.paragraph("series"), *parts]) if parts else ""


def _usual(view: View) -> str:
    """Return the metric of a picture, if the file does not name one."""
    compares = view.experiment.spec.compare
    usual = "jct" if "jct" in view.metrics else "allreduce"
    return compares[0].metrics[0] if compares else usual


def _series(view: View, spec: SweepSpec, arms: Sequence[str], metric: str) -> _Series:
    base = view.base
    sizes = {path: len(values) for path, values in spec.over.items()}
    numeric = {
        path: all(quantity(value) for value in values)
        for path, values in spec.over.items()
    }
    path = max(sizes, key=lambda path: (sizes[path], numeric[path]))
    few = [
        other for other in sizes if other != path and 1 < sizes[other] <= _MOST_PANELS
    ]
    beside = min(few, key=lambda other: (numeric[other], sizes[other]), default=None)
    fixed = {
        other: base.value(other) if base.value(other) in values else values[0]
        for other, values in spec.over.items()
        if other not in (path, beside)
    }
    # Jobs that their source computes together may have no figures of their own.
    subject = next((job.subject for job in view.each("job", arms)), "run")
    return _Series(view, spec, arms, subject, metric, path, beside, fixed)


def _panels(series: _Series) -> Figure:
    panels = series.spec.over[series.beside] if series.beside else [None]
    bottom = 0.6 if scaled(series.spec.over[series.path]) else 0.85
    margins: Any = {"left": 0.8, "bottom": bottom, "gap": (0.8, 0.55)}
    figure, (axes,) = sheet(3.2, columns=len(panels), **margins)
    heights: list[float] = []
    zero = False
    for axis, panel in zip(axes, panels, strict=True):
        values = series.spec.over[series.path]
        most = 10 if len(panels) <= _FEW else 4
        at_x = along(
            axis,
            values,
            [as_text(value) for value in values],
            series.name(series.path),
            most,
        )
        points = [
            {series.path: value} | ({series.beside: panel} if series.beside else {})
            for value in values
        ]
        heights_by_arm = [
            [series.figures(arm, point).number(series.metric) for point in points]
            for arm in series.arms
        ]
        heights += [y for ys in heights_by_arm for y in ys if y]
        zero |= any(0 in ys for ys in heights_by_arm)
        curves(
            axis,
            at_x,
            zip(map(series.view.title, series.arms), heights_by_arm, strict=True),
        )
        if series.beside:
            axis.set_title(f"{series.name(series.beside)} {as_text(panel)}", fontsize=8)
    unit = next(
        (row.unit for row in series.view.rows if row.metric == series.metric), ""
    )
    for axis in axes:
        if heights and max(heights) > _MUCH * min(heights) and zero:
            # Below the least there is only 0: straight from there.
            axis.set_yscale("symlog", linthresh=min(heights), linscale=0.5)
            axis.set_ylim(-min(heights) / 3, max(heights) * 2)
            powers = [10.0**power for power in range(-12, 13)]
            axis.set_yticks(
                [
                    0.0,
                    *(
                        power
                        for power in powers
                        if min(heights) < power <= 2 * max(heights)
                    ),
                ]
            )
        elif heights and max(heights) > _MUCH * min(heights):
            axis.set_yscale("log")
            axis.set_ylim(min(heights) / 1.4, max(heights) * 1.4)
        if is_share(series.metric):
            axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
            axis.yaxis.set_minor_locator(NullLocator())
        else:
            prefixed(axis.yaxis, unit)
    for axis in axes:
        axis.set_ylabel(called(series.metric))
    legend(figure, "arm", axes[0].get_legend_handles_labels()[0], columns=4)
    return figure


def _points(series: _Series) -> str:
    """Return a table of all points; with few arms, also of further figures."""
    points = [
        series.point(dict(zip(series.spec.over, p, strict=True)))
        for p in itertools.product(*series.spec.over.values())
    ]
    columns: Columns[Point] = of_points(list(series.spec.over))
    for arm in series.arms:
        columns = [*columns, (text(series.view.title(arm)), _of_arm(series, arm))]
        for metric in _BESIDE if len(series.arms) <= _FEW else ():
            of = f", {text(series.view.title(arm))}" if len(series.arms) > 1 else ""
            columns = [
                *columns,
                (f"{called(metric)}{of}", _beside(series, arm, metric)),
            ]
    shown = table_of(points, columns, len(series.spec.over))
    return (
        folded(f"All {len(points):,} points", shown)
        if len(points) > MOST_ROWS
        else shown
    )


def _beside(series: _Series, arm: str, metric: str) -> Callable[[Point], str]:
    return lambda point: series.figures(arm, point).figure(metric)


def _of_arm(series: _Series, arm: str) -> Callable[[Point], str]:
    """The arm's figure, marked where it is the least of all."""

    def shown(point: Point) -> str:
        numbers = {
            other: series.figures(other, point).number(series.metric)
            for other in series.arms
        }
        return _marked(
            series.figures(arm, point).figure(series.metric),
            numbers[arm],
            numbers.values(),
        )

    return shown


def _marked(words: str, mine: float | None, of_all: Iterable[float | None]) -> str:
    """Return an arm's figure in words, marked if it is the least of several arms."""
    values = list(of_all)
    least = min((value for value in values if value is not None), default=None)
    best = (
        len(values) > 1
        and mine is not None
        and least is not None
        and mine <= least * (1 + 1e-9)
    )
    return mark("good", words) if best else words
