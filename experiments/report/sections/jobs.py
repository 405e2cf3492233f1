"""Jobs: what became of each, how long its iterations took, and whether it is the same training everywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ringlight.experiments.analysis.statistics import percentile
from ringlight.experiments.record.runs import JobRun
from ringlight.experiments.report.charts import chart, legend
from ringlight.experiments.report.columns import (
    JOB,
    arm_title,
    figures,
    seconds_and_real,
)
from ringlight.experiments.report.drawing import PALETTE, QUIET, job_colours
from ringlight.experiments.report.page import (
    NOTHING,
    Columns,
    folded,
    folded_if_long,
    mark,
    quiet,
    table_of,
    tag,
    text,
)
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import (
    MOST_JOBS,
    PUBLISHED,
    SLOWEST,
    Draw,
    Figures,
    View,
    in_small,
)
from ringlight.experiments.report.words import (
    HARD_SPACE,
    YES_NO,
    amount,
    figure,
    percent,
    seconds,
    upper_first,
)

#: More GPUs than these are counted, not listed.
_MOST_GPUS = 8
#: Arms, or jobs of the only one, beyond these are left out of the picture of iterations.
_MOST_LINES = 8
#: Times of jobs whose spread is shown where there are many.
_SPREAD = {"jct": "completion", "iteration": "iteration", "allreduce": "all-reduce"}
#: What columns say that only some experiments have.
_EXPLAINED = {
    "simulated": "the JCT of a simulation of the same run",
    "by phase": "the JCT in simulations in which jobs that come later begin at other moments of an iteration",
    "waited": "queueing delay, from a job's arrival until it has its GPUs",
    "start-up": "from then until its workers are ready",
    "GPU use": "share of the job's time that its GPUs computed",
    "crossing": "share of neighbouring ranks on different packet switches at the end",
    "slowdown": "from arrival to end, over what the model says that the job takes alone",
}


@section(25, "Jobs", needs=("state",))
def jobs(view: View, draw: Draw) -> str:
    """Return HTML that shows every job of every arm: its GPUs, its waiting and running times, and its
    final state."""
    listed = list(view.each_job())
    if not listed:
        return ""
    crowds = [
        arm for arm in view.fixed if len(view.listed(arm)) < len(view.first[arm].jobs)
    ]
    shown = figures(
        listed,
        [
            JOB,
            ("GPUs", lambda job: text(_placed(_job(job)))),
            ("state", state),
            ("JCT", "jct"),
            ("simulated", "jct_simulated"),
            ("by phase", _by_phase),
            ("iteration", "iteration"),
            ("all-reduce", "allreduce"),
            ("arrival", _arrival),
            (
                "waited",
                lambda job: (
                    job.figure("queueing_delay")
                    if job.number("queueing_delay")
                    else NOTHING
                ),
            ),
            ("start-up", lambda job: seconds(job.number("start_up") or None)),
            ("GPU use", lambda job: percent(job.number("gpu_utilisation"), 0)),
            ("crossing", lambda job: percent(job.number("fragmentation"), 0)),
            (
                "slowdown",
                lambda job: (
                    job.figure("slowdown")
                    if len(view.plans[job.arm].jobs) > 1
                    else NOTHING
                ),
            ),
        ],
        3,
        group=arm_title if len(view.fixed) > 1 else None,
    )
    there = [head for head in _EXPLAINED if f">{head}</th>" in shown]
    explained = "".join(f" {upper_first(head)}: {_EXPLAINED[head]}." for head in there)
    return (
        _spread(view, crowds)
        + folded_if_long(f"{len(listed)} jobs", len(listed), shown)
        + quiet(
            f"All {tag(view.label)}, emulated seconds; GPUs in rank order. JCT: job "
            "completion time, from its release to its end; iteration and all-reduce are medians over ranks "
            f"and iterations.{explained}{_failures(view)}{view.says('jobs')}"
        )
    )


def _spread(view: View, arms: Sequence[str]) -> str:
    """Return the spread of job times in arms with more jobs than are listed; empty without such arms."""
    lines = [
        (
            arm,
            head,
            [
                value
                for job in view.each("job", [arm])
                if (value := job.number(metric)) is not None
            ],
        )
        for arm in arms
        for metric, head in _SPREAD.items()
    ]

    def share(part: float) -> Callable[[tuple[str, str, list[float]]], str]:
        return lambda line: seconds(percentile(line[2], part))

    shown = table_of(
        [line for line in lines if line[2]],
        [
            ("of all jobs", lambda line: text(line[1])),
            ("jobs", lambda line: f"{len(line[2]):,}"),
            ("shortest", share(0.0)),
            ("median", share(0.5)),
            ("95 of 100 within", share(0.95)),
            ("longest", share(1.0)),
        ],
        1,
        group=(lambda line: text(view.title(line[0]))) if len(view.fixed) > 1 else None,
    )
    if not shown:
        return ""
    return shown + quiet(
        f"Below are {SLOWEST}: failed ones, and those that took longest. rows.csv has all."
    )


def _job(job: Figures) -> JobRun:
    return job.view.first[job.arm].jobs[job.name]


def _placed(job: JobRun) -> str:
    if len(job.gpus) > _MOST_GPUS:
        return f"{len(job.gpus)}: {job.gpus[0]} … {job.gpus[-1]}"
    return " ".join(job.gpus) + (
        f" → {' '.join(job.last_gpus)}" if job.last_gpus != job.gpus else ""
    )


def state(job: Figures) -> str:
    """Return the final state of a job; marked if the job failed or was cancelled."""
    word = str(job.value("state") or NOTHING).lower()
    return mark("bad", word) if word in ("failed", "cancelled") else word


def _by_phase(job: Figures) -> str:
    least, most = job.numbers("jct_phase_least", "jct_phase_most")
    if least is None or most is None:
        return NOTHING
    scale = job.view.plans[job.arm].setting.scale.time
    stands = "" if scale == 1 else in_small(_span(least / scale, most / scale))
    return f"{_span(least, most)}{stands}"


def _span(least_s: float, most_s: float) -> str:
    """Return two times as a range, with one unit if both have the same."""
    least, _, unit = seconds(least_s).partition(HARD_SPACE)
    most = seconds(most_s)
    return f"{least if most.endswith(f'{HARD_SPACE}{unit}') else seconds(least_s)} to {most}"


def _arrival(entry: Figures) -> str:
    """Return the arrival time, seconds since the first release, if not all jobs start together."""
    arrived, plan = _job(entry).arrived, entry.view.plans[entry.arm]
    if arrived is None or all(job.start.at_once for job in plan.jobs):
        return NOTHING
    since_s = max(0.0, arrived - entry.view.first[entry.arm].released)
    return seconds_and_real(since_s, entry.view.plans[entry.arm].setting.scale)


def _failures(view: View) -> str:
    """Return sentences on why jobs did not succeed, expected or not."""
    failed = [
        f" {run.plan.title}: {name} {job.state.lower()}{', as expected' * job.plan.may_fail}: {job.reason}."
        for run in view.runs
        for name, job in run.jobs.items()
        if job.state not in ("SUCCEEDED", "") and job.reason
    ]
    return text("".join(dict.fromkeys(failed)))


@section(20, "Who is compared", needs=("steps",))
def collectives(view: View, draw: Draw) -> str:
    """Return HTML that shows all-reduces alone: steps, light and passes of each arm, at the file's values."""
    base, analytic = view.base, tag("analytic")

    def of(metric: str) -> Callable[[str], str]:
        return lambda arm: figure(base.row_at(arm, metric))

    columns: Columns[str] = [
        ("arm", lambda arm: text(view.title(arm))),
        ("collective", lambda arm: text(view.plans[arm].jobs[0].loop.collective)),
        (f"steps {tag(view.label)}", of("steps")),
        (f"with new light {analytic}", of("set_ups_closed")),
        (f"gradients through the narrowest link {analytic}", of("vectors_closed")),
        (f"wavelengths {tag(view.label)}", of("wavelengths_lit")),
        (f"gradients added at the busiest node {analytic}", of("added_closed")),
        (f"received at once {analytic}", of("received_at_once")),
    ]
    return (
        "<p>All at the file's values without its sweeps. Steps are synchronised: no rank begins a step before all "
        "ranks have ended the previous one.</p>"
        + view.paragraph("collectives")
        + table_of(view.arms, columns, 2)
    )


@section(13, "Iterations", needs=("iteration",))
def iterations(view: View, draw: Draw) -> str:
    """Return HTML that shows the time of each iteration, arm next to arm; empty unless some job had two or
    more."""
    lines = list(_lines(view))
    if not any(len(job.spans) > 1 for _, job in lines):
        return ""
    alone = len(view.fixed) == 1
    jobs = max(len(view.first[arm].jobs) for arm in view.fixed)
    which = (
        f"{_MOST_LINES} of the {SLOWEST} slowest of {jobs:,} jobs"
        if alone and jobs > MOST_JOBS
        else None
    )
    left_out = (
        ""
        if len(lines) <= _MOST_LINES
        else f" {which or f'The first {_MOST_LINES} of {len(lines)}'}."
    )
    caption = (
        f"Duration of every iteration, slowest rank, in the first run of each arm; by its number. The dotted "
        f"line is an iteration's computing.{left_out} {view.label.capitalize()}, emulated time."
    )
    distinction = "job" if alone else "arm"
    picture = draw("iterations", caption, _iterations, lines[:_MOST_LINES], distinction)
    return view.paragraph("iterations") + picture


def _lines(view: View) -> Iterator[tuple[str, JobRun]]:
    """Yield the lines to draw: the compared job of every arm, or every job if there is only one arm."""
    compared = [spec.job for spec in view.experiment.spec.compare]
    for arm, run in view.first.items():
        jobs, alone = list(run.jobs.values()), len(view.fixed) == 1
        listed = [run.jobs[name] for name in view.listed(arm)]
        for job in (
            listed
            if alone
            else [next((j for j in jobs if j.name in compared), jobs[0])]
        ):
            if job.iterations:
                yield (
                    job.name
                    if alone
                    else arm
                    if len(jobs) == 1
                    else f"{arm}, {job.name}",
                    job,
                )


def _iterations(lines: Sequence[tuple[str, JobRun]], title: str) -> Figure:
    figure, axis = chart(2.7, left=0.8)
    highest, lowest, most = 0.0, float("inf"), max(len(job.spans) for _, job in lines)
    styles = itertools.product(("-", (0, (4, 2))), PALETTE[1:] + PALETTE[:1])
    own = job_colours([name for name, _ in lines]) if title == "job" else {}
    for (name, job), (dash, other) in zip(lines, styles, strict=False):
        colour = own.get(name, other)
        took = [end - begin for begin, end in job.spans]
        dots = "o" if len(took) < 60 else ""
        axis.plot(
            range(1, len(took) + 1),
            took,
            color=own.get(name, colour),
            linestyle=dash,
            marker=dots,
            label=name,
        )
        highest, lowest = max(highest, *took), min(lowest, *took)
    computes = {
        job.plan.training.compute_s for _, job in lines if job.plan.training is not None
    }
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


@section(27, "Is it the same training?", needs=("parameters_identical",))
def training(view: View, draw: Draw) -> str:
    """Return HTML that shows whether it is the same training: parameters bit by bit, accuracy, payload."""
    trained = [
        job for job in view.each("job") if job.row("parameters_identical") is not None
    ]
    if not trained:
        return ""
    shown = figures(
        trained,
        [
            JOB,
            ("parameters", _digest),
            ("all alike", lambda job: _yes(job.truth("parameters_identical"))),
            ("loss", _loss),
            ("accuracy", lambda job: percent(job.number("accuracy"), 2)),
            ("payload", _of_run("payload_received")),
            ("bytes lost", _of_run("payload_lost")),
            ("sent again", _of_run("retransmits")),
            (
                "connections kept",
                lambda job: YES_NO[job.truth("connections_unchanged")],
            ),
            ("as the baseline", lambda job: YES_NO[_as_baseline(job)]),
        ],
        2,
        group=arm_title,
    ) + quiet(
        f"All {tag('measured')}. Parameters: the first digits of their SHA-256. All alike: "
        "every rank and the same training in one process ended with them, bit by bit; collectives that add "
        "in another order may end in other last bits. A byte is lost when its rank sent it and the peer did "
        "not get it; what the network drops TCP sends again, counted in segments. As the baseline: the "
        "same parameters, where the same was trained with the same collective. Payload is that of all jobs "
        "of the run."
    )
    alike = all(job.truth("parameters_identical") for job in trained)
    return (
        "<p>Final parameters of all ranks bit-identical to the same training in one process: "
        f"{_yes(alike)}.</p>{_published(view)}{folded('Parameters, losses and bytes of every job', shown)}"
    )


def _yes(value: bool | None) -> str:
    return mark("good", "yes") if value else YES_NO[value]


def _digest(job: Figures) -> str:
    digest = job.value("parameters_sha256")
    return f"<code>{text(str(digest)[:12])}</code>" if digest else NOTHING


def _loss(job: Figures) -> str:
    first, last = job.numbers("loss_first", "loss_last")
    return NOTHING if first is None or last is None else f"{first:.2f} → {last:.2f}"


def _of_run(metric: str) -> Callable[[Figures], str]:
    return lambda job: job.view.figures_at(job.arm, "run").figure(metric)


def _as_baseline(job: Figures) -> bool | None:
    """Return whether an arm that trained the same as its baseline ended with the same parameters; None if
    unknown."""
    mine = [
        pair
        for pair in job.view.comparisons
        if (pair.arm, pair.subject) == (job.arm, job.subject)
    ]
    return next(
        (same for pair in mine if (same := pair.truth("parameters_equal")) is not None),
        None,
    )


def _published(view: View) -> str:
    each = [
        f"{text(view.title(row.arm))} {amount(row.value, row.unit, row.metric)}"
        for row in view.rows
        if row.metric == "accuracy" and row.label == PUBLISHED
    ]
    words = f"{', '.join(each)}{view.says('training')} {tag(PUBLISHED)}"
    return f"<p>Published accuracy: {words}.</p>" if each else ""
