"""Figures of a regrouping run, drawn from the run folder's data and nothing else."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve

from experiments.report.drawing import FACE, INK, LIGHT, QUIET, RULE, STYLE, Plot, box, job_colours, save
from fabric.topology import Port, optical_neighbour
from fabric.units import format_rate
from scenarios.fidelity import SERIES_STEP_S
from scenarios.records import JobRun, Run
from scenarios.results import (
    beacon_gaps,
    dark_intervals,
    light_window,
    moved_gpus,
    phases,
    regroup_window,
    utilisation_series,
)
from scenarios.schema import Scenario


def draw_all(
    scenario: Scenario, runs: Sequence[Run], series: Sequence[Mapping[str, Any]], folder: Path
) -> list[Plot]:
    """Draw every figure that the runs allow into ``folder`` (made if absent)."""
    folder.mkdir(parents=True, exist_ok=True)
    plots = []
    with matplotlib.rc_context(STYLE):
        for name, case in scenario.spec.cases.items():
            pair = {run.placement: run for run in reversed(runs) if run.kind == "case" and run.case == name}
            if {"fragmented", "regrouped"} <= pair.keys():
                both = [pair["fragmented"], pair["regrouped"]]
                caption = f"Case {name}, {case.title[0].lower()}{case.title[1:]}"
                plots.append(
                    save(
                        _topology(scenario, both),
                        folder,
                        f"topology-{name}",
                        f"{caption}: the light before and after regrouping. Coloured lines are circuits of "
                        "the job of that colour; a thick link between the packet switches carries rings.",
                    )
                )
                plots.append(
                    save(
                        _figure3(scenario, case.watched, both, series),
                        folder,
                        f"figure3-{name}",
                        f"{caption}: mean per GPU of the {case.watched} job.{_said(scenario)} "
                        "Thin: 10 Hz samples; thick: moving average. Throughput is what the switch port "
                        "received from the container, at emulated rate.",
                    )
                )
        live = next((run for run in runs if run.kind == "live" and run.regroup), None)
        if live is not None:
            plots.append(
                save(
                    _live(scenario, live),
                    folder,
                    "live-regroup",
                    "Regrouping while both jobs train. Above: duration of every iteration, at the time it "
                    "ended. Below: the regroup itself; time 0 is its first step.",
                )
            )
    return plots


def _said(scenario: Scenario) -> str:
    paper = scenario.spec.paper
    return f" {paper.says['series']}" if paper is not None and "series" in paper.says else ""


# --- throughput and utilisation -------------------------------------------------------------------


def _figure3(
    scenario: Scenario, watched: str, runs: Sequence[Run], series: Sequence[Mapping[str, Any]]
) -> Figure:
    figure = Figure(figsize=(9.2, 4.3), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey="row")
    colour = job_colours(list(runs[0].jobs))[watched]
    longest = max(run.jobs[watched].end - run.released for run in runs)
    for column, run in enumerate(runs):
        end = run.jobs[watched].end - run.released
        _throughput(axes[0][column], scenario, run, watched, series, colour, labelled=column == 0)
        _utilisation(axes[1][column], run, watched, colour)
        axes[0][column].set_title(f"{run.placement}, {end:.1f} s")
        for axis in (axes[0][column], axes[1][column]):
            axis.axvline(end, color=QUIET, linewidth=0.9, linestyle=(0, (3, 2)))
        axes[1][column].set_xlabel("seconds since the start of both jobs")
    axes[0][0].set_xlim(0, longest * 1.06)
    axes[0][0].set_ylabel("throughput, Mbit/s")
    axes[1][0].set_ylabel("GPU utilisation, %")
    axes[1][0].set_ylim(0, 104)
    figure.align_ylabels()
    return figure


def _throughput(
    axis: Axes,
    scenario: Scenario,
    run: Run,
    job: str,
    series: Sequence[Mapping[str, Any]],
    colour: str,
    labelled: bool,
) -> None:
    gpus = run.jobs[job].gpus
    times, mean = mean_throughput(run, job, series)
    limit = scenario.fabric.link_at[Port(gpus[0], 0)].rate_bps / scenario.rate_scale / 1e6
    axis.plot(times, mean, color=colour, linewidth=0.6, alpha=0.45)
    axis.plot(times, smooth(times, mean, _window(run.jobs[job])), color=colour, linewidth=1.8)
    axis.axhline(limit, color=QUIET, linewidth=0.8, linestyle=":")
    if labelled:
        real = format_rate(limit * 1e6 * scenario.rate_scale)
        axis.annotate(
            f"NIC: {limit:.0f} Mbit/s, stands for {real}",
            (0, limit),
            xycoords=("axes fraction", "data"),
            xytext=(4, 3),
            textcoords="offset points",
            fontsize=7.5,
            color=QUIET,
        )
    axis.set_ylim(0, limit * 1.2)


def mean_throughput(
    run: Run, job: str, series: Sequence[Mapping[str, Any]], step_s: float = SERIES_STEP_S
) -> tuple[list[float], list[float]]:
    """Times (seconds since the release, every ``step_s``) and mean Mbit/s that a GPU of the job sent."""
    points: dict[int, dict[str, list[float]]] = {}
    for sample in series:
        since = sample["t"] - run.released
        if (
            sample.get("run") == run.name
            and sample.get("gpu") in run.jobs[job].gpus
            and 0 <= since <= run.jobs[job].end - run.released
        ):
            per_gpu = points.setdefault(int(since / step_s), {})
            per_gpu.setdefault(sample["gpu"], []).append(sample["rx_bps"] / 1e6)
    steps = sorted(points)
    mean = [statistics.mean(statistics.mean(v) for v in points[k].values()) for k in steps]
    return [k * step_s for k in steps], mean


def _utilisation(axis: Axes, run: Run, job: str, colour: str) -> None:
    points: dict[float, list[float]] = {}
    for row in utilisation_series(run):
        if row["job"] == job:
            points.setdefault(row["t"], []).append(100 * row["utilisation"])
    times = sorted(points)
    mean = [statistics.mean(points[t]) for t in times]
    axis.fill_between(times, mean, color=colour, alpha=0.16, linewidth=0)
    axis.plot(times, smooth(times, mean, _window(run.jobs[job])), color=colour, linewidth=1.8)


def _window(job: JobRun) -> float:
    """Seconds that the moving averages span: two iterations, so that single bursts do not show."""
    return max(1.0, 2 * statistics.median(it.end - it.start for it in job.iterations))


def smooth(times: Sequence[float], values: Sequence[float], window_s: float) -> list[float]:
    """Mean of the values within half a window either side of each time (``times`` ascending, seconds)."""
    result, first, last, total = [], 0, 0, 0.0
    for t in times:
        while last < len(times) and times[last] <= t + window_s / 2:
            total += values[last]
            last += 1
        while times[first] < t - window_s / 2:
            total -= values[first]
            first += 1
        result.append(total / (last - first))
    return result


# --- topology -------------------------------------------------------------------------------------


def _topology(scenario: Scenario, runs: Sequence[Run]) -> Figure:
    figure = Figure(figsize=(9.2, 3.9), layout="constrained")
    axes = figure.subplots(1, 2)
    before = {frozenset(c) for c in runs[0].circuits}
    for axis, run in zip(axes, runs, strict=True):
        _draw_fabric(axis, scenario, run, before)
    return figure


def _spread(names: Sequence[str], width: float) -> dict[str, float]:
    return {name: width * (i + 0.5) / len(names) for i, name in enumerate(names)}


def _draw_fabric(axis: Axes, scenario: Scenario, run: Run, before: set[frozenset[str]]) -> None:
    """GPUs below in their servers, optical switches in the middle, packet switches above."""
    fabric = scenario.fabric
    width = 10.0
    high, top, bottom, low = 6.4, 4.7, 3.3, 1.4
    gpus = _spread(list(fabric.gpus), width)
    switches = _spread(list(fabric.packet_switches), width)
    optical = _spread(list(fabric.optical_switches), width)
    half = width / max(1, len(optical)) / 2 - 0.3
    ports = _faceplates(scenario, gpus, switches, optical, half)
    colours = job_colours(list(run.jobs))
    owner = {gpu: name for name, job in run.jobs.items() for gpu in job.gpus}

    for name, x in optical.items():
        box(axis, x - half, bottom, 2 * half, top - bottom, FACE, RULE)
        axis.text(x - half + 0.2, (top + bottom) / 2, name, color=QUIET, fontsize=8, va="center")
    place = {gpu: (x, low + 0.25) for gpu, x in gpus.items()}
    spots: dict[Port, tuple[float, float]] = {Port(gpu, 0): spot for gpu, spot in place.items()}
    for name, switch in fabric.packet_switches.items():
        facing = [
            p for n in range(1, switch.ports + 1) if optical_neighbour(fabric, p := Port(name, n)) is not None
        ]
        for i, port in enumerate(facing):
            spots[port] = (switches[name] + (i - (len(facing) - 1) / 2) * 0.62, high - 0.3)
    heights = {port: (bottom if port.node in gpus else top) for port in spots}

    for port, (x, y) in spots.items():
        face = optical_neighbour(fabric, port)
        if face is not None:
            axis.plot([x, ports[face]], [y, heights[port]], color=RULE, linewidth=0.9, zorder=1)
    for a, b in run.circuits:
        first, second = Port.parse(a), Port.parse(b)
        job = owner.get(first.node) or owner.get(second.node)
        colour = colours[job] if job else QUIET
        new = frozenset((a, b)) not in before
        _light(axis, spots, ports, heights, scenario, first, second, colour, new)

    _servers(axis, scenario, gpus, low)
    for gpu, (x, y) in place.items():
        colour = colours.get(owner.get(gpu, ""), QUIET)
        box(axis, x - 0.45, y - 0.55, 0.9, 0.55, colour, colour)
        axis.text(x, y - 0.29, gpu, color="white", ha="center", va="center", fontsize=9, weight="bold")
    crossing = ring_edges_crossing(run)
    names = list(fabric.packet_switches)
    for link in fabric.links:
        if link.a.node in switches and link.b.node in switches:
            x0, x1 = sorted((switches[link.a.node], switches[link.b.node]))
            axis.plot([x0, x1], [high] * 2, color=INK, linewidth=1 + 1.6 * crossing, zorder=2)
            rate = format_rate(link.rate_bps / scenario.rate_scale)
            said = f"{crossing} ring edges each way" if crossing else "no ring crosses"
            axis.text((x0 + x1) / 2, high + 0.42, f"{rate}, {said}", ha="center", fontsize=8)
    for name in names:
        box(axis, switches[name] - 1.35, high - 0.3, 2.7, 0.6, FACE, INK)
        axis.text(switches[name], high, name, ha="center", va="center", fontsize=9)
    axis.set_title(f"{run.placement}")
    axis.set_xlim(-0.1, width + 0.1)
    axis.set_ylim(-0.05, high + 0.9)
    axis.axis("off")


def _faceplates(
    scenario: Scenario,
    gpus: Mapping[str, float],
    switches: Mapping[str, float],
    optical: Mapping[str, float],
    half: float,
) -> dict[Port, float]:
    """Horizontal place of every plugged faceplate port: GPU side and packet-switch side apart."""
    places: dict[Port, float] = {}
    for name, centre in optical.items():
        for side in (gpus, switches):
            faces = sorted(
                near
                for link in scenario.fabric.links
                for near, far in ((link.a, link.b), (link.b, link.a))
                if near.node == name and far.node in side
            )
            for i, face in enumerate(faces):
                # Room is left at one end for the switch's name.
                places[face] = centre - half + 0.9 + (2 * half - 0.9) * (i + 0.5) / len(faces)
    return places


def _light(
    axis: Axes,
    spots: Mapping[Port, tuple[float, float]],
    ports: Mapping[Port, float],
    heights: Mapping[Port, float],
    scenario: Scenario,
    first: Port,
    second: Port,
    colour: str,
    new: bool,
) -> None:
    """One circuit: fibre, a curve through the optical switch, fibre; a moved one has a halo."""
    near = optical_neighbour(scenario.fabric, first)
    far = optical_neighbour(scenario.fabric, second)
    if near is None or far is None:
        return
    (x0, y0), (x3, y3) = spots[first], spots[second]
    x1, y1, x2, y2 = ports[near], heights[first], ports[far], heights[second]
    middle = (y1 + y2) / 2
    curve = Curve(
        [(x0, y0), (x1, y1), (x1, middle), (x2, middle), (x2, y2), (x3, y3)],
        [Curve.MOVETO, Curve.LINETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4, Curve.LINETO],
    )
    if new:
        axis.add_patch(PathPatch(curve, fill=False, edgecolor=LIGHT, linewidth=6.5, alpha=0.4, zorder=2.8))
    axis.add_patch(PathPatch(curve, fill=False, edgecolor=colour, linewidth=1.9, zorder=3))
    axis.plot([x1, x2], [y1, y2], linestyle="", marker="o", markersize=3.2, color=colour, zorder=4)


def _servers(axis: Axes, scenario: Scenario, gpus: Mapping[str, float], low: float) -> None:
    for name, server in scenario.spec.fabric.servers.items():
        xs = [gpus[gpu] for gpu in server.gpus]
        box(axis, min(xs) - 0.62, low - 1.02, max(xs) - min(xs) + 1.24, 1.42, "none", RULE)
        axis.text(
            (min(xs) + max(xs)) / 2, low - 0.72, name, ha="center", va="center", fontsize=8, color=QUIET
        )


def ring_edges_crossing(run: Run) -> int:
    """Ring edges of all jobs whose two GPUs hang on different packet switches, per direction (ceiling)."""
    switch_of = {}
    for a, b in run.circuits:
        first, second = Port.parse(a), Port.parse(b)
        switch_of[first.node], switch_of[second.node] = second.node, first.node
    crossing = 0
    for job in run.jobs.values():
        ring = [switch_of.get(gpu) for gpu in job.gpus]
        crossing += sum(a != b for a, b in zip(ring, ring[1:] + ring[:1], strict=True))
    return math.ceil(crossing / 2)


#: The controller's phases by the name of the moment that ends them.
_STEPS = {
    "planned": "plan",
    "light_removed": "remove light",
    "rules_written": "write rules",
    "light_added": "add light",
    "verified": "verify",
}

# --- the live regroup -----------------------------------------------------------------------------


def _live(scenario: Scenario, run: Run) -> Figure:
    assert run.regroup is not None
    regroup = run.regroup["regroup"]
    begin, end = regroup_window(regroup)
    colours = job_colours(list(run.jobs))
    figure = Figure(figsize=(9.2, 5.6), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=(1, 1.5))
    for name, job in run.jobs.items():
        by_index: dict[int, list[Any]] = {}
        for it in job.iterations:
            by_index.setdefault(it.index, []).append(it)
        ends = [max(it.end for it in group) - run.released for group in by_index.values()]
        spans = [max(it.end - it.start for it in group) for group in by_index.values()]
        upper.plot(ends, spans, color=colours[name], marker="o", markersize=3, linewidth=1.2, label=name)
    upper.axvspan(begin - run.released, end - run.released, color=LIGHT, alpha=0.5, linewidth=0)
    upper.axvline(begin - run.released, color=LIGHT, linewidth=1.4)
    upper.set_ylim(0)
    upper.set_xlim(0)
    upper.set_ylabel("iteration, s")
    upper.set_xlabel("seconds since the start of both jobs")
    upper.set_title("Iteration time; the bar marks the regroup")
    upper.legend(loc="upper right", ncols=len(run.jobs))
    _regroup_rows(lower, run, regroup, begin, end)
    return figure


def _regroup_rows(axis: Axes, run: Run, regroup: Mapping[str, Any], begin: float, end: float) -> None:
    """Controller phases, dark cross-connects, beacon gaps, all on one millisecond axis."""
    moved = moved_gpus(regroup)
    rows: list[tuple[str, float, float, str]] = []
    for (before, t), (name, reached) in itertools.pairwise(phases(regroup)):
        # The plan is checked once more on the switches' own reading; only the first one is of interest.
        if name in _STEPS and before != "start":
            rows.append((_STEPS[name], t, reached, QUIET))
    dark = dark_intervals(regroup)
    if dark:
        _, off, lit = max(dark, key=lambda entry: entry[2] - entry[1])
        label = "dark on the wire" if len(dark) == 1 else f"dark on the wire, longest of {len(dark)}"
        rows.append((label, off, lit, LIGHT))
    colours = job_colours(list(run.jobs))
    longest: dict[str, dict[str, Any]] = {}
    for gap in beacon_gaps(run, moved, light_window(regroup)):
        longest.setdefault(f"no beacon {gap['from']} → {gap['to']}", gap)
    for label, gap in list(longest.items())[:8]:
        rows.append((label, gap["t_start"], gap["t_end"], colours[gap["job"]]))
    for y, (_, start, stop, colour) in enumerate(rows):
        axis.barh(y, 1000 * (stop - start), left=1000 * (start - begin), height=0.62, color=colour)
        axis.annotate(
            f"{1000 * (stop - start):.1f} ms",
            (1000 * (stop - begin), y),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            color=QUIET,
        )
    axis.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=8)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.grid(axis="x", visible=True)
    axis.margins(x=0.12)
    axis.set_xlim(left=min(0.0, *(1000 * (row[1] - begin) for row in rows)))
    axis.set_xlabel("milliseconds since the regroup's first step")
    axis.set_title("The regroup, step by step")
