"""Figures of a comparison, drawn from the run folder's data and nothing else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import MaxNLocator, NullLocator

from experiments.report.drawing import (
    FACE,
    INK,
    LIGHT,
    PALETTE,
    QUIET,
    RULE,
    STYLE,
    Plot,
    box,
    save,
    wavelength_colours,
)
from experiments.report.page import how_known
from fabric.collectives import Schedule, schedule_of
from fabric.grid import lines, position
from fabric.topology import Grid
from scenarios import ring_plots
from scenarios.comparison import Comparison, grid_of
from scenarios.comparison_results import compared_job, runs_on, slowest_iterations, trouble_window
from scenarios.records import Event, Iteration, Run

#: Most O-NICs whose timelines are drawn; the trace file has all.
MOST_TIMELINES = 16


def draw_all(
    comparison: Comparison, runs: Sequence[Run], result: Mapping[str, Any], folder: Path
) -> list[Plot]:
    """Draw every figure that the runs allow into ``folder`` (made if absent)."""
    folder.mkdir(parents=True, exist_ok=True)
    how = how_known(result).capitalize()
    drawn = []
    with matplotlib.rc_context(STYLE):
        if any(runs_on(runs, name) for name in comparison.settings):
            drawn.append(
                save(
                    _iterations(comparison, runs),
                    folder,
                    "iterations",
                    f"Duration of every iteration of the first run on each fabric, slowest rank. {how}.",
                )
            )
        for name, setting in comparison.settings.items():
            grid, mine = grid_of(setting.fabric), runs_on(runs, name)
            if grid is None or not mine or not mine[0].noted("flow"):
                continue
            index, steps = _lit_steps_of_all(mine[0], schedule_of(comparison.steps(name)))
            if steps:
                drawn += _light(comparison, name, grid, mine[0], index, steps, folder, how)
        drawn += ring_plots.draw(comparison, result, folder)
        drawn += _troubles(comparison, runs, folder)
        if result["sweep"]:
            drawn.append(
                save(
                    _sweep(comparison, result["sweep"]),
                    folder,
                    "sweep",
                    "Slowdown of the all-reduce against the same without set-ups (the line through the dots "
                    f"at 0), over the median time from request to light. Dots are {how.lower()}, lines are "
                    "1 + steps · set-up / (2 (P−1)/P · n/B), analytic, n the gradient and B the port's rate.",
                )
            )
    return drawn


def _light(
    comparison: Comparison,
    name: str,
    grid: Grid,
    run: Run,
    index: int,
    steps: Sequence[Sequence[Event]],
    folder: Path,
    how: str,
) -> list[Plot]:
    count = len(grid.nodes)
    drawn = [
        save(
            _grid_steps(grid, steps),
            folder,
            f"grid-{name}",
            f"Iteration {index + 1} of the run on {name}: the light of each step of the all-reduce, as the "
            f"O-NICs' agents recorded it. Thin lines are the fibres to the {_of_lines(grid)} WSS; an "
            f"arrow is a flow, its colour the wavelength. {how}.",
        ),
        save(
            _timelines(comparison, run, index, MOST_TIMELINES),
            folder,
            f"flows-{name}",
            f"The same iteration's all-reduce on every O-NIC{'' if count <= MOST_TIMELINES else ' (some)'}: "
            f"{_ports_said(grid)}Grey: from the request to the light; coloured: lit, "
            f"by wavelength. {how}; trace.json has all iterations.",
        ),
    ]
    if not run.simulated:
        # In a simulation they are alike.
        drawn.append(
            save(
                _set_up(run),
                folder,
                f"setup-{name}",
                "From a flow's request to its light, over all flows of the run. Left: distribution. Right: "
                f"each flow at the time of its request. {how}, in seconds of the emulation.",
            )
        )
    return drawn


def _of_lines(grid: Grid) -> str:
    return " and the ".join(f"{line}'s" for line in lines(grid))


def _ports_said(grid: Grid) -> str:
    return "above the row port, below the column port. " if len(lines(grid)) > 1 else ""


def lit_steps(run: Run, schedule: Schedule, name: str | None = None) -> tuple[int, list[list[Event]]]:
    """An iteration of a run's job (without ``name``, of the compared one), and its flows by step.

    What a rank sends to one peer in one step is one flow, and flows to one peer keep their order; flows to
    different peers need not, as a later step may be ready first. The iteration is the one nearest to the
    middle of the run that was traced whole; (0, []) if none was.
    """
    job = compared_job(run) if name is None else run.jobs[name]
    flows = run.noted("flow")
    wanted: dict[tuple[str, str], list[int]] = {}
    for step, rank, peer in sorted({(t.step, t.source, t.destination) for t in schedule.transfers}):
        wanted.setdefault((job.gpus[rank], job.gpus[peer]), []).append(step)
    by_index: dict[int, list[Iteration]] = {}
    for it in job.iterations:
        by_index.setdefault(it.index, []).append(it)
    middle = len(by_index) // 2
    for index in sorted(by_index, key=lambda i: abs(i - middle)):
        span = {job.gpus[it.rank]: (it.compute_end, it.end) for it in by_index[index]}
        found: dict[tuple[str, str], list[Event]] = {}
        for flow in flows:
            begin, end = span.get(flow["gpu"], (0.0, 0.0))
            if begin <= flow["t_request"] and flow["t_lit"] < end:
                found.setdefault((flow["gpu"], flow["peer"]), []).append(flow)
        if {pair: len(mine) for pair, mine in found.items()} == {p: len(mine) for p, mine in wanted.items()}:
            steps: list[list[Event]] = [[] for _ in range(schedule.steps)]
            for pair, mine in found.items():
                ordered = sorted(mine, key=lambda flow: float(flow["t_request"]))
                for step, flow in zip(wanted[pair], ordered, strict=True):
                    steps[step].append(flow)
            return index, [step for step in steps if step]
    return 0, []


def _lit_steps_of_all(run: Run, schedule: Schedule) -> tuple[int, list[list[Event]]]:
    """As :func:`lit_steps` of the compared job, with the same steps of all other jobs beside it."""
    index, steps = lit_steps(run, schedule)
    for name in [*run.jobs][1:]:
        for mine, more in zip(steps, lit_steps(run, schedule, name)[1], strict=False):
            mine += more
    return index, steps


# --- the grid -------------------------------------------------------------------------------------


def _grid_steps(grid: Grid, steps: Sequence[Sequence[Event]]) -> Figure:
    plane = bool(grid.row_switches and grid.column_switches)
    columns = min(4 if plane else 2, len(steps))
    rows = math.ceil(len(steps) / columns)
    size = 2.35 if plane else 1.15
    figure = Figure(figsize=(9.2, size * rows + 0.55), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    colours = wavelength_colours(grid.wavelengths)
    used: set[int] = set()
    began = min(float(flow["t_request"]) for flow in steps[0])
    for number, axis in enumerate(axes.flat):
        axis.axis("off")
        if number >= len(steps):
            continue
        _fibres(axis, grid)
        for flow in steps[number]:
            used.add(flow["wavelength"])
            _arrow(axis, grid, flow, colours[flow["wavelength"]])
        _nodes(axis, grid)
        lit = [1000 * (float(flow["t_lit"]) - began) for flow in steps[number]]
        axis.set_title(f"step {number + 1}, from {min(lit):.1f} ms", fontsize=9)
    handles = [Line2D([], [], color=colours[k], linewidth=2, label=f"λ{k}") for k in sorted(used)]
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), fontsize=8)
    return figure


def _at(grid: Grid, node: str) -> tuple[float, float]:
    row, column = position(grid, node)
    return float(column), float(-row)


def _fibres(axis: Axes, grid: Grid) -> None:
    """Row switches at the left, column switches at the bottom, a fibre from each node to both."""
    margin = 0.62 if grid.columns <= 4 else 0.8
    small = 5.5 if max(grid.rows, grid.columns) > 2 else 6.5
    for row in range(len(grid.row_switches)):
        axis.plot([-margin, grid.columns - 1], [-row, -row], color=RULE, linewidth=0.8, zorder=1)
        box(axis, -margin - 0.17, -row - 0.13, 0.34, 0.26, FACE, RULE)
        axis.text(-margin, -row, f"r{row}", fontsize=small, ha="center", va="center", color=QUIET, zorder=4)
    for column in range(len(grid.column_switches)):
        bottom = -(grid.rows - 1) - margin
        axis.plot([column, column], [0, bottom], color=RULE, linewidth=0.8, zorder=1)
        box(axis, column - 0.17, bottom - 0.13, 0.34, 0.26, FACE, RULE)
        axis.text(
            column, bottom, f"c{column}", fontsize=small, ha="center", va="center", color=QUIET, zorder=4
        )
    axis.set_xlim(-margin - 0.3, grid.columns - 1 + 0.45)
    below = margin + 0.25 if grid.column_switches else 0.6
    axis.set_ylim(-(grid.rows - 1) - below, 0.45 if grid.column_switches else 0.6)
    axis.set_aspect("equal")


def _nodes(axis: Axes, grid: Grid) -> None:
    for node in grid.nodes:
        x, y = _at(grid, node)
        box(axis, x - 0.2, y - 0.15, 0.4, 0.3, FACE, INK)
        axis.text(x, y, node, ha="center", va="center", fontsize=7, zorder=5)


def _arrow(axis: Axes, grid: Grid, flow: Event, colour: str) -> None:
    axis.add_patch(
        FancyArrowPatch(
            _at(grid, flow["gpu"]),
            _at(grid, flow["peer"]),
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


# --- flows ----------------------------------------------------------------------------------------


def _timelines(comparison: Comparison, run: Run, index: int, most: int) -> Figure:
    job = compared_job(run)
    its = [it for it in job.iterations if it.index == index]
    begin = min(it.compute_end for it in its)
    end = max(it.end for it in its)
    gpus = tuple(gpu for one in run.jobs.values() for gpu in one.gpus)[:most]
    wavelengths = max(grid.wavelengths for grid in comparison.settings[run.case].fabric.grids.values())
    colours = wavelength_colours(wavelengths)
    figure = Figure(figsize=(9.2, 0.9 + 0.3 * len(gpus)), layout="constrained")
    axis = figure.subplots()
    seen: set[int] = set()
    for flow in run.noted("flow"):
        if flow["gpu"] not in gpus or not begin - 0.001 <= flow["t_request"] <= end:
            continue
        y = gpus.index(flow["gpu"]) + (-0.2 if flow["port"] == 0 else 0.2)
        seen.add(flow["wavelength"])
        for start, stop, colour in (
            (flow["t_request"], flow["t_lit"], QUIET),
            (flow["t_lit"], flow["t_close"], colours[flow["wavelength"]]),
        ):
            axis.barh(
                y, 1000 * (stop - start), left=1000 * (start - begin), height=0.34, color=colour, linewidth=0
            )
        middle = 1000 * ((flow["t_lit"] + flow["t_close"]) / 2 - begin)
        if flow["t_close"] - flow["t_lit"] > 0.045 * (end - begin):
            axis.text(
                middle, y, flow["peer"], ha="center", va="center", fontsize=6, color="white", clip_on=True
            )
    axis.set_yticks(range(len(gpus)), gpus, fontsize=8)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.grid(axis="x", visible=True)
    axis.set_xlim(0, 1000 * (end - begin))
    axis.set_xlabel("milliseconds since the first rank's all-reduce began")
    handles = [Line2D([], [], color=QUIET, linewidth=5, label="set-up")]
    handles += [Line2D([], [], color=colours[k], linewidth=5, label=f"λ{k}") for k in sorted(seen)]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize=8)
    return figure


def _plain_ticks(axis: Any, lowest: float, highest: float) -> None:
    """Ticks of a logarithmic axis (``axes.xaxis`` or ``yaxis``) at 1, 2, 5, … written as plain numbers."""
    ticks = [m * 10.0**e for e in range(-4, 6) for m in (1, 2, 5)]
    axis.set_ticks([t for t in ticks if lowest * 0.7 <= t <= highest * 1.4])
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def _set_up(run: Run) -> Figure:
    flows = run.noted("flow")
    times = sorted(1000 * (flow["t_lit"] - flow["t_request"]) for flow in flows)
    figure = Figure(figsize=(9.2, 2.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(times, [100 * (k + 1) / len(times) for k in range(len(times))], color=PALETTE[1], linewidth=1.8)
    left.set_xscale("log")
    _plain_ticks(left.xaxis, times[0], times[-1])
    left.set_ylim(0, 101)
    left.set_xlabel("request to light, ms")
    left.set_ylabel("flows up to that, %")
    left.grid(axis="x", visible=True)
    for share in (0.5, 0.99):
        value = times[min(len(times) - 1, int(share * len(times)))]
        left.axvline(value, color=QUIET, linewidth=0.8, linestyle=":")
        left.annotate(
            f"p{100 * share:.0f} {value:.2f} ms",
            (value, 4 if share > 0.6 else 22),
            xytext=(3, 0),
            textcoords="offset points",
            fontsize=7.5,
            color=QUIET,
        )
    for waited, colour, label in (
        (False, PALETTE[2], "idle receiver"),
        (True, PALETTE[3], "stood in a queue"),
    ):
        chosen = [flow for flow in flows if flow["waited"] is waited]
        if chosen:
            right.plot(
                [flow["t_request"] - run.released for flow in chosen],
                [1000 * (flow["t_lit"] - flow["t_request"]) for flow in chosen],
                linestyle="",
                marker="o",
                markersize=2,
                color=colour,
                label=label,
            )
    right.set_yscale("log")
    _plain_ticks(right.yaxis, times[0], times[-1])
    right.set_xlabel("seconds since the start of the job")
    right.set_ylabel("request to light, ms")
    figure.legend(fontsize=8, loc="outside upper right", ncols=2)
    return figure


def _colours() -> Iterator[str]:
    """For as many curves as there are."""
    return itertools.cycle(PALETTE[1:])


# --- iterations -----------------------------------------------------------------------------------


def _iterations(comparison: Comparison, runs: Sequence[Run]) -> Figure:
    figure = Figure(figsize=(9.2, 2.6), layout="constrained")
    axis = figure.subplots()
    lowest = math.inf
    highest = 0.0
    few = len(comparison.settings) <= 3
    for colour, name in zip(_colours(), comparison.settings, strict=False):
        mine = runs_on(runs, name)
        if not mine:
            continue
        spans = [1000 * (it.end - it.start) for it in slowest_iterations(compared_job(mine[0]))]
        axis.plot(
            range(1, len(spans) + 1),
            spans,
            color=colour,
            marker="o",
            markersize=3,
            linewidth=1.2,
            label=f"{name}: {comparison.spec.fabrics[name].title}" if few else name,
        )
        lowest, highest = min(lowest, *spans), max(highest, *spans)
    floor = 1000 * comparison.compute_s
    axis.axhline(floor, color=QUIET, linewidth=0.8, linestyle=":")
    axis.annotate(
        "compute alone", (1, floor), xytext=(0, 3), textcoords="offset points", fontsize=7.5, color=QUIET
    )
    axis.set_ylim(floor - 0.1 * (highest - floor), highest + 0.15 * (highest - floor))
    axis.set_xlabel("iteration")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylabel("ms")
    figure.legend(fontsize=8, loc="outside upper right", ncols=len(comparison.settings))
    return figure


def _troubles(comparison: Comparison, runs: Sequence[Run], folder: Path) -> list[Plot]:
    drawn = []
    for run in runs:
        if run.kind != "trouble" or run.variant is None:
            continue
        spec = comparison.spec.trouble[run.variant]
        window = trouble_window(run, spec)
        figure = Figure(figsize=(9.2, 2.3), layout="constrained")
        axis = figure.subplots()
        each = slowest_iterations(compared_job(run))
        axis.plot(
            [it.end - run.released for it in each],
            [1000 * (it.end - it.start) for it in each],
            color=PALETTE[1],
            marker="o",
            markersize=3,
            linewidth=1.2,
        )
        if window is not None:
            axis.axvspan(
                window[0] - run.released, window[1] - run.released, color=LIGHT, alpha=0.35, linewidth=0
            )
            axis.axvline(window[0] - run.released, color=LIGHT, linewidth=1.4)
        axis.set_ylim(0, 1200 * max(it.end - it.start for it in each))
        axis.set_xlim(0)
        axis.set_xlabel("seconds since the start of the job")
        axis.set_ylabel("iteration, ms")
        drawn.append(
            save(
                figure,
                folder,
                f"trouble-{run.variant}",
                f"{spec.title}: duration of every iteration, at the time it ended; shaded while it was away. "
                "Measured.",
            )
        )
    return drawn


# --- the sweep ------------------------------------------------------------------------------------


def _sweep(comparison: Comparison, sweep: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(9.2, 4.0), layout="constrained")
    axis = figure.subplots()
    points = sweep["points"]
    furthest = max(point["setup_ms"] for point in points)
    nearest = min(entry["setup_ms"] for entry in (*points, *sweep["break_even"]))
    markers = "os^Dv*"
    tunings = sorted({point["real"]["tuning_s"] for point in points})
    for colour, (size, group) in zip(
        _colours(), itertools.groupby(points, key=lambda p: p["real"]["gradient_bytes"]), strict=False
    ):
        mine = list(group)
        for marker, tuning in zip(itertools.cycle(markers), tunings, strict=False):
            chosen = [point for point in mine if point["real"]["tuning_s"] == tuning]
            axis.plot(
                [point["setup_ms"] for point in chosen],
                [point["slowdown"] for point in chosen],
                linestyle="",
                marker=marker,
                markersize=4.5,
                color=colour,
            )
        furthest_point = max(mine, key=lambda p: float(p["setup_ms"]))
        slope = (furthest_point["analytic_slowdown"] - 1) / furthest_point["setup_ms"]
        line = [nearest / 2 * (2 * furthest * 1.2 / nearest) ** (k / 80) for k in range(81)]
        axis.plot(line, [1 + slope * x for x in line], color=colour, linewidth=1.1)
        found = next(b for b in sweep["break_even"] if b["real_gradient_bytes"] == size)
        axis.plot([found["setup_ms"]], [sweep["tolerance"]], marker="x", markersize=8, color=colour, zorder=5)
    axis.axhline(sweep["tolerance"], color=QUIET, linewidth=0.9, linestyle=(0, (3, 2)))
    axis.annotate(
        f"slowdown {sweep['tolerance']:g}",
        (nearest / 2, sweep["tolerance"]),
        xytext=(2, 3),
        textcoords="offset points",
        fontsize=7.5,
        color=QUIET,
    )
    axis.set_xscale("log")
    _plain_ticks(axis.xaxis, nearest / 2, furthest * 1.2)
    axis.set_yscale("log")
    highest = max(point["slowdown"] for point in points)
    near = (1.02, 1.05, 1.1) if highest < 1.6 else ()
    ticks = [t for t in (1, *near, 1.2, 1.5, 2, 3, 5, 10, 20) if t < 1.3 * highest]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("median set-up of a flow, request to light, ms (emulated)")
    axis.set_ylabel("slowdown of the all-reduce")
    axis.grid(axis="x", visible=True)
    scale = comparison.time_scale
    real_time: Any = (lambda x: x / scale, lambda x: x * scale)
    second = axis.secondary_xaxis("top", functions=real_time)
    _plain_ticks(second.xaxis, nearest / 2 / scale, furthest * 1.2 / scale)
    second.set_xlabel("which stands for, ms (real)", fontsize=8)
    sizes = list(dict.fromkeys(point["real"]["gradient_bytes"] for point in points))
    handles = [
        Line2D([], [], color=colour, linewidth=2, label=f"{size / 1e6:g} MB gradient")
        for colour, size in zip(_colours(), sizes, strict=False)
    ]
    handles += [
        Line2D([], [], color=QUIET, linestyle="", marker=marker, label=f"tuning {_short_time(tuning)} (real)")
        for marker, tuning in zip(itertools.cycle(markers), tunings, strict=False)
    ]
    axis.legend(handles=handles, fontsize=8, loc="upper left")
    return figure


def _short_time(seconds: float) -> str:
    return f"{1e9 * seconds:g} ns" if seconds < 1e-6 else f"{1000 * seconds:g} ms"
