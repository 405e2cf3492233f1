"""Draw the traffic of the compared jobs' NICs, and when their GPUs computed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ringlight.experiments.analysis.machine_faults import SERIES_STEP_S
from ringlight.experiments.analysis.prediction import nic_rate_bps
from ringlight.experiments.record.lab_records import PortRate
from ringlight.experiments.record.runs import JobRun, Run
from ringlight.experiments.report.charts import note, sheet
from ringlight.experiments.report.drawing import QUIET, job_colours
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.sections.lit_circuits import relit_pairs
from ringlight.experiments.report.view import Draw, View
from ringlight.fabric.units import format_rate

#: More comparisons than these would be a wall of pictures.
_MOST = 2


Numbers = NDArray[Any]


Series = tuple[Numbers, Numbers]


@section(4, "Throughput and utilisation over time", needs=("jct",))
def throughput(view: View, draw: Draw) -> str:
    """Return HTML that shows throughput and utilisation of arms that end with different circuits lit, if
    they were sampled."""
    sampled = {rate.run for rate in view.port_rates}
    pairs = [
        both
        for both in relit_pairs(view)
        if sampled.issuperset(run.name for run in both[2])
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
