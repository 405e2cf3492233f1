"""Light divided by demand: its divisions, their durations, what the light carried, and who waited for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringlight.experiments.language.spec import quantity
from ringlight.experiments.record.runs import Run
from ringlight.experiments.report.charts import along, key, legend, prefixed, sheet
from ringlight.experiments.report.columns import ARM, figures, short, swept
from ringlight.experiments.report.drawing import LIGHT, PALETTE
from ringlight.experiments.report.page import quiet, tag
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, View
from ringlight.experiments.report.words import as_text, count
from ringlight.extensions.sip_ml.records import LightDecisions, LightGiven

#: Most arms whose divisions are drawn.
_MOST_DRAWN = 6
_CARRIED, _WAITED = LIGHT, PALETTE[0]


@section("regroup", "Light divided by demand", needs=("light_bytes_wrong",))
def divisions(view: View, draw: Draw) -> str:
    """Return HTML that shows light divided by demand: its divisions over time, their durations, and what
    the light carried."""
    jobs = view.having("light_bytes_wrong")
    if not jobs:
        return ""
    drawn = [run for run in view.first.values() if _decisions(run)][:_MOST_DRAWN]
    phased = bool(view.having("phase_turns"))
    what = (
        "Bytes of the phases for which light was set"
        if phased
        else "Bytes under way for which light was divided"
    )
    caption = f"{what}, at each division, from the release of the jobs on."
    durations = figures(
        [subject for subject in jobs if subject.number("divisions")],
        [
            ARM,
            ("divisions", lambda subject: count(subject.number("divisions"))),
            ("read", "division_read"),
            ("decide", "division_decide"),
            ("hold", "division_hold"),
            ("set the switches", "division_write"),
            ("dark", "division_dark"),
            ("dark in all", "divisions_dark"),
        ],
    ) + quiet(
        "Medians of what a division takes, emulated seconds: to read what is left, to "
        "find lightpaths for it, until the O-NICs hold, until the switches had read back what they were "
        f"told; dark is from the hold until the O-NICs sent again {tag(view.label)}."
    )
    carried = figures(
        jobs,
        [
            ARM,
            (
                "lightpaths used",
                lambda subject: count(subject.number("lightpaths_used")),
            ),
            ("payload", "light_payload"),
            ("framing", "light_framing"),
            ("sent again", "light_resent"),
            ("bytes wrong", "light_bytes_wrong"),
        ],
    ) + quiet(
        "Bytes wrong: the sum, over all pairs, of three differences that should be 0: "
        "between what the workload has to send and what workers gave O-NICs; between that and what O-NICs "
        f"sent for the first time; between what each lightpath took in and gave out {tag(view.label)}."
    )
    how = (
        "divides the lightpaths among the pairs by what they have still to send: it reads what workers gave "
        "the O-NICs and what these have sent, has them hold everything"
    )
    if phased:
        how = (
            "sets the lightpaths by what each phase of a job sends: as soon as workers have ended the phases "
            "before, it has the O-NICs of its ranks hold everything"
        )
    return (
        "<p>O-NICs deal out what they send to a peer over all lightpaths to it. The controller "
        f"{how}, sets the switches through their drivers, and tells the O-NICs where to send. What is held "
        f"is not lost.{view.says('divisions')}</p>"
        + (durations + draw("divisions", caption, _left, drawn) if drawn else "")
        + carried
    )


def _decisions(run: Run) -> list[tuple[float, float]]:
    """Return (seconds since the release, bytes left) of each division of a run."""
    made = [decision for note in run.of(LightDecisions) for decision in note.decisions]
    return [(decision["t"] - run.released, decision["left_bytes"]) for decision in made]


def _left(runs: list[Run]) -> Figure:
    figure, rows = sheet(
        1.3 * len(runs) + 0.5, rows=len(runs), left=0.85, gap=(0.55, 0.6)
    )
    last = max(t for run in runs for t, _ in _decisions(run))
    for number, (run, (axis,)) in enumerate(zip(runs, rows, strict=True)):
        made = _decisions(run)
        axis.plot(
            *zip(*made, strict=True),
            marker="o",
            markersize=2.5,
            color=PALETTE[number % len(PALETTE)],
        )
        axis.set_title(run.plan.title)
        axis.set(xlim=(0, 1.03 * last), ylim=(0, None))
        axis.set_ylabel("bytes left")
        prefixed(axis.yaxis, "B")
    rows[-1][0].set_xlabel("emulated seconds")
    return figure


@dataclass(frozen=True)
class _At:
    """A run at a value of the swept path."""

    value: object
    run: Run
    jct_s: float
    light: LightGiven


@section("controllers", "Light in turns", needs=("divisions_late",))
def turns(view: View, draw: Draw) -> str:
    """Return HTML that shows the effect of the interval between divisions of light on the time of jobs.

    Job time is drawn over the interval. Maps show the pairs of GPUs that waited in the dark at the two
    neighbouring intervals whose times differ most.
    """
    path, runs = next(_swept(view), ("", []))
    if not runs:
        return ""
    caption = (
        "Above, time of the job by the interval. Below, for two intervals, a line for each pair of GPUs, "
        "from one division of light to the next: it had light for bytes that it was divided for; or it had "
        "none, and bytes waited for the next."
    )
    return (
        "<p>A pair of GPUs with nothing to send when light is divided gets none, so what it begins to send "
        "afterwards waits for the next division. The maps are of the two neighbouring intervals whose times "
        f"differ most.{view.says('turns')}</p>{draw('turns', caption, _turns, path, runs)}"
    )


def _swept(view: View) -> Iterator[tuple[str, list[_At]]]:
    """Yield the arms that are swept over one path of numbers, by its values."""
    for arm in view.arms:
        points = view.points(arm)
        paths = swept(points)
        if len(points) > 1 and len(paths) == 1:
            runs = sorted(
                _runs_of(view, arm, paths[0]),
                key=lambda run: quantity(run.value) or (0.0, ""),
            )
            if len(runs) == len(points) and all(quantity(run.value) for run in runs):
                yield paths[0], runs


def _runs_of(view: View, arm: str, path: str) -> Iterator[_At]:
    for run in (
        run for run in view.runs if run.plan.arm == arm and run.plan.repeat == 1
    ):
        for light in run.of(LightGiven):
            jct_s = view.figures_at(arm, f"job {light.job}", run.plan.point).number(
                "jct"
            )
            if jct_s is not None:
                yield _At(run.plan.point[path], run, jct_s, light)


def _apart(runs: Sequence[_At]) -> tuple[_At, _At]:
    """Return the runs at the two neighbouring values between which the job's time changes most."""

    def ratio(pair: tuple[_At, _At]) -> float:
        least, most = sorted(run.jct_s for run in pair)
        return most / least

    return max(itertools.pairwise(runs), key=ratio)


def _turns(path: str, runs: Sequence[_At]) -> Figure:
    chosen = _apart(runs)
    figure, rows = sheet(
        5.6, rows=3, left=0.95, top=0.45, gap=(0, 0.62), heights=[1.2, 1, 1]
    )
    axes = [axis for (axis,) in rows]
    values = [run.value for run in runs]
    xs = along(
        axes[0], values, [as_text(value) for value in values], short(path, [path])
    )
    axes[0].plot(
        xs, [run.jct_s for run in runs], marker="o", markersize=2.5, color=PALETTE[1]
    )
    for run in chosen:
        axes[0].plot(
            [xs[runs.index(run)]], [run.jct_s], marker="o", markersize=6, color=_WAITED
        )
    axes[0].set_ylabel("job, seconds")
    last = max(run.jct_s for run in chosen)
    for axis, run in zip(axes[1:], chosen, strict=True):
        _map(axis, run, last)
    axes[-1].set_xlabel("emulated seconds")
    handles = [
        key(_CARRIED, "light for bytes under way", 6),
        key(_WAITED, "bytes waited without", 6),
    ]
    legend(figure, "a pair of GPUs", handles)
    return figure


def _map(axis: Axes, run: _At, last: float) -> None:
    divisions = run.light.divisions
    begins = [division["t"] - run.run.released for division in divisions]
    ends = [*begins[1:], run.jct_s]
    left = np.array([division["left_bytes"] for division in divisions])
    has_light = np.array([division["lightpaths"] for division in divisions]) > 0
    # The first is made for all that the job sends.
    left[0] = has_light[0]
    waits = np.zeros_like(has_light)
    waits[:-1] = (left[1:] > 0) & ~has_light[:-1]
    for cells, colour in ((has_light & (left > 0), _CARRIED), (waits, _WAITED)):
        for division, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            pairs = np.flatnonzero(cells[division])
            axis.bar(
                np.full(len(pairs), begin),
                np.full(len(pairs), 1.0),
                end - begin,
                pairs,
                align="edge",
                color=colour,
                linewidth=0,
            )
    axis.set(xlim=(0, 1.03 * last), ylim=(0, len(run.light.pairs)))
    axis.set_ylabel("pairs")
    axis.grid(visible=False)
    axis.set_title(f"{as_text(run.value)}: {run.jct_s:.3g} s")
