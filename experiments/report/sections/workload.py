"""Jobs that run workloads: their operations over time, and their exposed communication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from ringlight.experiments.analysis.metrics.workloads import (
    COMMUNICATION,
    COMPUTING,
    of_purpose,
)
from ringlight.experiments.analysis.rows import key_of
from ringlight.experiments.language.plan import JobPlan
from ringlight.experiments.record.events import Operations
from ringlight.experiments.record.runs import JobRun, Run
from ringlight.experiments.report.charts import (
    Span,
    chart,
    key,
    legend,
    named_rows,
    prefixed,
)
from ringlight.experiments.report.columns import (
    ARM,
    JOB,
    Cell,
    cell,
    figures,
    swept,
    swept_columns,
)
from ringlight.experiments.report.drawing import INK, PALETTE, RULE
from ringlight.experiments.report.page import (
    NOTHING,
    Columns,
    folded_if_long,
    quiet,
    table_of,
    tag,
    text,
)
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, Figures, View
from ringlight.experiments.report.words import count, percent, seconds
from ringlight.fabric.kinds import KINDS
from ringlight.fabric.steps import FloatArray
from ringlight.fabric.units import format_size
from ringlight.workloads.graph import Workload
from ringlight.workloads.summary import (
    MESSAGE,
    PURPOSES,
    TrafficSummary,
    purposes,
    traffic,
)

#: More ranks, of as many programs, are not drawn; nor are more jobs.
_MOST_RANKS, _MOST_JOBS = 8, 4
#: Share of a picture's width that no eye tells from nothing: gaps that are shorter are closed, and shorter
#: operations are made as long.
_UNSEEN = 0.0008
#: Inches of a picture above and below its lines.
_TOP, _BOTTOM = 0.36, 0.46
_COLOURS = {
    **dict(zip(COMPUTING, ("#9aa5b4", "#c9b8a0"), strict=True)),
    **dict(zip((*KINDS, MESSAGE), (*PALETTE, "#7a5a3c", "#d17fb0"), strict=False)),
    **dict(zip(PURPOSES, (*PALETTE, "#7a5a3c", "#d17fb0"), strict=True)),
}


class _Of(NamedTuple):
    """Bytes that a job carried for one purpose."""

    figures: Figures
    purpose: str
    bytes: TrafficSummary

    def number(self, metric: str) -> float | None:
        return self.figures.number(of_purpose(metric, self.purpose))


@section(17, "Workloads", needs=("exposed",))
def workload(view: View, draw: Draw) -> str:
    """Return HTML that shows the operations of jobs that run workloads over time, and their exposed
    communication."""
    jobs = view.having("exposed")
    if not jobs:
        return ""
    drawn = [drawn for run in view.first.values() for drawn in _recorded(run)] or [
        drawn for run in view.runs[:1] for drawn in _recorded(run)
    ]
    pictures = [
        draw(f"workload-{number}", _caption(view, run, job), _figure, job, records)
        for number, (run, job, records) in enumerate(drawn[:_MOST_JOBS], start=1)
    ]
    return f"{''.join(pictures)}{_of_jobs(view, jobs)}{_of_purposes(view, jobs)}"


# Tables.


def _of_jobs(view: View, jobs: Sequence[Figures]) -> str:
    columns: list[tuple[str, Cell]] = [
        *_where(jobs),
        ("ranks", lambda job: count(_plan(job).gpus)),
        ("operations per rank", lambda job: _lengths(_plan(job).workload)),
        ("iteration", "iteration"),
        ("computing", "computing"),
        ("exposed", "exposed"),
        ("results checked", _checked),
    ]
    shown = figures(jobs, columns, len(columns) - 6)
    return folded_if_long(f"{len(jobs)} jobs", len(jobs), shown) + quiet(
        f"All {tag(view.label)}, as emulated. Iteration: median over ranks and iterations; "
        "computing: how long of an iteration a rank computes, and exposed: how long it does not, means over "
        "ranks and iterations."
    )


def _of_purposes(view: View, jobs: Sequence[Figures]) -> str:
    purposes = [
        _Of(job, purpose, sent)
        for job in jobs
        for purpose, sent in traffic(_workload(_plan(job))).items()
    ]
    purposes.sort(
        key=lambda entry: (
            jobs.index(entry.figures),
            COMMUNICATION.index(entry.purpose),
        )
    )
    columns: Columns[_Of] = [
        ("purpose", lambda entry: text(entry.purpose)),
        *(
            (head, lambda entry, of=cell(of): of(entry.figures))
            for head, of in _where(jobs)
        ),
        ("exposed", lambda entry: seconds(entry.number("exposed"))),
        ("hidden", lambda entry: seconds(entry.number("hidden"))),
        ("of it hidden", _share_hidden),
        ("operations", lambda entry: count(entry.bytes.operations)),
        ("bytes, all ranks", lambda entry: format_size(entry.bytes.sent)),
        ("bytes, busiest rank", lambda entry: format_size(round(entry.bytes.most))),
    ]
    shown = table_of(purposes, columns, len(columns) - 6)
    return folded_if_long(
        f"By purpose, {len(jobs)} jobs", len(purposes), shown
    ) + quiet(
        "By purpose: how long of an iteration its operations were under way at a rank while "
        "that computed nothing, and hidden behind computing; waiting for partners counts, and purposes may "
        f"be under way at the same time {tag(view.label)}. Operations and bytes: of one iteration, as "
        f"emulated: the least that any algorithm must send {tag('analytic')}.{view.says('workload')}"
    )


def _where(jobs: Sequence[Figures]) -> list[tuple[str, Cell]]:
    """Columns that say what a row is of: as few as tell rows from each other."""
    return [
        *([ARM] if len({job.arm for job in jobs}) > 1 else []),
        JOB,
        *swept_columns(swept(job.point for job in jobs)),
    ]


def _plan(job: Figures) -> JobPlan:
    here = key_of(job.point)
    plans = (run.plan for run in job.view.runs if run.plan.arm == job.arm)
    return next(plan for plan in plans if key_of(plan.point) == here).job(job.name)


def _workload(job: JobPlan) -> Workload:
    assert job.workload is not None
    return job.workload


def _lengths(workload: Workload | None) -> str:
    lengths = (
        [len(program) for program in workload.programs] if workload is not None else [0]
    )
    least, most = count(min(lengths)), count(max(lengths))
    return most if least == most else f"{least} to {most}"


def _checked(job: Figures) -> str:
    parts = job.number("results_checked")
    return NOTHING if parts is None else f"{count(parts)} parts, all exact"


def _share_hidden(entry: _Of) -> str:
    exposed, hidden = entry.number("exposed"), entry.number("hidden")
    if exposed is None or hidden is None or exposed + hidden <= 0:
        return NOTHING
    return percent(hidden / (exposed + hidden), 0)


# Pictures.


def _recorded(run: Run) -> Iterator[tuple[Run, JobRun, list[Operations]]]:
    """Jobs whose operations are on record, and of the iteration in the middle those that are drawn."""
    for job in run.jobs.values():
        mine = run.of(Operations, job.name)
        if job.plan.workload is None or not mine:
            continue
        indices = sorted({record.i for record in mine})
        by_rank = {
            record.rank: record
            for record in mine
            if record.i == indices[len(indices) // 2]
        }
        chosen = [
            by_rank[rank] for rank in _ranks(job.plan.workload) if rank in by_rank
        ]
        if chosen:
            yield run, job, chosen


def _ranks(workload: Workload) -> list[int]:
    """The first rank of each program, or of some evenly apart."""
    firsts = np.sort(np.unique(workload.program_of, return_index=True)[1])
    some = (
        np.linspace(0, len(firsts) - 1, min(len(firsts), _MOST_RANKS))
        .round()
        .astype(int)
    )
    return [int(rank) for rank in firsts[some]]


def _caption(view: View, run: Run, job: JobRun) -> str:
    arm = f"{run.plan.title}, " if len(view.arms) > 1 else ""
    programs = len(_workload(job.plan).programs)
    some = (
        "one rank of each kind"
        if programs <= _MOST_RANKS
        else f"{_MOST_RANKS} of {programs} kinds of ranks"
    )
    return (
        f"{arm}{job.name}: the operations of an iteration in the middle of the run, of {some}, in a line for "
        "each stream, from when an operation has its stream (of communication, waiting for partners "
        f"included). {view.label.capitalize()}, emulated times; trace.json has every operation."
    )


def _figure(job: JobRun, records: Sequence[Operations]) -> Figure:
    workload, zero = _workload(job.plan), min(record.begin for record in records)
    lanes, spans_of = list[str](), dict[str, list[Span]]()
    heads: list[tuple[int, str]] = []
    width = max(
        record.begin - zero + max(end for _, end in record.times_s)
        for record in records
    )
    for record in records:
        program = workload.programs[int(workload.program_of[record.rank])]
        times_s, of = (
            np.array(record.times_s) + (record.begin - zero),
            np.array(purposes(workload, program)),
        )
        gpu = f" ({job.gpus[record.rank]})" if record.rank < len(job.gpus) else ""
        heads.append((len(lanes), f"rank {record.rank}{gpu}"))
        for stream in np.unique(program.stream).tolist():
            mine = program.stream == stream
            for purpose, begin, end in merged(of[mine], times_s[mine], _UNSEEN * width):
                spans_of.setdefault(purpose, []).append((len(lanes), begin, end))
            lanes.append(workload.streams[stream])
    height = _TOP + _BOTTOM + min(0.22 * len(lanes), 8.5)
    figure, axis = chart(height, left=1.95, top=_TOP, bottom=_BOTTOM)
    points = 0.74 * 72 * (height - _TOP - _BOTTOM) / len(lanes)
    named_rows(axis, lanes)
    for lane, head in heads:
        axis.axhline(lane - 0.5, color=RULE, linewidth=0.8)
        transform = axis.get_yaxis_transform()
        # At the left edge of the picture, whatever its width.
        edge = (
            -axis.get_position(original=True).x0
            / axis.get_position(original=True).width
        )
        axis.text(
            edge,
            lane,
            head,
            transform=transform,
            ha="left",
            va="center",
            fontsize=7,
            color=INK,
        )
    shown = [purpose for purpose in (*COMPUTING, *COMMUNICATION) if purpose in spans_of]
    for purpose in shown:
        _bars(axis, _COLOURS[purpose], spans_of[purpose], points)
    axis.set_xlim(0, width)
    axis.set_xlabel("time since the iteration began")
    prefixed(axis.xaxis, "s")
    legend(
        figure,
        "operations",
        [key(_COLOURS[purpose], purpose, 6) for purpose in shown],
        columns=8,
    )
    return figure


def merged(
    of: Sequence[str], times_s: FloatArray, unseen_s: float
) -> list[tuple[str, float, float]]:
    """Return operations of one stream as spans (purpose, begin, end), times in seconds.

    Neighbours of one purpose with no more than ``unseen_s`` between them are one span. A span that is shorter
    than ``unseen_s`` is made as long, if there is room.
    """
    order = np.argsort(times_s[:, 0], kind="stable").tolist()
    spans: list[tuple[str, float, float]] = []
    for k, after in zip(order, [*order[1:], None], strict=True):
        purpose, (begin, end) = str(of[k]), times_s[k].tolist()
        room = np.inf if after is None else float(times_s[after, 0])
        end = max(end, min(begin + unseen_s, room))
        if spans and spans[-1][0] == purpose and begin - spans[-1][2] <= unseen_s:
            spans[-1] = purpose, spans[-1][1], max(spans[-1][2], end)
        else:
            spans.append((purpose, begin, end))
    return spans


def _bars(axis: Axes, colour: str, spans: Sequence[Span], points: float) -> None:
    """Spans as one path of thick lines: thousands of rectangles are megabytes of SVG."""
    ends = np.array([[(begin, y), (end, y)] for y, begin, end in spans]).reshape(-1, 2)
    path = Path(ends, [Path.MOVETO, Path.LINETO] * len(spans))
    path.should_simplify = False
    look: Any = {
        "edgecolor": colour,
        "linewidth": points,
        "capstyle": "butt",
        "fill": False,
    }
    axis.add_patch(PathPatch(path, **look))
