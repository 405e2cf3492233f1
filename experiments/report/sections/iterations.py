"""How long each iteration took, arm beside arm."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.record.runs import JobRun, Run
from experiments.report.drawing import PALETTE, QUIET
from experiments.report.page import text
from experiments.report.report import Draw
from experiments.report.sheet import legend, sheet
from experiments.report.view import View

ORDER = 25
NEEDS = ("iteration",)
#: Arms, or jobs of the only one, beyond these are left out of the picture.
_MOST = 8


def wanted(view: View) -> bool:
    return bool(view.fixed)


def render(view: View, draw: Draw) -> str:
    lines = list(_lines(view))
    left_out = "" if len(lines) <= _MOST else f" The first {_MOST} of {len(lines)}."
    caption = (
        f"Duration of every iteration, slowest rank, in the first run of each arm; by its number. The dotted "
        f"line is an iteration's computing.{left_out} {view.label.capitalize()}, time as emulated."
    )
    said = f"<p>{text(view.says('iterations'))}</p>" if view.says("iterations") else ""
    return f"<h2>Iterations</h2>{said}{draw('iterations', caption, _figure(lines[:_MOST]))}"


def _lines(view: View) -> Iterator[tuple[str, JobRun]]:
    """What to draw: the compared job of every arm, or every job where there is one arm."""
    jobs = [spec.job for spec in view.experiment.spec.compare if spec.job is not None]
    for arm in view.fixed:
        run = view.first(arm)
        assert run is not None
        for job in run.jobs.values() if len(view.fixed) == 1 else [_job(run, jobs)]:
            if job.iterations:
                name = job.name if len(view.fixed) == 1 else arm
                yield name if len(run.jobs) == 1 or name == job.name else f"{name}, {job.name}", job


def _job(run: Run, wanted: list[str]) -> JobRun:
    return next((run.jobs[name] for name in wanted if name in run.jobs), next(iter(run.jobs.values())))


def _figure(lines: list[tuple[str, JobRun]]) -> Figure:
    figure, ((axis,),) = sheet(2.7, top=0.5 if len(lines) > 4 else 0.3)
    highest, lowest = 0.0, float("inf")
    styles = itertools.product(("-", (0, (4, 2))), PALETTE[1:] + PALETTE[:1])
    for (name, job), (dash, colour) in zip(lines, styles, strict=False):
        spans = [
            max(it.allreduce_end for it in group) - min(it.compute_start for it in group)
            for group in job.by_index
        ]
        axis.plot(
            range(1, len(spans) + 1),
            spans,
            color=colour,
            linestyle=dash,
            marker="o" if len(spans) < 60 else "",
            markersize=3,
            linewidth=1.2,
            label=name,
        )
        highest, lowest = max(highest, *spans), min(lowest, *spans)
    computes = {job.plan.compute_s for _, job in lines}
    floor = min(lowest, *computes)
    if len(computes) == 1:
        axis.axhline(floor, color=QUIET, linewidth=0.8, linestyle=":")
    if floor > 0.7 * highest:
        axis.set_ylim(floor - 0.12 * (highest - floor), highest + 0.15 * (highest - floor))
    else:
        axis.set_ylim(0, 1.08 * highest)
    axis.set_xlabel("iteration")
    axis.set_ylabel("seconds")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, columns=4)
    return figure
