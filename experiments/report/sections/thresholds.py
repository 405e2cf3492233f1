"""Up to where an arm wins: along a swept path, and in the set-up time of its light."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure

from ringlight.experiments.analysis.base import AtBase
from ringlight.experiments.language.spec import BreakEvenSpec
from ringlight.experiments.report.charts import chart, key, legend, note, plain_ticks
from ringlight.experiments.report.columns import (
    Cell,
    figures,
    short,
    swept,
    swept_columns,
)
from ringlight.experiments.report.drawing import PALETTE, QUIET
from ringlight.experiments.report.page import NOTHING, Columns, table_of, tag, text
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, Figures, View
from ringlight.experiments.report.words import amount, as_text, called, figure, seconds
from ringlight.fabric.algorithms import steps_named


@section(22, "Where it stops winning")
def crossover(view: View, draw: Draw) -> str:
    """Return HTML that shows the value of a swept path up to which an arm is ahead of the others, and how
    other paths move it."""
    spec = view.experiment.spec.crossover
    if spec is None or not any(metric.startswith("faster_") for metric in view.metrics):
        return ""
    paths = list(
        dict.fromkeys(
            path for sweep in view.experiment.spec.sweep for path in sweep.over
        )
    )
    rivals = [arm for arm in view.arms if arm not in spec.arms]
    along = short(spec.along, paths)
    tables = [
        f"<h3>{text(title)}</h3>{table_of(rivals, columns, 1)}"
        for title, columns in _tables(view, spec.arms, paths, spec.along)
    ]
    return (
        f"<p>The {text(along)} up to which an arm is faster than each other arm, with the file's other values; "
        "between two swept values and beyond them, times are interpolated linearly "
        f"{tag(view.label)}.</p>{view.paragraph('crossover')}{''.join(tables)}"
    )


def _tables(
    view: View, arms: Sequence[str], paths: Sequence[str], along: str
) -> Iterator[tuple[str, Columns[str]]]:
    """Yield tables of the crossover at the file's values, and of the first arm's along each other path."""
    base, against = view.base, ("against", lambda other: text(view.title(other)))
    yield (
        "As the file has it",
        [against, *((text(view.title(arm)), _up_to(base, arm, {})) for arm in arms)],
    )
    for path in paths:
        values = {
            as_text(row.point[path]): row.point[path]
            for row in view.rows
            if row.arm == arms[0]
            and row.metric.startswith("faster_")
            and path in row.point
        }
        if path != along and len(values) > 1:
            columns = [
                (text(words), _up_to(base, arms[0], {path: value}))
                for words, value in values.items()
            ]
            yield f"{view.title(arms[0])}, by {short(path, paths)}", [against, *columns]


def _up_to(base: AtBase, arm: str, changed: dict[str, object]) -> Callable[[str], str]:
    def shown(other: str) -> str:
        up_to, later = (
            base.row_at(arm, f"faster_{word}.{other}", changed)
            for word in ("up_to", "from")
        )
        return (
            figure(up_to)
            if up_to is not None
            else f"from {figure(later)} on"
            if later
            else NOTHING
        )

    return shown


@section(8, "Where switching per flow stops paying", needs=("break_even",))
def break_even(view: View, draw: Draw) -> str:
    """Return HTML that shows the set-up time up to which an arm keeps up with its baseline, for each
    baseline point, run and modelled."""
    spec, subjects = view.experiment.spec.break_even, view.having("break_even")
    if spec is None or not subjects:
        return ""
    what, label = called(spec.metric), view.label
    job = view.plans[spec.arm].jobs[0]
    steps = steps_named(job.loop.collective, len(job.ranks) or job.gpus).steps
    caption = (
        f"Slowdown of the {what} against the same without set-ups, over the median time from request to "
        f"light. Dots are {label}, lines the model, 1 + steps · set-up / ideal {what}, analytic; a "
        "cross is where the bound is reached. Times as emulated; the axis above has real ones."
    )
    points = swept_columns(swept(subject.point for subject in subjects))
    result: list[tuple[str, Cell]] = [
        ("smallest flow", _smallest),
        (f"break-even set-up {tag(label)}", _set_up),
        ("in real time", _real("break_even")),
        (f"model, in real time {tag('analytic')}", _real("break_even_predicted")),
        (f"with compute {tag('analytic')}", _real("break_even_predicted_with_compute")),
    ]
    left: list[tuple[str, Cell]] = [
        ("without set-up", "free"),
        ("set-ups waited for", "waits"),
        ("over model", _over_model),
        ("over the baseline, real time", _real("break_even_over_baseline")),
    ]
    return (
        f"<p>It pays, by the definition here, if the {what} takes at most {spec.tolerance:g} times as long "
        f"as without any set-up. It has {steps} steps, each of which waits for one set-up: request, "
        "grant, tuning. The last column takes the set-up against a whole iteration with its compute: then "
        f"far more may be lost in each step.{view.says('break_even')}</p>"
        f"{draw('break-even', caption, _figure, view, spec, subjects)}"
        f"{figures(subjects, [*points, *result], len(points))}"
        "<h3>What is left against the model</h3><p>A straight line through the points gives the time without "
        "any set-up and how many set-ups are waited for, one after another. The model takes a perfect "
        "network and one set-up in each step. Over the baseline as it ran, the break-even is another, as a "
        f"packet switch adds delay of its own, which is no merit of the light. All {tag(label)}.</p>"
        f"{figures(subjects, [*points, *left], len(points))}"
    )


def _real(metric: str) -> Callable[[Figures], str]:
    """Return a function that writes a time as a table cell, converted from emulated to real time."""

    def cell(subject: Figures) -> str:
        number = subject.number(metric)
        return seconds(None if number is None else number / subject.view.scale.time)

    return cell


def _smallest(subject: Figures) -> str:
    flow = subject.number("least_flow")
    return (
        NOTHING if flow is None else amount(flow * subject.view.scale.payload, "bytes")
    )


def _set_up(subject: Figures) -> str:
    set_up, least = subject.numbers("break_even", "break_even_least_setup")
    beyond = set_up is not None and least is not None and set_up < least
    return f"{seconds(set_up)}{' (extrapolated)' if beyond else ''}"


def _over_model(subject: Figures) -> str:
    set_up, model = subject.numbers("break_even", "break_even_predicted")
    return f"{set_up / model:.2f}" if set_up is not None and model else NOTHING


def _figure(view: View, spec: BreakEvenSpec, subjects: Sequence[Figures]) -> Figure:
    """Return a figure of slowdown over set-up in milliseconds, both on logarithmic scales."""
    figure, axis = chart(4.2, left=0.7, top=0.95)
    fabric = f"fabric {view.plans[spec.arm].setting.name}"
    waits = [
        (p, view.figures_at(spec.arm, fabric, p).number("setup_p50"))
        for p in view.points(spec.arm)
    ]
    known = [(point, 1000 * waited) for point, waited in waits if waited]
    evens = [
        1000 * even
        for entry in subjects
        if (even := entry.number("break_even")) is not None
    ]
    low, high = (
        min([*(w for _, w in known), *evens]) / 2,
        1.2 * max(w for _, w in known),
    )
    line, highest, handles = (
        [low * (high / low) ** (k / 60) for k in range(61)],
        1.0,
        [],
    )
    for entry, colour in zip(subjects, itertools.cycle(PALETTE[1:]), strict=False):
        mine = [
            (view.figures_at(entry.arm, entry.subject, p), w)
            for p, w in known
            if entry.point.items() <= p.items()
        ]
        dots = [
            (w, slow)
            for curve, w in mine
            if (slow := curve.number("slowdown_by_setup")) is not None
        ]
        axis.plot(
            *zip(*dots, strict=True),
            linestyle="",
            marker="o",
            markersize=4.5,
            color=colour,
        )
        slopes = [
            (m - 1) / w
            for curve, w in mine
            if (m := curve.number("slowdown_predicted")) is not None
        ]
        for slope in slopes[-1:]:
            axis.plot(line, [1 + slope * x for x in line], color=colour, linewidth=1.1)
        even = 1000 * (entry.number("break_even") or 0.0)
        axis.plot(
            [even], [spec.tolerance], marker="x", markersize=8, color=colour, zorder=5
        )
        highest = max([highest, *(y for _, y in dots)])
        handles.append(
            key(colour, ", ".join(map(str, entry.point.values())) or entry.arm)
        )
    axis.axhline(spec.tolerance, color=QUIET, linewidth=0.9, linestyle=(0, (3, 2)))
    note(axis, low, spec.tolerance, f"slowdown {spec.tolerance:g}", va="bottom")
    axis.set(xscale="log", yscale="log")
    plain_ticks(axis.xaxis, low, high)
    near = (1.02, 1.05, 1.1) if highest < 1.6 else ()
    ticks = [t for t in (1, *near, 1.2, 1.5, 2, 3, 5, 10, 20, 50) if t < 1.3 * highest]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set(
        xlim=(low, high),
        ylim=(0.98, 1.15 * highest),
        xlabel="median set-up, emulated ms",
    )
    axis.set_ylabel(f"slowdown of the {called(spec.metric)}")
    axis.grid(axis="x", visible=True)
    scale, paths = view.scale.time, swept(entry.point for entry in subjects)
    real_time: Any = (lambda x: x / scale, lambda x: x * scale)
    above = axis.secondary_xaxis("top", functions=real_time)
    plain_ticks(above.xaxis, low / scale, high / scale)
    above.set_xlabel("which stands for, ms in real time", fontsize=8)
    legend(figure, ", ".join(short(path, paths) for path in paths) or "arm", handles)
    return figure
