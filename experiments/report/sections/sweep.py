"""Arms that ran at many points: compared metrics over swept values, as picture and table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.spec import CompareSpec, quantity
from ringlight.experiments.report.charts import along, chart, legend, shaded
from ringlight.experiments.report.drawing import PALETTE
from ringlight.experiments.report.page import folded, table_of, tag, text
from ringlight.experiments.report.view import Compared, Draw, Figures, View, cell, of_points, short, swept
from ringlight.experiments.report.words import called, said, upper_first

ORDER = 11
TITLE = "Sweep"
#: More rows than these are folded away; more lines than these cannot be told apart; values from which on two
#: swept paths make a map.
_MOST_ROWS, _MOST_LINES, _MAP = 12, 12, 4
#: With more arms than these, tables are folded.
_MOST_TABLES = 3
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


def wanted(view: View) -> Sequence[str]:
    """Arms that ran at several points, but for those of sweeps that have a title."""
    titled = [sweep.arms or view.arms for sweep in view.experiment.spec.sweep if sweep.title]
    return [arm for arm in view.arms if len(view.points(arm)) > 1 and not any(arm in of for of in titled)]


def render(view: View, draw: Draw) -> str:
    figures = []
    for number, curves in enumerate(_pictures(view), start=1):
        caption = (
            f"{upper_first(curves[0].axis)}, of {curves[0].name}, over the swept values. "
            f"{view.label.capitalize()}, as emulated; swept values are those of the real fabric."
        )
        figures.append(draw(f"sweep-{number}", caption, _figure, curves))
    tables = (_table(view, arm) for arm in wanted(view))
    return "".join([view.paragraph("sweep"), *figures, *tables])


def _pictures(view: View) -> Iterator[list[_Curve]]:
    """The curves of each: the ratios of each comparison, or the first metric where nothing is compared."""
    spec, shown = view.experiment.spec, set[str]()
    for compare in spec.compare:
        ratio = f"{compare.metrics[0]}_ratio"
        axis = f"{called(compare.metrics[0])} over that of {compare.baseline}"
        found = list(_curves(axis, ratio, view.compared(compare)))
        shown |= {compare.baseline, *(curve.arm for curve in found)} if found else set()
        for paths in dict.fromkeys(curve.paths for curve in found):
            yield [curve for curve in found if curve.paths == paths]
    if spec.break_even is not None:
        # There is a section on these.
        shown |= {spec.break_even.arm, spec.break_even.baseline}
    metric = _metric(view)
    unit = _UNITS.get(next((row.unit for row in view.rows if row.metric == metric), ""), "")
    axis = f"{called(metric)}{f', {unit}' if unit else ''}"
    alone: dict[tuple[str, frozenset[str]], list[_Curve]] = {}
    for arm in [arm for arm in wanted(view) if arm not in shown]:
        jobs = [view.at(arm, at.subject, p) for at in view.each("job", [arm]) for p in view.points(arm)]
        for curve in _curves(axis, metric, jobs):
            alone.setdefault((curve.name, curve.paths), []).append(curve)
    yield from alone.values()


def _curves(axis: str, metric: str, found: Iterator[Figures] | Sequence[Figures]) -> Iterator[_Curve]:
    groups: dict[tuple[object, ...], list[Figures]] = {}
    for at in found:
        if at.row(metric) is not None:
            groups.setdefault((at.arm, at.subject, frozenset(at.point)), []).append(at)
    return (_Curve(axis, metric, points) for points in groups.values() if len(points) > 1)


def _metric(view: View) -> str:
    """What is shown of arms that are not compared."""
    spec = view.experiment.spec
    if spec.break_even is not None:
        return spec.break_even.metric
    return spec.compare[0].metrics[0] if spec.compare else _DEFAULT[0]


# Tables.


def _table(view: View, arm: str) -> str:
    points, paths, jobs = view.points(arm), swept(view.points(arm)), list(view.each("job", [arm]))
    compares = view.experiment.spec.compare
    metrics = [metric for compare in compares for metric in compare.metrics] or list(_DEFAULT)
    words = [*of_points(paths), *([("job", _job)] if len(jobs) > 1 else [])]
    columns = [*words, *((called(m), cell(m)) for m in dict.fromkeys([*metrics, _metric(view)]))]
    for compare in compares:
        columns += [(f"{called(m)}, ratio", _ratio(m, compare)) for m in compare.metrics]
    items = [view.at(arm, job.subject, point) for point in points for job in jobs]
    shown = table_of(items, columns, len(words))
    note = f'<p class="quiet">All {tag(view.label)}, times as emulated.</p>'
    if len(items) > _MOST_ROWS or len(wanted(view)) > _MOST_TABLES:
        return folded(f"All {len(points):,} points of {text(view.title(arm))}", shown + note)
    return f"<h3>{text(view.title(arm))}</h3>{shown}{note}"


def _job(at: Figures) -> str:
    return text(at.name)


def _ratio(metric: str, compare: CompareSpec) -> Callable[[Figures], str]:
    def found(at: Figures) -> str:
        return Compared(at.view, at.arm, at.subject, at.point, compare).figure(f"{metric}_ratio")

    return found


# Pictures.


def _figure(curves: Sequence[_Curve]) -> Figure:
    points = [at.point for curve in curves for at in curve.points]
    paths = swept(points)
    values = {path: list(dict.fromkeys(str(point.get(path)) for point in points)) for path in paths}
    numeric = {path: all(quantity(point.get(path)) for point in points) for path in paths}
    first = max(paths, key=lambda path: (numeric[path], len(values[path])))
    others = [path for path in paths if path != first and len(values[path]) > 1]
    if len(curves) == 1 and len(others) == 1 and min(len(values[p]) for p in (first, *others)) >= _MAP:
        return _map(curves[0], first, others[0], values)
    return _lines(curves, first, others)


def _lines(curves: Sequence[_Curve], path: str, others: Sequence[str]) -> Figure:
    figure, axis = chart(3.2, left=0.75)
    points = [at.point for curve in curves for at in curve.points]
    paths, values = swept(points), list({said(point.get(path)): point.get(path) for point in points}.items())
    at_x = along(axis, [value for _, value in values], [words for words, _ in values], short(path, paths))
    x_of = dict(zip((words for words, _ in values), at_x, strict=True))
    looks = itertools.product(("-", (0, (4, 2)), (0, (1, 1.5))), PALETTE)
    groups: dict[str, list[tuple[float, float, float]]] = {}
    for curve in curves:
        names = [curve.arm] if len({c.arm for c in curves}) > 1 else []
        names += [curve.name] if len({c.name for c in curves}) > 1 else []
        for at in curve.points:
            label = ", ".join([*names, *(f"{short(other, paths)} {at.point.get(other)}" for other in others)])
            row = at.row(curve.metric)
            if row is not None and is_number(row.value):
                x = x_of[said(at.point.get(path))]
                groups.setdefault(label, []).append((x, row.value, row.spread or 0.0))
    for (label, mine), (dash, colour) in zip(list(groups.items())[:_MOST_LINES], looks, strict=False):
        xs, ys, spread = zip(*sorted(mine), strict=True)
        bars = spread if any(spread) else None
        axis.errorbar(xs, ys, yerr=bars, capsize=2, color=colour, linestyle=dash, marker="o", label=label)
    axis.set_ylabel(curves[0].axis)
    if len(groups) > 1:
        legend(figure, _told_apart(curves, paths, others), columns=4)
    return figure


def _told_apart(curves: Sequence[_Curve], paths: Sequence[str], others: Sequence[str]) -> str:
    """What the lines differ in: arms, jobs, swept paths."""
    names = ["arm"] if len({curve.arm for curve in curves}) > 1 else []
    names += ["job"] if len({curve.name for curve in curves}) > 1 else []
    return ", ".join([*names, *(short(other, paths) for other in others)])


def _map(curve: _Curve, across: str, up: str, values: Mapping[str, Sequence[str]]) -> Figure:
    """A value for each pair of swept values."""
    figure, axis = chart(3.6, left=1.0, top=0.4)
    cells = [[float("nan")] * len(values[across]) for _ in values[up]]
    for at in curve.points:
        x, y = (values[path].index(str(at.point.get(path))) for path in (across, up))
        cells[y][x] = float("nan") if (value := at.number(curve.metric)) is None else value
    words = [["" if math.isnan(value) else f"{value:.3g}" for value in line] for line in cells]
    shaded(axis, values[across], values[up], cells, words, curve.axis)
    axis.set(xlabel=short(across, list(values)), ylabel=short(up, list(values)))
    return figure
