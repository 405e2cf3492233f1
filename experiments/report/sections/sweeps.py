"""Arms that ran at many points: pictures and tables over swept values, and the best value of one of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ringlight.experiments.analysis.metrics import metrics
from ringlight.experiments.analysis.rows import Row, key_of
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.spec import CompareSpec, SearchSpec, SweepSpec, quantity
from ringlight.experiments.record.events import JobsComputed
from ringlight.experiments.report.charts import (
    LOOKS,
    along,
    chart,
    curves,
    legend,
    prefixed,
    scaled,
    shaded,
    sheet,
)
from ringlight.experiments.report.page import NOTHING, Columns, folded, mark, quiet, table_of, tag, text
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import (
    JOB,
    Compared,
    Draw,
    Figures,
    Point,
    View,
    figures,
    of_points,
    short,
    swept,
    swept_columns,
)
from ringlight.experiments.report.words import called, figure, is_share, said, upper_first

#: A table of more rows is folded away; more lines than these cannot be told apart; values from which on two
#: swept paths make a map; so many values of a second path stand side by side.
_MOST_ROWS, _MOST_LINES, _MAP, _MOST_PANELS = 12, 12, 4, 4
#: With more arms than these, tables are folded.
_MOST_TABLES = 3
#: Where the largest value is more than so many times the smallest, the y axis is logarithmic.
_MUCH = 15
#: Figures that differ by no more than this part are the same.
_ALIKE = 1e-6
#: Beside the metric there is room for these where there are few arms; few panels have room for more ticks.
_BESIDE = ("steps", "wavelengths_lit", "longest_lightpath", "received_at_once")
_FEW = 2
_DEFAULT = ("jct", "iteration", "allreduce")
_UNITS = {"s": "seconds", "bit/s": "bit/s", "bytes": "bytes", "%": "%"}


# Sweeps that have a title: a picture and a table each.


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
        return self.view.at(arm, self.subject, self.point(changed))

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
            kept = [f"{drawn.name(path)} {said(value)}" for path, value in drawn.fixed.items()]
            # A metric that the file asks for is told, the usual ones are known.
            what = metrics()[metric].help if spec.metrics else upper_first(called(metric))
            label = next((row.label for row in view.rows if row.metric == metric), view.label)
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
    numeric = {path: all(quantity(value) for value in values) for path, values in spec.over.items()}
    path = max(sizes, key=lambda path: (sizes[path], numeric[path]))
    few = [other for other in sizes if other != path and 1 < sizes[other] <= _MOST_PANELS]
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
        at_x = along(axis, values, [said(value) for value in values], series.name(series.path), most)
        points = [
            {series.path: value} | ({series.beside: panel} if series.beside else {}) for value in values
        ]
        heights_by_arm = [
            [series.figures(arm, point).number(series.metric) for point in points] for arm in series.arms
        ]
        heights += [y for ys in heights_by_arm for y in ys if y]
        zero |= any(0 in ys for ys in heights_by_arm)
        curves(axis, at_x, zip(map(series.view.title, series.arms), heights_by_arm, strict=True))
        if series.beside:
            axis.set_title(f"{series.name(series.beside)} {said(panel)}", fontsize=8)
    unit = next((row.unit for row in series.view.rows if row.metric == series.metric), "")
    for axis in axes:
        if heights and max(heights) > _MUCH * min(heights) and zero:
            # Below the least there is only 0: straight from there.
            axis.set_yscale("symlog", linthresh=min(heights), linscale=0.5)
            axis.set_ylim(-min(heights) / 3, max(heights) * 2)
            powers = [10.0**power for power in range(-12, 13)]
            axis.set_yticks([0.0, *(power for power in powers if min(heights) < power <= 2 * max(heights))])
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
            columns = [*columns, (f"{called(metric)}{of}", _beside(series, arm, metric))]
    shown = table_of(points, columns, len(series.spec.over))
    return folded(f"All {len(points):,} points", shown) if len(points) > _MOST_ROWS else shown


def _beside(series: _Series, arm: str, metric: str) -> Callable[[Point], str]:
    return lambda point: series.figures(arm, point).figure(metric)


def _of_arm(series: _Series, arm: str) -> Callable[[Point], str]:
    """The arm's figure, marked where it is the least of all."""

    def shown(point: Point) -> str:
        numbers = {other: series.figures(other, point).number(series.metric) for other in series.arms}
        return _marked(series.figures(arm, point).figure(series.metric), numbers[arm], numbers.values())

    return shown


def _marked(words: str, mine: float | None, of_all: Iterable[float | None]) -> str:
    """Return an arm's figure in words, marked if it is the least of several arms."""
    values = list(of_all)
    least = min((value for value in values if value is not None), default=None)
    best = len(values) > 1 and mine is not None and least is not None and mine <= least * (1 + 1e-9)
    return mark("good", words) if best else words


# Other sweeps: the ratios of comparisons, or a metric of arms that are not compared.


@dataclass(frozen=True)
class _Curve:
    """A metric of an arm's job at each of its points that the same paths are swept at. ``axis``: what it is,
    with its unit."""

    axis: str
    metric: str
    points: Sequence[Figures]

    @property
    def arm(self) -> str:
        return self.points[0].arm

    @property
    def name(self) -> str:
        return self.points[0].name

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(self.points[0].point)


@section(11, "Sweep")
def sweep(view: View, draw: Draw) -> str:
    """Return HTML that shows arms that ran at many points: compared metrics over swept values, as picture
    and table."""
    if not (arms := _untitled(view)):
        return ""
    pictures = []
    for number, group in enumerate(_pictures(view, arms), start=1):
        caption = (
            f"{upper_first(group[0].axis)}, of {_of(view, group)}, over the swept values. "
            f"{view.label.capitalize()}, as emulated; swept values are those of the real fabric."
        )
        pictures.append(draw(f"sweep-{number}", caption, _figure, group))
    tables = (_table(view, arm, len(arms) > _MOST_TABLES) for arm in arms)
    return "".join([view.paragraph("sweep"), *pictures, *tables])


def _of(view: View, curves: Sequence[_Curve]) -> str:
    """Return the subject of a picture's figures, with the arm if there is only one, because no legend
    names it."""
    arms = {curve.arm for curve in curves}
    return f"{curves[0].name} in {view.title(*arms)}" if len(arms) == 1 else curves[0].name


def _untitled(view: View) -> Sequence[str]:
    """Arms that ran at several points that are not of sweeps that have a title."""
    return [arm for arm in view.arms if len(_own_points(view, arm)) > 1]


def _own_points(view: View, arm: str) -> Sequence[Point]:
    """Return the points of an arm without those of sweeps that have a title."""
    titled = [spec for spec in view.experiment.spec.sweep if spec.title and arm in (spec.arms or view.arms)]
    return [point for point in view.points(arm) if not any(_has(spec, point) for spec in titled)]


def _has(spec: SweepSpec, point: Point) -> bool:
    return point.keys() == spec.over.keys() and all(point[path] in spec.over[path] for path in point)


def _subjects(view: View, arm: str) -> list[str]:
    """Return the subjects of an arm's figures: its jobs, or the run."""
    return [entry.subject for entry in view.each("job", [arm])] or ["run"]


def _pictures(view: View, arms: Sequence[str]) -> Iterator[list[_Curve]]:
    """Yield the curves of each picture: the ratios of each comparison, or a metric if nothing is compared."""
    spec, shown = view.experiment.spec, set[str]()
    own = {arm: _own_points(view, arm) for arm in arms}
    for compare in spec.compare:
        compared = [pair for pair in view.compared(compare) if pair.point in own.get(pair.arm, ())]
        metric = next((m for m in compare.metrics if any(pair.row(f"{m}_ratio") for pair in compared)), "")
        axis = f"{called(metric)} over that of {compare.baseline}"
        curves = list(_curves(axis, f"{metric}_ratio", compared))
        shown |= {compare.baseline, *(curve.arm for curve in curves)} if curves else set()
        for paths in dict.fromkeys(curve.paths for curve in curves):
            yield [curve for curve in curves if curve.paths == paths]
    if spec.break_even is not None:
        # There is a section on these.
        shown |= {spec.break_even.arm, spec.break_even.baseline}
    metric = _metric(view)
    unit = _UNITS.get(next((row.unit for row in view.rows if row.metric == metric), ""), "")
    axis = f"{called(metric)}{f', {unit}' if unit else ''}"
    alone: dict[tuple[str, frozenset[str]], list[_Curve]] = {}
    for arm in [arm for arm in arms if arm not in shown]:
        subjects = [view.at(arm, subject, point) for subject in _subjects(view, arm) for point in own[arm]]
        for curve in _curves(axis, metric, subjects):
            alone.setdefault((curve.name, curve.paths), []).append(curve)
    yield from alone.values()


def _curves(axis: str, metric: str, subjects: Iterator[Figures] | Sequence[Figures]) -> Iterator[_Curve]:
    groups: dict[tuple[object, ...], list[Figures]] = {}
    for entry in subjects:
        if entry.row(metric) is not None:
            groups.setdefault((entry.arm, entry.subject, frozenset(entry.point)), []).append(entry)
    return (_Curve(axis, metric, points) for points in groups.values() if len(points) > 1)


def _metric(view: View) -> str:
    """Return the metric to show of arms that are not compared: the first for which there is any figure."""
    spec = view.experiment.spec
    metrics_asked = [metric for compare in spec.compare for metric in compare.metrics]
    if spec.break_even is not None:
        metrics_asked.insert(0, spec.break_even.metric)
    may_be = (*metrics_asked, *_DEFAULT, *_of_computed(view), "makespan")
    return next((metric for metric in may_be if metric in view.metrics), _DEFAULT[0])


def _of_computed(view: View) -> list[str]:
    """Return the metric that stands for all jobs, if their source computed them together."""
    records = (record for run in view.runs[:1] for record in run.records)
    return [record.metric for record in records if isinstance(record, JobsComputed)]


def _table(view: View, arm: str, many: bool) -> str:
    points, subjects = _own_points(view, arm), _subjects(view, arm)
    paths = swept(points)
    compares = view.experiment.spec.compare
    metrics_asked = [metric for compare in compares for metric in compare.metrics] or list(_DEFAULT)
    words = [*swept_columns(paths), *([JOB] if len(subjects) > 1 else [])]
    columns = [*words, *((called(m), m) for m in dict.fromkeys([*metrics_asked, _metric(view)]))]
    for compare in compares:
        columns += [(f"{called(m)}, ratio", _ratio(m, compare)) for m in compare.metrics]
    items = [view.at(arm, subject, point) for point in points for subject in subjects]
    shown = figures(items, columns, len(words)) + quiet(f"All {tag(view.label)}, times as emulated.")
    if len(items) > _MOST_ROWS or many:
        return folded(f"All {len(points):,} points of {text(view.title(arm))}", shown)
    return f"<h3>{text(view.title(arm))}</h3>{shown}"


def _ratio(metric: str, compare: CompareSpec) -> Callable[[Figures], str]:
    def ratio(subject: Figures) -> str:
        pair = Compared(subject.view, subject.arm, subject.subject, subject.point, compare)
        return pair.figure(f"{metric}_ratio")

    return ratio


def _figure(lines: Sequence[_Curve]) -> Figure:
    points = [subject.point for curve in lines for subject in curve.points]
    paths = swept(points)
    values = {path: list(dict.fromkeys(str(point.get(path)) for point in points)) for path in paths}
    numeric = {path: all(quantity(point.get(path)) for point in points) for path in paths}
    first = max(paths, key=lambda path: (numeric[path], len(values[path])))
    other_paths = [path for path in paths if path != first and len(values[path]) > 1]
    if (
        len(lines) == 1
        and len(other_paths) == 1
        and min(len(values[p]) for p in (first, *other_paths)) >= _MAP
    ):
        return _map(lines[0], first, other_paths[0], values)
    return _lines(lines, first, other_paths)


def _lines(lines: Sequence[_Curve], path: str, other_paths: Sequence[str]) -> Figure:
    figure, axis = chart(3.2, left=0.75)
    points = [subject.point for curve in lines for subject in curve.points]
    paths, values = swept(points), list({said(point.get(path)): point.get(path) for point in points}.items())
    at_x = along(axis, [value for _, value in values], [words for words, _ in values], short(path, paths))
    x_of = dict(zip((words for words, _ in values), at_x, strict=True))
    groups: dict[str, list[tuple[float, float, float]]] = {}
    for curve in lines:
        names = [curve.arm] if len({c.arm for c in lines}) > 1 else []
        names += [curve.name] if len({c.name for c in lines}) > 1 else []
        for subject in curve.points:
            label = ", ".join(
                [*names, *(f"{short(other, paths)} {subject.point.get(other)}" for other in other_paths)]
            )
            row = subject.row(curve.metric)
            if row is not None and is_number(row.value):
                x = x_of[said(subject.point.get(path))]
                groups.setdefault(label, []).append((x, row.value, row.spread or 0.0))
    for (label, mine), (dash, colour) in zip(list(groups.items())[:_MOST_LINES], LOOKS, strict=False):
        xs, ys, spread = zip(*sorted(mine), strict=True)
        bars = spread if any(spread) else None
        axis.errorbar(xs, ys, yerr=bars, capsize=2, color=colour, linestyle=dash, marker="o", label=label)
    axis.set_ylabel(lines[0].axis)
    axis.ticklabel_format(axis="y", useOffset=False)
    heights = [y for mine in groups.values() for _, y, _ in mine]
    if heights and max(heights) - min(heights) <= _ALIKE * abs(max(heights)):
        # What is left of equal figures is no difference to zoom in on.
        axis.margins(y=0)
        axis.set_ylim(0, 1.5 * max(heights) or 1)
    if len(groups) > 1:
        legend(figure, _told_apart(lines, paths, other_paths), columns=4)
    return figure


def _told_apart(lines: Sequence[_Curve], paths: Sequence[str], other_paths: Sequence[str]) -> str:
    """Return what distinguishes the lines of a picture: arms, jobs, swept paths."""
    names = ["arm"] if len({curve.arm for curve in lines}) > 1 else []
    names += ["job"] if len({curve.name for curve in lines}) > 1 else []
    return ", ".join([*names, *(short(other, paths) for other in other_paths)])


def _map(curve: _Curve, across: str, up: str, values: Mapping[str, Sequence[str]]) -> Figure:
    """A value for each pair of swept values."""
    figure, axis = chart(3.6, left=1.0, top=0.4)
    cells = [[float("nan")] * len(values[across]) for _ in values[up]]
    for subject in curve.points:
        x, y = (values[path].index(str(subject.point.get(path))) for path in (across, up))
        cells[y][x] = float("nan") if (value := subject.number(curve.metric)) is None else value
    words = [["" if math.isnan(value) else f"{value:.3g}" for value in line] for line in cells]
    shaded(axis, values[across], values[up], cells, words, curve.axis)
    axis.set(xlabel=short(across, list(values)), ylabel=short(up, list(values)))
    return figure


# The best value of a swept path.


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
    whole = {key_of(row.point): row.point for row in rows if len(row.point) == len(paths)}
    arms = [arm for arm in view.arms if any(row.arm == arm for row in rows)]
    columns: Columns[Point] = of_points(paths)
    columns = [*columns, *((text(view.title(arm)), _best(view, spec, rows, arm, arms)) for arm in arms)]
    return (
        f"<p>{text(what)} of each arm with its best {text(where)}, in brackets which {tag(view.label)}."
        f"</p>{view.paragraph('search')}{picture}{table_of(list(whole.values()), columns, len(paths))}"
    )


def _best(
    view: View, spec: SearchSpec, rows: Sequence[Row], arm: str, arms: Sequence[str]
) -> Callable[[Point], str]:
    best, where = spec.made

    def figures_of(other: str, point: Point) -> Figures:
        mine = (row.point for row in rows if row.arm == other and row.point.items() <= point.items())
        return view.at(other, f"job {view.plans[other].jobs[0].name}", next(mine, point))

    def shown(point: Point) -> str:
        mine = figures_of(arm, point)
        if (value := mine.number(best)) is None:
            return NOTHING
        least = min(number for other in arms if (number := figures_of(other, point).number(best)) is not None)
        words = f"{mine.figure(best)} ({figure(mine.row(where))})"
        return mark("good", words) if value <= least * (1 + 1e-9) else words

    return shown


def _across(rows: Sequence[Row], paths: Sequence[str]) -> str | None:
    """Return the swept path of numbers with the most values; None if no path has two."""
    values = {path: {str(row.point[path]) for row in rows if path in row.point} for path in paths}
    long = [path for path in paths if len(values[path]) > 1 and all(map(quantity, values[path]))]
    return max(long, key=lambda path: len(values[path]), default=None)


def _side_by_side(view: View, rows: Sequence[Row], paths: Sequence[str], x: str) -> Figure:
    """Curves over one path, a picture for each value of the others; an arm not swept is a level line."""
    xs = list({str(row.point[x]): row.point[x] for row in rows if x in row.point}.values())
    points = [{path: value for path, value in row.point.items() if path != x} for row in rows]
    rests = {key_of(rest): rest for rest in points}
    arms = [arm for arm in view.arms if any(row.arm == arm for row in rows)]
    values = {(row.arm, key_of(row.point)): float(row.value) for row in rows if is_number(row.value)}
    top = 0.3 + 0.19 * -(-len(arms) // 4)
    margins: Any = {"left": 0.8, "top": top + 0.15, "bottom": 0.6, "gap": (0.6, 0.5)}
    figure, (axes,) = sheet(2.9 + top, columns=len(rests), **margins)
    for axis, rest in zip(axes, rests.values(), strict=True):
        at_x = along(axis, xs, [said(value) for value in xs], short(x, paths), 4)
        keys = [key_of({**rest, x: value}) for value in xs]
        lines = [[values.get((arm, key), values.get((arm, key_of(rest)))) for key in keys] for arm in arms]
        curves(axis, at_x, zip(map(view.title, arms), lines, strict=True))
        axis.set_title(", ".join(said(value) for value in rest.values()), fontsize=8)
        axis.set_yscale("log")
        prefixed(axis.yaxis, rows[0].unit)
    axes[0].set_ylabel(called(rows[0].metric))
    handles = axes[0].get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.02, 1.0), ncols=4, fontsize=7.5)
    return figure
