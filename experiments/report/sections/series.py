"""Sweeps that have a title: one picture and one table each, a line and a column for each arm."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ringlight.experiments.analysis.metrics import metrics
from ringlight.experiments.analysis.rows import Label
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.spec import SweepSpec, quantity
from ringlight.experiments.report.charts import along, legend, prefixed, scaled, sheet
from ringlight.experiments.report.drawing import PALETTE
from ringlight.experiments.report.page import Columns, folded, mark, table_of, text
from ringlight.experiments.report.view import Draw, Figures, Point, View, cell, short
from ringlight.experiments.report.words import called, is_share, said, upper_first

ORDER = 10
TITLE = "What was swept"
#: A table of more rows is folded away; so many values of a second path stand side by side.
_MOST_ROWS, _MOST_PANELS = 12, 4
#: Where the largest value is more than so many times the smallest, the y axis is logarithmic.
_MUCH = 15
#: Beside the metric there is room for these where there are few arms; few panels have room for more ticks.
_BESIDE = ("steps", "wavelengths_lit", "longest_lightpath", "received_at_once")
_FEW = 2
_LOOKS = list(itertools.product(("-", (0, (4, 2)), (0, (1, 1.5))), PALETTE))


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

    def at(self, arm: str, changed: Point) -> Figures:
        return self.view.at(arm, self.subject, self.point(changed))

    def point(self, changed: Point) -> Point:
        """Point with changed values, its paths in the order in which the file sweeps them."""
        values = {**self.fixed, **changed}
        return {path: values[path] for path in self.spec.over}

    def name(self, path: str) -> str:
        return short(path, self.spec.over)


def wanted(view: View) -> bool:
    return any(sweep.title for sweep in view.experiment.spec.sweep)


def render(view: View, draw: Draw) -> str:
    parts = [view.paragraph("series")]
    for number, spec in enumerate(view.experiment.spec.sweep, start=1):
        arms = [arm for arm in view.arms if spec.arms is None or arm in spec.arms]
        if spec.title is None or not arms:
            continue
        parts.append(f"<h3>{text(spec.title)}</h3>")
        for metric in spec.metrics or [_usual(view)]:
            one = _series(view, spec, arms, metric)
            kept = [f"{one.name(path)} {said(value)}" for path, value in one.fixed.items()]
            caption = f"{_said_of(one)}, {_label(one)}{''.join(f'; {words}' for words in kept)}."
            name = f"series-{number}{f'-{metric}' if len(spec.metrics) > 1 else ''}"
            parts += [draw(name, caption, _figure, one), _table(one)]
    return "".join(parts)


def _said_of(one: _Series) -> str:
    """What the picture shows: a metric that the file asks for is told, the usual ones are known."""
    return metrics()[one.metric].help if one.spec.metrics else upper_first(called(one.metric))


def _label(one: _Series) -> Label:
    return next((row.label for row in one.view.rows if row.metric == one.metric), one.view.label)


def _usual(view: View) -> str:
    """The metric of a picture, where the file does not say."""
    compares = view.experiment.spec.compare
    usual = "jct" if "jct" in view.metrics else "allreduce"
    return compares[0].metrics[0] if compares else usual


def _series(view: View, spec: SweepSpec, arms: Sequence[str], metric: str) -> _Series:
    base = view.base
    sizes = {path: len(values) for path, values in spec.over.items()}
    numeric = {path: all(quantity(value) for value in values) for path, values in spec.over.items()}
    path = max(sizes, key=lambda path: (sizes[path], numeric[path]))
    few = [other for other in sizes if other != path and 1 < sizes[other] <= _MOST_PANELS]
    beside = min(few, key=lambda other: (numeric[other], sizes[other]), default=None)
    fixed = {
        other: base.value(other) if base.value(other) in values else values[0]
        for other, values in spec.over.items()
        if other not in (path, beside)
    }
    subject = next(at.subject for at in view.each("job", arms))
    return _Series(view, spec, arms, subject, metric, path, beside, fixed)


def _figure(one: _Series) -> Figure:
    panels = one.spec.over[one.beside] if one.beside else [None]
    bottom = 0.6 if scaled(one.spec.over[one.path]) else 0.85
    margins: Any = {"left": 0.8, "bottom": bottom, "gap": (0.8, 0.55)}
    figure, (axes,) = sheet(3.2, columns=len(panels), **margins)
    heights: list[float] = []
    zero = False
    for axis, panel in zip(axes, panels, strict=True):
        values = one.spec.over[one.path]
        most = 10 if len(panels) <= _FEW else 4
        at_x = along(axis, values, [said(value) for value in values], one.name(one.path), most)
        for arm, (dash, colour) in zip(one.arms, itertools.cycle(_LOOKS), strict=False):
            points = [{one.path: value} | ({one.beside: panel} if one.beside else {}) for value in values]
            found = [one.at(arm, point).number(one.metric) for point in points]
            ys = [float("nan") if y is None else y for y in found]
            heights += [y for y in found if y]
            zero |= 0 in found
            title = one.view.title(arm)
            axis.plot(at_x, ys, color=colour, linestyle=dash, marker="o", markersize=2.5, label=title)
        if one.beside:
            axis.set_title(f"{one.name(one.beside)} {said(panel)}", fontsize=8)
    unit = next((row.unit for row in one.view.rows if row.metric == one.metric), "")
    for axis in axes:
        if heights and max(heights) > _MUCH * min(heights) and zero:
            # Below the least there is only 0: straight from there.
            axis.set_yscale("symlog", linthresh=min(heights), linscale=0.5)
            axis.set_ylim(-min(heights) / 3, max(heights) * 2)
            powers = [10.0**power for power in range(-12, 13)]
            axis.set_yticks([0.0, *(one for one in powers if min(heights) < one <= 2 * max(heights))])
        elif heights and max(heights) > _MUCH * min(heights):
            axis.set_yscale("log")
            axis.set_ylim(min(heights) / 1.4, max(heights) * 1.4)
        if is_share(one.metric):
            axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
            axis.yaxis.set_minor_locator(NullLocator())
        else:
            prefixed(axis.yaxis, unit)
    for axis in axes:
        axis.set_ylabel(called(one.metric))
    legend(figure, "arm", axes[0].get_legend_handles_labels()[0], columns=4)
    return figure


def _table(one: _Series) -> str:
    """Table of all points; with few arms, of further figures too."""
    points = [
        one.point(dict(zip(one.spec.over, p, strict=True)))
        for p in itertools.product(*one.spec.over.values())
    ]
    columns: Columns[Point] = [(text(one.name(path)), _of_point(path)) for path in one.spec.over]
    for arm in one.arms:
        columns = [*columns, (text(one.view.title(arm)), _of_arm(one, arm))]
        for metric in _BESIDE if len(one.arms) <= _FEW else ():
            of = f", {text(one.view.title(arm))}" if len(one.arms) > 1 else ""
            columns = [*columns, (f"{called(metric)}{of}", _beside(one, arm, metric))]
    shown = table_of(points, columns, len(one.spec.over))
    return folded(f"All {len(points):,} points", shown) if len(points) > _MOST_ROWS else shown


def _of_point(path: str) -> Callable[[Point], str]:
    return lambda point: text(said(point[path]))


def _beside(one: _Series, arm: str, metric: str) -> Callable[[Point], str]:
    return lambda point: cell(metric)(one.at(arm, point))


def _of_arm(one: _Series, arm: str) -> Callable[[Point], str]:
    """The arm's figure, marked where it is the least of all."""

    def shown(point: Point) -> str:
        mine = one.at(arm, point)
        others = [one.at(other, point).number(one.metric) for other in one.arms]
        least = min((value for value in others if value is not None), default=None)
        found = mine.number(one.metric)
        best = len(one.arms) > 1 and is_number(found) and least is not None and found <= least * (1 + 1e-9)
        return mark("good", mine.figure(one.metric)) if best else mine.figure(one.metric)

    return shown
