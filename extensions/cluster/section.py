"""A trace of jobs on a cluster: who waited how long under which policy, what the cluster did, who was
where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import hsv_to_rgb
from matplotlib.figure import Figure

from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.report.charts import LOOKS, chart, legend, sheet
from ringlight.experiments.report.columns import ARM, JOB, Cell, arm_title, figures
from ringlight.experiments.report.page import (
    NOTHING,
    Columns,
    listing,
    quiet,
    table_of,
    tag,
    text,
)
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, Figures, View
from ringlight.experiments.report.words import percent
from ringlight.extensions.cluster.plan import trace_of
from ringlight.extensions.cluster.records import TraceReplayed

#: Policies whose jobs are drawn GPU by GPU, and rows and moments of such a picture.
MAPS, ROWS = 4, 512
DAY_S, HOUR_S = 86_400, 3600
#: Why jobs are not as the trace has them.
_WHY = {
    "no_gpu": "want no GPU",
    "no_duration": "take no time",
    "bad_row": "cannot be read",
    "too_large": "are larger than allowed",
    "too_small": "are smaller than allowed",
    "too_short": "are shorter than allowed",
    "too_long": "are longer than allowed",
    "after_the_first": "come after the first that were asked for",
    "no_block": "fit in no block",
    "after_days": "come later than what was asked for",
    "left_out": "left out at random, for the load",
    "cut": "cut to the largest size that is allowed",
    "copied": "added as shifted copies, for the load",
    "resampled": "drawn in blocks of the trace, not taken as recorded",
}
#: Jobs that are replayed and do not count.
_NOT_COUNTED = (
    ("jobs_warming_up", "came while the cluster filled"),
    ("jobs_censored", "had not ended"),
)


def times(value: float | None) -> str:
    """Return seconds as days, hours or minutes, whichever is easy to read; a dash for None."""
    if value is None:
        return NOTHING
    for unit, size in (("d", DAY_S), ("h", HOUR_S), ("min", 60)):
        if value >= 2 * size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.1f} s"


def _time(metric: str) -> Cell:
    return lambda subject: times(subject.number(metric))


def _share(metric: str) -> Cell:
    return lambda subject: percent(subject.number(metric))


#: Columns that are left out if they are 0 for all arms: the policies or the fabrics have no such thing.
_IF_ANY = {
    "scattered": "scattered",
    "fibres moved": "fibres_moved_total",
    "moves for 100 jobs": "moves_per_100_jobs",
}
_TIMES: tuple[tuple[str, Cell], ...] = (
    ARM,
    ("completion, mean", _time("completion_mean")),
    ("median", _time("completion_p50")),
    ("95 %", _time("completion_p95")),
    ("99 %", _time("completion_p99")),
    ("over ideal, mean", "completion_slowdown_mean"),
    ("waited, mean", _time("waited_mean")),
    ("run time over ideal", "network_slowdown"),
    ("jobs", "jobs_counted"),
)
_CLUSTER: tuple[tuple[str, Cell], ...] = (
    ARM,
    ("GPUs held", _share("gpus_held")),
    ("goodput", _share("goodput")),
    ("done of what could be", _share("sustained")),
    ("scattered", _share("scattered")),
    ("fibres moved", "fibres_moved_total"),
    ("moves for 100 jobs", "moves_per_100_jobs"),
    ("faults that met a job", "fault_hits"),
    ("stood still", _share("stalled")),
    ("GPUs swapped", "gpus_swapped"),
    ("servers up", _share("servers_up")),
    ("slices whole", _share("slices_whole")),
    ("slices whole in 95 % of the time", _share("slices_whole_95")),
    ("if servers failed independently", _share("slices_whole_95_binomial")),
    ("dark, all jobs", lambda subject: times(subject.number("dark_total") or None)),
)


def _replays(view: View) -> dict[str, TraceReplayed]:
    """Return the first replay of each arm that ran at one point."""
    replays = {
        arm: next(iter(run.of(TraceReplayed)), None) for arm, run in view.first.items()
    }
    return {arm: replay for arm, replay in replays.items() if replay is not None}


@section("training", "Jobs of a trace", needs=("completion_mean",))
def traces(view: View, draw: Draw) -> str:
    """Return HTML that shows completion times under each policy, by size of jobs, and the cluster over
    time."""
    replays = _replays(view)
    if not replays:
        return ""
    subjects = [view.figures_at(arm, "run") for arm in replays]
    parts = [
        figures(subjects, _TIMES),
        figures(subjects, _of_cluster(subjects)),
        quiet(_explained(view, subjects)),
        _repeated(subjects),
    ]
    parts.append(_by_class(view, replays))
    parts.append(listing(_changed(view, replays)))
    titles = {arm: view.title(arm) for arm in replays}
    over = "Completion times of jobs, and completion times over ideal ones"
    parts.append(draw("completion", f"{over}, {view.label}.", _curves, replays, titles))
    over_time = _over_time(replays)
    over = f"The cluster over time: {'; '.join(plot.words for plot in over_time)}"
    parts.append(
        draw(
            "course",
            f"{over}. {view.label.capitalize()}.",
            _course,
            over_time,
            replays,
            titles,
        )
    )
    for arm in [arm for arm, replay in replays.items() if replay.seen][:MAPS]:
        place = _place(view, arm)
        by_place = f", {place} by {place}," if place else ""
        caption = (
            f"{titles[arm]}: GPUs{by_place} by job over time; a job has one colour "
            "wherever its GPUs are, a free GPU has none."
        )
        parts.append(draw(f"map-{arm}", caption, _map, replays[arm]))
    return view.paragraph("traces") + "".join(parts)


@section(
    "traces", "A trace's jobs beside their replay", needs=("completion_over_replayed",)
)
def beside_replay(view: View, draw: Draw) -> str:
    """Return HTML that shows each emulated job: its arrival, waiting and running time, and the same in the
    replay."""
    shown = figures(
        view.each("job"),
        [
            JOB,
            ("GPUs", lambda job: str(view.plans[job.arm].job(job.name).gpus)),
            (
                "came at",
                lambda job: f"{view.plans[job.arm].job(job.name).start.at_s:.1f} s",
            ),
            ("waited", "queueing_delay"),
            ("replayed", "waited_replayed"),
            ("arrival to end", "completion"),
            ("replayed", "completion_replayed"),
            ("over replayed", "completion_over_replayed"),
        ],
        3,
        group=arm_title if len(view.fixed) > 1 else None,
    )
    order = [
        f"<b>{text(view.title(arm))}</b>: {count:g} of {len(view.plans[arm].jobs)} jobs are at another place "
        "in the order of starts than in the replay."
        for arm in view.first
        if (count := view.figures_at(arm, "run").number("starts_out_of_order"))
        is not None
    ]
    return (
        shown
        + listing(order)
        + quiet(
            f"Waited and arrival to end {tag(view.label)}, replayed {tag('simulated')}, as emulated. The "
            "replay shares links by rates, knows of no iterations, and starts jobs in the file's start_up."
        )
    )


def _place(view: View, arm: str) -> str:
    """Return the word for the places at which an arm's cluster has GPUs; empty if it has one place."""
    cluster = trace_of(view.plans[arm]).cluster
    if len(cluster.gpus) == 1:
        return ""
    return "switch" if cluster.slices is None else "cube"


def _of_cluster(subjects: Sequence[Figures]) -> list[tuple[str, Cell]]:
    return [
        (head, cell)
        for head, cell in _CLUSTER
        if head not in _IF_ANY or _any(subjects, _IF_ANY[head])
    ]


def _any(subjects: Sequence[Figures], metric: str) -> bool:
    return any(subject.number(metric) for subject in subjects)


def _repeated(subjects: Sequence[Figures]) -> str:
    """Between which times nine of ten repeats are; nothing where each ran once."""
    repeated = [
        subject for subject in subjects if len(subject.repeats("completion_mean")) > 1
    ]
    if not repeated:
        return ""
    words = (
        "Mean completion times of single repeats. An interval beside a mean shows how well the mean over "
        "repeats is known; these show how far one trace is from another. With generate or resample in the "
        "file, each repeat has a trace of its own, the same for all arms."
    )
    columns = [
        ARM,
        ("repeats", lambda entry: str(len(entry.repeats("completion_mean")))),
    ]
    columns += [
        (head, _quantile(share))
        for head, share in (("5 %", 0.05), ("median", 0.5), ("95 %", 0.95))
    ]
    return figures(repeated, columns) + quiet(words)


def _quantile(share: float) -> Cell:
    def shown(subject: Figures) -> str:
        values = [
            row.value
            for row in subject.repeats("completion_mean")
            if is_number(row.value)
        ]
        return times(float(np.quantile(values, share)) if values else None)

    return shown


def _explained(view: View, subjects: Sequence[Figures]) -> str:
    scattered = " Scattered: held by jobs on more switches than they need."
    return (
        f"All {tag(view.label)}, {_time_of(view)}. Completion: from arrival to end; over ideal: over the "
        "trace's duration. Run time over ideal: what sharing links costs, weighted by work. GPUs held and "
        "goodput: from the warm-up to the last arrival. Where less than 95 % is done of what an endless "
        "cluster could, the load is not sustained, and times show only how long the trace is."
        f"{scattered if _any(subjects, 'scattered') else ''}{view.says('traces')}"
    )


def _time_of(view: View) -> str:
    """Return the kind of the seconds that are shown: real or emulated."""
    scaled = any(plan.setting.scale.time != 1 for plan in view.plans.values())
    return "emulated seconds" if scaled else "real time"


def _changed(view: View, replays: Mapping[str, TraceReplayed]) -> Iterator[str]:
    """Yield the changes to the trace, and the jobs that do not count, for each group of arms with the same
    ones."""
    alike: dict[str, list[str]] = {}
    for arm, replay in replays.items():
        sentences = [
            f"{count:,} {_WHY.get(why, why)}" for why, count in replay.dropped.items()
        ]
        for name, words in _NOT_COUNTED:
            if count := replay.figures.get(name):
                sentences.append(f"{count:,.0f} {words} and do not count")
        alike.setdefault("; ".join(sentences), []).append(view.title(arm))
    for words, arms in alike.items():
        if words:
            who = "Jobs" if len(alike) == 1 else ", ".join(arms)
            yield f"<b>{text(who)}</b>: {text(words)}."


def _by_class(view: View, replays: Mapping[str, TraceReplayed]) -> str:
    """Return the mean completion time over the ideal one, under each policy and by size of jobs."""
    sizes = {
        (entry["above"], entry["to"]): entry
        for replay in replays.values()
        for entry in replay.classes
    }
    columns: Columns[tuple[int, int | None]] = [
        ("jobs of", lambda key: _size(*key)),
        ("jobs", lambda key: f"{sizes[key]['jobs']:,}"),
        ("of the work", lambda key: percent(sizes[key]["work"], 0)),
    ]
    places = {arm: _place(view, arm) for arm in replays}
    for arm, place in places.items():
        slower = partial(_slower, replays[arm], bool(place))
        columns = [*columns, (text(view.title(arm)), slower)]
    several = " or ".join(
        {"switch": "switches", "cube": "cubes"}[place]
        for place in dict.fromkeys(places.values())
        if place
    )
    share = f"; in brackets the share that was on several {several}" if several else ""
    return (
        "<h3>Who gains</h3>"
        + table_of(sorted(sizes, key=lambda key: key[0]), columns, 1)
        + quiet(f"Mean of completion over ideal{share}.")
    )


def _size(above: int, to: int | None) -> str:
    if to == 1:
        return "1 GPU"
    return f"{above + 1} to {to} GPUs" if to is not None else f"more than {above} GPUs"


def _slower(replay: TraceReplayed, several: bool, key: tuple[int, int | None]) -> str:
    for entry in replay.classes:
        if (entry["above"], entry["to"]) == key:
            share = f" ({percent(entry['several_switches'], 0)})" if several else ""
            return f"{entry['slowdown_mean']:.3g}{share}"
    return NOTHING


def _curves(replays: Mapping[str, TraceReplayed], titles: Mapping[str, str]) -> Figure:
    figure, ((times_, slower),) = sheet(
        3.0, columns=2, left=0.75, bottom=0.5, gap=(0.75, 0.5)
    )
    for (arm, replay), (dash, colour) in zip(replays.items(), LOOKS, strict=False):
        for axis, name, unit in ((times_, "completion", HOUR_S), (slower, "slower", 1)):
            values = np.array(replay.curves[name]) / unit
            shares = np.linspace(0, 100, len(values))
            axis.plot(
                np.maximum(values, 1e-3),
                shares,
                color=colour,
                linestyle=dash,
                label=titles[arm],
            )
    for axis, words in (
        (times_, "completion, hours"),
        (slower, "completion over ideal"),
    ):
        axis.set(xscale="log", xlabel=words, ylabel="% of jobs", ylim=(0, 100))
        axis.grid(axis="x", visible=True)
    legend(figure, "arm", times_.get_legend_handles_labels()[0], columns=4)
    return figure


class _OverTime(NamedTuple):
    """A plot of the course: its key there, its axis, its words in the caption, and the factor of its values."""

    key: str
    axis: str
    words: str
    factor: int


_OVER_TIME = (
    _OverTime("done", "work done, % of GPUs", "work done", 100),
    _OverTime("waiting", "jobs that wait", "jobs that wait", 1),
    _OverTime("scattered", "scattered, %", "jobs on more switches than they need", 100),
)


def _over_time(replays: Mapping[str, TraceReplayed]) -> list[_OverTime]:
    """Return the plots that show something: a value other than 0 under some policy."""
    return [
        plot
        for plot in _OVER_TIME
        if any(any(replay.course[plot.key]) for replay in replays.values())
    ]


def _course(
    plots: Sequence[_OverTime],
    replays: Mapping[str, TraceReplayed],
    titles: Mapping[str, str],
) -> Figure:
    figure, axes = sheet(
        0.6 + 1.6 * len(plots), rows=len(plots), left=0.75, bottom=0.5, gap=(0.5, 0.3)
    )
    most = max(replay.course["t"][-1] for replay in replays.values())
    unit, name = (DAY_S, "days") if most > 2 * DAY_S else (HOUR_S, "hours")
    for (axis,), plot in zip(axes, plots, strict=True):
        for (arm, replay), (dash, colour) in zip(replays.items(), LOOKS, strict=False):
            times = np.array(replay.course["t"]) / unit
            axis.plot(
                times,
                plot.factor * np.array(replay.course[plot.key]),
                color=colour,
                linestyle=dash,
                label=titles[arm],
            )
        axis.set(ylabel=plot.axis, xlim=(0, most / unit))
        axis.set_ylim(bottom=0)
    axes[-1][0].set_xlabel(name)
    legend(figure, "arm", axes[0][0].get_legend_handles_labels()[0], columns=4)
    return figure


def occupied(
    leaves: Sequence[int], seen: Sequence[Sequence[Any]]
) -> np.ndarray[Any, Any]:
    """Return the job of each GPU at each moment, -1 for none: [GPUs, moments].

    Known is only how many GPUs of a switch a job has. The job keeps the same GPUs until it ends.
    """
    firsts = np.concatenate(([0], np.cumsum(leaves)))
    job_of = np.full((int(firsts[-1]), len(seen)), -1, dtype=np.int64)
    slots = np.full(int(firsts[-1]), -1, dtype=np.int64)
    for moment, (_, where) in enumerate(seen):
        gpus_of = {(leaf, job): gpus for job, leaf, gpus in where}
        for slot in np.flatnonzero(slots >= 0).tolist():
            key = (
                int(np.searchsorted(firsts, slot, side="right")) - 1,
                int(slots[slot]),
            )
            if gpus_of.get(key, 0) > 0:
                gpus_of[key] -= 1
            else:
                slots[slot] = -1
        for (leaf, job), gpus in gpus_of.items():
            free = np.flatnonzero(slots[firsts[leaf] : firsts[leaf + 1]] < 0)[:gpus]
            slots[firsts[leaf] + free] = job
        job_of[:, moment] = slots
    return job_of


def _map(replay: TraceReplayed) -> Figure:
    jobs = occupied(replay.leaves, replay.seen)
    jobs = jobs[:: -(-len(jobs) // ROWS)]
    hue = jobs * 0.618033988 % 1.0
    colours = hsv_to_rgb(
        np.dstack([hue, np.where(jobs % 2, 0.45, 0.7), np.where(jobs % 3, 0.9, 0.75)])
    )
    picture = np.dstack([colours, (jobs >= 0).astype(float)])
    figure, axis = chart(4.2, left=0.75, bottom=0.5)
    first, last = replay.seen[0][0] / DAY_S, replay.seen[-1][0] / DAY_S
    size = sum(replay.leaves)
    axis.imshow(
        picture, aspect="auto", interpolation="nearest", extent=(first, last, size, 0)
    )
    for edge in np.cumsum(replay.leaves)[:-1].tolist():
        axis.axhline(edge, color="white", linewidth=0.3)
    axis.grid(visible=False)
    axis.set(xlabel="days", ylabel="GPU")
    return figure
