"""Light that O-NICs ask for: which flows a grid carries in each step, their set-up, and what was counted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Rectangle

from experiments.analysis.prediction import grid_of, nic_rate_bps
from experiments.record.events import Flow
from experiments.record.runs import JobRun, Run
from experiments.report.drawing import FACE, INK, PALETTE, QUIET, RULE, wavelength_colours
from experiments.report.page import row, table, tag, text
from experiments.report.report import Draw
from experiments.report.sheet import legend, plain_ticks, sheet, vertical_grid
from experiments.report.view import View
from experiments.report.words import amount, count, seconds
from fabric.collectives import Schedule, schedule_of
from fabric.grid import LightUse, lines, position
from fabric.schedules import steps_named
from fabric.topology import Grid
from fabric.units import format_rate

ORDER = 50
NEEDS = ("setup_p50", "light_use_receivers")
#: Most O-NICs whose flows are drawn over time; trace.json has all. Most grids of which there are pictures.
_MOST_ONICS, _MOST_PICTURES = 16, 2
_SPANS = (
    ("setup", "request to light, all flows"),
    ("idle_setup", "request to light, receiver idle"),
    ("open", "worker's wish to light (own transmitter's queue too)"),
    ("lit", "light to close (payload sent and acknowledged)"),
)
_COUNTERS = (
    ("collisions", "two transmitters at one receiver on one wavelength at once; 0 in a correct run"),
    (
        "receiver_overlaps",
        "two transmitters at one receiver at once, whatever the wavelength; 0 in a correct run",
    ),
    ("misdirected", "packets that the light brought to an O-NIC for which they were not meant"),
    ("dark_drops", "packets at a WSS while their laser was dark or tuning; TCP sends them again"),
    ("unset_drops", "packets on a wavelength that the WSS sends nowhere"),
    ("unrouted", "payload for a peer that no port leads to"),
    ("light_tx_bytes", "bytes into the light, of packets, some headers included"),
    ("control_messages", "messages between the O-NICs' agents"),
    ("agents_restarted", "agents that began anew"),
)


def wanted(view: View) -> bool:
    return bool(_runs(view))


def render(view: View, draw: Draw) -> str:
    said = f" {text(view.says('light'))}" if view.says("light") else ""
    parts = "".join(_one(view, draw, run, number) for number, run in enumerate(_runs(view)))
    return (
        "<h2>Light of the O-NICs</h2><p>The arbiter sets the WSSs once, before the jobs. From then on the "
        "O-NICs' agents alone decide: a flow asks the receiver, tunes its laser, sends at the port's rate, "
        f"and lets go.{said}</p>{parts}"
    )


def _runs(view: View) -> list[Run]:
    found = [run for arm in view.fixed if (run := view.first(arm)) is not None]
    return [run for run in found if grid_of(run.plan.setting.fabric) is not None and run.lit_flows]


def _one(view: View, draw: Draw, run: Run, number: int) -> str:
    arm, setting = run.plan.arm, run.plan.setting
    fabric = f"fabric {setting.name}"
    rate = format_rate(min(nic_rate_bps(setting, gpu) for gpu in setting.fabric.gpus))
    flows, waited = (view.number(arm, fabric, name) for name in ("flows", "flows_waited"))
    queued = f" {count(waited)} of {count(flows)} flows stood in a queue {tag(view.label)}."
    figures = _figures(view, draw, run) if number < _MOST_PICTURES else ""
    return (
        f"<h3>{text(run.plan.title)}</h3><p>A port carries {rate} (emulated). {_use(view, arm, fabric)}"
        f"{queued}{_lit_pairs(view, arm, fabric)}</p>{figures}{_set_up(view, arm, fabric)}"
        f"{_counted(view, arm, fabric)}"
    )


def _use(view: View, arm: str, fabric: str) -> str:
    found = {field.name: view.number(arm, fabric, f"light_use_{field.name}") for field in fields(LightUse)}
    if any(value is None for value in found.values()):
        return ""
    return f"{text(LightUse(**{name: int(value or 0) for name, value in found.items()}))} {tag('analytic')}"


def _lit_pairs(view: View, arm: str, fabric: str) -> str:
    lit, astray = (view.number(arm, fabric, name) for name in ("lit_pairs", "lit_between_jobs"))
    if lit is None:
        return ""
    kept = "none leads" if not astray else f'<b class="bad">{astray:.0f} lead</b>'
    return (
        f" The WSSs, read back while the jobs ran, let {lit:.0f} wavelengths through; {kept} from a node of "
        f"one job to a node of another {tag(view.label)}."
    )


def _set_up(view: View, arm: str, fabric: str) -> str:
    rows = []
    for name, what in _SPANS:
        times = [view.number(arm, fabric, f"{name}_{part}") for part in ("p50", "p99", "max")]
        if any(time is not None for time in times):
            rows.append(row([what, *(seconds(time) for time in times)], 1))
    flows, expected, each = (
        view.number(arm, fabric, name) for name in ("flows", "flows_expected", "flows_per_iteration")
    )
    per_flow = view.number(arm, fabric, "control_messages_per_flow")
    told = f", {per_flow:.2f} control messages for each" if per_flow is not None else ""
    missing = expected - flows if expected is not None and flows is not None else 0
    lost = f" {missing:.0f} flows are not in the traces." if missing > 0 else ""
    per_iteration = f", {each:.0f} in an iteration" if each is not None else ""
    return (
        f"<p>{count(flows)} flows{per_iteration}{told} {tag(view.label)}.{lost}</p>"
        f"{table([f'time of a flow {tag(view.label)}', 'median', '99 %', 'longest'], rows, 1)}"
    )


def _counted(view: View, arm: str, fabric: str) -> str:
    rows = []
    for name, meaning in _COUNTERS:
        found = view.row(arm, fabric, name)
        if found is not None:
            rows.append(
                row([name.replace("_", " "), f"<b>{amount(found.value, found.unit)}</b>", meaning], 9)
            )
    return table(["counter", f"count {tag(view.label)}", "what it is"], rows, 9) if rows else ""


# Pictures.


def _figures(view: View, draw: Draw, run: Run) -> str:
    grid = grid_of(run.plan.setting.fabric)
    assert grid is not None
    arm, how = run.plan.arm, f"{view.label.capitalize()}, time as emulated."
    index, steps = lit_steps_of_all(run)
    figures = []
    if steps:
        figures.append(
            draw(
                f"grid-{arm}",
                f"Iteration {index + 1}: the light of each step of the all-reduce, as the O-NICs' agents "
                f"recorded it. Thin lines are the fibres to the {_of_lines(grid)} WSS; an arrow is a flow, "
                f"its colour the wavelength. {how}",
                _grid_steps(grid, steps),
            )
        )
        some = " (some)" if len(grid.nodes) > _MOST_ONICS else ""
        figures.append(
            draw(
                f"flows-{arm}",
                f"The same iteration's all-reduce on every O-NIC{some}: {_ports_said(grid)}Grey: from the "
                f"request to the light; coloured: lit, by wavelength. {how}",
                _timelines(run, grid, index),
            )
        )
    times = {round(flow.set_up_s, 9) for flow in run.lit_flows}
    if len(times) > 10:
        figures.append(
            draw(
                f"setup-{arm}",
                "From a flow's request to its light, over all flows of the run. Left: distribution. Right: "
                f"each flow at the time of its request. {how}",
                _set_up_times(run),
            )
        )
    return "".join(figures)


def _of_lines(grid: Grid) -> str:
    return " and the ".join(f"{line}'s" for line in lines(grid))


def _ports_said(grid: Grid) -> str:
    return "above the row port, below the column port. " if len(lines(grid)) > 1 else ""


def lit_steps(run: Run, job: JobRun, schedule: Schedule) -> tuple[int, list[list[Flow]]]:
    """An iteration of a job, and its flows by step.

    What a rank sends to one peer in one step is one flow, and flows to one peer keep their order; flows to
    different peers need not, as a later step may be ready first. The iteration is the one nearest to the
    middle of the run that was traced whole; (0, []) if none was.
    """
    wanted: dict[tuple[str, str], list[int]] = {}
    for step, rank, peer in sorted({(t.step, t.source, t.destination) for t in schedule.transfers}):
        wanted.setdefault((job.gpus[rank], job.gpus[peer]), []).append(step)
    flows: dict[str, list[Flow]] = {}
    for flow in run.lit_flows:
        flows.setdefault(flow.gpu, []).append(flow)
    middle = len(job.by_index) // 2
    for group in sorted(job.by_index, key=lambda group: abs(group[0].i - middle)):
        found: dict[tuple[str, str], list[Flow]] = {}
        for it in group:
            for flow in flows.get(job.gpus[it.rank], ()):
                if it.compute_end <= _asked(flow) and _lit(flow) < it.allreduce_end:
                    found.setdefault((flow.gpu, flow.peer), []).append(flow)
        if {pair: len(mine) for pair, mine in found.items()} == {p: len(mine) for p, mine in wanted.items()}:
            steps: list[list[Flow]] = [[] for _ in range(schedule.steps)]
            for pair, mine in found.items():
                for step, flow in zip(wanted[pair], sorted(mine, key=_asked), strict=True):
                    steps[step].append(flow)
            return group[0].i, [step for step in steps if step]
    return 0, []


def _asked(flow: Flow) -> float:
    assert flow.t_request is not None
    return flow.t_request


def _lit(flow: Flow) -> float:
    assert flow.t_lit is not None
    return flow.t_lit


def lit_steps_of_all(run: Run) -> tuple[int, list[list[Flow]]]:
    """As :func:`lit_steps` of the first job, with the same steps of all other jobs beside it."""
    index, steps = 0, list[list[Flow]]()
    for number, job in enumerate(job for job in run.jobs.values() if job.gpus and job.iterations):
        found, mine = lit_steps(run, job, schedule_of(steps_named(job.plan.collective, len(job.gpus))))
        if number == 0:
            index, steps = found, mine
        else:
            for step, more in zip(steps, mine, strict=False):
                step += more
    return index, steps


def _wave(flow: Flow) -> int:
    return flow.wavelength or 0


def _grid_steps(grid: Grid, steps: Sequence[Sequence[Flow]]) -> Figure:
    plane = bool(grid.row_switches and grid.column_switches)
    columns = min(4 if plane and grid.columns < 2 * grid.rows else 2, len(steps))
    rows = math.ceil(len(steps) / columns)
    # As high as the grid is, for its width: with its switches it is one row and one column larger.
    size = 9.0 / max(2, columns) * (grid.rows + 1) / (grid.columns + 1) if plane else 1.15
    figure, axes = sheet(
        size * rows + 0.55,
        rows=rows,
        columns=columns,
        left=0.05,
        right=0.05,
        top=0.5,
        bottom=0.05,
        gap=(0.1, 0.3),
    )
    colours = wavelength_colours(grid.wavelengths)
    began = min(_asked(flow) for flow in steps[0])
    for number, axis in enumerate(axis for line in axes for axis in line):
        axis.axis("off")
        if number >= len(steps):
            continue
        _fibres(axis, grid)
        for flow in steps[number]:
            _arrow(axis, grid, flow, colours[_wave(flow)])
        _nodes(axis, grid)
        first = min(1000 * (_lit(flow) - began) for flow in steps[number])
        axis.set_title(f"step {number + 1}, from {first:.1f} ms", fontsize=9, pad=2)
    used = sorted({_wave(flow) for step in steps for flow in step})
    legend(figure, [Line2D([], [], color=colours[k], linewidth=2, label=f"λ{k}") for k in used], columns=10)
    return figure


def _at(grid: Grid, node: str) -> tuple[float, float]:
    line, column = position(grid, node)
    return float(column), float(-line)


def _boxes(axis: Axes, centres: Sequence[tuple[float, float]], w: float, h: float, edge: str) -> None:
    rectangles = [Rectangle((x - w / 2, y - h / 2), w, h) for x, y in centres]
    axis.add_collection(
        PatchCollection(rectangles, facecolor=FACE, edgecolor=edge, linewidth=0.9, zorder=2.5)
    )


def _fibres(axis: Axes, grid: Grid) -> None:
    """Row switches at the left, column switches at the bottom, a fibre from each node to both."""
    margin = 0.62 if grid.columns <= 4 else 0.8
    small = 5.5 if max(grid.rows, grid.columns) > 2 else 6.5
    bottom = -(grid.rows - 1) - margin
    rows = [(-margin, -float(line)) for line in range(len(grid.row_switches))]
    columns = [(float(column), bottom) for column in range(len(grid.column_switches))]
    axis.hlines([y for _, y in rows], -margin, grid.columns - 1, color=RULE, linewidth=0.8, zorder=1)
    axis.vlines([x for x, _ in columns], bottom, 0, color=RULE, linewidth=0.8, zorder=1)
    _boxes(axis, [*rows, *columns], 0.34, 0.26, RULE)
    for places, letter in ((rows, "r"), (columns, "c")):
        for k, (x, y) in enumerate(places):
            axis.text(x, y, f"{letter}{k}", fontsize=small, ha="center", va="center", color=QUIET, zorder=4)
    axis.set_xlim(-margin - 0.3, grid.columns - 1 + 0.45)
    below = margin + 0.25 if grid.column_switches else 0.6
    axis.set_ylim(-(grid.rows - 1) - below, 0.45 if grid.column_switches else 0.6)
    axis.set_aspect("equal")


def _nodes(axis: Axes, grid: Grid) -> None:
    places = {node: _at(grid, node) for node in grid.nodes}
    _boxes(axis, list(places.values()), 0.4, 0.3, INK)
    for node, (x, y) in places.items():
        axis.text(x, y, node, ha="center", va="center", fontsize=7, zorder=5)


def _arrow(axis: Axes, grid: Grid, flow: Flow, colour: str) -> None:
    axis.add_patch(
        FancyArrowPatch(
            _at(grid, flow.gpu),
            _at(grid, flow.peer),
            connectionstyle="arc3,rad=0.28",
            arrowstyle="-|>",
            mutation_scale=7,
            shrinkA=8,
            shrinkB=9,
            linewidth=1.5,
            color=colour,
            zorder=3,
        )
    )


def _timelines(run: Run, grid: Grid, index: int) -> Figure:
    job = next(job for job in run.jobs.values() if job.iterations)
    its = next(group for group in job.by_index if group[0].i == index)
    begin, end = min(it.compute_end for it in its), max(it.allreduce_end for it in its)
    gpus = [gpu for one in run.jobs.values() for gpu in one.gpus][:_MOST_ONICS]
    colours = wavelength_colours(grid.wavelengths)
    figure, ((axis,),) = sheet(0.95 + 0.3 * len(gpus), left=0.45, top=0.35)
    bars: dict[str, list[tuple[float, float, float]]] = {}
    seen: set[int] = set()
    for flow in _shown(run, gpus, begin, end):
        y = gpus.index(flow.gpu) + (-0.2 if flow.port == 0 else 0.2)
        seen.add(_wave(flow))
        closed = end if flow.t_close is None else flow.t_close
        bars.setdefault(QUIET, []).append((y, _asked(flow) - begin, _lit(flow) - begin))
        bars.setdefault(colours[_wave(flow)], []).append((y, _lit(flow) - begin, closed - begin))
        if closed - _lit(flow) > 0.045 * (end - begin):
            middle = 1000 * ((_lit(flow) + closed) / 2 - begin)
            axis.text(middle, y, flow.peer, ha="center", va="center", fontsize=6, color="white", clip_on=True)
    _draw_bars(axis, bars)
    axis.set_yticks(range(len(gpus)), gpus, fontsize=8)
    axis.set_ylim(len(gpus) - 0.5, -0.5)
    vertical_grid(axis)
    axis.set_xlim(0, 1000 * (end - begin))
    axis.set_xlabel("milliseconds since the first rank's all-reduce began")
    handles = [Line2D([], [], color=QUIET, linewidth=5, label="set-up")]
    handles += [Line2D([], [], color=colours[k], linewidth=5, label=f"λ{k}") for k in sorted(seen)]
    legend(figure, handles, columns=10)
    return figure


def _shown(run: Run, gpus: Sequence[str], begin: float, end: float) -> Iterator[Flow]:
    for flow in run.lit_flows:
        if flow.gpu in gpus and begin - 0.001 <= _asked(flow) <= end:
            yield flow


def _draw_bars(axis: Axes, bars: Mapping[str, Sequence[tuple[float, float, float]]]) -> None:
    """All bars of one colour together: (row, from, to) in seconds."""
    for colour, found in bars.items():
        rectangles = [Rectangle((1000 * a, y - 0.17), 1000 * (b - a), 0.34) for y, a, b in found]
        axis.add_collection(PatchCollection(rectangles, facecolor=colour, linewidth=0))


def _set_up_times(run: Run) -> Figure:
    flows = run.lit_flows
    times = sorted(1000 * flow.set_up_s for flow in flows)
    figure, ((left, right),) = sheet(2.7, columns=2, gap=(0.7, 0))
    shares = [100 * (k + 1) / len(times) for k in range(len(times))]
    left.plot(times, shares, color=PALETTE[1], linewidth=1.8)
    left.set_xscale("log")
    plain_ticks(left.xaxis, times[0], times[-1])
    left.set_ylim(0, 101)
    left.set_xlabel("request to light, ms")
    left.set_ylabel("flows up to that, %")
    left.grid(axis="x", visible=True)
    for share, height in ((0.5, 22), (0.99, 4)):
        value = times[min(len(times) - 1, int(share * len(times)))]
        left.axvline(value, color=QUIET, linewidth=0.8, linestyle=":")
        said = f" p{100 * share:.0f} {value:.2f} ms"
        left.text(value, height, said, fontsize=7.5, color=QUIET)
    for waited, colour, label in (
        (False, PALETTE[2], "idle receiver"),
        (True, PALETTE[3], "stood in a queue"),
    ):
        chosen = [flow for flow in flows if flow.waited is waited]
        if chosen:
            right.plot(
                [_asked(flow) - run.released for flow in chosen],
                [1000 * flow.set_up_s for flow in chosen],
                linestyle="",
                marker="o",
                markersize=2,
                color=colour,
                label=label,
                rasterized=len(chosen) > 3000,
            )
    right.set_yscale("log")
    plain_ticks(right.yaxis, times[0], times[-1])
    right.set_xlabel("seconds since the release of the jobs")
    right.set_ylabel("request to light, ms")
    legend(figure)
    return figure
