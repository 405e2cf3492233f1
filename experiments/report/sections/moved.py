"""Light moved while jobs train: the circuits before and after, what NICs carried, and the blackout."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve
from numpy.typing import NDArray

from ringlight.experiments.analysis.machine_faults import SERIES_STEP_S
from ringlight.experiments.analysis.metrics import LIGHT as MOVES_LIGHT
from ringlight.experiments.analysis.metrics.regroup import (
    beacon_gaps,
    dark_intervals,
    phases,
    window,
)
from ringlight.experiments.analysis.prediction import nic_rate_bps
from ringlight.experiments.record.lab_records import PortRate
from ringlight.experiments.record.runs import Action, JobRun, Pair, Run
from ringlight.experiments.report.charts import (
    Spot,
    centred,
    chart,
    end_with_room,
    key,
    legend,
    named_rows,
    note,
    sheet,
    spans,
)
from ringlight.experiments.report.drawing import (
    FACE,
    INK,
    LIGHT,
    QUIET,
    RULE,
    box,
    job_colours,
)
from ringlight.experiments.report.page import table_of, tag, text
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, View
from ringlight.experiments.report.words import called, figure, meaning, seconds
from ringlight.fabric.parts import Port
from ringlight.fabric.topology import Fabric, circuit_switches, optical_neighbour
from ringlight.fabric.units import format_rate

#: Larger fabrics cannot be read in a picture of this size.
_MOST_GPUS, _MOST_SWITCHES, _MOST_PICTURES = 16, 6, 2
_WIDTH, _HIGH, _TOP, _BOTTOM, _LOW = 10.0, 6.4, 4.7, 3.3, 1.4
Places = Mapping[str, float]
#: A run and the circuits that are shown of it.
Shown = tuple[Run, Sequence[Pair]]
#: More comparisons than these would be a wall of pictures.
_MOST = 2
#: A comparison's name, a job, and the first runs of baseline and arm.
Both = tuple[str | None, str, tuple[Run, Run]]
Numbers = NDArray[Any]
Series = tuple[Numbers, Numbers]
#: What the blackout is made of, itself in bold, and what it is to be compared with.
_SEEN = ("beacon_gap", "wire_dark", "tcp_stall", "tcp_stall_usual", "blackout")
_BESIDE = ("reconfiguration", "dark_declared")
#: The controller's phases by the name of the moment that ends them.
_STEPS = {
    "planned": "plan",
    "light_removed": "remove light",
    "rules_written": "write rules",
    "light_added": "add light",
    "verified": "verify",
}
_MOST_GAPS = 8
_PACE = (
    "iteration_before",
    "iteration_after",
    "iteration_predicted_before",
    "iteration_predicted_after",
)
#: A bar: its name, start and end in milliseconds since the first step, and colour.
Bar = tuple[str, float, float, str]


def _pairs(view: View) -> list[Both]:
    """Return the comparisons of arms that end with different circuits lit."""
    pairs: dict[tuple[str | None, str], Both] = {}
    for pair in view.comparisons:
        before, after = (view.first.get(arm) for arm in (pair.spec.baseline, pair.arm))
        if before is None or after is None:
            continue
        job = pair.spec.job or next(iter(before.jobs), "")
        if _lit(before) != _lit(after) and all(
            _has_circuits(run, job) for run in (before, after)
        ):
            pairs.setdefault(
                (pair.spec.name, pair.arm), (pair.spec.name, job, (before, after))
            )
    return list(pairs.values())


def _lit(run: Run) -> frozenset[frozenset[str]]:
    """Return the circuits that are lit at the end."""
    return frozenset(frozenset(pair) for pair in run.circuits)


def _has_circuits(run: Run, job: str) -> bool:
    fabric, mine = run.plan.setting.fabric, run.jobs.get(job)
    return bool(
        circuit_switches(fabric)
        and mine is not None
        and mine.end is not None
        and mine.iterations
    )


# Which GPU hangs on which packet switch.


@section(2, "Light", needs=("fragmentation",))
def topology(view: View, draw: Draw) -> str:
    """Return HTML that shows the light before and after it was moved."""
    pictures = []
    for number, (before, after) in enumerate(_changes(view), start=1):
        caption = (
            f"{after[0].plan.title}: the light before and after it was moved. Coloured lines are circuits of "
            "the job of that colour, a halo marks those that are new; the thicker the link between packet "
            "switches, the more edges of rings cross it. As read back at the end of the runs."
        )
        pictures.append(
            draw(f"topology-{number}", caption, _before_and_after, before, after)
        )
    return "".join(pictures)


def _changes(view: View) -> list[tuple[Shown, Shown]]:
    """Pairs of runs to draw, each pair of circuits once: compared arms, and runs in which light moved."""
    changes: dict[object, tuple[Shown, Shown]] = {}
    compared = [
        (before, after, before.circuits) for _, _, (before, after) in _pairs(view)
    ]
    alone = [(run, run, run.circuits_before) for run in view.first.values()]
    for before, after, circuits in (*compared, *alone):
        was = frozenset(frozenset(pair) for pair in circuits)
        key = (
            was,
            _lit(after),
            tuple((name, job.gpus) for name, job in after.jobs.items()),
        )
        if was != _lit(after) and _readable(after.plan.setting.fabric):
            changes.setdefault(key, ((before, circuits), (after, after.circuits)))
    return list(changes.values())[:_MOST_PICTURES]


def _readable(fabric: Fabric) -> bool:
    switches = len(fabric.packet_switches)
    moved = bool(circuit_switches(fabric))
    return moved and len(fabric.gpus) <= _MOST_GPUS and 0 < switches <= _MOST_SWITCHES


def _before_and_after(before: Shown, after: Shown) -> Figure:
    figure, ((left, right),) = sheet(
        3.7, columns=2, left=0.05, right=0.05, top=0.28, bottom=0.05, gap=(0.2, 0)
    )
    was = {frozenset(pair) for pair in before[1]}
    for axis, (run, circuits) in ((left, before), (right, after)):
        _draw_fabric(axis, run, circuits, was)
    left.set_title(f"before: {before[0].plan.title}")
    right.set_title(f"after: {after[0].plan.title}")
    colours = job_colours(list(after[0].jobs))
    moved = Line2D([], [], color=LIGHT, linewidth=6.5, alpha=0.4, label="new circuit")
    legend(
        figure,
        "circuits by job",
        [*(key(c, name) for name, c in colours.items()), moved],
    )
    return figure


def _spread(names: Sequence[str]) -> dict[str, float]:
    return {name: _WIDTH * (i + 0.5) / len(names) for i, name in enumerate(names)}


def _draw_fabric(
    axis: Axes, run: Run, circuits: Sequence[Pair], was: set[frozenset[str]]
) -> None:
    """GPUs below in their servers, optical switches in the middle, packet switches above."""
    fabric = run.plan.setting.fabric
    gpus, switches = _spread(list(fabric.gpus)), _spread(list(fabric.packet_switches))
    optical = _spread(list(fabric.optical_switches))
    half = _WIDTH / max(1, len(optical)) / 2 - 0.3
    ports = _faceplates(fabric, gpus, switches, optical, half)
    colours = job_colours(list(run.jobs))
    owner = {gpu: name for name, job in run.jobs.items() for gpu in job.gpus}

    for name, x in optical.items():
        box(axis, x - half, _BOTTOM, 2 * half, _TOP - _BOTTOM, FACE, RULE)
        centred(
            axis, x - half + 0.2, (_TOP + _BOTTOM) / 2, name, 8, color=QUIET, ha="left"
        )
    ways: dict[Port, tuple[Spot, Spot]] = {}
    for port, (x, y) in _spots(fabric, gpus, switches).items():
        face = optical_neighbour(fabric, port)
        if face is not None:
            ways[port] = (x, y), (ports[face], _BOTTOM if port.node in gpus else _TOP)
    axis.add_collection(
        LineCollection(list(ways.values()), colors=RULE, linewidths=0.9, zorder=1)
    )
    for a, b in circuits:
        first, second = Port.parse(a), Port.parse(b)
        colour = colours.get(owner.get(first.node) or owner.get(second.node, ""), QUIET)
        if first in ways and second in ways:
            way = (*ways[first], *reversed(ways[second]))
            _light(axis, way, colour, frozenset((a, b)) not in was)
    _servers(axis, fabric, gpus)
    wide, size = (
        min(0.9, 0.9 * _WIDTH / len(gpus)),
        9 if len(gpus) <= _MOST_GPUS / 2 else 6.5,
    )
    for gpu, x in gpus.items():
        colour = colours.get(owner.get(gpu, ""), QUIET)
        box(axis, x - wide / 2, _LOW - 0.3, wide, 0.55, colour, colour)
        centred(axis, x, _LOW - 0.04, gpu, size, color="white", weight="bold")
    _packet_switches(axis, run, circuits, switches)
    axis.set(xlim=(-0.1, _WIDTH + 0.1), ylim=(-0.05, _HIGH + 0.9))
    axis.axis("off")


def _spots(fabric: Fabric, gpus: Places, switches: Places) -> dict[Port, Spot]:
    """Places where fibres begin: GPUs, and the packet switches' ports that face an optical switch."""
    spots: dict[Port, Spot] = {
        Port(gpu, 0): (x, _LOW + 0.25) for gpu, x in gpus.items()
    }
    for name, switch in fabric.packet_switches.items():
        every = [Port(name, number) for number in range(1, switch.ports + 1)]
        facing = [port for port in every if optical_neighbour(fabric, port) is not None]
        for i, port in enumerate(facing):
            spots[port] = (
                switches[name] + (i - (len(facing) - 1) / 2) * 0.62,
                _HIGH - 0.3,
            )
    return spots


def _packet_switches(
    axis: Axes, run: Run, circuits: Sequence[Pair], switches: Places
) -> None:
    setting, crossing = run.plan.setting, ring_edges_crossing(run, circuits)
    words = f"{crossing} ring edges each way" if crossing else "no ring crosses"
    middles: dict[str, list[float]] = {}
    for link in setting.fabric.links:
        if link.a.node in switches and link.b.node in switches:
            ends = sorted((switches[link.a.node], switches[link.b.node]))
            axis.plot(
                ends, [_HIGH] * 2, color=INK, linewidth=1 + 1.6 * crossing, zorder=2
            )
            middles.setdefault(
                format_rate(link.rate_bps / setting.scale.rate), []
            ).append(sum(ends) / 2)
    # Links that are alike say it once: beside each other their words would meet.
    for rate, y in middles.items():
        centred(
            axis, statistics.fmean(y), _HIGH + 0.42, f"{rate}, {words}", 8, va="bottom"
        )
    wide = min(2.7, 0.9 * _WIDTH / len(switches))
    for name, x in switches.items():
        box(axis, x - wide / 2, _HIGH - 0.3, wide, 0.6, FACE, INK)
        centred(axis, x, _HIGH, name, 9)


def _faceplates(
    fabric: Fabric, gpus: Places, switches: Places, optical: Places, half: float
) -> dict[Port, float]:
    """Horizontal place of every plugged faceplate port: GPU side and packet-switch side apart."""
    places: dict[Port, float] = {}
    ends = [
        ends for link in fabric.links for ends in ((link.a, link.b), (link.b, link.a))
    ]
    for (name, centre), side in itertools.product(optical.items(), (gpus, switches)):
        faces = sorted(
            near for near, far in ends if near.node == name and far.node in side
        )
        for i, face in enumerate(faces):
            # Room is left at one end for the switch's name.
            places[face] = (
                centre - half + 0.9 + (2 * half - 0.9) * (i + 0.5) / len(faces)
            )
    return places


def _light(axis: Axes, way: Sequence[Spot], colour: str, new: bool) -> None:
    """One circuit: fibre, a curve through the optical switch, fibre; a moved one has a halo."""
    start, (x1, y1), (x2, y2), end = way
    middle = (y1 + y2) / 2
    bend = [Curve.CURVE4] * 3
    corners = [start, (x1, y1), (x1, middle), (x2, middle), (x2, y2), end]
    curve = Curve(corners, [Curve.MOVETO, Curve.LINETO, *bend, Curve.LINETO])
    if new:
        axis.add_patch(
            PathPatch(
                curve, fill=False, edgecolor=LIGHT, linewidth=6.5, alpha=0.4, zorder=2.8
            )
        )
    axis.add_patch(
        PathPatch(curve, fill=False, edgecolor=colour, linewidth=1.9, zorder=3)
    )
    axis.plot(
        [x1, x2],
        [y1, y2],
        linestyle="",
        marker="o",
        markersize=3.2,
        color=colour,
        zorder=4,
    )


def _servers(axis: Axes, fabric: Fabric, gpus: Places) -> None:
    servers: dict[str, list[float]] = {}
    for gpu in fabric.gpus.values():
        servers.setdefault(gpu.server, []).append(gpus[gpu.name])
    for name, xs in servers.items():
        box(
            axis,
            min(xs) - 0.62,
            _LOW - 1.02,
            max(xs) - min(xs) + 1.24,
            1.42,
            "none",
            RULE,
        )
        centred(axis, (min(xs) + max(xs)) / 2, _LOW - 0.72, name, 8, color=QUIET)


def ring_edges_crossing(run: Run, circuits: Sequence[Pair]) -> int:
    """Return how many ring edges of all jobs join GPUs on different packet switches, per direction
    (ceiling)."""
    switch_of: dict[str, str] = {}
    for a, b in circuits:
        first, second = Port.parse(a).node, Port.parse(b).node
        switch_of |= {first: second, second: first}
    crossing = 0
    for job in run.jobs.values():
        ring = [switch_of.get(gpu) for gpu in job.gpus]
        crossing += sum(a != b for a, b in zip(ring, ring[1:] + ring[:1], strict=True))
    return math.ceil(crossing / 2)


# What the ports of the compared jobs' NICs carried, and when their GPUs computed.


@section(4, "Throughput and utilisation over time", needs=("jct",))
def throughput(view: View, draw: Draw) -> str:
    """Return HTML that shows throughput and utilisation of arms that end with different circuits lit, if
    they were sampled."""
    sampled = {rate.run for rate in view.port_rates}
    pairs = [
        both for both in _pairs(view) if sampled.issuperset(run.name for run in both[2])
    ]
    pictures = []
    for number, (name, job, (before, after)) in enumerate(pairs[:_MOST]):
        caption = (
            f"{after.plan.title} against {before.plan.title}: mean over the GPUs of job {job}. "
            "Thin: samples, ten a second; thick: moving average over two iterations. Throughput is what the "
            "packet switch received from the GPUs' ports; utilisation is the share of time in compute. "
            f"{view.label.capitalize()}, rates and emulated seconds."
        )
        name = f"throughput-{name or number}"
        pictures.append(
            draw(name, caption, _throughput, job, (before, after), view.port_rates)
        )
    return "".join([view.paragraph("throughput"), *pictures]) if pictures else ""


def _throughput(name: str, runs: Sequence[Run], rates: Sequence[PortRate]) -> Figure:
    figure, (upper, lower) = sheet(
        4.1, rows=2, columns=2, left=0.72, gap=(0.85, 0.25), top=0.32
    )
    colour, setting = job_colours(list(runs[0].jobs))[name], runs[0].plan.setting
    ends = [_end(run, run.jobs[name]) for run in runs]
    limit = nic_rate_bps(setting, runs[0].jobs[name].gpus[0]) / 1e6
    for axis, below, run, end in zip(upper, lower, runs, ends, strict=True):
        job = run.jobs[name]
        sent, busy = mean_throughput(run, job, rates), utilisation(run, job)
        axis.plot(*sent, color=colour, linewidth=0.6, alpha=0.45)
        below.fill_between(*busy, color=colour, alpha=0.16, linewidth=0)
        # Moving averages over two iterations, so that single bursts do not show.
        window_s = max(
            1.0, 2 * statistics.median(end - begin for begin, end in job.spans)
        )
        for each, (times, values) in ((axis, sent), (below, busy)):
            each.plot(
                times, smooth(times, values, window_s), color=colour, linewidth=1.8
            )
            each.axvline(end, color=QUIET, linewidth=0.9, linestyle=(0, (3, 2)))
            each.set_xlim(0, max(ends) * 1.06)
            each.tick_params(labelbottom=each is below)
        axis.axhline(limit, color=QUIET, linewidth=0.8, linestyle=":")
        axis.set(ylim=(0, limit * 1.2), title=f"{run.plan.title}, {end:.1f} s")
        below.set(ylim=(0, 104), xlabel="seconds since the release of the jobs")
    real = format_rate(limit * 1e6 * setting.scale.rate)
    note(
        upper[0],
        0,
        limit,
        f"NIC: {limit:.0f} Mbit/s, stands for {real}",
        xytext=(4, 3),
        va="bottom",
    )
    for axes, name in ((upper, "throughput, Mbit/s"), (lower, "GPU utilisation, %")):
        for axis in axes:
            axis.set_ylabel(name)
    return figure


def _end(run: Run, job: JobRun) -> float:
    assert job.end is not None
    return job.end - run.released


def mean_throughput(run: Run, job: JobRun, rates: Iterable[PortRate]) -> Series:
    """Return times (seconds since the release, ten a second) and mean Mbit/s that a GPU of the job sent.

    A GPU whose light moved may have rows of two ports at a moment: the GPU sent what both ports received.
    """
    end, gpus = _end(run, job), set(job.gpus)
    sent: dict[tuple[float, str], float] = defaultdict(float)
    for rate in rates:
        if (
            rate.run == run.name
            and rate.gpu in gpus
            and 0 <= rate.t - run.released <= end
        ):
            sent[rate.t - run.released, str(rate.gpu)] += rate.rx_bps / 1e6
    steps = np.array([since / SERIES_STEP_S for since, _ in sent]).astype(int)
    samples = np.bincount(steps)
    there = samples.nonzero()[0]
    return there * SERIES_STEP_S, np.bincount(steps, list(sent.values()))[
        there
    ] / samples[there]


def utilisation(run: Run, job: JobRun) -> Series:
    """Return times (seconds) and per cent of each tenth of a second that the job's GPUs computed, mean
    over GPUs."""
    edges = np.arange(int(_end(run, job) / SERIES_STEP_S) + 2) * SERIES_STEP_S
    spans = [
        (it.compute_start - run.released, it.compute_end - run.released)
        for it in job.iterations
    ]
    computed_s = np.sum([np.clip(edges, begin, end) for begin, end in spans], axis=0)
    return edges[:-1], np.minimum(
        100, 100 * np.diff(computed_s) / SERIES_STEP_S / len(job.gpus)
    )


def smooth(times: Numbers, values: Numbers, window_s: float) -> Numbers:
    """Return the mean of the values within half a window on either side of each time (``times`` ascending,
    seconds)."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    first = np.searchsorted(times, times - window_s / 2)
    last = np.searchsorted(times, times + window_s / 2, "right")
    mean: Numbers = (sums[last] - sums[first]) / (last - first)
    return mean


# The blackout, its parts, and the controller's steps.


@section(15, "Light moved while jobs train", needs=("blackout",))
def regroup(view: View, draw: Draw) -> str:
    """Return HTML that shows every move of light under running jobs in the first runs."""
    moves = [
        (run, a)
        for run in view.first.values()
        for a in run.later
        if a.plan.do in MOVES_LIGHT
    ]
    return (
        "".join(
            [view.paragraph("regroup"), *(_one(view, draw, *move) for move in moves)]
        )
        if moves
        else ""
    )


def _one(view: View, draw: Draw, run: Run, action: Action) -> str:
    event = view.at(run.plan.arm, f"event {action.plan.name}")
    moved, when = event.number("fibres_moved"), action.plan.when
    began = f"{seconds(action.begun - run.released)} after the release"
    if when.job is not None:
        began = f"After {when.iteration} iterations of job {text(when.job)}"
    caption = (
        f"{run.plan.title}: the steps of the controller, the cross-connects' dark time and the silences of "
        "beacons between ranks; time 0 is the first step. "
        f"{view.label.capitalize()}, emulated time."
    )
    shown = table_of(
        [
            row
            for metric in (*_SEEN, *_BESIDE)
            if (row := event.row(metric)) is not None
        ],
        [
            ("", lambda row: called(row.metric)),
            ("what it is", lambda row: meaning(row.metric)),
            ("label", lambda row: tag(row.label)),
            ("time", figure),
        ],
        3,
        strong=lambda row: row.metric == "blackout",
    )
    return (
        f"<h3>{text(run.plan.title)}</h3><p>{began} the controller moved "
        f"{f'{moved:.0f} fibres' if moved is not None else 'light'} under running jobs. "
        f"{_pace(view, event.arm, event.subject)}</p>"
        f"{draw(f'regroup-{event.arm}-{action.plan.name}', caption, _steps, run, action)}{shown}"
    )


def _pace(view: View, arm: str, event: str) -> str:
    """Return a sentence on how the jobs' iteration times changed."""
    sentences = []
    for job in view.each_job([arm]):
        before, after, *model = view.at(arm, f"{event} {job.subject}").numbers(*_PACE)
        if before is not None and after is not None:
            modelled = (
                f" (model: {' to '.join(map(seconds, model))})"
                if None not in model
                else ""
            )
            sentences.append(
                f"those of {text(job.subject)} from {seconds(before)} to {seconds(after)}{modelled}"
            )
    return (
        f"Iterations changed: {', '.join(sentences)} {tag(view.label)}."
        if sentences
        else ""
    )


def _steps(run: Run, action: Action) -> Figure:
    bars = list(_bars(run, action))
    drawn, axis = chart(0.75 + 0.26 * max(2, len(bars)), left=1.9, top=0.12, bottom=0.5)
    # Simulated steps may take no time at all.
    last = max((end for _, _, end, _ in bars), default=0.0) or 1.0
    for y, (_, begin, end, colour) in enumerate(bars):
        spans(axis, colour, [(y, begin, end)], 0.62)
        note(axis, end, y, f"{end - begin:.1f} ms")
    named_rows(axis, [name for name, *_ in bars])
    # Beside the longest bar there is room for its figure.
    begin = min(0.0, *(begin for _, begin, _, _ in bars))
    axis.set_xlim(begin, begin + end_with_room(axis, last - begin, 0.6))
    axis.set_xlabel("milliseconds since the first step")
    return drawn


def _bars(run: Run, action: Action) -> Iterator[Bar]:
    begin, end = window(action)

    def bar(name: str, start: float, stop: float, colour: str) -> Bar:
        return name, 1000 * (start - begin), 1000 * (stop - begin), colour

    phase_times = phases(action.result)
    for (before, t), (name, reached) in itertools.pairwise(phase_times):
        # The plan is checked once more on the switches' own reading; only the first one is of interest.
        if name in _STEPS and before != "start":
            yield bar(_STEPS[name], t, reached, QUIET)
    if not phase_times:
        yield bar(action.plan.do, begin, end, QUIET)
    dark = dark_intervals(action.result)
    if dark:
        _, off, lit_s = max(dark, key=lambda entry: entry[2] - entry[1])
        label = (
            "dark on the wire"
            if len(dark) == 1
            else f"dark on the wire, longest of {len(dark)}"
        )
        yield bar(label, off, lit_s, LIGHT)
    colours = job_colours(list(run.jobs))
    longest = {
        f"no beacon {gap['from']} → {gap['to']}": gap
        for gap in reversed(beacon_gaps(run, action))
    }
    for label, gap in list(reversed(longest.items()))[:_MOST_GAPS]:
        yield bar(label, gap["t_start"], gap["t_end"], colours[gap["job"]])
