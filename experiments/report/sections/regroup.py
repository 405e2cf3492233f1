"""Light that moved under running jobs: the blackout, what it is made of, and the steps of the controller."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis.metrics import LIGHT as MOVES_LIGHT
from experiments.analysis.metrics.regroup import (
    beacon_gaps,
    dark_intervals,
    phases,
    window,
)
from experiments.record.runs import Action, Run
from experiments.report.drawing import LIGHT, QUIET, job_colours
from experiments.report.page import row, table, tag, text
from experiments.report.report import Draw
from experiments.report.sheet import sheet, vertical_grid
from experiments.report.view import View
from experiments.report.words import YES_NO, figure, seconds

ORDER = 35
NEEDS = ("blackout",)
#: What the blackout is made of: metric, name, and what it is.
_PARTS = (
    ("beacon_gap", "beacon gap", "longest silence between two ranks of which one moved"),
    ("wire_dark", "dark on the wire", "longest dark time that an optical switch reports"),
    ("tcp_stall", "TCP stall", "longest time without a byte inside an all-reduce while light moved"),
    ("tcp_stall_usual", "usual TCP stall", "the same where no light moves: median of earlier iterations"),
    ("blackout", "blackout", "the worst of beacon gap, dark wire and TCP stall"),
    ("reconfiguration", "reconfiguration latency", "from the controller's first step to its last"),
    ("dark_declared", "declared dark time", "longest, of the optical switches' profiles"),
)
#: The controller's phases by the name of the moment that ends them.
_STEPS = {
    "planned": "plan",
    "light_removed": "remove light",
    "rules_written": "write rules",
    "light_added": "add light",
    "verified": "verify",
}
_MOST_GAPS = 8


def render(view: View, draw: Draw) -> str:
    said = f"<p>{text(view.says('regroup'))}</p>" if view.says("regroup") else ""
    parts = "".join(_one(view, draw, run, action) for run, action in _moves(view))
    return f"<h2>Light moved while jobs train</h2>{said}{parts}"


def _moves(view: View) -> Iterator[tuple[Run, Action]]:
    for arm in view.fixed:
        run = view.first(arm)
        for action in run.actions if run is not None else ():
            if run is not None and action.plan.do in MOVES_LIGHT and action.begun > run.released:
                yield run, action


def _one(view: View, draw: Draw, run: Run, action: Action) -> str:
    arm, subject = run.plan.arm, f"event {action.plan.name}"
    rows = []
    for metric, name, what in _PARTS:
        found = view.row(arm, subject, metric)
        if found is not None:
            strong = "strong" if metric == "blackout" else ""
            rows.append(row([name, what, tag(found.label), figure(found)], 3, strong))
    moved = view.number(arm, subject, "fibres_moved")
    caption = (
        f"{run.plan.title}: the steps of the controller, the cross-connects' dark time and the silences of "
        "beacons between ranks; time 0 is the first step. "
        f"{view.label.capitalize()}, time as emulated."
    )
    drawn = draw(f"regroup-{arm}-{action.plan.name}", caption, _figure(run, action))
    return (
        f"<h3>{text(run.plan.title)}</h3><p>{_began(run, action)} the controller moved "
        f"{f'{moved:.0f} fibres' if moved is not None else 'light'} under running jobs. "
        f"{_pace(view, arm, subject)}</p>{_kept(view, arm)}"
        f"{table(['', 'what it is', '', 'time'], rows, 3)}{drawn}"
    )


def _began(run: Run, action: Action) -> str:
    when = action.plan.when
    if when.job is not None:
        return f"After {when.iteration} iterations of job {text(when.job)}"
    return f"{seconds(action.begun - run.released)} after the release"


def _pace(view: View, arm: str, subject: str) -> str:
    """What became of the jobs' iterations."""
    said = []
    for job in view.subjects(arm, "job"):
        names = (
            "iteration_before",
            "iteration_after",
            "iteration_predicted_before",
            "iteration_predicted_after",
        )
        before, after, model_before, model_after = (
            view.number(arm, f"{subject} {job}", name) for name in names
        )
        if before is None or after is None:
            continue
        model = (
            f" (model: {seconds(model_before)} to {seconds(model_after)})"
            if model_before is not None and model_after is not None
            else ""
        )
        said.append(f"of {text(job)} from {seconds(before)} to {seconds(after)}{model}")
    return f"Iterations went {', '.join(said)} {tag(view.label)}." if said else ""


def _kept(view: View, arm: str) -> str:
    facts = []
    for job in view.subjects(arm, "job"):
        for metric, what in (
            ("parameters_identical", "parameters identical to the one-process reference"),
            ("connections_unchanged", "same TCP connections from start to end"),
        ):
            value = view.value(arm, job, metric)
            if isinstance(value, bool):
                facts.append(f"{text(job)}, {what}: <b>{YES_NO[value]}</b>")
    return f"<p>{'; '.join(facts)} {tag('measured')}.</p>" if facts else ""


def _figure(run: Run, action: Action) -> Figure:
    rows = list(_rows(run, action))
    drawn, ((axis,),) = sheet(0.75 + 0.26 * max(2, len(rows)), left=1.9, top=0.12, bottom=0.5)
    _bars(axis, rows)
    return drawn


def _rows(run: Run, action: Action) -> Iterator[tuple[str, float, float, str]]:
    """Name, from, to (milliseconds since the first step) and colour."""
    begin, end = window(action)

    def since(t: float) -> float:
        return 1000 * (t - begin)

    found = phases(action.result)
    for (before, t), (name, reached) in itertools.pairwise(found):
        # The plan is checked once more on the switches' own reading; only the first one is of interest.
        if name in _STEPS and before != "start":
            yield _STEPS[name], since(t), since(reached), QUIET
    if not found:
        yield action.plan.do, 0.0, since(end), QUIET
    dark = dark_intervals(action.result)
    if dark:
        _, off, lit = max(dark, key=lambda entry: entry[2] - entry[1])
        label = "dark on the wire" if len(dark) == 1 else f"dark on the wire, longest of {len(dark)}"
        yield label, since(off), since(lit), LIGHT
    colours = job_colours(list(run.jobs))
    longest = {f"no beacon {gap['from']} → {gap['to']}": gap for gap in reversed(beacon_gaps(run, action))}
    for label, gap in list(reversed(longest.items()))[:_MOST_GAPS]:
        yield label, since(gap["t_start"]), since(gap["t_end"]), colours[gap["job"]]


def _bars(axis: Axes, rows: list[tuple[str, float, float, str]]) -> None:
    axis.barh(
        range(len(rows)),
        [stop - start for _, start, stop, _ in rows],
        left=[start for _, start, _, _ in rows],
        height=0.62,
        color=[colour for *_, colour in rows],
    )
    last = max((stop for _, _, stop, _ in rows), default=1.0)
    for y, (_, start, stop, _) in enumerate(rows):
        axis.text(stop + 0.008 * last, y, f"{stop - start:.1f} ms", va="center", fontsize=7.5, color=QUIET)
    axis.set_yticks(range(len(rows)), [name for name, *_ in rows], fontsize=8)
    axis.invert_yaxis()
    vertical_grid(axis)
    axis.set_xlim(min(0.0, *(start for _, start, _, _ in rows)), 1.1 * last)
    axis.set_xlabel("milliseconds since the first step")
