"""Faults under running jobs: iterations before, during and after, time to go on, and what was lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from matplotlib.figure import Figure

from ringlight.experiments.analysis.metrics.faults import FAULTS
from ringlight.experiments.analysis.metrics.regroup import window
from ringlight.experiments.record.runs import Action, Run
from ringlight.experiments.report.charts import chart, legend, note
from ringlight.experiments.report.drawing import INK, LIGHT, job_colours
from ringlight.experiments.report.page import mark, table_of, tag, text
from ringlight.experiments.report.sections.jobs import state
from ringlight.experiments.report.view import Draw, Figures, View
from ringlight.experiments.report.words import YES_NO, count, seconds

ORDER = 14
TITLE = "Faults"
_DONE = (*FAULTS, "restore", "disturb")
#: More arms than these have their figures in the table only.
_MOST = 4
_COLUMNS = (
    ("before", "iteration_before"),
    ("during", "iteration_during"),
    ("after", "iteration_after"),
    ("longest", "iteration_longest_during"),
    ("recovery", "recovery"),
)
#: What an event did to a job, the job, and the event.
Line = tuple[Figures, Figures, Action]


def wanted(view: View) -> list[Run]:
    return [run for run in view.first.values() if _faults(run) or _control(view, run)]


def _faults(run: Run) -> list[Action]:
    return [action for action in run.later if action.plan.do in _DONE]


def render(view: View, draw: Draw) -> str:
    runs = wanted(view)
    shown = table_of(
        [line for run in runs for line in _lines(view, run)],
        [
            ("event", lambda line: text(_said(line[2]))),
            ("job", lambda line: text(line[1].name)),
            *((head, _of_event(metric)) for head, metric in _COLUMNS),
            ("of it assumed", lambda line: seconds(line[1].number("recovery_assumed"))),
            ("done once more", lambda line: count(line[1].number("iterations_lost"))),
            ("state", lambda line: state(line[1])),
            ("identical", lambda line: YES_NO[line[1].truth("parameters_identical")]),
        ],
        2,
        group=lambda line: text(line[0].title),
    )
    # One scale for all: arms are compared.
    last = max((_last(run) for run in runs[:_MOST]), default=0.0)
    figures = [
        draw(
            f"fault-{run.plan.arm}",
            f"{run.plan.title}: duration of every iteration, slowest rank, at the time it ended. Lines mark "
            f"{_named(run)}, shaded while something was away. "
            f"{view.label.capitalize()}, time as emulated.",
            _figure,
            run,
            last,
        )
        for run in runs[:_MOST]
    ]
    return (
        "<p>Iterations are medians over ranks; those that overlap the time in which something was away count "
        "as during. Recovery runs from a fault of what the job used to the end of the next iteration of all "
        f"ranks. All {tag(view.label)}, time as emulated.{view.says('faults')}</p>"
        f"{''.join(figures)}{''.join(_told(view, run) for run in runs)}{shown}"
    )


def _lines(view: View, run: Run) -> Iterator[Line]:
    for action in _faults(run):
        for job in view.each("job", [run.plan.arm]):
            at = view.at(job.arm, f"event {action.plan.name} {job.subject}")
            if any(at.row(metric) for _, metric in _COLUMNS):
                yield at, job, action


def _of_event(metric: str) -> Callable[[Line], str]:
    return lambda line: line[0].figure(metric)


def _said(action: Action) -> str:
    return f"{action.said}, then {action.plan.then}" if action.plan.then else action.said


def _named(run: Run) -> str:
    """What was done, in the order of the lines."""
    done = sorted(_faults(run), key=lambda action: action.begun)
    return "; ".join(dict.fromkeys(map(_said, done))) or "what was done"


def _told(view: View, run: Run) -> str:
    """What there is to say of each fault besides times."""
    said = []
    for action in _faults(run):
        away = view.at(run.plan.arm, f"event {action.plan.name}").number("away")
        if away is not None:
            said.append(f"{text(_said(action))}: away for {seconds(away)}, until it answered again.")
        if action.error is not None:
            said.append(mark("bad", f"{text(_said(action))}: {text(action.error)}."))
    for job in run.jobs.values():
        for lost, back in zip(job.losses, job.recoveries, strict=False):
            said.append(
                f"{text(job.name)} lost {text(lost.gpu)} and went on from iteration {back.iteration + 1} on "
                f"{text(' '.join(back.gpus))}, {seconds(back.at - lost.t)} after the loss."
            )
        if job.state == "FAILED":
            meant = " as expected" if job.plan.may_fail else ""
            said.append(f"{text(job.name)} failed{meant}: {text(job.reason or 'no reason on record')}.")
    if control := _control(view, run):
        said.append(f"Of the control messages, on purpose: {text(control)}.")
    return f"<p><b>{text(run.plan.title)}.</b> {' '.join(said)} {tag(view.label)}</p>" if said else ""


def _control(view: View, run: Run) -> str:
    counted = ((at, at.number("control_faults")) for at in view.each("messages", [run.plan.arm]))
    return ", ".join(f"{n:.0f} {at.subject.removeprefix('messages ')}" for at, n in counted if n)


def _last(run: Run) -> float:
    """End of a run's last iteration, seconds since the release of its first jobs."""
    return max((end - run.released for job in run.jobs.values() for _, end in job.spans), default=0.0)


def _figure(run: Run, last: float) -> Figure:
    figure, axis = chart(2.3)
    colours = job_colours(list(run.jobs))
    for name, job in run.jobs.items():
        if job.iterations:
            ends = [end - run.released for _, end in job.spans]
            took = [end - begin for begin, end in job.spans]
            axis.plot(ends, took, color=colours[name], marker="o", label=name)
    level = 0.99
    for action in sorted(_faults(run), key=lambda action: action.begun):
        begin, end = (t - run.released for t in window(action))
        if end > begin:
            axis.axvspan(begin, end, color=LIGHT, alpha=0.3, linewidth=0)
        axis.axvline(begin, color=LIGHT, linewidth=1.4)
        note(axis, begin, level, action.said, va="top", color=INK, xycoords=("data", "axes fraction"))
        level -= 0.09
    axis.set(xlim=(0, 1.03 * last or 1), ylim=(0, 1.25 * axis.get_ylim()[1]))
    axis.set(xlabel="seconds since the release of the first jobs", ylabel="iteration, seconds")
    legend(figure, "job")
    return figure
