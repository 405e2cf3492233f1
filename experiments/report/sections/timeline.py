"""What happened when: jobs that arrive, wait and train, and the events of the timeline."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.record.runs import SUCCEEDED, Action, JobRun, Run
from experiments.report.drawing import INK, LIGHT, QUIET, RULE, job_colours
from experiments.report.page import row, table, tag, text
from experiments.report.report import Draw
from experiments.report.sheet import legend, sheet, vertical_grid
from experiments.report.view import View
from experiments.report.words import seconds

ORDER = 22
NEEDS = ("makespan",)
#: More arms than these have their events in the table only.
_MOST = 4


def wanted(view: View) -> bool:
    return bool(_runs(view))


def render(view: View, draw: Draw) -> str:
    runs = _runs(view)
    rows = [_row(run, action) for run in runs for action in run.actions if _later(run, action)]
    shown = ""
    if rows:
        head = ["arm", "event", "at", "took", "what came of it"]
        shown = (
            f"{table(head, rows, 9)}"
            f'<p class="quiet">Times since the release of the first jobs, as emulated {tag(view.label)}.</p>'
        )
    caption = (
        "Jobs over time. Hatched: waiting for GPUs; filled: training, a tick at the end of every iteration; "
        "pale: between a loss and going on. Vertical lines are events, a cross is a failure. "
        f"{view.label.capitalize()}, seconds as emulated."
    )
    return f"<h2>Timeline</h2>{draw('timeline', caption, _figure(runs[:_MOST]))}{shown}"


def _runs(view: View) -> list[Run]:
    """First runs in which something happened after the start."""
    first = [run for arm in view.fixed if (run := view.first(arm)) is not None]
    return [run for run in first if _eventful(run)]


def _eventful(run: Run) -> bool:
    late = any(not job.start.at_once for job in run.plan.jobs)
    return late or any(_later(run, action) for action in run.actions)


def _later(run: Run, action: Action) -> bool:
    return action.begun > run.released


def _named(action: Action) -> str:
    return f"{action.plan.do} {action.plan.target or ''}".strip()


def _row(run: Run, action: Action) -> str:
    took = None if action.ended is None else action.ended - action.begun
    came = action.error or ("" if action.ended is not None else "its end is not on record")
    cells = [
        text(run.plan.title),
        text(_named(action)),
        seconds(action.begun - run.released),
        seconds(took) if took else "at once" if took is not None else "–",
        f'<b class="bad">{text(came)}</b>' if came else "done",
    ]
    return row(cells, 9)


def _figure(runs: list[Run]) -> Figure:
    rows = [len(run.jobs) for run in runs]
    height = 0.55 + sum(0.42 * n + 0.62 for n in rows)
    figure, axes = sheet(height, rows=len(runs), left=0.95, heights=rows, gap=(0, 0.62), top=0.5)
    colours = job_colours(list(dict.fromkeys(name for run in runs for name in run.jobs)))
    for (axis,), run in zip(axes, runs, strict=True):
        _run(axis, run, colours, titled=len(runs) > 1)
    axes[-1][0].set_xlabel("seconds since the release of the first jobs")
    handles = [
        Patch(facecolor="none", edgecolor=QUIET, hatch="////", label="waiting for GPUs"),
        Patch(facecolor=QUIET, label="training"),
        Line2D([], [], color=LIGHT, linewidth=2, label="event"),
    ]
    legend(figure, handles)
    return figure


def _run(axis: Axes, run: Run, colours: dict[str, str], titled: bool) -> None:
    zero = run.released
    names = list(run.jobs)
    for y, name in enumerate(names):
        _job(axis, y, run.jobs[name], zero, colours[name])
    last = max((job.end or zero) for job in run.jobs.values()) - zero
    top = len(names) - 0.5
    place, level = -1.0, 0
    for action in sorted(run.actions, key=lambda action: action.begun):
        if not _later(run, action):
            continue
        begin = action.begun - zero
        end = begin if action.ended is None else action.ended - zero
        if end - begin > 0.004 * last:
            axis.axvspan(begin, end, color=LIGHT, alpha=0.28, linewidth=0, zorder=0.5)
        axis.axvline(begin, color=LIGHT, linewidth=1.6, zorder=4)
        # Names of events that are near each other stand one below the other.
        level = (level + 1) % len(names) if begin - place < 0.18 * last else 0
        place = begin
        axis.annotate(
            _named(action),
            (begin, level - 0.42),
            xytext=(3, 0),
            textcoords="offset points",
            fontsize=7.5,
            color=INK,
            va="center",
            zorder=6,
            bbox={"facecolor": "white", "alpha": 0.55, "linewidth": 0, "pad": 0.6},
        )
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_ylim(top, -0.62)
    axis.set_xlim(0, 1.03 * last)
    vertical_grid(axis)
    if titled:
        axis.set_title(run.plan.title, fontsize=9)


def _job(axis: Axes, y: float, job: JobRun, zero: float, colour: str) -> None:
    if job.arrived is not None:
        waited_until = job.released if job.released is not None else job.end
        begin = max(0.0, job.arrived - zero)
        if waited_until is not None and waited_until - zero > begin:
            axis.barh(
                y,
                waited_until - zero - begin,
                left=begin,
                height=0.5,
                facecolor="none",
                edgecolor=QUIET,
                hatch="////",
                linewidth=0.7,
            )
    if job.released is None or job.end is None:
        return
    begin, end = job.released - zero, job.end - zero
    axis.barh(y, end - begin, left=begin, height=0.5, color=colour, linewidth=0, alpha=0.85)
    for lost, back in zip(job.losses, job.recoveries, strict=False):
        axis.barh(y, back.at - lost.t, left=lost.t - zero, height=0.5, color="white", alpha=0.7, linewidth=0)
    ends = [max(it.allreduce_end for it in group) - zero for group in job.by_index]
    if 1 < len(ends) <= 400:
        axis.vlines(ends, y + 0.12, y + 0.25, color="white", linewidth=0.8)
    if job.state != SUCCEEDED:
        axis.plot([end], [y], marker="x", markersize=9, markeredgewidth=2.2, color=INK, zorder=5)
    axis.axhline(y + 0.5, color=RULE, linewidth=0.5)
