"""Rings of wavelengths: all-reduces side by side, the light of their steps, and what setting it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Arc, FancyArrowPatch

from experiments.analysis.prediction import nic_rate_bps, ring_of
from experiments.record.runs import JobRun, Run
from experiments.report.drawing import FACE, INK, LIGHT, PALETTE, QUIET, RULE, wavelength_colours
from experiments.report.page import row, table, tag, text
from experiments.report.report import Draw
from experiments.report.sheet import legend, sheet, vertical_grid
from experiments.report.view import View
from experiments.report.words import amount, count, seconds
from fabric.schedules import steps_named
from fabric.units import format_rate
from fabric.wdm import CLOCKWISE, RingPlan, RingStep, plan_ring

ORDER = 55
NEEDS = ("wavelengths_used",)
#: Most different lights of a collective's steps that are drawn, and most arms of which there is a picture.
_MOST_STEPS, _MOST_PICTURES = 8, 6
_COUNTERS = (
    ("misdirected", "packets that the light brought to an O-NIC for which they were not meant; 0 is right"),
    ("unset_drops", "packets on a wavelength that a switch sends nowhere; 0 is right"),
    ("dark_drops", "packets at a switch whose cross-connect was dark; 0 is right"),
    ("unrouted", "payload for a peer to which no port and wavelength lead; 0 is right"),
    ("light_tx_bytes", "bytes into the light, of packets, some headers included"),
)
#: What a collective does, by the beginning of its name; the first that matches.
_COLLECTIVES = (
    (
        "wrht",
        "WRHT (wavelength reused hierarchical tree) cuts the ring into groups of up to 2w + 1 neighbours, "
        "w the wavelengths in each direction; all send their whole gradient to the middle of their group at "
        "once, then the middles do the same, and the sum goes back the same way. Few steps, but each carries "
        "the whole gradient: it pays where a step's set-up is long beside its transfer. ",
    ),
    (
        "ring",
        "A ring all-reduce has many steps of 1/N of the gradient and needs the same light in all of them. ",
    ),
    (
        "bidirectional-",
        "A bidirectional ring sends half of the gradient each way round, at once, and so uses both fibres. ",
    ),
)


def wanted(view: View) -> bool:
    return bool(_arms(view))


def _arms(view: View) -> list[Run]:
    """First runs with one job that a ring carries."""
    found = [run for arm in view.fixed if (run := view.first(arm)) is not None]
    return [run for run in found if ring_of(run.plan.setting.fabric) is not None and _job(run).gpus]


def _job(run: Run) -> JobRun:
    return next((job for job in run.jobs.values() if job.gpus), next(iter(run.jobs.values())))


def render(view: View, draw: Draw) -> str:
    runs = [run for arm in view.fixed if (run := view.first(arm)) is not None and _job(run).gpus]
    rows = [_row(view, run) for run in runs]
    head = ["arm", "all-reduce", "steps", "wavelengths", "light set", view.label, "model, no set-up", "model"]
    caption = (
        f"Median all-reduce of each arm. Bars: {view.label}. Marks: the model, analytic: the transfers of "
        "the steps one after the other (line), with the median set-up of the light between them (dot). "
        "Seconds as emulated."
    )
    said = f" {text(view.says('rings'))}" if view.says("rings") else ""
    return (
        f"<h2>All-reduces on rings of wavelengths</h2><p>{_described(runs)}{_anew(view)}Light set: how often "
        f"in one all-reduce the switches are set.{said}</p>"
        f"{draw('allreduce', caption, _all_reduces(view, runs))}"
        f"{table([*head, 'over model'], rows, 2)}"
        f'<p class="quiet">Median all-reduce {tag(view.label)} and by the model {tag("analytic")}: transfers '
        "one step after the other at the full rate, without set-up and with the median one of the run.</p>"
        f"{_light(view, draw)}{_counted(view)}"
    )


def _fabric(run: Run) -> str:
    return f"fabric {run.plan.setting.name}"


def _steps(run: Run) -> int:
    job = _job(run)
    return steps_named(job.plan.collective, len(job.gpus)).steps


def _model_s(view: View, run: Run) -> tuple[float | None, float | None]:
    """All-reduce by the model, without set-ups and with those that the run had."""
    arm, fabric = run.plan.arm, _fabric(run)
    ideal_s = view.number(arm, f"job {_job(run).name}", "allreduce_ideal")
    each_s, sets = (view.number(arm, fabric, name) for name in ("setup_p50", "set_ups_per_allreduce"))
    if ideal_s is None:
        return None, None
    return ideal_s, ideal_s + (each_s or 0.0) * (sets or 0.0)


def _row(view: View, run: Run) -> str:
    arm, fabric, job = run.plan.arm, _fabric(run), _job(run)
    took = view.number(arm, f"job {job.name}", "allreduce")
    ideal_s, model_s = _model_s(view, run)
    used, all_ = (view.number(arm, fabric, name) for name in ("wavelengths_used", "wavelengths"))
    cells = [
        text(run.plan.title),
        text(job.plan.collective),
        str(_steps(run)),
        f"{used:.0f} of {all_:.0f}" if used is not None and all_ is not None else "–",
        count(view.number(arm, fabric, "set_ups_per_allreduce")),
        *(seconds(time) for time in (took, ideal_s, model_s)),
        f"{took / model_s:.3f}" if took is not None and model_s else "–",
    ]
    return row(cells, 2)


def _described(runs: Sequence[Run]) -> str:
    used = [_job(run).plan.collective for run in runs]
    return "".join(words for name, words in _COLLECTIVES if any(one.startswith(name) for one in used))


def _set_anew(run: Run) -> bool:
    """Whether every step sets all of its light anew."""
    ring = ring_of(run.plan.setting.fabric)
    return ring is not None and ring.reconfigure == "each-step"


def _anew(view: View) -> str:
    anew = [run.plan.arm for run in _arms(view) if _set_anew(run)]
    if not anew:
        return ""
    return (
        f"In the arms {text(', '.join(anew))} every step sets all of its light anew, also what stands: the "
        "controller takes it away, then makes it again. "
    )


def _light(view: View, draw: Draw) -> str:
    """Which light each step has on every ring, and how long it took to set."""
    runs = _arms(view)
    setting = runs[0].plan.setting
    rate = format_rate(min(nic_rate_bps(setting, gpu) for gpu in setting.fabric.gpus))
    nodes = len(_job(runs[0]).gpus)
    parts = "".join(_one(view, draw, run, number) for number, run in enumerate(runs))
    return (
        f"<h3>The light</h3><p>{nodes} nodes in a ring of two fibres, one each way, each with wavelengths of "
        f"{rate} (emulated). A node sends to a given peer always by the same port and wavelength; what "
        "changes between steps is where its and the others' wavelength-selective switches drop or pass the "
        "light. The controller changes them all together, once every transfer of a step has been "
        f"acknowledged.</p>{parts}"
    )


def _one(view: View, draw: Draw, run: Run, number: int) -> str:
    arm, fabric = run.plan.arm, _fabric(run)
    sets = view.number(arm, fabric, "set_ups_per_allreduce")
    if not sets:
        told = "With this collective the light is set once, before the first step."
    else:
        how = "was set anew" if _set_anew(run) else "changed"
        told = f"The light {how} {sets:.0f} times in each all-reduce {tag('analytic')}."
        declared = view.number(arm, fabric, "setup_declared")
        if declared is not None:
            told += f" The switches' profile says that this takes {seconds(declared)}."
    rows = []
    for name, what in (
        ("setup", "end of a step's last transfer to the light of the next"),
        ("setup_write", "of that, writing the switches and reading them back"),
    ):
        times = [view.number(arm, fabric, f"{name}_{part}") for part in ("p50", "p99", "max")]
        if any(time is not None for time in times):
            rows.append(row([what, *(seconds(time) for time in times)], 1))
    set_ups = table([f"set-up {tag(view.label)}", "median", "99 %", "longest"], rows, 1) if rows else ""
    drawn = ""
    plan = _ring_plan(run) if number < _MOST_PICTURES else None
    if plan is not None:
        caption = f"{run.plan.title}: likewise."
        if number == 0:
            caption = (
                f"{run.plan.title}: the light of the steps, as planned: an arc from each sender to its "
                "receiver, clockwise outside the ring and counter-clockwise inside, its colour the "
                "wavelength. Neighbouring steps with the same light are drawn once."
            )
        drawn = draw(f"ring-{arm}", caption, _lights(plan))
    return f"<h3>{text(run.plan.title)}</h3>{drawn}<p>{told}</p>{set_ups}"


def _ring_plan(run: Run) -> RingPlan | None:
    ring, job = ring_of(run.plan.setting.fabric), _job(run)
    if ring is None or len(job.gpus) > 32:
        return None
    return plan_ring(run.plan.setting.fabric, ring, steps_named(job.plan.collective, len(job.gpus)))


def _counted(view: View) -> str:
    """What was counted, a column for each arm."""
    runs = [run for run in _arms(view) if view.row(run.plan.arm, _fabric(run), "misdirected") is not None]
    if not runs:
        return ""
    rows = [row([meaning, *(_count(view, run, name) for run in runs)], 1) for name, meaning in _COUNTERS]
    head = [f"counted in the kernel {tag(view.label)}", *(text(run.plan.arm) for run in runs)]
    return f"<h3>What was counted</h3>{table(head, rows, 1)}"


def _count(view: View, run: Run, name: str) -> str:
    found = view.row(run.plan.arm, _fabric(run), name)
    return "–" if found is None else f"<b>{amount(found.value, found.unit)}</b>"


# Pictures.


def _all_reduces(view: View, runs: Sequence[Run]) -> Figure:
    figure, ((axis,),) = sheet(0.75 + 0.42 * len(runs), left=2.6, top=0.1, bottom=0.5)
    most = 0.0
    for y, run in enumerate(runs):
        took = view.number(run.plan.arm, f"job {_job(run).name}", "allreduce") or 0.0
        ideal_s, model_s = _model_s(view, run)
        colour = PALETTE[1] if ring_of(run.plan.setting.fabric) else QUIET
        axis.barh(y, took, height=0.55, color=colour, linewidth=0, alpha=0.85)
        most = max(most, took)
        if ideal_s is not None and model_s is not None:
            axis.plot([ideal_s, ideal_s], [y - 0.38, y + 0.38], color=INK, linewidth=1.4)
            if model_s > ideal_s:
                axis.plot([model_s], [y], marker="o", markersize=5, color=LIGHT, zorder=5)
        axis.annotate(
            f"{seconds(took)}, {_steps(run)} steps",
            (took, y),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    names = [f"{run.plan.arm}: {_job(run).plan.collective}" for run in runs]
    axis.set_yticks(range(len(runs)), names)
    axis.set_ylim(len(runs) - 0.45, -0.55)
    vertical_grid(axis)
    axis.set_xlim(0, 1.25 * most or 1.0)
    axis.set_xlabel(f"all-reduce, seconds as emulated ({view.label})")
    return figure


def lights(plan: RingPlan) -> list[tuple[int, int, RingStep]]:
    """Runs of neighbouring steps with the same pairs: first and last step, counted from 1, and the light."""
    found: list[tuple[int, int, RingStep]] = []
    for number, step in enumerate(plan.steps, start=1):
        if found and found[-1][2].pairs == step.pairs:
            found[-1] = (found[-1][0], number, found[-1][2])
        else:
            found.append((number, number, step))
    return found


def _lights(plan: RingPlan) -> Figure:
    chosen = lights(plan)
    left_out = len(chosen) - _MOST_STEPS
    chosen = chosen[:_MOST_STEPS]
    columns = 4
    rows = math.ceil(len(chosen) / columns)
    figure, axes = sheet(
        2.45 * rows + 0.4,
        rows=rows,
        columns=columns,
        left=0.02,
        right=0.02,
        top=0.55,
        bottom=0.02,
        gap=(0.05, 0.3),
    )
    used = (emit.wavelength for peers in plan.transmit.values() for emit in peers.values())
    colours = wavelength_colours(1 + max(used, default=0))
    for number, axis in enumerate(axis for line in axes for axis in line):
        axis.axis("off")
        if number < len(chosen):
            first, last, step = chosen[number]
            _step(axis, plan, step, colours)
            axis.set_title(
                f"step {first}" if first == last else f"steps {first} to {last}", fontsize=9, pad=2
            )
    handles = [Line2D([], [], color=c, linewidth=2, label=f"λ{k}") for k, c in enumerate(colours)]
    if left_out > 0:
        handles.append(Line2D([], [], linestyle="", label=f"and {left_out} more"))
    legend(figure, handles, columns=12)
    return figure


def _place(place: float, nodes: int, radius: float = 1.0) -> tuple[float, float]:
    """Node 0 at the top, then clockwise; ``place`` may lie between two nodes."""
    angle = math.pi / 2 - 2 * math.pi * place / nodes
    return radius * math.cos(angle), radius * math.sin(angle)


def _step(axis: Axes, plan: RingPlan, step: RingStep, colours: Sequence[str]) -> None:
    n = len(plan.nodes)
    axis.add_patch(Arc((0, 0), 2, 2, color=RULE, linewidth=1.0, zorder=1))
    index = {node: number for number, node in enumerate(plan.nodes)}
    for source, destination in sorted(step.pairs):
        emit = plan.transmit[source][destination]
        clockwise = emit.port == CLOCKWISE
        # Each wavelength has a circle of its own, outside the ring or inside.
        gap = 0.16 + 0.13 * emit.wavelength
        radius = 1 + gap if clockwise else 1 - gap
        _path(axis, (index[source], index[destination]), n, clockwise, radius, colours[emit.wavelength])
    places = [_place(number, n) for number in range(n)]
    axis.plot(
        [x for x, _ in places],
        [y for _, y in places],
        linestyle="",
        marker="o",
        markersize=11 if n <= 12 else 8,
        color=FACE,
        markeredgecolor=INK,
        markeredgewidth=0.8,
        zorder=4,
    )
    for number, (x, y) in enumerate(places):
        axis.text(x, y, str(number), ha="center", va="center", fontsize=5 if n > 12 else 6, zorder=5)
    most = 1.25 + 0.13 * len(colours)
    axis.set_xlim(-most, most)
    axis.set_ylim(-most, most)
    axis.set_aspect("equal")


def _path(axis: Axes, ends: tuple[int, int], n: int, clockwise: bool, radius: float, colour: str) -> None:
    """Along the ring from one node to another, with a head."""
    source, destination = ends
    way = (destination - source) % n if clockwise else -((source - destination) % n)
    # Short of the nodes themselves, so that lightpaths that follow each other can be told apart.
    trim = 0.16 * (1 if way > 0 else -1)
    places = [source + trim + (way - 2 * trim) * k / 40 for k in range(41)]
    points = [_place(place, n, radius) for place in places]
    axis.plot([x for x, _ in points], [y for _, y in points], color=colour, linewidth=1.5, zorder=3)
    axis.add_patch(
        FancyArrowPatch(
            points[-4], points[-1], arrowstyle="-|>", mutation_scale=9, color=colour, linewidth=0, zorder=3
        )
    )
