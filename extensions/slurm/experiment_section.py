"""Jobs in Slurm: its queue, the light and the jobs' GPUs on one axis of time, and a table of the jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ringlight.experiments.record.runs import Run
from ringlight.experiments.report.charts import (
    Span,
    centred,
    key,
    legend,
    named_rows,
    sheet,
    spans,
)
from ringlight.experiments.report.columns import JOB, arm_title, figures
from ringlight.experiments.report.drawing import (
    INK,
    PALETTE,
    QUIET,
    RULE,
    job_colours,
)
from ringlight.experiments.report.page import NOTHING, listing, quiet, tag, text
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, Figures, View
from ringlight.extensions.slurm.experiment_metrics import slurm_job
from ringlight.extensions.slurm.experiment_records import (
    SlurmJob,
    SlurmLight,
    SlurmRule,
)

_CAPTION = (
    "Each arm: jobs in Slurm's queue, then a row for each GPU. A wide bar is a job, from when Slurm gave it the "
    "GPU until it was free again; the thin bar above is the packet switch to which the GPU is lit. A job whose "
    "GPUs have thin bars of two colours sends between switches. "
)


@section("timeline", "Jobs in Slurm", needs=("slurm_completion",))
def queue(view: View, draw: Draw) -> str:
    """Return HTML with queue, light and jobs of each arm's first run, and a table of all jobs."""
    runs = [run for run in view.first.values() if run.of(SlurmJob)]
    if not runs:
        return ""
    caption = f"{_CAPTION}{view.label.capitalize()}, emulated seconds."
    shown = figures(
        view.each_job(),
        [
            JOB,
            ("GPUs", partial(_known, what=lambda job: " ".join(job.nodes))),
            (
                "submitted",
                partial(_known, what=lambda job: f"{job.submitted:.1f} s", shift=True),
            ),
            ("waited", "slurm_waited"),
            ("simulated", "slurm_waited_simulated"),
            ("ran", "slurm_ran"),
            ("switches", partial(_known, what=lambda job: " ".join(job.switches))),
            ("submitted to end", "slurm_completion"),
            ("simulated", "slurm_completion_simulated"),
            ("started by", partial(_known, what=lambda job: f"{job.by} scheduler")),
        ],
        8,
        group=arm_title if len(view.fixed) > 1 else None,
    )
    lines = list(_rules(view, runs))
    return draw("slurm", caption, _pictures, runs) + shown + listing(lines)


def _known(subject: Figures, what: object, shift: bool = False) -> str:
    """Return a cell about a job as Slurm knew it. ``shift``: its times count from the run's first submission."""
    run = subject.view.first.get(subject.arm)
    job = slurm_job(run, subject.name)
    if job is None or run is None or not callable(what):
        return NOTHING
    if shift:
        return text(f"{job.submitted - _zero_s(run):.1f} s")
    return text(what(job))


def _zero_s(run: Run) -> float:
    return min(job.submitted for job in run.of(SlurmJob))


def _rules(view: View, runs: Sequence[Run]) -> Iterator[str]:
    """Yield what decided in the runs, and how near the simulation is, as HTML."""
    for run in runs:
        of_run = view.figures_at(run.plan.arm, "run")
        ratio, other = (
            of_run.number("slurm_completion_over_simulated"),
            of_run.number("slurm_other_nodes"),
        )
        if ratio is not None and other is not None:
            yield (
                f"<b>{text(run.plan.title)}</b>: mean completion {ratio:.3f} times the simulated "
                f"{tag('simulated')}; {other:g} of {len(run.jobs)} jobs on other nodes than there."
            )
    for rule in runs[0].of(SlurmRule):
        version = "" if rule.version is None else f", version {rule.version}"
        yield f"Rule: {text(rule.rule)}{text(version)}; <code>{text(rule.parameters)}</code>."
        for line in rule.not_modelled:
            yield quiet(f"Not modelled: {text(line)}")


def _pictures(runs: Sequence[Run]) -> Figure:
    rows = [len(run.plan.setting.fabric.gpus) for run in runs]
    shares = [share for count in rows for share in (2.2, float(count))]
    height = 0.8 + sum(0.26 * share + 0.3 for share in shares)
    figure, axes = sheet(
        height,
        rows=2 * len(runs),
        left=0.75,
        heights=shares,
        gap=(0, 0.28),
        top=0.5,
    )
    names = list(dict.fromkeys(name for run in runs for name in run.jobs))
    colours = job_colours(names)
    switches = list(
        dict.fromkeys(
            switch
            for run in runs
            for light in run.of(SlurmLight)
            for switch in light.on.values()
            if switch is not None
        )
    )
    tints = {switch: PALETTE[n % len(PALETTE)] for n, switch in enumerate(switches)}
    last = max(job.freed - _zero_s(run) for run in runs for job in run.of(SlurmJob))
    for number, run in enumerate(runs):
        waiting, gpus = axes[2 * number][0], axes[2 * number + 1][0]
        waiting.set_title(run.plan.title)
        _waiting(waiting, run, last)
        _gpus(gpus, run, colours, tints, last)
    for (axis,) in axes[:-1]:
        axis.tick_params(labelbottom=False)
    axes[-1][0].set_xlabel("seconds since the first submission")
    handles = [key(INK, "jobs in the queue", 1.4)]
    handles += [key(tint, f"lit to {switch}", 3) for switch, tint in tints.items()]
    legend(figure, "Slurm and light", [*handles, Patch(color=QUIET, label="a job")])
    return figure


def _waiting(axis: Axes, run: Run, last: float) -> None:
    """Draw how many jobs wait."""
    changes = sorted(
        change
        for job in run.of(SlurmJob)
        for change in ((job.submitted, 1), (job.allocated, -1))
    )
    zero_s, count = _zero_s(run), 0
    times, counts = [0.0], [0]
    for t, change in changes:
        count += change
        times.append(t - zero_s)
        counts.append(count)
    axis.step([*times, last], [*counts, count], where="post", color=INK, linewidth=1.4)
    axis.set(xlim=(0, 1.02 * last), ylim=(0, max(counts) + 0.6))
    axis.set_ylabel("queue")
    axis.yaxis.set_major_locator(MaxNLocator(3, integer=True))


def _gpus(
    axis: Axes,
    run: Run,
    colours: dict[str, str],
    tints: dict[str, str],
    last: float,
) -> None:
    """Draw where each GPU is lit to, and which job has it."""
    gpus, zero_s = list(run.plan.setting.fabric.gpus), _zero_s(run)
    named_rows(axis, gpus)
    for switch, tint in tints.items():
        spans(axis, tint, _lit(run, gpus, switch, zero_s, last), height=0.13)
    for job in run.of(SlurmJob):
        begin, end = job.allocated - zero_s, job.freed - zero_s
        rows = [gpus.index(node) for node in job.nodes]
        boxes = [(row + 0.1, begin, end) for row in rows]
        spans(axis, colours[job.job], boxes, height=0.52, alpha=0.85)
        for row in rows:
            centred(axis, (begin + end) / 2, row + 0.12, job.job, 6.5, color="white")
    axis.set(xlim=(0, 1.02 * last), ylim=(len(gpus) - 0.5, -0.55))
    for row in range(len(gpus)):
        axis.axhline(row + 0.5, color=RULE, linewidth=0.5)


def _lit(
    run: Run, gpus: Sequence[str], switch: str, zero_s: float, last: float
) -> Iterator[Span]:
    """Yield the spans in which each GPU is lit to a switch, in the places of thin bars."""
    lights = run.of(SlurmLight)
    ends = [light.t - zero_s for light in lights[1:]] + [last]
    for light, end in zip(lights, ends, strict=True):
        begin = max(0.0, light.t - zero_s)
        for row, gpu in enumerate(gpus):
            if light.on.get(gpu) == switch and end > begin:
                yield row - 0.28, begin, end
