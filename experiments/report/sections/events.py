"""Report events in runs: jobs and events over time, faults, and packet switches of other controllers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ringlight.experiments.analysis.metrics import LIGHT as MOVES_LIGHT
from ringlight.experiments.analysis.metrics.faults import FAULTS
from ringlight.experiments.analysis.metrics.regroup import window
from ringlight.experiments.record.lab_records import SwitchDrifted
from ringlight.experiments.record.runs import SUCCEEDED, Action, JobRun, Run
from ringlight.experiments.report.charts import (
    chart,
    key,
    legend,
    named_rows,
    note,
    sheet,
    spans,
)
from ringlight.experiments.report.drawing import (
    FACE,
    INK,
    LIGHT,
    QUIET,
    RULE,
    WIDE,
    job_colours,
    width,
)
from ringlight.experiments.report.page import (
    NOTHING,
    folded_if_long,
    mark,
    quiet,
    table_of,
    tag,
    text,
)
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.sections.jobs import state
from ringlight.experiments.report.view import (
    SLOWEST,
    Draw,
    Figures,
    View,
    seconds_and_real,
)
from ringlight.experiments.report.words import YES_NO, called, count, meaning, seconds
from ringlight.fabric.table_writers import programs

#: More arms than these have their events and faults in the tables only.
_MOST = 4
_WAITING: Any = {
    "facecolor": "none",
    "edgecolor": QUIET,
    "hatch": "////",
    "linewidth": 0.7,
}
_STARTING: Any = {**_WAITING, "hatch": "...."}
_STRANGE: Any = {"color": INK, "linewidth": 1.2, "linestyle": (0, (3, 2))}
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


@section(12, "Timeline", needs=("makespan",))
def timeline(view: View, draw: Draw) -> str:
    """Return HTML that shows jobs that arrive, wait and train, and events, of first runs in which
    something follows the start."""
    runs = [
        run
        for run in view.first.values()
        if run.later
        or run.drifts
        or not all(job.start.at_once for job in run.plan.jobs)
    ]
    if not runs:
        return ""
    lines = [line for run in runs for line in _happened(run)]
    caption = (
        "Jobs over time. Hatched: waiting for GPUs; filled: training, a tick at the end of every iteration; "
        "pale: between a loss and going on. Vertical lines are events, dashed ones changes of switches that "
        "no event asked for; a cross is a failure. "
        f"{view.label.capitalize()}, emulated seconds."
    )
    shown = table_of(
        lines,
        [
            ("arm", lambda line: text(line.run.plan.title)),
            ("event", lambda line: text(line.words)),
            (
                "at",
                lambda line: seconds_and_real(
                    line.t - line.run.released, line.run.plan.setting.scale
                ),
            ),
            ("took", lambda line: line.took),
            ("what came of it", lambda line: line.came),
        ],
        9,
    )
    if shown:
        shown += quiet(
            f"Times since the release of the first jobs, as emulated {tag(view.label)}."
        )
    shown = folded_if_long(f"{len(lines)} events", len(lines), shown)
    drawn = [(run, view.listed(run.plan.arm)) for run in runs[:_MOST]]
    if any(len(names) < len(run.jobs) for run, names in drawn):
        most = max(len(run.jobs) for run, _ in drawn)
        caption += f" Of {most:,} jobs {SLOWEST}: failed ones, and the slowest."
    return draw("timeline", caption, _timeline, drawn) + shown


@dataclass(frozen=True)
class _Happened:
    """A row of the table. ``t``: by the lab's clock, seconds; ``took`` and ``came`` as HTML."""

    run: Run
    words: str
    t: float
    took: str
    came: str


def _happened(run: Run) -> list[_Happened]:
    """Return the events of a run and the unplanned changes of its switches, in order of time."""
    lines = [
        _Happened(run, action.said, action.begun, _took(action), _came(action))
        for action in run.later
    ]
    for drift, mended in run.drifts:
        took = NOTHING if mended is None else seconds(mended.t - drift.t)
        came = (
            mark("bad", "not put right")
            if mended is None
            else "restored by the controller"
        )
        lines.append(_Happened(run, drift.said, drift.t, took, came))
    return sorted(lines, key=lambda line: line.t)


def _took(action: Action) -> str:
    if action.ended is None:
        return NOTHING
    return (
        seconds(action.ended - action.begun)
        if action.ended > action.begun
        else "at once"
    )


def _came(action: Action) -> str:
    came = action.error or (
        "" if action.ended is not None else "its end is not on record"
    )
    return mark("bad", text(came)) if came else "done"


def _timeline(runs: list[tuple[Run, list[str]]]) -> Figure:
    rows = [len(names) for _, names in runs]
    height = 0.55 + sum(0.42 * n + 0.62 for n in rows)
    figure, axes = sheet(
        height, rows=len(runs), left=0.95, heights=rows, gap=(0, 0.62), top=0.5
    )
    colours = job_colours(
        list(dict.fromkeys(name for _, names in runs for name in names))
    )
    # One scale for all panels: arms are compared.
    ends = [
        job.end - run.released
        for run, _ in runs
        for job in run.jobs.values()
        if job.end is not None
    ]
    last = max(ends, default=1.0)
    for (axis,), (run, names) in zip(axes, runs, strict=True):
        _run(axis, run, names, colours, last)
        if len(runs) > 1:
            axis.set_title(run.plan.title)
    axes[-1][0].set_xlabel("seconds since the release of the first jobs")
    waiting = [Patch(**_WAITING, label="waiting for GPUs")]
    if any(
        _starting_s(run.released, run.jobs[name])
        for run, names in runs
        for name in names
    ):
        waiting.append(Patch(**_STARTING, label="workers start"))
    events = [key(LIGHT, "event")]
    if any(_strange(run) for run, _ in runs):
        events.append(Line2D([], [], **_STRANGE, label="switch changed by others"))
    legend(figure, "a job's time", [*waiting, key(QUIET, "training", 6), *events])
    return figure


def _run(
    axis: Axes, run: Run, names: Sequence[str], colours: Mapping[str, str], last: float
) -> None:
    """Draw the jobs of these names. ``last``: seconds since the release at which the axis ends, or nearly."""
    named_rows(axis, names)
    for y, name in enumerate(names):
        _job(axis, y, run.jobs[name], run.released, colours[name])
    axis.set(xlim=(0, 1.03 * last), ylim=(len(names) - 0.5, -0.62))
    for drift in _strange(run):
        axis.axvline(drift.t - run.released, **_STRANGE, zorder=4)
    place, level = -1.0, 0
    for action in sorted(run.later, key=lambda action: action.begun):
        begin = action.begun - run.released
        end = begin if action.ended is None else action.ended - run.released
        if end - begin > 0.004 * last:
            axis.axvspan(begin, end, color=LIGHT, alpha=0.28, linewidth=0, zorder=0.5)
        axis.axvline(begin, color=LIGHT, linewidth=1.6, zorder=4)
        # Names of events that are near each other stand one below the other.
        level = (
            (level + 1) % len(names)
            if begin - place < 0.18 * last * WIDE / width()
            else 0
        )
        place = begin
        box = {"facecolor": FACE, "alpha": 0.75, "linewidth": 0, "pad": 0.6}
        note(axis, begin, level - 0.42, action.said, color=INK, zorder=6, bbox=box)


def _strange(run: Run) -> list[SwitchDrifted]:
    """Return the changes of switches that no event of the run caused."""
    return [drift for drift, _ in run.drifts if not drift.planned]


def _starting_s(zero: float, job: JobRun) -> float:
    """Return the seconds after ``zero`` in which a job had its GPUs and its workers were not ready."""
    if job.granted is None or job.released is None:
        return 0.0
    return max(0.0, job.released - max(job.granted, zero))


def _job(axis: Axes, y: float, job: JobRun, zero: float, colour: str) -> None:
    released = job.end if job.released is None else job.released
    if job.arrived is not None and released is not None:
        granted = released - _starting_s(zero, job)
        spans(
            axis,
            "none",
            [(y, max(0.0, job.arrived - zero), granted - zero)],
            **_WAITING,
        )
        spans(axis, "none", [(y, granted - zero, released - zero)], **_STARTING)
    if job.released is None or job.end is None:
        return
    spans(axis, colour, [(y, job.released - zero, job.end - zero)], alpha=0.85)
    gone = zip(job.losses, job.recoveries, strict=False)
    spans(
        axis,
        "white",
        [(y, lost.t - zero, back.at - zero) for lost, back in gone],
        alpha=0.7,
    )
    ends = [end - zero for _, end in job.spans]
    if 1 < len(ends) <= 400:
        axis.vlines(ends, y + 0.12, y + 0.25, color="white", linewidth=0.8)
    if job.state != SUCCEEDED:
        axis.plot(
            [job.end - zero],
            [y],
            marker="x",
            markersize=9,
            markeredgewidth=2.2,
            color=INK,
            zorder=5,
        )
    axis.axhline(y + 0.5, color=RULE, linewidth=0.5)


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
            ("event", lambda line: text(_said(line[2]))),
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
        for run in runs[:_MOST]
        for job in run.jobs.values()
        for _, end in job.spans
    ]
    last, pictures = max(ends, default=0.0), []
    for run in runs[:_MOST]:
        caption = (
            f"{run.plan.title}: duration of every iteration, slowest rank, at the time it ended. Lines mark "
            f"{_named(run)}, shaded while something was away. {view.label.capitalize()}, emulated time."
        )
        pictures.append(draw(f"fault-{run.plan.arm}", caption, _iterations, run, last))
    return (
        "<p>Iterations are medians over ranks; those that overlap the time in which something was away count "
        "as during. Recovery runs from a fault of a part that the job used to the end of the next iteration of "
        f"all ranks. All {tag(view.label)}, emulated time.{view.says('faults')}</p>"
        f"{''.join(pictures)}{''.join(_told(view, run) for run in runs)}{shown}"
    )


def _faults(run: Run) -> list[Action]:
    return [action for action in run.later if action.plan.do in _DONE]


def _lines(view: View, run: Run) -> Iterator[Line]:
    for action in _faults(run):
        for job in view.each_job([run.plan.arm]):
            event = view.at(job.arm, f"event {action.plan.name} {job.subject}")
            if any(event.row(metric) for _, metric in _FIGURES):
                yield event, job, action


def _of_event(metric: str) -> Callable[[Line], str]:
    return lambda line: line[0].figure(metric)


def _said(action: Action) -> str:
    return (
        f"{action.said}, then {action.plan.then}" if action.plan.then else action.said
    )


def _named(run: Run) -> str:
    """Return the faults of a run in words, in the order of the lines of its picture."""
    done = sorted(_faults(run), key=lambda action: action.begun)
    return "; ".join(dict.fromkeys(map(_said, done))) or "what was done"


def _told(view: View, run: Run) -> str:
    """Return the facts about each fault in addition to times; empty if there are none."""
    sentences = []
    for action in _faults(run):
        away = view.at(run.plan.arm, f"event {action.plan.name}").number("away")
        if away is not None:
            sentences.append(
                f"{text(_said(action))}: away for {seconds(away)}, until it answered again."
            )
        if action.error is not None:
            sentences.append(
                mark("bad", f"{text(_said(action))}: {text(action.error)}.")
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
            action.said,
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
        if action.plan.do in MOVES_LIGHT:
            yield action, view.at(run.plan.arm, f"event {action.plan.name}")
