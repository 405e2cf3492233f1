"""How long each iteration took, arm beside arm."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ringlight.experiments.record.runs import JobRun
from ringlight.experiments.report.charts import chart, legend
from ringlight.experiments.report.drawing import PALETTE, QUIET
from ringlight.experiments.report.view import Draw, View

ORDER = 13
TITLE = "Iterations"
NEEDS = ("iteration",)
#: Arms, or jobs of the only one, beyond these are left out of the picture.
_MOST = 8
Line = tuple[str, JobRun]


def wanted(view: View) -> Sequence[Line]:
    """Lines to draw; none unless some job had two iterations or more."""
    lines = list(_lines(view))
    return lines if any(len(job.spans) > 1 for _, job in lines) else []


def render(view: View, draw: Draw) -> str:
    lines = wanted(view)
    left_out = "" if len(lines) <= _MOST else f" The first {_MOST} of {len(lines)}."
    caption = (
        f"Duration of every iteration, slowest rank, in the first run of each arm; by its number. The dotted "
        f"line is an iteration's computing.{left_out} {view.label.capitalize()}, time as emulated."
    )
    return view.paragraph("iterations") + draw(
        "iterations", caption, _figure, lines[:_MOST], _told_apart(view)
    )


def _told_apart(view: View) -> str:
    """Noun for what each line of the picture stands for."""
    return "job" if len(view.fixed) == 1 else "arm"


def _lines(view: View) -> Iterator[Line]:
    """What to draw: the compared job of every arm, or every job where there is one arm."""
    compared = [spec.job for spec in view.experiment.spec.compare]
    for arm, run in view.first.items():
        jobs, alone = list(run.jobs.values()), len(view.fixed) == 1
        for job in jobs if alone else [next((j for j in jobs if j.name in compared), jobs[0])]:
            if job.iterations:
                yield job.name if alone else arm if len(jobs) == 1 else f"{arm}, {job.name}", job


def _figure(lines: Sequence[Line], title: str) -> Figure:
    figure, axis = chart(2.7, left=0.8)
    highest, lowest, most = 0.0, float("inf"), max(len(job.spans) for _, job in lines)
    styles = itertools.product(("-", (0, (4, 2))), PALETTE[1:] + PALETTE[:1])
    for (name, job), (dash, colour) in zip(lines, styles, strict=False):
        took = [end - begin for begin, end in job.spans]
        dots = "o" if len(took) < 60 else ""
        axis.plot(range(1, len(took) + 1), took, color=colour, linestyle=dash, marker=dots, label=name)
        highest, lowest = max(highest, *took), min(lowest, *took)
    computes = {job.plan.training.compute_s for _, job in lines if job.plan.training is not None}
    floor = min([lowest, *computes])
    if len(computes) == 1:
        axis.axhline(floor, color=QUIET, linewidth=0.8, linestyle=":")
    if floor > 0.7 * highest:
        # Simulated iterations may all take the same time, but for rounding.
        height = highest - floor if highest - floor > 1e-6 * highest else 0.1 * highest
        axis.set_ylim(floor - 0.12 * height, highest + 0.15 * height)
    else:
        axis.set_ylim(0, 1.08 * highest or 1)
    axis.set(xlabel="iteration", ylabel="seconds", xlim=(0.5, most + 0.5))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, title, columns=4)
    return figure
