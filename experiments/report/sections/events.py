"""Report events in runs: faults, and packet switches of other controllers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from matplotlib.figure import Figure

from ringlight.experiments.analysis.metrics.faults import FAULTS
from ringlight.experiments.analysis.metrics.regroup import window
from ringlight.experiments.language.light_events import moving_events
from ringlight.experiments.record.runs import Action, Run
from ringlight.experiments.report.charts import chart, legend, note
from ringlight.experiments.report.drawing import INK, LIGHT, job_colours
from ringlight.experiments.report.page import mark, table_of, tag, text
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.sections.jobs import state
from ringlight.experiments.report.view import Draw, Figures, View
from ringlight.experiments.report.words import YES_NO, called, count, meaning, seconds
from ringlight.fabric.table_writers import programs

#: More arms than these have their events and faults in the tables only.
MOST_DRAWN = 4
_DONE = (*FAULTS, "restore", "disturb")
_FIGURES = (
    ("before", "iteration_before"),
    ("during", "iteration_during"),
    ("after", "iteration_after"),
    ("longest", "iteration_longest_during"),
    ("recovery", "recovery"),
)
#: What an event did to a job, the job, and the event.
Line = tuple[Figures, Figures, Action]
_AND = "; "
_TIMES = ("wire_dark", "blackout", "followed")
_WRITES = {
    "none": "nobody: it learns addresses and floods",
    "ringlight": "our controller",
}


@section(14, "Faults")
def faults(view: View, draw: Draw) -> str:
    """Return HTML that shows faults under running jobs: iterations before, during and after, time to
    continue, and losses."""
    runs = [run for run in view.first.values() if _faults(run) or _control(view, run)]
    if not runs:
        return ""
    shown = table_of(
        [line for run in runs for line in _lines(view, run)],
        [
            ("event", lambda line: text(_sentence(line[2]))),
            ("job", lambda line: text(line[1].name)),
            *((head, _of_event(metric)) for head, metric in _FIGURES),
            ("of it assumed", lambda line: seconds(line[1].number("recovery_assumed"))),
            ("done once more", lambda line: count(line[1].number("iterations_lost"))),
            ("state", lambda line: state(line[1])),
            ("identical", lambda line: YES_NO[line[1].truth("parameters_identical")]),
        ],
        2,
        group=lambda line: text(line[0].title),
    )
    # One scale for all: arms are compared.
    ends = [
        end - run.released
        for run in runs[:MOST_DRAWN]
        for job in run.jobs.values()
        for _, end in job.spans
    ]
    last, pictures = max(ends, default=0.0), []
    for run in runs[:MOST_DRAWN]:
        caption = (
            f"{run.plan.title}: duration of every iteration, slowest rank, at the time it ended. Lines mark "
            f"{_named(run)}, shaded while something was away. {view.label.capitalize()}, emulated time."
        )
        pictures.append(draw(f"fault-{run.plan.arm}", caption, _iterations, run, last))
    return (
        "<p>Iterations are medians over ranks; those that overlap the time in which something was away count "
        "as during. Recovery runs from a fault of a part that the job used to the end of the next iteration of "
        f"all ranks. All {tag(view.label)}, emulated time.{view.says('faults')}</p>"
        f"{''.join(pictures)}{''.join(_fault_facts(view, run) for run in runs)}{shown}"
    )


def _faults(run: Run) -> list[Action]:
    return [action for action in run.later if action.plan.do in _DONE]


def _lines(view: View, run: Run) -> Iterator[Line]:
    for action in _faults(run):
        for job in view.each_job([run.plan.arm]):
            event = view.figures_at(job.arm, f"event {action.plan.name} {job.subject}")
            if any(event.row(metric) for _, metric in _FIGURES):
                yield event, job, action


def _of_event(metric: str) -> Callable[[Line], str]:
    return lambda line: line[0].figure(metric)


def _sentence(action: Action) -> str:
    return (
        f"{action.sentence}, then {action.plan.then}"
        if action.plan.then
        else action.sentence
    )


def _named(run: Run) -> str:
    """Return the faults of a run in words, in the order of the lines of its picture."""
    done = sorted(_faults(run), key=lambda action: action.begun)
    return "; ".join(dict.fromkeys(map(_sentence, done))) or "what was done"


def _fault_facts(view: View, run: Run) -> str:
    """Return the facts about each fault in addition to times; empty if there are none."""
    sentences = []
    for action in _faults(run):
        away = view.figures_at(run.plan.arm, f"event {action.plan.name}").number("away")
        if away is not None:
            sentences.append(
                f"{text(_sentence(action))}: away for {seconds(away)}, until it answered again."
            )
        if action.error is not None:
            sentences.append(
                mark("bad", f"{text(_sentence(action))}: {text(action.error)}.")
            )
    for job in run.jobs.values():
        for lost, back in zip(job.losses, job.recoveries, strict=False):
            sentences.append(
                f"{text(job.name)} lost {text(lost.gpu)} and went on from iteration {back.iteration + 1} on "
                f"{text(' '.join(back.gpus))}, {seconds(back.at - lost.t)} after the loss."
            )
        if job.state == "FAILED":
            meant = " as expected" if job.plan.may_fail else ""
            sentences.append(
                f"{text(job.name)} failed{meant}: {text(job.reason or 'no reason on record')}."
            )
    if control := _control(view, run):
        sentences.append(f"Of the control messages, on purpose: {text(control)}.")
    return (
        f"<p><b>{text(run.plan.title)}.</b> {' '.join(sentences)} {tag(view.label)}</p>"
        if sentences
        else ""
    )


def _control(view: View, run: Run) -> str:
    counted = (
        (entry, entry.number("control_faults"))
        for entry in view.each("messages", [run.plan.arm])
    )
    return ", ".join(
        f"{n:.0f} {entry.subject.removeprefix('messages ')}"
        for entry, n in counted
        if n
    )


def _iterations(run: Run, last: float) -> Figure:
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
        note(
            axis,
            begin,
            level,
            action.sentence,
            va="top",
            color=INK,
            xycoords=("data", "axes fraction"),
        )
        level -= 0.09
    axis.set(xlim=(0, 1.03 * last or 1), ylim=(0, 1.25 * axis.get_ylim()[1]))
    axis.set(
        xlabel="seconds since the release of the first jobs",
        ylabel="iteration, seconds",
    )
    legend(figure, "job")
    return figure


@section(30, "Packet switches of other controllers", needs=("followed",))
def controllers(view: View, draw: Draw) -> str:
    """Return HTML that shows packet switches of other controllers: who writes their tables, and when
    traffic came back."""
    runs = [
        run for run in view.first.values() if run.plan.setting.fabric.foreign_switches
    ]
    who = "".join(_switches(alike, len(alike) < len(runs)) for alike in _alike(runs))
    when = table_of(
        [line for run in runs for line in _events(view, run)],
        [
            ("event", lambda line: text(f"{line[0].plan.name}: {line[0].plan.do}")),
            *(
                (called(name), lambda line, name=name: seconds(line[1].number(name)))
                for name in _TIMES
            ),
        ],
        1,
        group=lambda line: text(line[1].title),
    )
    return (
        "<p>Our controller moves circuits at these switches and reports it; it neither reads nor writes their "
        f"flow tables. Followed: {meaning('followed')} {tag(view.label)}.</p>{who}{when}"
    )


def _alike(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs whose packet switches are written by the same, and had light moved as often, together."""
    groups: dict[object, list[Run]] = {}
    for run in runs:
        switches = run.plan.setting.fabric.packet_switches
        groups.setdefault(
            tuple((name, _who(run, name), _moved(run, name)) for name in switches), []
        ).append(run)
    return list(groups.values())


def _switches(runs: Sequence[Run], named: bool) -> str:
    """Return one table for runs that are equal in this; ``named``: whether to name the runs."""
    run = runs[0]
    shown = table_of(
        list(run.plan.setting.fabric.packet_switches),
        [
            ("packet switch", text),
            ("who writes its tables", lambda name: _who(run, name)),
            ("regroups with light there", lambda name: count(float(_moved(run, name)))),
        ],
        2,
    )
    return f"{f'<h3>{text(_AND.join(alike.plan.title for alike in runs))}</h3>' if named else ''}{shown}"


def _who(run: Run, switch: str) -> str:
    controller = run.plan.setting.fabric.packet_switches[switch].controller
    if (program := programs().get(controller)) is not None:
        return text(f"{program} beside our controller")
    return text(_WRITES.get(controller, f"the controller at {controller}"))


def _moved(run: Run, switch: str) -> int:
    """Return how often a regroup moved light at a switch of another controller."""
    return sum(
        switch in (action.result.get("left_to_others") or {}) for action in run.later
    )


def _events(view: View, run: Run) -> Iterator[tuple[Action, Figures]]:
    for action in run.later:
        if action.plan.do in moving_events():
            yield action, view.figures_at(run.plan.arm, f"event {action.plan.name}")
