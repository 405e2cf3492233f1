"""Up to which set-up time an arm keeps up with its baseline, as run and by the model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.analysis.rows import Row
from experiments.language.spec import BreakEvenSpec
from experiments.report.drawing import PALETTE, QUIET
from experiments.report.page import row, table, tag, text
from experiments.report.report import Draw
from experiments.report.sheet import legend, plain_ticks, sheet
from experiments.report.view import Point, View
from experiments.report.words import amount, called, seconds
from fabric.schedules import steps_named

ORDER = 12
NEEDS = ("break_even",)


def wanted(view: View) -> bool:
    return view.experiment.spec.break_even is not None


def render(view: View, draw: Draw) -> str:
    spec = view.experiment.spec.break_even
    assert spec is not None
    found = [r for r in view.rows if r.metric == "break_even" and r.arm == spec.arm and r.repeat is None]
    paths = list(dict.fromkeys(path for one in found for path in one.point))
    what = called(spec.metric)
    said = f" {text(view.says('break_even'))}" if view.says("break_even") else ""
    caption = (
        f"Slowdown of the {what} against the same without set-ups, over the median time from request to "
        f"light. Dots are {view.label}, lines the model, 1 + steps · set-up / ideal {what}, analytic; a "
        "cross is where the bound is reached. Times as emulated; the axis above has real ones."
    )
    head = [
        *(text(path.rpartition(".")[2]) for path in paths),
        "smallest flow",
        f"break-even set-up {tag(view.label)}",
        "in real time",
        f"model, in real time {tag('analytic')}",
        f"with compute {tag('analytic')}",
    ]
    return (
        f"<h2>Where switching per flow stops paying</h2><p>Said to pay here as long as the {what} takes at "
        f"most {spec.tolerance:g} times as long as it would without any set-up. It has {_steps(view, spec)} "
        "steps, each of which waits for one set-up: request, grant, tuning. The last column takes the set-up "
        f"against a whole iteration with its compute: then far more may be lost in each step.{said}</p>"
        f"{draw('break-even', caption, _figure(view, spec, found))}"
        f"{table(head, [_row(view, one, paths) for one in found], len(paths))}"
        f"{_left(view, found, paths)}"
    )


def _steps(view: View, spec: BreakEvenSpec) -> int:
    job = view.plans[spec.arm].jobs[0]
    return steps_named(job.collective, len(job.ranks) or job.gpus).steps


def _beside(view: View, one: Row, metric: str) -> float | None:
    return view.number(one.arm, one.subject, metric, one.point)


def _row(view: View, one: Row, paths: Sequence[str]) -> str:
    real = view.scale.time
    set_up = one.value if isinstance(one.value, float) else None
    least = _beside(view, one, "break_even_least_setup")
    beyond = set_up is not None and least is not None and set_up < least
    flow, model, training = (
        _beside(view, one, name)
        for name in ("least_flow", "break_even_predicted", "break_even_predicted_with_compute")
    )
    cells = [
        *(text(one.point.get(path, "–")) for path in paths),
        "–" if flow is None else amount(flow * view.scale.payload, "bytes"),
        f"{seconds(set_up)}{' (extrapolated)' if beyond else ''}",
        *(seconds(None if time is None else time / real) for time in (set_up, model, training)),
    ]
    return row(cells, len(paths))


def _left(view: View, found: Sequence[Row], paths: Sequence[str]) -> str:
    """Why the break-even is another than the model's, in factors of the lines through the points."""
    rows = []
    for one in found:
        names = ("free", "waits", "break_even_over_baseline", "break_even_predicted")
        free, waits, over_base, model = (_beside(view, one, name) for name in names)
        value = one.value if isinstance(one.value, float) else None
        ratio = f"{value / model:.2f}" if value is not None and model else "–"
        cells = [
            *(text(one.point.get(path, "–")) for path in paths),
            seconds(free),
            "–" if waits is None else f"{waits:.2f}",
            ratio,
            seconds(None if over_base is None else over_base / view.scale.time),
        ]
        rows.append(row(cells, len(paths)))
    head = [*(text(path.rpartition(".")[2]) for path in paths), "without set-up", "set-ups waited for"]
    head += ["over model", "over the baseline, real time"]
    return (
        "<h3>What is left against the model</h3><p>A straight line through the points gives the time without "
        "any set-up and how many set-ups are waited for, one after another. The model takes a perfect "
        "network and one set-up in each step. Over the baseline as it ran, the break-even is another, as a "
        f"packet switch adds delay of its own, which is no merit of the light. All {tag(view.label)}.</p>"
        f"{table(head, rows, len(paths))}"
    )


def _figure(view: View, spec: BreakEvenSpec, found: Sequence[Row]) -> Figure:
    figure, ((axis,),) = sheet(4.2, left=0.7, top=0.95)
    points = [(p, _waited(view, spec, p)) for p in view.points(spec.arm)]
    known = [waited for _, waited in points if waited]
    nearest = min([*known, *(float(one.value) for one in found if isinstance(one.value, float))])
    furthest, highest = max(known), 1.0
    handles = []
    for one, colour in zip(found, itertools.cycle(PALETTE[1:]), strict=False):
        mine = [(p, w) for p, w in points if w and one.point.items() <= p.items()]
        slow = [view.number(spec.arm, one.subject, "slowdown_by_setup", p) for p, _ in mine]
        model = [view.number(spec.arm, one.subject, "slowdown_predicted", p) for p, _ in mine]
        dots = [(1000 * w, s) for (_, w), s in zip(mine, slow, strict=True) if s is not None]
        axis.plot(*zip(*dots, strict=True), linestyle="", marker="o", markersize=4.5, color=colour)
        slopes = [(m - 1) / w for (_, w), m in zip(mine, model, strict=True) if m is not None]
        line = [nearest / 2 * (2.4 * furthest / nearest) ** (k / 60) for k in range(61)]
        if slopes:
            axis.plot(
                [1000 * x for x in line], [1 + slopes[-1] * x for x in line], color=colour, linewidth=1.1
            )
        if isinstance(one.value, float):
            axis.plot([1000 * one.value], [spec.tolerance], marker="x", markersize=8, color=colour, zorder=5)
        highest = max([highest, *(y for _, y in dots)])
        name = ", ".join(str(value) for value in one.point.values()) or one.arm
        handles.append(Line2D([], [], color=colour, linewidth=2, label=name))
    axis.axhline(spec.tolerance, color=QUIET, linewidth=0.9, linestyle=(0, (3, 2)))
    axis.text(
        1000 * nearest / 2,
        spec.tolerance,
        f" slowdown {spec.tolerance:g}",
        fontsize=7.5,
        color=QUIET,
        va="bottom",
    )
    axis.set_xscale("log")
    low, high = 1000 * nearest / 2, 1200 * furthest
    plain_ticks(axis.xaxis, low, high)
    axis.set_yscale("log")
    near = (1.02, 1.05, 1.1) if highest < 1.6 else ()
    ticks = [t for t in (1, *near, 1.2, 1.5, 2, 3, 5, 10, 20, 50) if t < 1.3 * highest]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_ylim(0.98, 1.15 * highest)
    axis.set_xlim(low, high)
    axis.set_xlabel("median set-up, ms as emulated")
    axis.set_ylabel(f"slowdown of the {called(spec.metric)}")
    axis.grid(axis="x", visible=True)
    scale = view.scale.time
    real_time: Any = (lambda x: x / scale, lambda x: x * scale)
    above = axis.secondary_xaxis("top", functions=real_time)
    plain_ticks(above.xaxis, low / scale, high / scale)
    above.set_xlabel("which stands for, ms in real time", fontsize=8)
    legend(figure, handles)
    return figure


def _waited(view: View, spec: BreakEvenSpec, point: Point) -> float | None:
    fabric = f"fabric {view.plans[spec.arm].setting.name}"
    return view.number(spec.arm, fabric, "setup_p50", point)
