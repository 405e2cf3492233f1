"""Light that O-NICs ask for: a grid's flows in each step, their set-up, and counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringlight.experiments.analysis.metrics.light import FORBIDDEN
from ringlight.experiments.analysis.prediction import nic_rate_bps
from ringlight.experiments.record.light_records import Flow
from ringlight.experiments.record.runs import JobRun, Run
from ringlight.experiments.report import charts
from ringlight.experiments.report.drawing import (
    FACE,
    INK,
    PALETTE,
    QUIET,
    RULE,
    wavelength_colours,
)
from ringlight.experiments.report.light_tables import counted, of_fabric, times
from ringlight.experiments.report.page import mark, tag, text
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, Figures, View
from ringlight.experiments.report.words import count
from ringlight.extensions.oddl.grid import Grid, lines, position
from ringlight.extensions.oddl.grid_plane import GridPlane
from ringlight.extensions.oddl.wavelengths import LightUse
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.collectives import Schedule, schedule_of
from ringlight.fabric.units import format_rate

#: Most O-NICs whose flows are drawn over time; trace.json has all. Most grids of which there are pictures.
_MOST_ONICS, _MOST_PICTURES = 16, 2
_TIMES = ("setup", "idle_setup", "open", "lit")
#: What is dropped, and sent again by TCP; and all that is counted.
_DROPPED = ("dark_drops", "unset_drops", "unrouted")
_COUNTERS = (
    *FORBIDDEN,
    *_DROPPED,
    "light_tx_bytes",
    "control_messages",
    "agents_restarted",
)


@section(
    "throughput", "Light of the O-NICs", needs=("setup_p50", "light_use_receivers")
)
def light(view: View, draw: Draw) -> str:
    """Return HTML that shows the light of each first run on a grid."""
    runs = [run for run in view.first.values() if run.lit_flows]
    if not runs:
        return ""
    parts = (
        _one(view, draw, run, number < _MOST_PICTURES)
        for number, run in enumerate(runs)
    )
    return (
        "<p>The arbiter sets the WSSs once, before the jobs. From then on the "
        "O-NICs' agents alone decide: a flow asks the receiver, tunes its laser, sends at the port's rate, "
        f"and lets go.{view.says('light')}</p>{''.join(parts)}"
        f"{counted([of_fabric(view, run) for run in runs], _COUNTERS, FORBIDDEN)}"
    )


def _one(view: View, draw: Draw, run: Run, pictured: bool) -> str:
    subject, setting = of_fabric(view, run), run.plan.setting
    rate = format_rate(min(nic_rate_bps(setting, gpu) for gpu in setting.fabric.gpus))
    flows, waited, expected = subject.numbers("flows", "flows_waited", "flows_expected")
    each, per_flow = subject.numbers("flows_per_iteration", "control_messages_per_flow")
    details = f", {each:.0f} in an iteration" if each is not None else ""
    details += (
        f", {per_flow:.2f} control messages for each" if per_flow is not None else ""
    )
    missing = (expected or 0) - (flows or 0)
    lost = f" {missing:.0f} flows are not in the traces." if missing > 0 else ""
    return (
        f"<h3>{text(run.plan.title)}</h3><p>A port carries {rate} (emulated). {_use(subject)} "
        f"{count(waited)} of {count(flows)} flows stood in a queue {tag(view.label)}."
        f"{_lit_pairs(subject)}</p>"
        f"{_figures(view, draw, run) if pictured else ''}"
        f"<p>{count(flows)} flows{details} {tag(view.label)}.{lost}</p>"
        f"{times(subject, 'time of a flow', _TIMES)}"
    )


def _use(subject: Figures) -> str:
    values = {
        field.name: subject.number(f"light_use_{field.name}")
        for field in fields(LightUse)
    }
    if None in values.values():
        return ""
    use = LightUse(**{name: int(value or 0) for name, value in values.items()})
    return f"{text(use)} {tag('analytic')}"


def _lit_pairs(subject: Figures) -> str:
    pairs, astray = subject.numbers("lit_pairs", "lit_between_jobs")
    if pairs is None:
        return ""
    kept = "none leads" if not astray else mark("bad", f"{astray:.0f} lead")
    return (
        f" The WSSs, read back while the jobs ran, let {pairs:.0f} wavelengths through; {kept} from a node "
        f"of one job to a node of another {tag(subject.view.label)}."
    )


# Pictures.


def _figures(view: View, draw: Draw, run: Run) -> str:
    plane = run.plan.on(GridPlane)
    assert plane is not None
    grid = plane.grid
    arm, how = run.plan.arm, f"{view.label.capitalize()}, emulated time."
    index, steps = lit_steps_of_all(run)
    figures = []
    if steps:
        ways = lines(grid)
        switches = " and the ".join(f"{line}'s" for line in ways)
        caption = (
            f"Iteration {index + 1}: the light of each step of the all-reduce, as the O-NICs' agents "
            f"recorded it. Thin lines are the fibres to the {switches} WSS; an arrow is a flow, "
            f"its colour the wavelength. {how}"
        )
        figures.append(draw(f"grid-{arm}", caption, _grid_steps, grid, steps))
        some = " (some)" if len(plane.nodes) > _MOST_ONICS else ""
        ports = "above the row port, below the column port. " if len(ways) > 1 else ""
        caption = (
            f"The same iteration's all-reduce on every O-NIC{some}: {ports}Grey: from the "
            f"request to the light; coloured: lit, by wavelength. {how}"
        )
        figures.append(draw(f"flows-{arm}", caption, _timelines, run, grid, index))
    if len({round(flow.set_up_s, 9) for flow in run.lit_flows}) > 10:
        caption = (
            "From a flow's request to its light, over all flows of the run. Left: distribution. Right: "
            f"each flow at the time of its request. {how}"
        )
        figures.append(draw(f"setup-{arm}", caption, _set_up_times, run))
    return "".join(figures)


def lit_steps(
    run: Run, job: JobRun, schedule: Schedule
) -> tuple[int, list[list[Flow]]]:
    """Return an iteration of a job, and its flows by step.

    What a rank sends to one peer in one step is one flow, and flows to one peer keep their order. Flows to
    different peers may not, because a later step may be ready first. The iteration is the completely traced
    one that is nearest to the middle of the run; (0, []) if there is none.
    """
    steps_of: dict[tuple[str, str], list[int]] = {}
    for step, rank, peer in sorted(
        {(t.step, t.source, t.destination) for t in schedule.transfers}
    ):
        steps_of.setdefault((job.gpus[rank], job.gpus[peer]), []).append(step)
    flows: dict[str, list[Flow]] = {}
    for flow in sorted(run.lit_flows, key=_asked):
        flows.setdefault(flow.gpu, []).append(flow)
    middle = len(job.by_index) // 2
    for group in sorted(job.by_index, key=lambda group: abs(group[0].i - middle)):
        flows_of: dict[tuple[str, str], list[Flow]] = {}
        for it in group:
            for flow in flows.get(job.gpus[it.rank], ()):
                if it.compute_end <= _asked(flow) and _lit(flow) < it.allreduce_end:
                    flows_of.setdefault((flow.gpu, flow.peer), []).append(flow)
        if {pair: len(mine) for pair, mine in flows_of.items()} == {
            p: len(mine) for p, mine in steps_of.items()
        }:
            steps: list[list[Flow]] = [[] for _ in range(schedule.steps)]
            for pair, mine in flows_of.items():
                for step, flow in zip(steps_of[pair], mine, strict=True):
                    steps[step].append(flow)
            return group[0].i, [step for step in steps if step]
    return 0, []


def lit_steps_of_all(run: Run) -> tuple[int, list[list[Flow]]]:
    """Return lit steps of the first job, as :func:`lit_steps`, with the same steps of the other jobs
    added."""
    jobs = [job for job in run.jobs.values() if job.gpus and job.iterations]
    schedules = [
        schedule_of(steps_named(job.plan.loop.collective, len(job.gpus)))
        for job in jobs
    ]
    steps_by_job = [
        lit_steps(run, job, schedule)
        for job, schedule in zip(jobs, schedules, strict=True)
    ]
    index, steps = steps_by_job[0] if steps_by_job else (0, [])
    for _, more in steps_by_job[1:]:
        for step, flows in zip(steps, more, strict=False):
            step += flows
    return index, steps


def _wave(flow: Flow) -> int:
    return flow.wavelength or 0


def _asked(flow: Flow) -> float:
    assert flow.t_request is not None
    return flow.t_request


def _lit(flow: Flow) -> float:
    assert flow.t_lit is not None
    return flow.t_lit


def _grid_steps(grid: Grid, steps: Sequence[Sequence[Flow]]) -> Figure:
    down, across = grid.rows, grid.columns
    ways = lines(grid)
    plane = len(ways) > 1
    columns = min(4 if plane and across < 2 * down else 2, len(steps))
    # As high as the grid is, for its width: with its switches it is one row and one column larger.
    height = 9.0 / max(2, columns) * (down + 1) / (across + 1) if plane else 1.15
    colours = wavelength_colours(grid.wavelengths)
    began = min(_asked(flow) for flow in steps[0])

    def step(axis: Axes, number: int) -> str:
        places = {node: _at(grid, node) for node in grid.nodes}
        _fibres(axis, grid)
        for flow in steps[number]:
            bend: Any = {"connectionstyle": "arc3,rad=0.28", "shrinkA": 8, "shrinkB": 9}
            ends = places[flow.gpu], places[flow.peer]
            charts.arrow(
                axis,
                *ends,
                colours[_wave(flow)],
                mutation_scale=7,
                linewidth=1.5,
                **bend,
            )
        _boxes(axis, places, 0.4, 0.3, INK, 7)
        return f"step {number + 1}, from {1000 * (min(map(_lit, steps[number])) - began):.1f} ms"

    figure = charts.pictures(len(steps), columns, height, step)
    used = sorted({_wave(flow) for flows in steps for flow in flows})
    charts.legend(
        figure,
        "wavelength",
        [charts.key(colours[k], f"λ{k}") for k in used],
        columns=10,
    )
    return figure


def _at(grid: Grid, node: str) -> tuple[float, float]:
    line, column = position(grid, node)
    return float(column), float(-line)


def _boxes(
    axis: Axes,
    places: Mapping[str, tuple[float, float]],
    w: float,
    h: float,
    edge: str,
    size: float,
) -> None:
    look = {"edgecolor": edge, "linewidth": 0.9, "zorder": 2.5}
    charts.spans(
        axis, FACE, [(y, x - w / 2, x + w / 2) for x, y in places.values()], h, **look
    )
    for name, (x, y) in places.items():
        charts.centred(axis, x, y, name, size, color=INK if edge == INK else QUIET)


def _fibres(axis: Axes, grid: Grid) -> None:
    """Row switches at the left, column switches at the bottom, a fibre from each node to both."""
    down, across = grid.rows, grid.columns
    margin = 0.62 if across <= 4 else 0.8
    bottom = -(down - 1) - margin
    rows = {f"r{k}": (-margin, -float(k)) for k in range(len(grid.row_switches))}
    columns = {f"c{k}": (float(k), bottom) for k in range(len(grid.column_switches))}
    axis.hlines(
        [y for _, y in rows.values()],
        -margin,
        across - 1,
        color=RULE,
        linewidth=0.8,
        zorder=1,
    )
    axis.vlines(
        [x for x, _ in columns.values()], bottom, 0, color=RULE, linewidth=0.8, zorder=1
    )
    _boxes(
        axis, rows | columns, 0.34, 0.26, RULE, 5.5 if max(down, across) > 2 else 6.5
    )
    below, above = (margin + 0.25, 0.45) if columns else (0.6, 0.6)
    axis.set(
        xlim=(-margin - 0.3, across - 0.55),
        ylim=(1 - down - below, above),
        aspect="equal",
    )


def _timelines(run: Run, grid: Grid, index: int) -> Figure:
    """Milliseconds since the first rank's all-reduce began."""
    job = next(job for job in run.jobs.values() if job.iterations)
    its = next(group for group in job.by_index if group[0].i == index)
    begin, end = min(it.compute_end for it in its), max(it.allreduce_end for it in its)
    gpus = [gpu for record in run.jobs.values() for gpu in record.gpus][:_MOST_ONICS]
    colours, seen = wavelength_colours(grid.wavelengths), set[int]()
    figure, axis = charts.chart(0.95 + 0.3 * len(gpus), left=0.45, top=0.35)
    bars: dict[str, list[charts.Span]] = {}
    for flow in run.lit_flows:
        if flow.gpu not in gpus or not begin - 0.001 <= _asked(flow) <= end:
            continue
        y, colour = (
            gpus.index(flow.gpu) + (-0.2 if flow.port == 0 else 0.2),
            colours[_wave(flow)],
        )
        seen.add(_wave(flow))
        moments = (
            _asked(flow),
            _lit(flow),
            end if flow.t_close is None else flow.t_close,
        )
        begin_ms, lit_ms, closed = (1000 * (t - begin) for t in moments)
        bars.setdefault(QUIET, []).append((y, begin_ms, lit_ms))
        bars.setdefault(colour, []).append((y, lit_ms, closed))
        if closed - lit_ms > 45 * (end - begin):
            charts.centred(
                axis,
                (lit_ms + closed) / 2,
                y,
                flow.peer,
                6,
                color="white",
                clip_on=True,
            )
    for colour, intervals in bars.items():
        charts.spans(axis, colour, intervals, 0.34)
    charts.named_rows(axis, gpus)
    axis.set(
        xlim=(0, 1000 * (end - begin)),
        xlabel="milliseconds since the first rank's all-reduce began",
    )
    lit_by = [charts.key(colours[k], f"λ{k}", 5) for k in sorted(seen)]
    charts.legend(
        figure, "wavelength", [charts.key(QUIET, "set-up", 5), *lit_by], columns=10
    )
    return figure


def _set_up_times(run: Run) -> Figure:
    flows = run.lit_flows
    times = sorted(1000 * flow.set_up_s for flow in flows)
    figure, ((left, right),) = charts.sheet(2.7, columns=2, gap=(0.7, 0))
    shares = [100 * (k + 1) / len(times) for k in range(len(times))]
    left.plot(times, shares, color=PALETTE[1], linewidth=1.8)
    left.set(
        xscale="log",
        ylim=(0, 101),
        xlabel="request to light, ms",
        ylabel="flows up to that, %",
    )
    charts.plain_ticks(left.xaxis, times[0], times[-1])
    left.grid(axis="x", visible=True)
    for share, height in ((0.5, 22), (0.99, 8)):
        value = times[min(len(times) - 1, int(share * len(times)))]
        left.axvline(value, color=QUIET, linewidth=0.8, linestyle=":")
        # On the side where there is room.
        side = {"ha": "right", "xytext": (-4, 0)} if value > 0.4 * times[-1] else {}
        charts.note(left, value, height, f"p{100 * share:.0f} {value:.2f} ms", **side)
    looks = (
        (False, PALETTE[2], "idle receiver"),
        (True, PALETTE[3], "stood in a queue"),
    )
    for waited, colour, label in looks:
        chosen = [flow for flow in flows if flow.waited is waited]
        if chosen:
            times_s = [_asked(flow) - run.released for flow in chosen]
            took = [1000 * flow.set_up_s for flow in chosen]
            (dots,) = right.plot(
                times_s, took, linestyle="", marker="o", markersize=2, label=label
            )
            dots.set(color=colour, rasterized=len(chosen) > 3000)
    right.set(
        yscale="log",
        xlabel="seconds since the release of the jobs",
        ylabel="request to light, ms",
    )
    charts.plain_ticks(right.yaxis, times[0], times[-1])
    charts.legend(figure, "a flow met")
    return figure
