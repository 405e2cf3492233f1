"""What happened when: jobs that arrive, wait and train, and the events of the timeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ringlight.experiments.record.events import SwitchDrifted
from ringlight.experiments.record.runs import SUCCEEDED, Action, JobRun, Run
from ringlight.experiments.report.charts import key, legend, named_rows, note, sheet, spans
from ringlight.experiments.report.drawing import FACE, INK, LIGHT, QUIET, RULE, WIDE, job_colours, width
from ringlight.experiments.report.page import NOTHING, folded_if_long, mark, table_of, tag, text
from ringlight.experiments.report.view import Draw, View
from ringlight.experiments.report.words import seconds

ORDER = 12
TITLE = "Timeline"
NEEDS = ("makespan",)
#: More arms than these have their events in the table only.
_MOST = 4
_WAITING: Any = {"facecolor": "none", "edgecolor": QUIET, "hatch": "////", "linewidth": 0.7}
_STARTING: Any = {**_WAITING, "hatch": "...."}
_STRANGE: Any = {"color": INK, "linewidth": 1.2, "linestyle": (0, (3, 2))}


def wanted(view: View) -> list[Run]:
    """First runs in which something happened after the start."""
    runs = view.first.values()
    return [
        run for run in runs if run.later or run.drifts or not all(job.start.at_once for job in run.plan.jobs)
    ]


def render(view: View, draw: Draw) -> str:
    runs = wanted(view)
    lines = [line for run in runs for line in _lines(run)]
    caption = (
        "Jobs over time. Hatched: waiting for GPUs; filled: training, a tick at the end of every iteration; "
        "pale: between a loss and going on. Vertical lines are events, dashed ones changes of switches that "
        "no event asked for; a cross is a failure. "
        f"{view.label.capitalize()}, seconds as emulated."
    )
    shown = table_of(
        lines,
        [
            ("arm", lambda line: text(line.run.plan.title)),
            ("event", lambda line: text(line.said)),
            ("at", lambda line: seconds(line.t - line.run.released)),
            ("took", lambda line: line.took),
            ("what came of it", lambda line: line.came),
        ],
        9,
    )
    note = f"Times since the release of the first jobs, as emulated {tag(view.label)}."
    shown += f'<p class="quiet">{note}</p>' if shown else ""
    shown = folded_if_long(f"{len(lines)} events", len(lines), shown)
    return draw("timeline", caption, _figure, runs[:_MOST]) + shown


@dataclass(frozen=True)
class _Line:
    """A row of the table. ``t``: by the lab's clock, seconds; ``took`` and ``came`` as HTML."""

    run: Run
    said: str
    t: float
    took: str
    came: str


def _lines(run: Run) -> list[_Line]:
    """What happened to a run, by itself or made to, in order."""
    found = [_Line(run, action.said, action.begun, _took(action), _came(action)) for action in run.later]
    for drift, mended in run.drifts:
        took = NOTHING if mended is None else seconds(mended.t - drift.t)
        came = mark("bad", "not put right") if mended is None else "put right by the controller"
        found.append(_Line(run, drift.said, drift.t, took, came))
    return sorted(found, key=lambda line: line.t)


def _took(action: Action) -> str:
    if action.ended is None:
        return NOTHING
    return seconds(action.ended - action.begun) if action.ended > action.begun else "at once"


def _came(action: Action) -> str:
    came = action.error or ("" if action.ended is not None else "its end is not on record")
    return mark("bad", text(came)) if came else "done"


def _figure(runs: list[Run]) -> Figure:
    rows = [len(run.jobs) for run in runs]
    height = 0.55 + sum(0.42 * n + 0.62 for n in rows)
    figure, axes = sheet(height, rows=len(runs), left=0.95, heights=rows, gap=(0, 0.62), top=0.5)
    colours = job_colours(list(dict.fromkeys(name for run in runs for name in run.jobs)))
    # One scale for all panels: arms are compared.
    ends = [job.end - run.released for run in runs for job in run.jobs.values() if job.end is not None]
    last = max(ends, default=1.0)
    for (axis,), run in zip(axes, runs, strict=True):
        _run(axis, run, colours, last)
        if len(runs) > 1:
            axis.set_title(run.plan.title)
    axes[-1][0].set_xlabel("seconds since the release of the first jobs")
    waiting = [Patch(**_WAITING, label="waiting for GPUs")]
    if any(_starting_s(run.released, job) for run in runs for job in run.jobs.values()):
        waiting.append(Patch(**_STARTING, label="workers start"))
    events = [key(LIGHT, "event")]
    if any(_strange(run) for run in runs):
        events.append(Line2D([], [], **_STRANGE, label="switch changed by others"))
    legend(figure, "a job's time", [*waiting, key(QUIET, "training", 6), *events])
    return figure


def _run(axis: Axes, run: Run, colours: Mapping[str, str], last: float) -> None:
    """``last``: seconds since the release at which the axis ends, or nearly."""
    names = list(run.jobs)
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
        level = (level + 1) % len(names) if begin - place < 0.18 * last * WIDE / width() else 0
        place = begin
        box = {"facecolor": FACE, "alpha": 0.75, "linewidth": 0, "pad": 0.6}
        note(axis, begin, level - 0.42, action.said, color=INK, zorder=6, bbox=box)


def _strange(run: Run) -> list[SwitchDrifted]:
    """Changes of switches that no event of the run brought about."""
    return [drift for drift, _ in run.drifts if not drift.planned]


def _starting_s(zero: float, job: JobRun) -> float:
    """Seconds after ``zero`` in which a job had its GPUs and its workers were not ready."""
    if job.granted is None or job.released is None:
        return 0.0
    return max(0.0, job.released - max(job.granted, zero))


def _job(axis: Axes, y: float, job: JobRun, zero: float, colour: str) -> None:
    released = job.end if job.released is None else job.released
    if job.arrived is not None and released is not None:
        granted = released - _starting_s(zero, job)
        spans(axis, "none", [(y, max(0.0, job.arrived - zero), granted - zero)], **_WAITING)
        spans(axis, "none", [(y, granted - zero, released - zero)], **_STARTING)
    if job.released is None or job.end is None:
        return
    spans(axis, colour, [(y, job.released - zero, job.end - zero)], alpha=0.85)
    gone = zip(job.losses, job.recoveries, strict=False)
    spans(axis, "white", [(y, lost.t - zero, back.at - zero) for lost, back in gone], alpha=0.7)
    ends = [end - zero for _, end in job.spans]
    if 1 < len(ends) <= 400:
        axis.vlines(ends, y + 0.12, y + 0.25, color="white", linewidth=0.8)
    if job.state != SUCCEEDED:
        axis.plot([job.end - zero], [y], marker="x", markersize=9, markeredgewidth=2.2, color=INK, zorder=5)
    axis.axhline(y + 0.5, color=RULE, linewidth=0.5)
