"""Light moved while jobs train: the blackout, its parts, and the controller's steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from matplotlib.figure import Figure

from ringlight.experiments.analysis.metrics.regroup import (
    beacon_gaps,
    dark_intervals,
    phases,
    window,
)
from ringlight.experiments.language.light_events import moving_events
from ringlight.experiments.record.runs import Action, Run
from ringlight.experiments.report.charts import (
    chart,
    end_with_room,
    named_rows,
    note,
    spans,
)
from ringlight.experiments.report.drawing import LIGHT, QUIET, job_colours
from ringlight.experiments.report.page import table_of, tag, text
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, View
from ringlight.experiments.report.words import called, figure, meaning, seconds

#: What the blackout is made of, itself in bold, and what it is to be compared with.
_SEEN = ("beacon_gap", "wire_dark", "tcp_stall", "tcp_stall_usual", "blackout")
_BESIDE = ("reconfiguration", "dark_declared")
#: The controller's phases by the name of the moment that ends them.
_STEPS = {
    "planned": "plan",
    "light_removed": "remove light",
    "rules_written": "write rules",
    "light_added": "add light",
    "verified": "verify",
}
_MOST_GAPS = 8
_PACE = (
    "iteration_before",
    "iteration_after",
    "iteration_predicted_before",
    "iteration_predicted_after",
)
#: A bar: its name, start and end in milliseconds since the first step, and colour.
Bar = tuple[str, float, float, str]


@section(15, "Light moved while jobs train", needs=("blackout",))
def regroup(view: View, draw: Draw) -> str:
    """Return HTML that shows every move of light under running jobs in the first runs."""
    moves = [
        (run, a)
        for run in view.first.values()
        for a in run.later
        if a.plan.do in moving_events()
    ]
    return (
        "".join(
            [view.paragraph("regroup"), *(_figure(view, draw, *move) for move in moves)]
        )
        if moves
        else ""
    )


def _figure(view: View, draw: Draw, run: Run, action: Action) -> str:
    event = view.figures_at(run.plan.arm, f"event {action.plan.name}")
    moved, when = event.number("fibres_moved"), action.plan.when
    began = f"{seconds(action.begun - run.released)} after the release"
    if when.job is not None:
        began = f"After {when.iteration} iterations of job {text(when.job)}"
    caption = (
        f"{run.plan.title}: the steps of the controller, the cross-connects' dark time and the silences of "
        "beacons between ranks; time 0 is the first step. "
        f"{view.label.capitalize()}, emulated time."
    )
    shown = table_of(
        [
            row
            for metric in (*_SEEN, *_BESIDE)
            if (row := event.row(metric)) is not None
        ],
        [
            ("", lambda row: called(row.metric)),
            ("what it is", lambda row: meaning(row.metric)),
            ("label", lambda row: tag(row.label)),
            ("time", figure),
        ],
        3,
        strong=lambda row: row.metric == "blackout",
    )
    return (
        f"<h3>{text(run.plan.title)}</h3><p>{began} the controller moved "
        f"{f'{moved:.0f} fibres' if moved is not None else 'light'} under running jobs. "
        f"{_pace(view, event.arm, event.subject)}</p>"
        f"{draw(f'regroup-{event.arm}-{action.plan.name}', caption, _steps, run, action)}{shown}"
    )


def _pace(view: View, arm: str, event: str) -> str:
    """Return a sentence on how the jobs' iteration times changed."""
    sentences = []
    for job in view.each_job([arm]):
        before, after, *model = view.figures_at(arm, f"{event} {job.subject}").numbers(
            *_PACE
        )
        if before is not None and after is not None:
            modelled = (
                f" (model: {' to '.join(map(seconds, model))})"
                if None not in model
                else ""
            )
            sentences.append(
                f"those of {text(job.subject)} from {seconds(before)} to {seconds(after)}{modelled}"
            )
    return (
        f"Iterations changed: {', '.join(sentences)} {tag(view.label)}."
        if sentences
        else ""
    )


def _steps(run: Run, action: Action) -> Figure:
    bars = list(_bars(run, action))
    drawn, axis = chart(0.75 + 0.26 * max(2, len(bars)), left=1.9, top=0.12, bottom=0.5)
    # Simulated steps may take no time at all.
    last = max((end for _, _, end, _ in bars), default=0.0) or 1.0
    for y, (_, begin, end, colour) in enumerate(bars):
        spans(axis, colour, [(y, begin, end)], 0.62)
        note(axis, end, y, f"{end - begin:.1f} ms")
    named_rows(axis, [name for name, *_ in bars])
    # Beside the longest bar there is room for its figure.
    begin = min(0.0, *(begin for _, begin, _, _ in bars))
    axis.set_xlim(begin, begin + end_with_room(axis, last - begin, 0.6))
    axis.set_xlabel("milliseconds since the first step")
    return drawn


def _bars(run: Run, action: Action) -> Iterator[Bar]:
    begin, end = window(action)

    def bar(name: str, start: float, stop: float, colour: str) -> Bar:
        return name, 1000 * (start - begin), 1000 * (stop - begin), colour

    phase_times = phases(action.result)
    for (before, t), (name, reached) in itertools.pairwise(phase_times):
        # The plan is checked once more on the switches' own reading; only the first one is of interest.
        if name in _STEPS and before != "start":
            yield bar(_STEPS[name], t, reached, QUIET)
    if not phase_times:
        yield bar(action.plan.do, begin, end, QUIET)
    dark = dark_intervals(action.result)
    if dark:
        _, off, lit_s = max(dark, key=lambda entry: entry[2] - entry[1])
        label = (
            "dark on the wire"
            if len(dark) == 1
            else f"dark on the wire, longest of {len(dark)}"
        )
        yield bar(label, off, lit_s, LIGHT)
    colours = job_colours(list(run.jobs))
    longest = {
        f"no beacon {gap['from']} → {gap['to']}": gap
        for gap in reversed(beacon_gaps(run, action))
    }
    for label, gap in list(reversed(longest.items()))[:_MOST_GAPS]:
        yield bar(label, gap["t_start"], gap["t_end"], colours[gap["job"]])
