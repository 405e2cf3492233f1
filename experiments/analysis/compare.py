"""Compare arms with a baseline, and find the set-up time up to which an arm keeps up with another.

A row of a comparison is named after the metric: ``jct_ratio`` is the arm's figure over the baseline's and
``jct_reduction`` what it saves, in per cent (of times only).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ringlight.experiments.analysis.comparison_statistics import (
    set_up_line,
    smallest_slowdown,
)
from ringlight.experiments.analysis.metrics import Unit
from ringlight.experiments.analysis.metrics.training import exchanges
from ringlight.experiments.analysis.prediction import nic_rate_bps
from ringlight.experiments.analysis.rows import Label, Row, Standing, key_of
from ringlight.experiments.analysis.statistics import half_width, is_number
from ringlight.experiments.analysis.table import At, Table
from ringlight.experiments.language.plan import JobPlan, RunPlan
from ringlight.experiments.language.spec import BreakEvenSpec, CompareSpec
from ringlight.experiments.record.runs import JobRun, Run
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.cost import all_reduce_time

Ran = tuple[Run, JobRun]
UTILISATION = "gpu_utilisation"


def _pairs(spec: CompareSpec, table: Table) -> Iterator[tuple[At, At]]:
    """Yield each arm of a comparison at each of its points, with the baseline."""
    for mine in table:
        if (
            _is_other(spec, mine)
            and (base := table.under(spec.baseline, mine.point)) is not None
        ):
            yield mine, base


def comparison_rows(spec: CompareSpec, table: Table) -> Iterator[Row]:
    """Yield all rows of a comparison. ``table``: rows of the runs of one label, or published rows."""
    for mine, base in _pairs(spec, table):
        for number, metric in enumerate(spec.metrics):
            for row in _figures(spec, metric, mine):
                yield from _ratio(
                    row, mine, base, limit=spec.limit if number == 0 else None
                )
                if row.metric == f"{UTILISATION}.compute" and metric == UTILISATION:
                    yield from _window(row, mine, base)


def _figures(spec: CompareSpec, metric: str, place: At) -> list[Row]:
    """Return the rows of a metric that a comparison uses, without those of other jobs if the comparison
    names a job."""
    return [
        row
        for row in place.defined(metric)
        if not row.subject.startswith("job ")
        or spec.job in (None, row.subject.removeprefix("job "))
    ]


def not_compared(spec: CompareSpec, table: Table) -> Iterator[str]:
    """Yield a line with the reason for each metric of a comparison that has no row.

    Yield a single line if no arm ran at a point of the baseline, and nothing if only one side ran.
    """
    pairs = list(_pairs(spec, table))
    if (
        not pairs
        and any(place.arm == spec.baseline for place in table)
        and any(_is_other(spec, place) for place in table)
    ):
        yield f"with {spec.baseline}: no arm ran at a point at which {spec.baseline} ran, too"
    for metric in spec.metrics if pairs else ():
        mine = [row for place, _ in pairs for row in _figures(spec, metric, place)]
        base = [row for _, place in pairs for row in _figures(spec, metric, place)]
        ratios = (
            _ratio(row, place, under, None)
            for place, under in pairs
            for row in _figures(spec, metric, place)
        )
        if not any(list(ratio) for ratio in ratios):
            yield f"{metric} with {spec.baseline}: {_why_not(spec, mine, base)}{_instead(spec, pairs)}"


def _is_other(spec: CompareSpec, place: At) -> bool:
    # What links gave is of no arm.
    return (
        place.arm not in ("", spec.baseline)
        if spec.arms is None
        else place.arm in spec.arms
    )


def _why_not(spec: CompareSpec, mine: Sequence[Row], base: Sequence[Row]) -> str:
    if not mine and not base:
        return "no arm has a figure" + (
            "" if spec.job is None else f" of job {spec.job}"
        )
    if not mine or not base:
        return f"only {', '.join(dict.fromkeys(row.arm for row in mine or base))} has a figure"
    return f"a figure is no number, or that of {spec.baseline} is 0 or of another job"


def _instead(spec: CompareSpec, pairs: Iterable[tuple[At, At]]) -> str:
    """Return a hint at metrics of jobs with workloads, which have no gradient all-reduce; empty without
    such jobs."""
    of_workloads = any(
        _figures(spec, "exposed", place) for pair in pairs for place in pair
    )
    return (
        "; jobs with a workload have iteration, jct and exposed" if of_workloads else ""
    )


def _ratio(row: Row, mine: At, base: At, limit: float | None) -> Iterator[Row]:
    """``row``: of all repeats. Those of single ones come first."""
    key, under = (row.subject, row.metric), base.row(row.subject, row.metric)
    if under is None:
        return
    values = {
        over.repeat: (over.value, least)
        for over in mine.rows_of(*key)
        if (least := base.value(*key, over.repeat)) and is_number(over.value)
    }
    spread = half_width(
        [over / least for repeat, (over, least) in values.items() if repeat is not None]
    )
    standing = _both(row.standing, under.standing)
    for repeat, (over, least) in values.items():
        wide = spread if repeat is None else None
        ratio = replace(
            row,
            repeat=repeat,
            unit="1",
            value=over / least,
            spread=wide,
            standing=standing,
        )
        yield replace(ratio, metric=f"{row.metric}_ratio")
        if row.unit == "s":
            saved, wide = (
                100 * (least - over) / least,
                None if wide is None else 100 * wide,
            )
            yield replace(
                ratio,
                metric=f"{row.metric}_reduction",
                unit="%",
                value=saved,
                spread=wide,
            )
        if repeat is None and limit is not None:
            within = over / least <= limit
            yield replace(
                ratio, metric="within_limit", unit="", value=within, spread=None
            )


def _both(first: Standing, other: Standing) -> Standing:
    """Return the standing of a ratio: that of the figure whose agreement would surprise more."""
    surprising: tuple[Standing, ...] = (
        "free",
        "unjudged",
        "predicted",
        "range",
        "identity",
        "fitted",
    )
    return min(first, other, key=surprising.index)


def _window(row: Row, mine: At, base: At) -> Iterator[Row]:
    """Yield rows of GPU utilisation averaged over the time of the longer of both runs."""
    sides = [
        (place.value(row.subject, row.metric), place.value(row.subject, "jct"))
        for place in (mine, base)
    ]
    times = [jct_s for _, jct_s in sides if jct_s is not None]
    busy = [
        share * jct_s
        for share, jct_s in sides
        if share is not None and jct_s is not None
    ]
    if len(busy) == 2:
        over, under = (busy_s / max(times) for busy_s in busy)
        for end, value in (
            ("", over),
            ("_baseline", under),
            ("_ratio", busy[0] / busy[1]),
        ):
            yield replace(
                row, metric=f"{UTILISATION}.window{end}", value=value, spread=None
            )


def equality_rows(
    spec: CompareSpec, table: Table, plans: Iterable[RunPlan]
) -> Iterator[Row]:
    """Yield whether an arm and the baseline ended with bitwise equal parameters, if both trained the same.

    The order in which a collective adds decides the last bits, so only the same collective gives the same
    parameters.
    """
    trained = {
        (plan.arm, key_of(plan.point), f"job {job.name}"): _trained(job)
        for plan in plans
        for job in plan.jobs
    }
    for mine, base in _pairs(spec, table):
        for row in mine.each("parameters_sha256"):
            how = [
                trained.get((place.arm, key_of(place.point), row.subject))
                for place in (mine, base)
            ]
            other = base.row(row.subject, row.metric)
            if other is not None and how[0] == how[1] is not None:
                yield replace(
                    row, metric="parameters_equal", value=row.value == other.value
                )


def _trained(job: JobPlan) -> tuple[Any, ...]:
    """Return everything that determines a job's trained parameters; empty for a workload, which trains
    none."""
    loop = job.training
    if loop is None:
        return ()
    training = (loop.collective, job.gpus, loop.gradient_bytes, job.iterations)
    return (*training, loop.batch, loop.seed, loop.learning_rate)


# How small a difference could have been seen.


def laps(run: Run, job: JobRun) -> list[float]:
    """Return the seconds from the end of one iteration of a job to the end of the next, by the last rank of
    each.

    The first value counts from the release of the job.
    """
    ends = [max(it.allreduce_end for it in group) for group in job.by_index]
    released = run.released if job.released is None else job.released
    return [end - before for before, end in itertools.pairwise([released, *ends])]


def smallest_slowdown_rows(
    spec: CompareSpec, table: Table, runs: Sequence[Run]
) -> Iterator[Row]:
    """Yield the smallest slowdown that measured runs could have shown: the half width of the ratio's 95 %
    interval.

    The interval follows from the spread of iterations and of all-reduces. ``setup_told_apart``: set-up time
    of a flow, in real time, that would make so small a difference to the training.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.plan.arm, key_of(run.plan.point)), []).append(run)
    for mine, base in _pairs(spec, table):
        sides = [groups[place.arm, key_of(place.point)] for place in (mine, base)]
        for name in sides[0][0].jobs if spec.job is None else [spec.job]:
            yield from _slowdown_rows(
                name,
                *(
                    [(run, run.jobs[name]) for run in s if name in run.jobs]
                    for s in sides
                ),
            )


def _slowdown_rows(
    name: str, mine: Sequence[Ran], base: Sequence[Ran]
) -> Iterator[Row]:
    if not mine or not base or any(len(job.by_index) < 2 for _, job in (*mine, *base)):
        return
    run, job = mine[0]
    plan = run.plan
    row = Row(plan.arm, f"job {name}", "", None, "1", "measured", plan.point)
    over, under = ([lap for side in ran for lap in laps(*side)] for ran in (mine, base))
    seen = smallest_slowdown(over, under)
    yield replace(row, metric="iteration_told_apart", value=seen)
    if job.plan.training is None:
        return
    sent, sent_under = (
        [exchange for _, job in ran for exchange in exchanges(job)]
        for ran in (mine, base)
    )
    yield replace(
        row, metric="allreduce_told_apart", value=smallest_slowdown(sent, sent_under)
    )
    plane = job.plan.plane(plan.setting.fabric, job.gpus)
    if waits := plane.times.set_ups(job.gpus, job.plan.loop.collective):
        least_s = seen * statistics.fmean(under) / plan.setting.scale.time
        yield replace(row, metric="setup_told_apart", value=least_s / waits, unit="s")


# Break-even.


def break_even_rows(
    spec: BreakEvenSpec, table: Table, runs: Sequence[Run]
) -> Iterator[Row]:
    """Yield the rows of the line through an arm's times over its set-up times, and its break-even, by
    baseline's point.

    A slowdown is relative to the value of the line without any set-up, so it is due to the set-ups and not to
    a baseline that is slow for other reasons. A point at which longer set-ups seem to cost nothing is too
    disturbed for a conclusion and has no rows.
    """
    for base in table.of(spec.baseline):
        mine = [
            place
            for place in table.of(spec.arm)
            if table.under(spec.baseline, place.point) is base
        ]
        points = [place.point for place in mine]
        of_arm = [
            run for run in runs if run.plan.arm == spec.arm and run.plan.point in points
        ]
        figure = next(
            (row for row in base.each(spec.metric) if row.subject.startswith("job ")),
            None,
        )
        if figure is not None and of_arm:
            name = of_arm[0].plan.setting.name
            # The longest computing time there: iterations of the sweep may be short on purpose.
            there = [
                job.training.compute_s
                for run in runs
                if run.plan.setting.name == name
                for job in run.plan.jobs
                if job.training is not None
            ]
            yield from _break_even(spec, figure, mine, of_arm[0], max(there))


def _break_even(
    spec: BreakEvenSpec, base: Row, mine: Sequence[At], run: Run, compute_s: float
) -> Iterator[Row]:
    """``base``: the baseline's figure, of a job. ``run``: one of the arm's."""
    setting, subject = run.plan.setting, base.subject
    waits = [place.value(f"fabric {setting.name}", "setup_p50") for place in mine]
    points = [
        (place, waited, took)
        for place, waited in zip(mine, waits, strict=True)
        if waited is not None
        and (took := place.value(subject, spec.metric)) is not None
    ]
    if len({waited for _, waited, _ in points}) < 2:
        return
    line = set_up_line([(waited, took) for _, waited, took in points])
    if not (line.waits > 0 and line.free_s > 0):
        return
    job = run.jobs[subject.removeprefix("job ")]
    steps, size = (
        steps_named(job.plan.loop.collective, len(job.gpus)),
        job.plan.loop.gradient_bytes,
    )
    rate_bps = min(nic_rate_bps(setting, gpu) for gpu in job.gpus)
    # By the model, each step's set-up may take this part of the time that an all-reduce takes without any.
    part, idle_s = (
        (spec.tolerance - 1) / steps.steps,
        all_reduce_time(steps, size, rate_bps),
    )
    assert is_number(base.value)
    row = replace(base, arm=spec.arm, standing="free", spread=None, unit="s")
    figures: dict[str, tuple[float, Unit, Label]] = {
        "break_even": (
            line.break_even_s(spec.tolerance * line.free_s),
            "s",
            base.label,
        ),
        "break_even_over_baseline": (
            line.break_even_s(spec.tolerance * base.value),
            "s",
            base.label,
        ),
        "break_even_least_setup": (
            min(waited for _, waited, _ in points),
            "s",
            base.label,
        ),
        "free": (line.free_s, "s", base.label),
        "waits": (line.waits, "1", base.label),
        "break_even_predicted": (part * idle_s, "s", "analytic"),
        "break_even_predicted_with_compute": (
            part * (compute_s + idle_s),
            "s",
            "analytic",
        ),
        "least_flow": (size / steps.chunks, "bytes", "analytic"),
    }
    for metric, (value, unit, label) in figures.items():
        yield replace(row, metric=metric, value=value, unit=unit, label=label)
    for place, waited, took in points:
        point = replace(row, point=place.point, unit="1")
        yield replace(point, metric="slowdown_by_setup", value=took / line.free_s)
        if model_s := place.value(subject, "allreduce_predicted"):
            slower = 1 + steps.steps * waited / model_s
            yield replace(
                point, metric="slowdown_predicted", value=slower, label="analytic"
            )
