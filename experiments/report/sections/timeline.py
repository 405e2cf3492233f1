"""The timeline of a run's jobs and of what was done meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ringlight.experiments.record.lab_records import SwitchDrifted
from ringlight.experiments.record.runs import SUCCEEDED, Action, JobRun, Run
from ringlight.experiments.report.charts import (
    key,
    legend,
    named_rows,
    note,
    sheet,
    spans,
)
from ringlight.experiments.report.columns import seconds_and_real
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
from ringlight.experiments.report.sections.events import MOST_DRAWN
from ringlight.experiments.report.view import SLOWEST, Draw, View
from ringlight.experiments.report.words import seconds

_WAITING: Any = {
    "facecolor": "none",
    "edgecolor": QUIET,
    "hatch": "////",
    "linewidth": 0.7,
}


_STARTING: Any = {**_WAITING, "hatch": "...."}


_STRANGE: Any = {"color": INK, "linewidth": 1.2, "linestyle": (0, (3, 2))}


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
    drawn = [(run, view.listed(run.plan.arm)) for run in runs[:MOST_DRAWN]]
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
        _Happened(run, action.sentence, action.begun, _took(action), _came(action))
        for action in run.later
    ]
    for drift, mended in run.drifts:
        took = NOTHING if mended is None else seconds(mended.t - drift.t)
        came = (
            mark("bad", "not put right")
            if mended is None
            else "restored by the controller"
        )
        lines.append(_Happened(run, drift.sentence, drift.t, took, came))
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
        note(axis, begin, level - 0.42, action.sentence, color=INK, zorder=6, bbox=box)


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
