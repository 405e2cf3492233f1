"""Maps of who is fastest: over two swept paths, and over workloads with the parts of the fabrics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from ringlight.experiments.analysis.metrics import metrics
from ringlight.experiments.analysis.metrics.built import PARTS
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.spec import SweepSpec, quantity
from ringlight.experiments.report.charts import legend, shaded, sheet
from ringlight.experiments.report.columns import short
from ringlight.experiments.report.drawing import MORE, PALETTE
from ringlight.experiments.report.page import (
    NOTHING,
    Columns,
    quiet,
    table_of,
    tag,
    text,
)
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, Figures, View
from ringlight.experiments.report.words import as_text, called, upper_first
from ringlight.fabric.algorithms import parse_collective

#: So many values of two paths, and so many arms, make a map; of workloads, so many of them do.
_VALUES, _ARMS, _WORKLOADS = 4, 3, 2
#: From so many times the best on, a cell is as dark as it gets.
_DARKEST = 32


@section(9, "Who is the fastest")
def fastest(view: View, draw: Draw) -> str:
    """Return HTML that shows a map of the fastest arm over two swept paths, side by side for a third."""
    if (first := _first(view)) is None:
        return ""
    metric = view.experiment.spec.compare[0].metrics[0]
    caption = (
        f"The arm with the least {called(metric)}, {view.label}; above only those that give a transfer one "
        "wavelength, where others spread it over several."
    )
    return view.paragraph("fastest") + draw(
        "fastest", caption, _fastest, view, *first, metric
    )


def _first(view: View) -> tuple[SweepSpec, Sequence[str]] | None:
    """The first sweep that a map can be drawn of, and its paths: the two with the most numbers come first."""
    for spec in view.experiment.spec.sweep:
        long = [
            p
            for p, values in spec.over.items()
            if len(values) >= _VALUES and all(map(quantity, values))
        ]
        arms = spec.arms or view.arms
        if (
            2 <= len(long) <= len(spec.over) <= 3
            and len(arms) >= _ARMS
            and view.experiment.spec.compare
        ):
            first = sorted(long, key=lambda path: -len(spec.over[path]))[:2]
            return spec, [*first, *(path for path in spec.over if path not in first)]
    return None


def _classes(view: View, arms: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Groups of arms to compare: all of them, and where some stripe their transfers, those that do not."""
    plain = [
        arm
        for arm in arms
        if not parse_collective(view.plans[arm].jobs[0].loop.collective).striped
    ]
    return (
        {"one wavelength for a transfer": plain, "any number of them": arms}
        if 0 < len(plain) < len(arms)
        else {"": arms}
    )


def _amount(value: object) -> str:
    """Return a value of an axis in one form however the file writes it, such as 100 kB next to 10 kB."""
    amount = quantity(value)
    if amount is None:
        return as_text(value)
    number, unit = amount
    return EngFormatter({"bytes": "B", "1": ""}.get(unit, unit)).format_data(number)


def _fastest(view: View, spec: SweepSpec, paths: Sequence[str], metric: str) -> Figure:
    across, up, *third = paths
    panels = list(itertools.product(*(spec.over[path] for path in third)))
    arms = [arm for arm in view.arms if spec.arms is None or arm in spec.arms]
    subject = next(job.subject for job in view.each("job", arms))
    colours = dict(zip(arms, (*PALETTE, *MORE), strict=False))
    classes = _classes(view, arms)
    columns, rows = (
        sorted(spec.over[path], key=lambda value: quantity(value) or (0.0, ""))
        for path in (across, up)
    )
    every = max(1, len(columns) // 6)
    named = [_amount(x) if k % every == 0 else "" for k, x in enumerate(columns)]
    figure, axes = sheet(
        0.9 + 1.75 * len(classes),
        rows=len(classes),
        columns=len(panels),
        left=0.8,
        top=0.3,
        gap=(0.85, 0.45),
    )
    drawn: set[str] = set()
    for line, (name, among) in zip(axes, classes.items(), strict=True):
        for axis, panel in zip(line, panels, strict=True):
            cells = []
            for y in rows:
                row = []
                for x in columns:
                    values = {across: x, up: y, **dict(zip(third, panel, strict=True))}
                    point = {path: values[path] for path in spec.over}
                    times_by_arm = {
                        arm: view.figures_at(arm, subject, point).number(metric)
                        for arm in among
                    }
                    times = {
                        arm: value
                        for arm, value in times_by_arm.items()
                        if value is not None
                    }
                    # At a tie the first of the file, so that the map does not flicker.
                    best = (
                        min(times, key=lambda arm: round(times[arm], 15))
                        if times
                        else None
                    )
                    drawn |= {best} if best else set()
                    row.append(to_rgb(colours[best]) if best else (1.0, 1.0, 1.0))
                cells.append(row)
            shaded(axis, named, [as_text(y) for y in rows], cells, words=[])
            axis.set_title(
                ", ".join(filter(None, [name, *map(as_text, panel)])), fontsize=8
            )
        for axis in line:
            axis.set_ylabel(short(up, spec.over))
    for axis in axes[-1]:
        axis.set_xlabel(short(across, spec.over))
    patches = [
        Patch(color=colours[arm], label=view.title(arm)) for arm in arms if arm in drawn
    ]
    legend(figure, "fastest arm", patches, columns=4)
    return figure


@dataclass(frozen=True)
class _Map:
    """``times`` [arms][workloads]: the first compared metric that is a time, None where a run gave none."""

    arms: Sequence[str]
    workloads: Sequence[str]
    metric: str
    times: Sequence[Sequence[Figures]]

    def ratio(self, row: int, column: int) -> float | None:
        """Return the time of an arm over the least time for the same workload; None if a time is unknown."""
        times = [line[column].number(self.metric) for line in self.times]
        least = min((time for time in times if time is not None), default=None)
        time = times[row]
        return None if time is None or not least else time / least


def _map_of(view: View) -> _Map | None:
    """Map of winners: sweeps over one job's workload alone, and the arms that ran any of them.

    Where the metric is searched for its least, that counts, and the searched paths may be swept, too.
    """
    spec = view.experiment.spec
    compared = [
        name
        for compare in spec.compare[:1]
        for name in compare.metrics
        if name in metrics()
    ]
    metric = next((name for name in compared if metrics()[name].unit == "s"), None)
    searched: Sequence[str] = ()
    if spec.search is not None and spec.search.metric == metric:
        searched, metric = spec.search.along, spec.search.made[0]
    alone = [
        (sweep, paths[0])
        for sweep in spec.sweep
        if len(paths := [path for path in sweep.over if path not in searched]) == 1
        and paths[0].endswith(".workload")
    ]
    if not alone or metric is None:
        return None
    path = alone[0][1]
    swept = [sweep for sweep, other in alone if other == path]
    workloads = list(
        dict.fromkeys(str(name) for sweep in swept for name in sweep.over[path])
    )
    arms = [
        arm
        for arm in view.arms
        if any(sweep.arms is None or arm in sweep.arms for sweep in swept)
    ]
    if len(arms) < _ARMS or len(workloads) < _WORKLOADS:
        return None
    subject = f"job {path.split('.')[1]}"
    times = [
        [view.figures_at(arm, subject, {path: name}) for name in workloads]
        for arm in arms
    ]
    return _sorted(_Map(arms, workloads, metric, times))


def _sorted(drawn: _Map) -> _Map:
    """Return the map with the best arm first, by the geometric mean over the workloads that all arms ran."""
    rows, columns = range(len(drawn.arms)), range(len(drawn.workloads))
    of_all = [
        k for k in columns if all(drawn.ratio(row, k) is not None for row in rows)
    ]

    def key(row: int) -> tuple[float, int]:
        ratios = [drawn.ratio(row, column) for column in of_all or columns]
        there = [math.log(ratio) for ratio in ratios if ratio is not None]
        return sum(there) / max(len(there), 1), ratios.count(None)

    order = sorted(rows, key=key)
    return replace(
        drawn,
        arms=[drawn.arms[k] for k in order],
        times=[drawn.times[k] for k in order],
    )


@section(7, "Who wins where")
def winners(view: View, draw: Draw) -> str:
    """Return HTML that shows a map of the winners among arms that ran the same workloads, and the parts of
    their fabrics."""
    if (drawn := _map_of(view)) is None:
        return ""
    what = upper_first(_called(drawn))
    each = (
        "each with the best of what was searched; "
        if drawn.metric.endswith("_best")
        else ""
    )
    caption = (
        f"{what} over the least of any fabric at the same workload, {view.label}; {each}in order of the "
        "geometric mean over the workloads that all ran. A dash: not run, or failed."
    )
    notes = (
        "a transceiver is the end of a fibre at a GPU or a packet switch, whatever its rate and however many "
        "its wavelengths; every electrical link counts as a fibre with two."
    )
    return (
        view.paragraph("winners")
        + draw("winners", caption, _winners, view, drawn)
        + f"<h3>{text(what)}, and what each fabric is built of, per GPU</h3>"
        + _table(view, drawn)
        + quiet(f"Counts are of parts, not of prices: {notes}")
    )


def _called(drawn: _Map) -> str:
    return called(drawn.metric.removesuffix("_best"))


def _winners(view: View, drawn: _Map) -> Figure:
    rows, columns = len(drawn.arms), len(drawn.workloads)
    figure, ((axis,),) = sheet(
        0.9 + 0.3 * rows, left=2.3, right=0.3, top=0.1, bottom=0.6
    )
    shades = colormaps["YlOrRd"]
    cells, words = [], []
    for row in reversed(range(rows)):
        ratios = [drawn.ratio(row, column) for column in range(columns)]
        depths = [
            None if r is None else min(math.log(r) / math.log(_DARKEST), 1.0)
            for r in ratios
        ]
        cells.append(
            [(0.93, 0.93, 0.93) if d is None else shades(0.85 * d)[:3] for d in depths]
        )
        words.append(
            [
                NOTHING if r is None else "best" if r < 1.0005 else _times(r)
                for r in ratios
            ]
        )
    titles = [view.title(arm) for arm in reversed(drawn.arms)]
    shaded(axis, [as_text(name) for name in drawn.workloads], titles, cells, words)
    axis.set_xlabel(
        f"workload; in each cell: {_called(drawn)} over the least of any fabric"
    )
    return figure


def _times(ratio: float) -> str:
    return (
        f"{ratio:,.0f}"
        if ratio >= 100
        else f"{ratio:.3g}"
        if ratio >= 10
        else f"{ratio:.2f}"
    )


def _table(view: View, drawn: _Map) -> str:
    def counted(row: int, part: str) -> str:
        subject = next(
            (
                subject
                for subject in drawn.times[row]
                if subject.number(drawn.metric) is not None
            ),
            drawn.times[row][0],
        )
        name = f"fabric {view.plans[subject.arm].setting.name}"
        counts = (
            parts_row.value
            for parts_row in view.table.each(subject.arm, f"{part}_per_gpu")
            if parts_row.subject == name
            and subject.point.items() <= parts_row.point.items()
            and is_number(parts_row.value)
        )
        return "".join(f"{count:.3g}" for count in itertools.islice(counts, 1))

    def taken(row: int, column: int) -> str:
        ratio = drawn.ratio(row, column)
        return (
            NOTHING
            if ratio is None
            else f"{drawn.times[row][column].figure(drawn.metric)} ({_times(ratio)})"
        )

    columns: Columns[int] = [
        ("fabric", lambda row: text(view.title(drawn.arms[row]))),
        *(
            (as_text(name), partial(taken, column=k))
            for k, name in enumerate(drawn.workloads)
        ),
        *((part.replace("_", " "), partial(counted, part=part)) for part in PARTS),
    ]
    return table_of(range(len(drawn.arms)), columns, 1) + tag(view.label)
