"""Faults under running jobs: iterations before, during and after, time to go on, and what was lost."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from experiments.analysis.metrics.faults import FAULTS
from experiments.analysis.metrics.regroup import window
from experiments.record.runs import Action, JobRun, Run
from experiments.report.drawing import LIGHT, job_colours
from experiments.report.page import row, table, tag, text
from experiments.report.report import Draw
from experiments.report.sheet import legend, sheet
from experiments.report.view import View, job_of
from experiments.report.words import YES_NO, count, figure, seconds

ORDER = 45
NEEDS: tuple[str, ...] = ()
_DONE = (*FAULTS, "restore", "disturb")
#: More arms than these have their figures in the table only.
_MOST = 4


def wanted(view: View) -> bool:
    return bool(_runs(view))


def render(view: View, draw: Draw) -> str:
    runs = _runs(view)
    columns = [
        (head, metric)
        for head, metric in (
            ("before", "iteration_before"),
            ("during", "iteration_during"),
            ("after", "iteration_after"),
            ("longest", "iteration_longest_during"),
            ("recovery", "recovery"),
        )
        if metric in view.metrics
    ]
    head = ["arm, event, job", *(name for name, _ in columns), "done once more", "state", "identical"]
    rows = [line for run in runs for line in _rows(view, run, [metric for _, metric in columns])]
    figures = [
        draw(
            f"fault-{run.plan.arm}",
            f"{run.plan.title}: duration of every iteration, slowest rank, at the time it ended. Lines mark "
            "what was done, shaded while something was away. "
            f"{view.label.capitalize()}, time as emulated.",
            _figure(run),
        )
        for run in runs[:_MOST]
    ]
    said = f" {text(view.says('faults'))}" if view.says("faults") else ""
    return (
        "<h2>Faults</h2><p>Iterations are medians over ranks; those that overlap the time in which something "
        "was away count as during. Recovery runs from the fault to the end of the next iteration of all "
        f"ranks. All {tag(view.label)}, time as emulated.{said}</p>"
        f"{table(head, rows, 1)}{''.join(_said(view, run) for run in runs)}{''.join(figures)}"
    )


def _faults(run: Run) -> list[Action]:
    found = [action for action in run.actions if action.plan.do in _DONE]
    return [action for action in found if action.begun > run.released]


def _runs(view: View) -> list[Run]:
    first = [run for arm in view.fixed if (run := view.first(arm)) is not None]
    return [run for run in first if _faults(run) or _control(view, run.plan.arm)]


def _rows(view: View, run: Run, metrics: list[str]) -> Iterator[str]:
    arm = run.plan.arm
    for action in _faults(run):
        for job in view.subjects(arm, "job"):
            subject = f"event {action.plan.name} {job}"
            found = [view.row(arm, subject, metric) for metric in metrics]
            if not any(found):
                continue
            state = str(view.value(arm, job, "state") or "–").lower()
            cells = [
                f"{text(run.plan.title)}: {text(_named(action))}, {text(job_of(job))}",
                *(figure(one) for one in found),
                count(view.number(arm, job, "iterations_lost")),
                f'<b class="bad">{state}</b>' if state == "failed" else state,
                YES_NO[view.value(arm, job, "parameters_identical")],
            ]
            yield row(cells, 1)


def _named(action: Action) -> str:
    then = f", then {action.plan.then}" if action.plan.then else ""
    return f"{action.plan.do} {action.plan.target or ''}".strip() + then


def _said(view: View, run: Run) -> str:
    """What there is to say of each fault besides times."""
    arm, said = run.plan.arm, []
    for action in _faults(run):
        away = view.number(arm, f"event {action.plan.name}", "away")
        if away is not None:
            said.append(f"{text(_named(action))}: away for {seconds(away)}, until it answered again.")
        if action.error is not None:
            said.append(f'<b class="bad">{text(_named(action))}: {text(action.error)}.</b>')
    for job in run.jobs.values():
        for lost, back in zip(job.losses, job.recoveries, strict=False):
            said.append(
                f"{text(job.name)} lost {text(lost.gpu)} and went on from iteration {back.iteration + 1} on "
                f"{text(' '.join(back.gpus))}, {seconds(back.at - lost.t)} after the loss."
            )
        if job.state == "FAILED":
            meant = " as expected" if job.plan.may_fail else ""
            said.append(f"{text(job.name)} failed{meant}: {text(job.reason or 'no reason on record')}.")
    control = _control(view, arm)
    if control:
        said.append(f"Of the control messages, on purpose: {text(control)}.")
    title = text(run.plan.title)
    return f"<p><b>{title}.</b> {' '.join(said)} {tag(view.label)}</p>" if said else ""


def _control(view: View, arm: str) -> str:
    counted = {
        subject.removeprefix("messages "): view.number(arm, subject, "control_faults")
        for subject in view.subjects(arm, "messages")
    }
    return ", ".join(f"{number:.0f} {what}" for what, number in counted.items() if number)


def _figure(run: Run) -> Figure:
    drawn, ((axis,),) = sheet(2.3)
    colours = job_colours(list(run.jobs))
    for name, job in run.jobs.items():
        if job.iterations:
            ends, spans = _spans(run, job)
            axis.plot(ends, spans, color=colours[name], marker="o", markersize=3, linewidth=1.2, label=name)
    for action in _faults(run):
        begin, end = (t - run.released for t in window(action))
        if end > begin:
            axis.axvspan(begin, end, color=LIGHT, alpha=0.3, linewidth=0)
        axis.axvline(begin, color=LIGHT, linewidth=1.4)
    axis.set_ylim(0, 1.12 * axis.get_ylim()[1])
    axis.set_xlim(0)
    axis.set_xlabel("seconds since the release of the first jobs")
    axis.set_ylabel("iteration, seconds")
    legend(drawn)
    return drawn


def _spans(run: Run, job: JobRun) -> tuple[list[float], list[float]]:
    ends = [max(it.allreduce_end for it in group) - run.released for group in job.by_index]
    spans = [
        max(it.allreduce_end for it in group) - min(it.compute_start for it in group)
        for group in job.by_index
    ]
    return ends, spans
