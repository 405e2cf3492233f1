"""Rings of wavelengths: all-reduces side by side, the light of their steps, and what setting it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Arc

from ringlight.experiments.analysis.prediction import nic_rate_bps
from ringlight.experiments.record.runs import JobRun, Run
from ringlight.experiments.report.charts import (
    arrow,
    centred,
    chart,
    end_with_room,
    key,
    legend,
    named_rows,
    note,
    pictures,
)
from ringlight.experiments.report.columns import seconds_and_real
from ringlight.experiments.report.drawing import (
    FACE,
    INK,
    LIGHT,
    PALETTE,
    QUIET,
    RULE,
    wavelength_colours,
)
from ringlight.experiments.report.light_tables import counted, of_fabric, times
from ringlight.experiments.report.page import NOTHING, quiet, table_of, tag, text
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, View
from ringlight.experiments.report.words import count, seconds
from ringlight.extensions.wrht.ring import CLOCKWISE
from ringlight.extensions.wrht.ring_plane import RingPlane
from ringlight.extensions.wrht.wdm import RingPlan, RingStep
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.units import format_rate

#: Most different lights of a collective's steps that are drawn, most arms of which there is a picture, and
#: most nodes in one.
_MOST_STEPS, _MOST_PICTURES, _MOST_NODES = 8, 6, 32
#: What is 0 in a correct run, then what need not be.
_COUNTERS = ("misdirected", "unset_drops", "dark_drops", "unrouted", "light_tx_bytes")
#: What a collective does, by the beginning of its name; the first that matches.
_COLLECTIVES = {
    "wrht": (
        "WRHT (wavelength reused hierarchical tree) cuts the ring into groups of up to 2w + 1 neighbours, "
        "w the wavelengths in each direction; all send their whole gradient to the middle of their group at "
        "once, then the middles do the same, and the sum goes back the same way. Few steps, but each carries "
        "the whole gradient: it pays where a step's set-up is long beside its transfer. "
    ),
    "ring": (
        "A ring all-reduce has many steps of 1/N of the gradient and needs the same light in all of them. "
    ),
    "bidirectional-": (
        "A bidirectional ring sends half of the gradient each way round, at once, and so uses both fibres. "
    ),
}


@section(
    "throughput", "All-reduces on rings of wavelengths", needs=("wavelengths_used",)
)
def rings(view: View, draw: Draw) -> str:
    """Return HTML that shows all-reduces on rings, those of arms without rings for comparison, and the
    light of rings."""
    runs = [run for run in view.first.values() if _job(run).gpus]
    with_rings = [run for run in runs if of_fabric(view, run).row("wavelengths")]
    if not with_rings:
        return ""
    collectives = [_job(run).plan.loop.collective for run in runs]
    described = [
        words
        for k, words in _COLLECTIVES.items()
        if any(c.startswith(k) for c in collectives)
    ]
    anew = [run.plan.arm for run in with_rings if _set_anew(run)]
    if anew:
        described.append(
            f"In the arms {text(', '.join(anew))} every step sets all of its light anew, also what stands: "
            "the controller takes it away, then makes it again. "
        )
    caption = (
        f"Median all-reduce of each arm. Bars: {view.label}. Marks: the model, analytic: the transfers of "
        "the steps one after the other (line), with the median set-up of the light between them (dot). "
        "Emulated seconds."
    )
    shown = table_of(
        runs,
        [
            ("arm", lambda run: text(run.plan.title)),
            ("all-reduce", lambda run: text(_job(run).plan.loop.collective)),
            ("steps", lambda run: str(_steps(run))),
            ("wavelengths", lambda run: _wavelengths(view, run)),
            (
                "light set",
                lambda run: count(of_fabric(view, run).number("set_ups_per_allreduce")),
            ),
            (
                view.label,
                lambda run: seconds_and_real(_times(view, run)[0], view.scale),
            ),
            (
                "model, no set-up",
                lambda run: seconds_and_real(_times(view, run)[1], view.scale),
            ),
            ("model", lambda run: seconds_and_real(_times(view, run)[2], view.scale)),
            ("over model", lambda run: _over_model(view, run)),
        ],
        2,
    )
    explained = quiet(
        f"Median all-reduce {tag(view.label)} and by the model {tag('analytic')}: transfers "
        "one step after the other at the full rate, without set-up and with the median one of the run."
    )
    return (
        f"<p>{''.join(described)}Light set: how often in one all-reduce the switches are set."
        f"{view.says('rings')}</p>{draw('allreduce', caption, _all_reduces, view, runs)}{shown}{explained}"
        f"{_light(view, draw, with_rings)}"
        f"{counted([of_fabric(view, run) for run in with_rings], _COUNTERS, _COUNTERS[:-1])}"
    )


def _job(run: Run) -> JobRun:
    return next(
        (job for job in run.jobs.values() if job.gpus), next(iter(run.jobs.values()))
    )


def _steps(run: Run) -> int:
    job = _job(run)
    return steps_named(job.plan.loop.collective, len(job.gpus)).steps


def _times(view: View, run: Run) -> tuple[float | None, float | None, float | None]:
    """Seconds of the all-reduce: as it was, by the model without set-ups, and with those of the run."""
    took, ideal_s = view.figures_at(run.plan.arm, f"job {_job(run).name}").numbers(
        "allreduce", "allreduce_ideal"
    )
    each_s, sets = of_fabric(view, run).numbers("setup_p50", "set_ups_per_allreduce")
    return (
        took,
        ideal_s,
        None if ideal_s is None else ideal_s + (each_s or 0.0) * (sets or 0.0),
    )


def _wavelengths(view: View, run: Run) -> str:
    used, all_ = of_fabric(view, run).numbers("wavelengths_used", "wavelengths")
    return (
        f"{used:.0f} of {all_:.0f}"
        if used is not None and all_ is not None
        else NOTHING
    )


def _over_model(view: View, run: Run) -> str:
    took, _, model_s = _times(view, run)
    return f"{took / model_s:.3f}" if took is not None and model_s else NOTHING


def _plane(run: Run) -> RingPlane:
    """Return the ring of a run on a ring."""
    plane = run.plan.on(RingPlane)
    assert plane is not None
    return plane


def _set_anew(run: Run) -> bool:
    """Return whether every step sets all of its light again."""
    return _plane(run).sets_all


def _light(view: View, draw: Draw, runs: Sequence[Run]) -> str:
    """Return the light of each step on every ring, and its set-up times."""
    setting = runs[0].plan.setting
    rate = format_rate(min(nic_rate_bps(setting, gpu) for gpu in setting.fabric.gpus))
    return (
        f"<h3>The light</h3><p>{len(_job(runs[0]).gpus)} nodes in a ring of two fibres, one each way, each "
        f"with wavelengths of {rate} (emulated). A node sends to a given peer always by the same port and "
        "wavelength; what changes between steps is where its and the others' wavelength-selective switches "
        "drop or pass the light. The controller changes them all together, once every transfer of a step "
        "has been acknowledged.</p>"
        f"{''.join(_one(view, draw, run, number) for number, run in enumerate(runs))}"
    )


def _one(view: View, draw: Draw, run: Run, number: int) -> str:
    subject = of_fabric(view, run)
    sets, declared = subject.numbers("set_ups_per_allreduce", "setup_declared")
    sentence = "With this collective the light is set once, before the first step."
    if sets:
        how = "was set anew" if _set_anew(run) else "changed"
        sentence = (
            f"The light {how} {sets:.0f} times in each all-reduce {tag('analytic')}."
        )
        if declared is not None:
            sentence += (
                f" The switches' profile says that this takes {seconds(declared)}."
            )
    drawn, plane, job = "", _plane(run), _job(run)
    if number < _MOST_PICTURES and len(job.gpus) <= _MOST_NODES:
        caption = f"{run.plan.title}: likewise."
        if number == 0:
            caption = (
                f"{run.plan.title}: the light of the steps, as planned: an arc from each sender to its "
                "receiver, clockwise outside the ring and counter-clockwise inside, its colour the "
                "wavelength. Neighbouring steps with the same light are drawn once."
            )
        plan = plane.plan(job.gpus, job.plan.loop.collective)
        drawn = draw(f"ring-{subject.arm}", caption, _lights, plan)
    set_ups = times(subject, "set-up", ("setup", "setup_write"))
    return f"<h3>{text(run.plan.title)}</h3>{drawn}<p>{sentence}</p>{set_ups}"


# Pictures.


def _all_reduces(view: View, runs: Sequence[Run]) -> Figure:
    figure, axis = chart(0.75 + 0.42 * len(runs), left=2.6, top=0.1, bottom=0.5)
    most = 0.0
    for y, run in enumerate(runs):
        took, ideal_s, model_s = _times(view, run)
        took, colour = (
            took or 0.0,
            PALETTE[1] if of_fabric(view, run).row("wavelengths") else QUIET,
        )
        axis.barh(y, took, height=0.55, color=colour, linewidth=0, alpha=0.85)
        most = max(most, took)
        if ideal_s is not None and model_s is not None:
            axis.plot(
                [ideal_s, ideal_s], [y - 0.38, y + 0.38], color=INK, linewidth=1.4
            )
            if model_s > ideal_s:
                axis.plot(
                    [model_s], [y], marker="o", markersize=5, color=LIGHT, zorder=5
                )
        note(
            axis,
            took,
            y,
            f"{seconds(took)}, {_steps(run)} steps",
            xytext=(8, 0),
            fontsize=8,
            color=INK,
        )
    named_rows(
        axis, [f"{run.plan.arm}: {_job(run).plan.loop.collective}" for run in runs]
    )
    axis.set(
        xlim=(0, end_with_room(axis, most, 1.3) or 1.0),
        xlabel=f"all-reduce, emulated seconds ({view.label})",
    )
    return figure


def lights(plan: RingPlan) -> list[tuple[int, int, RingStep]]:
    """Return runs of neighbouring steps with equal pairs: first and last step, counted from 1, and the
    light."""
    spans: list[tuple[int, int, RingStep]] = []
    for number, step in enumerate(plan.steps, start=1):
        same = spans and spans[-1][2].pairs == step.pairs
        first, _, step = spans.pop() if same else (number, number, step)
        spans.append((first, number, step))
    return spans


def _lights(plan: RingPlan) -> Figure:
    chosen = lights(plan)
    used = (
        emit.wavelength for peers in plan.transmit.values() for emit in peers.values()
    )
    colours = wavelength_colours(1 + max(used, default=0))

    def step(axis: Axes, number: int) -> str:
        first, last, light = chosen[number]
        _step(axis, plan, light, colours)
        return f"step {first}" if first == last else f"steps {first} to {last}"

    figure = pictures(min(_MOST_STEPS, len(chosen)), 4, 2.45, step)
    handles = [key(c, f"λ{k}") for k, c in enumerate(colours)]
    if len(chosen) > _MOST_STEPS:
        handles.append(key("none", f"and {len(chosen) - _MOST_STEPS} more"))
    legend(figure, "wavelength", handles, columns=12)
    return figure


def _place(place: float, nodes: int, radius: float = 1.0) -> tuple[float, float]:
    """Node 0 at the top, then clockwise; ``place`` may lie between two nodes."""
    angle = math.pi / 2 - 2 * math.pi * place / nodes
    return radius * math.cos(angle), radius * math.sin(angle)


def _step(axis: Axes, plan: RingPlan, step: RingStep, colours: Sequence[str]) -> None:
    n, index = len(plan.nodes), {node: number for number, node in enumerate(plan.nodes)}
    axis.add_patch(Arc((0, 0), 2, 2, color=RULE, linewidth=1.0, zorder=1))
    for source, destination in sorted(step.pairs):
        emit = plan.transmit[source][destination]
        # Each wavelength has a circle of its own, outside the ring or inside.
        gap, way = (
            0.16 + 0.13 * emit.wavelength,
            (index[destination] - index[source]) % n,
        )
        radius, way = (1 + gap, way) if emit.port == CLOCKWISE else (1 - gap, way - n)
        _path(axis, index[source], way, n, radius, colours[emit.wavelength])
    places = [_place(number, n) for number in range(n)]
    (nodes,) = axis.plot(
        *zip(*places, strict=True), linestyle="", marker="o", color=FACE, zorder=4
    )
    nodes.set(markersize=11 if n <= 12 else 8, markeredgecolor=INK, markeredgewidth=0.8)
    for number, (x, y) in enumerate(places):
        centred(axis, x, y, str(number), 5 if n > 12 else 6)
    most = 1.25 + 0.13 * len(colours)
    axis.set(xlim=(-most, most), ylim=(-most, most), aspect="equal")


def _path(
    axis: Axes, source: int, way: int, n: int, radius: float, colour: str
) -> None:
    """Along the ring from a node so many places on, or back where ``way`` is negative, with a head."""
    # Short of the nodes themselves, so that lightpaths that follow each other can be told apart.
    trim = math.copysign(0.16, way)
    places = [source + trim + (way - 2 * trim) * k / 40 for k in range(41)]
    points = [_place(place, n, radius) for place in places]
    axis.plot(*zip(*points, strict=True), color=colour, linewidth=1.5, zorder=3)
    arrow(axis, points[-4], points[-1], colour, mutation_scale=9, linewidth=0)
