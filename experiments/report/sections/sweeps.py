"""Sweeps without a title: the ratios of comparisons, or a metric of arms that are not compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.spec import CompareSpec, SweepSpec, quantity
from ringlight.experiments.record.events import JobsComputed
from ringlight.experiments.report.charts import LOOKS, along, chart, legend, shaded
from ringlight.experiments.report.columns import (
    JOB,
    figures,
    short,
    swept,
    swept_columns,
)
from ringlight.experiments.report.page import folded, quiet, tag, text
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Compared, Draw, Figures, Point, View
from ringlight.experiments.report.words import as_text, called, upper_first

#: A table of more rows is folded away.
MOST_ROWS = 12
#: More lines than these cannot be told apart; values from which on two swept paths make a map.
_MOST_LINES, _MAP = 12, 4
#: With more arms than these, tables are folded.
_MOST_TABLES = 3
#: Figures that differ by no more than this part are the same.
_ALIKE = 1e-6
_DEFAULT = ("jct", "iteration", "allreduce")
_UNITS = {"s": "seconds", "bit/s": "bit/s", "bytes": "bytes", "%": "%"}


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
    return (
        f"{curves[0].name} in {view.title(*arms)}" if len(arms) == 1 else curves[0].name
    )


def _untitled(view: View) -> Sequence[str]:
    """Arms that ran at several points that are not of sweeps that have a title."""
    return [arm for arm in view.arms if len(_own_points(view, arm)) > 1]


def _own_points(view: View, arm: str) -> Sequence[Point]:
    """Return the points of an arm without those of sweeps that have a title."""
    titled = [
        spec
        for spec in view.experiment.spec.sweep
        if spec.title and arm in (spec.arms or view.arms)
    ]
    return [
        point
        for point in view.points(arm)
        if not any(_has(spec, point) for spec in titled)
    ]


def _has(spec: SweepSpec, point: Point) -> bool:
    return point.keys() == spec.over.keys() and all(
        point[path] in spec.over[path] for path in point
    )


def _subjects(view: View, arm: str) -> list[str]:
    """Return the subjects of an arm's figures: its jobs, or the run."""
    return [entry.subject for entry in view.each("job", [arm])] or ["run"]


def _pictures(view: View, arms: Sequence[str]) -> Iterator[list[_Curve]]:
    """Yield the curves of each picture: the ratios of each comparison, or a metric if nothing is compared."""
    spec, shown = view.experiment.spec, set[str]()
    own = {arm: _own_points(view, arm) for arm in arms}
    for compare in spec.compare:
        compared = [
            pair
            for pair in view.compared(compare)
            if pair.point in own.get(pair.arm, ())
        ]
        metric = next(
            (
                m
                for m in compare.metrics
                if any(pair.row(f"{m}_ratio") for pair in compared)
            ),
            "",
        )
        axis = f"{called(metric)} over that of {compare.baseline}"
        curves = list(_curves(axis, f"{metric}_ratio", compared))
        shown |= (
            {compare.baseline, *(curve.arm for curve in curves)} if curves else set()
        )
        for paths in dict.fromkeys(curve.paths for curve in curves):
            yield [curve for curve in curves if curve.paths == paths]
    if spec.break_even is not None:
        # There is a section on these.
        shown |= {spec.break_even.arm, spec.break_even.baseline}
    metric = _metric(view)
    unit = _UNITS.get(
        next((row.unit for row in view.rows if row.metric == metric), ""), ""
    )
    axis = f"{called(metric)}{f', {unit}' if unit else ''}"
    alone: dict[tuple[str, frozenset[str]], list[_Curve]] = {}
    for arm in [arm for arm in arms if arm not in shown]:
        subjects = [
            view.figures_at(arm, subject, point)
            for subject in _subjects(view, arm)
            for point in own[arm]
        ]
        for curve in _curves(axis, metric, subjects):
            alone.setdefault((curve.name, curve.paths), []).append(curve)
    yield from alone.values()


def _curves(
    axis: str, metric: str, subjects: Iterator[Figures] | Sequence[Figures]
) -> Iterator[_Curve]:
    groups: dict[tuple[object, ...], list[Figures]] = {}
    for entry in subjects:
        if entry.row(metric) is not None:
            groups.setdefault(
                (entry.arm, entry.subject, frozenset(entry.point)), []
            ).append(entry)
    return (
        _Curve(axis, metric, points) for points in groups.values() if len(points) > 1
    )


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
    metrics_asked = [
        metric for compare in compares for metric in compare.metrics
    ] or list(_DEFAULT)
    words = [*swept_columns(paths), *([JOB] if len(subjects) > 1 else [])]
    columns = [
        *words,
        *((called(m), m) for m in dict.fromkeys([*metrics_asked, _metric(view)])),
    ]
    for compare in compares:
        columns += [
            (f"{called(m)}, ratio", _ratio(m, compare)) for m in compare.metrics
        ]
    items = [
        view.figures_at(arm, subject, point) for point in points for subject in subjects
    ]
    shown = figures(items, columns, len(words)) + quiet(
        f"All {tag(view.label)}, emulated times."
    )
    if len(items) > MOST_ROWS or many:
        return folded(f"All {len(points):,} points of {text(view.title(arm))}", shown)
    return f"<h3>{text(view.title(arm))}</h3>{shown}"


def _ratio(metric: str, compare: CompareSpec) -> Callable[[Figures], str]:
    def ratio(subject: Figures) -> str:
        pair = Compared(
            subject.view, subject.arm, subject.subject, subject.point, compare
        )
        return pair.figure(f"{metric}_ratio")

    return ratio


def _figure(lines: Sequence[_Curve]) -> Figure:
    points = [subject.point for curve in lines for subject in curve.points]
    paths = swept(points)
    values = {
        path: list(dict.fromkeys(str(point.get(path)) for point in points))
        for path in paths
    }
    numeric = {
        path: all(quantity(point.get(path)) for point in points) for path in paths
    }
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
    paths, values = (
        swept(points),
        list({as_text(point.get(path)): point.get(path) for point in points}.items()),
    )
    at_x = along(
        axis,
        [value for _, value in values],
        [words for words, _ in values],
        short(path, paths),
    )
    x_of = dict(zip((words for words, _ in values), at_x, strict=True))
    groups: dict[str, list[tuple[float, float, float]]] = {}
    for curve in lines:
        names = [curve.arm] if len({c.arm for c in lines}) > 1 else []
        names += [curve.name] if len({c.name for c in lines}) > 1 else []
        for subject in curve.points:
            label = ", ".join(
                [
                    *names,
                    *(
                        f"{short(other, paths)} {subject.point.get(other)}"
                        for other in other_paths
                    ),
                ]
            )
            row = subject.row(curve.metric)
            if row is not None and is_number(row.value):
                x = x_of[as_text(subject.point.get(path))]
                groups.setdefault(label, []).append((x, row.value, row.spread or 0.0))
    for (label, mine), (dash, colour) in zip(
        list(groups.items())[:_MOST_LINES], LOOKS, strict=False
    ):
        xs, ys, spread = zip(*sorted(mine), strict=True)
        bars = spread if any(spread) else None
        axis.errorbar(
            xs,
            ys,
            yerr=bars,
            capsize=2,
            color=colour,
            linestyle=dash,
            marker="o",
            label=label,
        )
    axis.set_ylabel(lines[0].axis)
    axis.ticklabel_format(axis="y", useOffset=False)
    heights = [y for mine in groups.values() for _, y, _ in mine]
    if heights and max(heights) - min(heights) <= _ALIKE * abs(max(heights)):
        # What is left of equal figures is no difference to zoom in on.
        axis.margins(y=0)
        axis.set_ylim(0, 1.5 * max(heights) or 1)
    if len(groups) > 1:
        legend(figure, _distinctions(lines, paths, other_paths), columns=4)
    return figure


def _distinctions(
    lines: Sequence[_Curve], paths: Sequence[str], other_paths: Sequence[str]
) -> str:
    """Return what distinguishes the lines of a picture: arms, jobs, swept paths."""
    names = ["arm"] if len({curve.arm for curve in lines}) > 1 else []
    names += ["job"] if len({curve.name for curve in lines}) > 1 else []
    return ", ".join([*names, *(short(other, paths) for other in other_paths)])


def _map(
    curve: _Curve, across: str, up: str, values: Mapping[str, Sequence[str]]
) -> Figure:
    """A value for each pair of swept values."""
    figure, axis = chart(3.6, left=1.0, top=0.4)
    cells = [[float("nan")] * len(values[across]) for _ in values[up]]
    for subject in curve.points:
        x, y = (
            values[path].index(str(subject.point.get(path))) for path in (across, up)
        )
        cells[y][x] = (
            float("nan") if (value := subject.number(curve.metric)) is None else value
        )
    words = [
        ["" if math.isnan(value) else f"{value:.3g}" for value in line]
        for line in cells
    ]
    shaded(axis, values[across], values[up], cells, words, curve.axis)
    axis.set(xlabel=short(across, list(values)), ylabel=short(up, list(values)))
    return figure
