"""What the ports of the compared jobs' NICs carried, and when their GPUs computed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis.fidelity import SERIES_STEP_S
from experiments.analysis.prediction import nic_rate_bps
from experiments.record.events import PortRate
from experiments.record.runs import JobRun, Run
from experiments.report.drawing import QUIET, job_colours
from experiments.report.report import Draw
from experiments.report.sheet import sheet
from experiments.report.view import View
from fabric.units import format_rate

ORDER = 30
NEEDS = ("jct",)
#: More comparisons than these would be a wall of pictures.
_MOST = 2


def wanted(view: View) -> bool:
    return bool(view.port_rates) and bool(pairs(view))


def render(view: View, draw: Draw) -> str:
    rates: dict[str, list[PortRate]] = {}
    for rate in view.port_rates:
        rates.setdefault(rate.run, []).append(rate)
    said = f" {view.says('throughput')}" if view.says("throughput") else ""
    figures = []
    for number, (name, job, runs) in enumerate(pairs(view)[:_MOST]):
        if not all(run.name in rates for run in runs):
            continue
        caption = (
            f"{runs[-1].plan.title} against {runs[0].plan.title}: mean over the GPUs of job {job}.{said} "
            "Thin: samples, ten a second; thick: moving average over two iterations. Throughput is what the "
            "packet switch received from the GPUs' ports; utilisation is the share of time in compute. "
            f"{view.label.capitalize()}, rates and seconds as emulated."
        )
        figures.append(draw(f"throughput-{name or number}", caption, _figure(job, runs, rates)))
    return f"<h2>Throughput and utilisation over time</h2>{''.join(figures)}"


def pairs(view: View) -> list[tuple[str | None, str, list[Run]]]:
    """The comparisons of arms that end with other circuits lit: name, job, and the first run of both arms."""
    found = []
    for spec in view.experiment.spec.compare:
        for one in view.compared(spec):
            runs = [view.first(spec.baseline), view.first(one.arm)]
            both = [run for run in runs if run is not None]
            job = spec.job or next(iter(both[0].jobs), "")
            if (
                one.arm in view.fixed
                and len(both) == 2
                and all(_has_circuits(run, job) for run in both)
                and lit(both[0]) != lit(both[1])
            ):
                found.append((spec.name, job, both))
    return found


def lit(run: Run) -> frozenset[frozenset[str]]:
    """The circuits that are lit at the end."""
    return frozenset(frozenset(pair) for pair in run.circuits)


def _has_circuits(run: Run, job: str) -> bool:
    fabric, mine = run.plan.setting.fabric, run.jobs.get(job)
    circuits = fabric.optical_switches and not fabric.grids and not fabric.rings
    return bool(circuits and mine is not None and mine.end is not None and mine.iterations)


def _figure(job: str, runs: Sequence[Run], rates: dict[str, list[PortRate]]) -> Figure:
    figure, (upper, lower) = sheet(4.1, rows=2, columns=2, left=0.72, gap=(0.25, 0.25), share=False, top=0.32)
    colour = job_colours(list(runs[0].jobs))[job]
    ends = [_end(run, job) for run in runs]
    limit = nic_rate_bps(runs[0].plan.setting, runs[0].jobs[job].gpus[0]) / 1e6
    for axis, below, run, end in zip(upper, lower, runs, ends, strict=True):
        mine = run.jobs[job]
        window_s = _window(mine)
        times, mean = mean_throughput(run, mine, rates[run.name])
        axis.plot(times, mean, color=colour, linewidth=0.6, alpha=0.45)
        axis.plot(times, smooth(times, mean, window_s), color=colour, linewidth=1.8)
        axis.axhline(limit, color=QUIET, linewidth=0.8, linestyle=":")
        axis.set_ylim(0, limit * 1.2)
        axis.set_title(f"{run.plan.title}, {end:.1f} s", fontsize=9)
        busy = utilisation(run, mine)
        times = [k * SERIES_STEP_S for k in range(len(busy))]
        below.fill_between(times, busy, color=colour, alpha=0.16, linewidth=0)
        below.plot(times, smooth(times, busy, window_s), color=colour, linewidth=1.8)
        below.set_ylim(0, 104)
        below.set_xlabel("seconds since the release of the jobs")
        for each in (axis, below):
            each.locator_params(nbins=6)
            each.axvline(end, color=QUIET, linewidth=0.9, linestyle=(0, (3, 2)))
            each.set_xlim(0, max(ends) * 1.06)
        axis.tick_params(labelbottom=False)
    _label(upper[0], limit, format_rate(limit * 1e6 * runs[0].plan.setting.scale.rate))
    upper[0].set_ylabel("throughput, Mbit/s")
    lower[0].set_ylabel("GPU utilisation, %")
    for axis in (upper[1], lower[1]):
        axis.tick_params(labelleft=False)
    return figure


def _label(axis: Axes, limit: float, real: str) -> None:
    axis.annotate(
        f"NIC: {limit:.0f} Mbit/s, stands for {real}",
        (0, limit),
        xycoords=("axes fraction", "data"),
        xytext=(4, 3),
        textcoords="offset points",
        fontsize=7.5,
        color=QUIET,
    )


def _end(run: Run, job: str) -> float:
    end = run.jobs[job].end
    assert end is not None
    return end - run.released


def _window(job: JobRun) -> float:
    """Seconds that the moving averages span: two iterations, so that single bursts do not show."""
    return max(1.0, 2 * statistics.median(it.allreduce_end - it.compute_start for it in job.iterations))


def mean_throughput(run: Run, job: JobRun, rates: Iterable[PortRate]) -> tuple[list[float], list[float]]:
    """Times (seconds since the release, ten a second) and mean Mbit/s that a GPU of the job sent."""
    end, gpus = _end(run, job.name), set(job.gpus)
    points: dict[int, dict[str | None, list[float]]] = {}
    for rate in rates:
        since = rate.t - run.released
        if rate.gpu in gpus and 0 <= since <= end:
            of_step = points.setdefault(int(since / SERIES_STEP_S), {})
            of_step.setdefault(rate.gpu, []).append(rate.rx_bps / 1e6)
    steps = sorted(points)
    mean = [statistics.fmean(statistics.fmean(v) for v in points[k].values()) for k in steps]
    return [k * SERIES_STEP_S for k in steps], mean


def utilisation(run: Run, job: JobRun) -> list[float]:
    """Per cent of each tenth of a second that the job's GPUs computed, from the release on: mean."""
    assert job.end is not None
    busy = [0.0] * (int((job.end - run.released) / SERIES_STEP_S) + 1)
    for it in job.iterations:
        start, end = it.compute_start - run.released, it.compute_end - run.released
        first = max(0, int(start / SERIES_STEP_S))
        for k in range(first, min(len(busy), int(end / SERIES_STEP_S) + 1)):
            inside = min(end, (k + 1) * SERIES_STEP_S) - max(start, k * SERIES_STEP_S)
            busy[k] += max(0.0, inside)
    return [min(100.0, 100 * b / SERIES_STEP_S / len(job.gpus)) for b in busy]


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
