"""Arms that ran at many points: the compared metrics over the swept values, as a picture and as a table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from experiments.analysis.rows import Row
from experiments.analysis.statistics import is_number
from experiments.language.spec import parse_figure
from experiments.report.drawing import INK, PALETTE
from experiments.report.page import row, table, tag, text
from experiments.report.report import Draw
from experiments.report.sheet import legend, plain_ticks, sheet
from experiments.report.view import Compared, Point, View, job_of, swept
from experiments.report.words import called, figure

ORDER = 15
NEEDS: tuple[str, ...] = ()
#: More rows than these are folded away; more lines than these cannot be told apart; values from which on two
#: swept paths make a map.
_MOST_ROWS, _MOST_LINES, _MAP = 12, 12, 4
_DEFAULT = ("jct", "iteration", "allreduce")
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_LARGE = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_UNITS = {"s": "seconds", "bit/s": "bit/s", "bytes": "bytes", "%": "%"}


@dataclass(frozen=True)
class _Curve:
    """A figure of an arm at each of its points. ``axis``: what it is, with its unit."""

    arm: str
    subject: str
    axis: str
    rows: Sequence[tuple[Point, Row]]


def wanted(view: View) -> bool:
    return bool(_swept(view))


def _swept(view: View) -> list[str]:
    return [arm for arm in view.arms if len(view.points(arm)) > 1]


def render(view: View, draw: Draw) -> str:
    said = f"<p>{text(view.says('sweep'))}</p>" if view.says("sweep") else ""
    figures = []
    for number, curves in enumerate(_curves(view), start=1):
        caption = (
            f"{curves[0].axis[:1].upper() + curves[0].axis[1:]}, of {job_of(curves[0].subject)}, over the "
            f"swept values. {view.label.capitalize()}, as emulated; swept values are those of the real "
            "fabric."
        )
        figures.append(draw(f"sweep-{number}", caption, _figure(curves)))
    tables = "".join(_table(view, arm) for arm in _swept(view))
    return f"<h2>Sweep</h2>{said}{''.join(figures)}{tables}"


def _curves(view: View) -> Iterator[list[_Curve]]:
    """One list for each picture: the ratios of each comparison, or the first metric where nothing is
    compared."""
    of_comparisons = [_compared(view, view.compared(spec)) for spec in view.experiment.spec.compare]
    shown = [curves for curves in of_comparisons if curves]
    done = {curve.arm for curves in shown for curve in curves}
    if (even := view.experiment.spec.break_even) is not None:
        # There is a section on these.
        done |= {even.arm, even.baseline}
    baselines = {spec.baseline for spec in view.experiment.spec.compare}
    alone: dict[tuple[str, tuple[str, ...]], list[_Curve]] = {}
    for arm in _swept(view):
        if arm in done or (arm in baselines and shown):
            continue
        for subject in view.subjects(arm, "job"):
            found = [(p, r) for p in view.points(arm) if (r := view.row(arm, subject, _metric(view), p))]
            if len(found) > 1:
                unit = _UNITS.get(found[0][1].unit, "")
                axis = f"{called(_metric(view))}{f', {unit}' if unit else ''}"
                key = subject, tuple(swept(view.points(arm)))
                alone.setdefault(key, []).append(_Curve(arm, subject, axis, found))
    yield from shown
    yield from alone.values()


def _metric(view: View) -> str:
    spec = view.experiment.spec
    if spec.break_even is not None:
        return spec.break_even.metric
    return spec.compare[0].metrics[0] if spec.compare else _DEFAULT[0]


def _compared(view: View, found: Sequence[Compared]) -> list[_Curve]:
    rows: dict[tuple[str, str], list[tuple[Point, Row]]] = {}
    for one in found:
        if len(view.points(one.arm)) < 2:
            continue
        for subject in view.compared_subjects(one):
            ratio = view.of_comparison(one, subject, f"{one.spec.metrics[0]}_ratio")
            if ratio is not None:
                rows.setdefault((one.arm, subject), []).append((one.point, ratio))
    axis = f"{called(found[0].spec.metrics[0])} over that of {found[0].spec.baseline}" if found else ""
    return [_Curve(arm, subject, axis, mine) for (arm, subject), mine in rows.items() if len(mine) > 1]


# Tables.


def _table(view: View, arm: str) -> str:
    points = view.points(arm)
    paths = swept(points)
    subjects = view.subjects(arm, "job")
    lines = [line for point in points for line in _rows(view, arm, point, subjects, paths)]
    head = [
        *(text(_short(path, paths)) for path in paths),
        *(["job"] if len(subjects) > 1 else []),
        *(heading for heading, _, _ in _columns(view, arm)),
    ]
    shown = table(head, lines, len(paths) + (len(subjects) > 1))
    note = f'<p class="quiet">All {tag(view.label)}, times as emulated.</p>'
    if len(lines) > _MOST_ROWS:
        summary = f"All {len(points):,} points of {text(view.title(arm))}"
        return f"<details><summary>{summary}</summary>{shown}{note}</details>"
    return f"<h3>{text(view.title(arm))}</h3>{shown}{note}"


def _columns(view: View, arm: str) -> list[tuple[str, str, str]]:
    """Head, metric, and of what: of the job, or of the arm's comparison with its baseline."""
    spec = view.experiment.spec
    metrics = list(dict.fromkeys(m for compare in spec.compare for m in compare.metrics)) or list(_DEFAULT)
    if (spec.break_even is not None) and spec.break_even.metric not in metrics:
        metrics.append(spec.break_even.metric)
    there = [m for m in metrics if any(r.metric == m and r.arm == arm for r in view.rows)]
    found = [(called(metric), metric, "job") for metric in there]
    for compare in spec.compare:
        for one in view.compared(compare)[:1]:
            if arm in {c.arm for c in view.compared(compare)}:
                found += [(f"{called(m)}, ratio", f"{m}_ratio", compare.name or "") for m in one.spec.metrics]
    return found


def _rows(view: View, arm: str, point: Point, subjects: Sequence[str], paths: Sequence[str]) -> Iterator[str]:
    for subject in subjects:
        cells = [text(point.get(path, "–")) for path in paths]
        cells += [text(job_of(subject))] if len(subjects) > 1 else []
        for _, metric, name in _columns(view, arm):
            found = view.row(arm, subject, f"{metric}.{name}", point) if name not in ("", "job") else None
            cells.append(figure(found or view.row(arm, subject, metric, point)))
        yield row(cells, len(paths) + (len(subjects) > 1))


def _short(path: str, paths: Sequence[str]) -> str:
    """The end of a dotted path, as much of it as tells it from the others."""
    path, paths = path.removesuffix(".value"), [other.removesuffix(".value") for other in paths]
    words = path.split(".")
    for length in range(1, len(words) + 1):
        short = ".".join(words[-length:])
        if sum(other == short or other.endswith(f".{short}") for other in paths) == 1:
            return short
    return path


# Pictures.


def _number(value: Any) -> float | None:
    """A swept value as a number in SI units, None where it is none."""
    try:
        found = parse_figure(value)
    except ValueError:
        return None
    return float(found["value"]) if isinstance(found, Mapping) and is_number(found["value"]) else None


def _figure(curves: Sequence[_Curve]) -> Figure:
    points = [point for curve in curves for point, _ in curve.rows]
    paths = swept(points)
    values = {path: list(dict.fromkeys(str(point.get(path)) for point in points)) for path in paths}
    along = max(paths, key=lambda path: (_numeric(points, path), len(values[path])))
    others = [path for path in paths if path != along and len(values[path]) > 1]
    if len(curves) == 1 and len(others) == 1 and min(len(values[p]) for p in (along, *others)) >= _MAP:
        return _map(curves[0], along, others[0], paths)
    return _lines(curves, along, others, paths)


def _numeric(points: Sequence[Point], path: str) -> bool:
    return all(_number(point.get(path)) is not None for point in points)


def _lines(curves: Sequence[_Curve], along: str, others: Sequence[str], paths: Sequence[str]) -> Figure:
    drawn, ((axis,),) = sheet(3.4, left=0.75, top=0.75)
    points = [point for curve in curves for point, _ in curve.rows]
    numeric = _numeric(points, along)
    factor, unit = _unit(points, along) if numeric else (1.0, "")
    ticks = list(dict.fromkeys(str(point.get(along)) for point in points))
    looks = itertools.cycle(itertools.product(("-", (0, (4, 2)), (0, (1, 1.5))), PALETTE))
    groups: dict[tuple[str, ...], list[tuple[Point, Row]]] = {}
    for curve in curves:
        name = [f"{curve.arm}" if len({c.arm for c in curves}) > 1 else ""]
        name += [job_of(curve.subject)] if len({c.subject for c in curves}) > 1 else []
        for point, found in curve.rows:
            key = [*name, *(f"{_short(path, paths)} {point.get(path)}" for path in others)]
            groups.setdefault(tuple(word for word in key if word), []).append((point, found))
    for (label, mine), (dash, colour) in zip(list(groups.items())[:_MOST_LINES], looks, strict=False):
        xs = [
            (_number(p.get(along)) or 0.0) / factor if numeric else float(ticks.index(str(p.get(along))))
            for p, _ in mine
        ]
        ys = [r.value if is_number(r.value) else float("nan") for _, r in mine]
        order = sorted(range(len(xs)), key=lambda k: xs[k])
        spread = [mine[k][1].spread or 0.0 for k in order]
        axis.errorbar(
            [xs[k] for k in order],
            [ys[k] for k in order],
            yerr=spread if any(spread) else None,
            color=colour,
            linestyle=dash,
            marker="o",
            markersize=3.5,
            linewidth=1.3,
            capsize=2,
            label=", ".join(label),
        )
    if numeric:
        along_x = [x / factor for p in points if (x := _number(p.get(along))) is not None]
        if min(along_x) > 0 and max(along_x) > 15 * min(along_x):
            axis.set_xscale("log")
            plain_ticks(axis.xaxis, min(along_x), max(along_x))
        axis.set_xlabel(f"{_short(along, paths)}{unit}")
    else:
        axis.set_xticks(range(len(ticks)), ticks)
        axis.set_xlabel(_short(along, paths))
    axis.set_ylabel(curves[0].axis)
    if len(groups) > 1:
        legend(drawn, columns=4)
    return drawn


def _unit(points: Sequence[Point], path: str) -> tuple[float, str]:
    """What to divide an axis' values by so that they are short, and its unit then."""
    found = parse_figure(points[0].get(path))
    unit = found.get("unit", "1") if isinstance(found, Mapping) else "1"
    most = max(_number(point.get(path)) or 0.0 for point in points)
    prefixes = {"s": _SMALL, "bit/s": _LARGE, "bytes": _LARGE}.get(unit, ())
    for factor, prefix in prefixes:
        if most >= factor:
            return factor, f", {prefix}{'B' if unit == 'bytes' else unit}"
    return 1.0, f", {_UNITS[unit]}" if unit in _UNITS else ""


def _map(curve: _Curve, along: str, up: str, paths: Sequence[str]) -> Figure:
    """A value for each pair of swept values."""
    drawn, ((axis,),) = sheet(3.6, left=1.0, top=0.4)
    columns = list(dict.fromkeys(str(point.get(along)) for point, _ in curve.rows))
    rows = list(dict.fromkeys(str(point.get(up)) for point, _ in curve.rows))
    grid = [[float("nan")] * len(columns) for _ in rows]
    for point, found in curve.rows:
        if is_number(found.value):
            grid[rows.index(str(point.get(up)))][columns.index(str(point.get(along)))] = float(found.value)
    shades = axis.pcolormesh(grid, cmap="viridis", edgecolors="none")
    for y, line in enumerate(grid):
        for x, value in enumerate(line):
            axis.text(
                x + 0.5,
                y + 0.5,
                f"{value:.3g}",
                ha="center",
                va="center",
                fontsize=7.5,
                color=INK,
                bbox={"facecolor": "white", "alpha": 0.6, "linewidth": 0, "pad": 1},
            )
    drawn.colorbar(shades, ax=axis, label=curve.axis)
    axis.set_xticks([k + 0.5 for k in range(len(columns))], columns)
    axis.set_yticks([k + 0.5 for k in range(len(rows))], rows)
    axis.set_xlabel(_short(along, paths))
    axis.set_ylabel(_short(up, paths))
    axis.grid(visible=False)
    return drawn
