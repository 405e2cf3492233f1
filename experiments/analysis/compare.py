"""Arms against a baseline, and up to which set-up time an arm keeps up with one: further rows from rows.

A row of a comparison is called after the metric: ``jct_ratio`` is the arm's over the baseline's and
``jct_reduction`` what it saves, in per cent (of times only).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.analysis.metrics import selected
from experiments.analysis.metrics.training import exchanges
from experiments.analysis.prediction import break_even_set_up, nic_rate_bps, set_ups
from experiments.analysis.rows import Row, Standing, key_of, where
from experiments.analysis.statistics import half_width, is_number
from experiments.language.plan import JobPlan, RunPlan
from experiments.language.spec import BreakEvenSpec, CompareSpec
from experiments.record.runs import JobRun, Run
from fabric.parity import ratio_interval, set_up_line
from fabric.schedules import steps_named

Point = Mapping[str, Any]
UTILISATION = "gpu_utilisation"


@dataclass
class At:
    """An arm at a point of its sweep: its rows, those of all repeats first."""

    arm: str
    point: Point
    rows: list[Row] = field(default_factory=list)

    def value(self, subject: str, metric: str) -> float | None:
        """The figure of all repeats; None where there is none."""
        found = where(self.rows, subject=subject, metric=metric, repeat=None)
        return found[0].value if found and is_number(found[0].value) else None


def at_points(rows: Iterable[Row]) -> list[At]:
    """The rows by arm and point."""
    found: dict[tuple[str, str], At] = {}
    for row in rows:
        key = row.arm, key_of(row.point)
        found.setdefault(key, At(row.arm, row.point)).rows.append(row)
    return list(found.values())


def baseline_of(found: Sequence[At], baseline: str, point: Point) -> At | None:
    """The baseline at the point that says most and nothing else; what is not swept there holds for all."""
    there = [
        at
        for at in found
        if at.arm == baseline and all(point.get(path) == value for path, value in at.point.items())
    ]
    return max(there, key=lambda at: len(at.point), default=None)


def _pairs(spec: CompareSpec, found: Sequence[At]) -> Iterator[tuple[At, At]]:
    """Each arm of a comparison at each of its points, with the baseline."""
    for mine in found:
        wanted = mine.arm != spec.baseline if spec.arms is None else mine.arm in spec.arms
        base = baseline_of(found, spec.baseline, mine.point)
        if wanted and base is not None:
            yield mine, base


def comparison_rows(spec: CompareSpec, rows: Sequence[Row]) -> list[Row]:
    """All rows of a comparison. ``rows``: of one label's runs, or published."""
    return [row for mine, base in _pairs(spec, at_points(rows)) for row in _against(spec, mine, base)]


def _against(spec: CompareSpec, mine: At, base: At) -> Iterator[Row]:
    jobs = None if spec.job is None else f"job {spec.job}"
    for number, metric in enumerate(spec.metrics):
        for row in selected(where(mine.rows, repeat=None), metric):
            if row.subject.startswith("job ") and row.subject != (jobs or row.subject):
                continue
            yield from _ratio(row, mine, base, limit=spec.limit if number == 0 else None)
        if metric == UTILISATION:
            yield from _window(jobs, mine, base)


def _ratio(row: Row, mine: At, base: At, limit: float | None = None) -> Iterator[Row]:
    under = where(base.rows, subject=row.subject, metric=row.metric, repeat=None)
    if not under or not is_number(row.value) or not is_number(under[0].value) or not under[0].value:
        return
    standing = _both(row.standing, under[0].standing)
    pairs = {
        repeat: over.value / least.value
        for over in where(mine.rows, subject=row.subject, metric=row.metric)
        for least in where(base.rows, subject=row.subject, metric=row.metric, repeat=over.repeat)
        if (repeat := over.repeat) is not None and is_number(over.value) and is_number(least.value)
    }
    ratio = replace(row, metric=f"{row.metric}_ratio", unit="1", standing=standing)
    less = replace(ratio, metric=f"{row.metric}_reduction", unit="%")
    for repeat, value in pairs.items():
        yield replace(ratio, repeat=repeat, value=value, spread=None)
        if row.unit == "s":
            yield replace(less, repeat=repeat, value=100 * (1 - value), spread=None)
    value, spread = row.value / under[0].value, half_width(list(pairs.values()))
    yield replace(ratio, value=value, spread=spread)
    if row.unit == "s":
        saved = 100 * (under[0].value - row.value) / under[0].value
        yield replace(less, value=saved, spread=None if spread is None else 100 * spread)
    if limit is not None:
        yield replace(ratio, metric="within_limit", value=value <= limit, unit="", spread=None)


def _both(one: Standing, other: Standing) -> Standing:
    """What agreement is worth for a figure of two: fitted where both are, free where one is."""
    if "free" in (one, other):
        return "free"
    return "fitted" if one == other == "fitted" else "predicted"


def _window(subject: str | None, mine: At, base: At) -> Iterator[Row]:
    """Utilisation where the average goes on until the longer of both runs has ended."""
    for row in where(mine.rows, metric=f"{UTILISATION}.compute", repeat=None):
        busy, times = {}, {}
        for at in (mine, base):
            share, jct_s = at.value(row.subject, row.metric), at.value(row.subject, "jct")
            if share is not None and jct_s is not None:
                busy[at.arm], times[at.arm] = share * jct_s, jct_s
        if len(busy) == 2 and row.subject == (subject or row.subject):
            window_s = max(times.values())
            name = f"{UTILISATION}.window"
            yield replace(row, metric=name, value=busy[mine.arm] / window_s, spread=None)
            yield replace(row, metric=f"{name}_baseline", value=busy[base.arm] / window_s, spread=None)
            yield replace(row, metric=f"{name}_ratio", value=busy[mine.arm] / busy[base.arm], spread=None)


def equality_rows(spec: CompareSpec, rows: Sequence[Row], plans: Iterable[RunPlan]) -> Iterator[Row]:
    """Whether an arm and the baseline ended with the same parameters bit by bit, where both trained the same.

    The order in which a collective adds decides the last bits, so only the same one gives the same.
    """
    trained = {(plan.arm, key_of(plan.point), job.name): _trained(job) for plan in plans for job in plan.jobs}
    found = at_points(where(rows, metric="parameters_sha256", repeat=None))
    for mine, base in _pairs(spec, found):
        for row in mine.rows:
            job = row.subject.removeprefix("job ")
            keys = [(at.arm, key_of(at.point), job) for at in (mine, base)]
            same = trained.get(keys[0]) == trained.get(keys[1]) is not None
            for other in where(base.rows, subject=row.subject) if same else ():
                yield replace(row, metric="parameters_equal", value=row.value == other.value)


def _trained(job: JobPlan) -> tuple[Any, ...]:
    """All that decides what a job's parameters are."""
    training = (job.collective, job.gpus, job.gradient_bytes, job.iterations)
    return (*training, job.batch, job.seed, job.learning_rate)


# How small a difference could have been seen.


def laps(run: Run, job: JobRun) -> list[float]:
    """Seconds from the end of one iteration of a job to that of the next, last rank each."""
    ends = [max(it.allreduce_end for it in group) for group in job.by_index]
    released = run.released if job.released is None else job.released
    return [end - before for before, end in itertools.pairwise([released, *ends])]


def told_apart_rows(spec: CompareSpec, runs: Sequence[Run]) -> list[Row]:
    """How small a slowdown measured runs could have shown, by the spread of iterations and of all-reduces:
    the half width of the ratio's 95 % interval. ``setup_told_apart``: the set-up of a flow, in real time,
    that would make so small a difference to the training."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.plan.arm, key_of(run.plan.point)), []).append(run)
    found = [At(group[0].plan.arm, group[0].plan.point) for group in groups.values()]
    made: list[Row] = []
    for mine, base in _pairs(spec, found):
        over, under = (groups[at.arm, key_of(at.point)] for at in (mine, base))
        for name in over[0].jobs if spec.job is None else [spec.job]:
            made += _told_apart(name, mine, over, under)
    return made


def _told_apart(name: str, mine: At, group: Sequence[Run], under: Sequence[Run]) -> Iterator[Row]:
    pairs = [[(run, run.jobs[name]) for run in runs if name in run.jobs] for runs in (group, under)]
    if not all(pairs) or any(len(job.by_index) < 2 for side in pairs for _, job in side):
        return
    row = Row(mine.arm, f"job {name}", "", None, "1", "measured", mine.point)
    over, base = ([x for run, job in side for x in laps(run, job)] for side in pairs)
    seen = ratio_interval(over, base).half_width
    yield replace(row, metric="iteration_told_apart", value=seen)
    over, base_exchanges = ([x for _, job in side for x in exchanges(job)] for side in pairs)
    yield replace(row, metric="allreduce_told_apart", value=ratio_interval(over, base_exchanges).half_width)
    plan, job = group[0].plan, group[0].jobs[name]
    if waits := set_ups(plan.setting, job.plan, len(job.gpus)):
        least_s = seen * statistics.fmean(base) / plan.setting.scale.time
        yield replace(row, metric="setup_told_apart", value=least_s / waits, unit="s")


# Break-even.


def break_even_rows(spec: BreakEvenSpec, rows: Sequence[Row], runs: Sequence[Run]) -> list[Row]:
    """By point of the baseline the line through an arm's times over its set-ups, and where it breaks even.

    A slowdown is over what the line gives without any set-up, so it is the set-ups' and not that of a
    baseline which is slow for reasons of its own. Nothing for a point where longer set-ups seem to cost
    nothing: so disturbed that there is nothing to conclude.
    """
    found = at_points(rows)
    made: list[Row] = []
    for base in (at for at in found if at.arm == spec.baseline):
        mine = [at for at in found if at.arm == spec.arm and baseline_of(found, base.arm, at.point) is base]
        made += _break_even(spec, base, mine, runs)
    return made


def _break_even(spec: BreakEvenSpec, base: At, mine: Sequence[At], runs: Sequence[Run]) -> Iterator[Row]:
    named = [
        row for row in where(base.rows, metric=spec.metric, repeat=None) if row.subject.startswith("job ")
    ]
    run = next(
        (run for run in runs if run.plan.arm == spec.arm and run.plan.point in [m.point for m in mine]), None
    )
    if not named or run is None:
        return
    subject = named[0].subject
    fabric = f"fabric {run.plan.setting.name}"
    points = [
        (at, waited, took)
        for at in mine
        if (waited := at.value(fabric, "setup_p50")) is not None
        and (took := at.value(subject, spec.metric)) is not None
    ]
    if len({waited for _, waited, _ in points}) < 2:
        return
    line = set_up_line([(waited, took) for _, waited, took in points])
    if not (line.waits > 0 and line.free_s > 0):
        return
    setting, job = run.plan.setting, run.jobs[subject.removeprefix("job ")]
    steps, size = steps_named(job.plan.collective, len(job.gpus)), job.plan.gradient_bytes
    rate_bps = min(nic_rate_bps(setting, gpu) for gpu in job.gpus)
    base_s = base.value(subject, spec.metric)
    assert base_s is not None
    label = named[0].label
    row = Row(spec.arm, subject, "", None, "s", label, base.point)
    yield replace(row, metric="break_even", value=line.break_even_s(spec.tolerance * line.free_s))
    yield replace(row, metric="break_even_over_baseline", value=line.break_even_s(spec.tolerance * base_s))
    yield replace(row, metric="break_even_least_setup", value=min(waited for _, waited, _ in points))
    yield replace(row, metric="free", value=line.free_s)
    yield replace(row, metric="waits", value=line.waits, unit="1")
    known = replace(row, label="analytic")
    alone_s = break_even_set_up(steps, size, rate_bps, spec.tolerance)
    training_s = break_even_set_up(steps, size, rate_bps, spec.tolerance, _longest_compute_s(runs, run))
    yield replace(known, metric="break_even_predicted", value=alone_s)
    # Of the iterations of the arm that computes longest there: those of the sweep may be short on purpose.
    yield replace(known, metric="break_even_predicted_with_compute", value=training_s)
    yield replace(known, metric="least_flow", value=size / steps.chunks, unit="bytes")
    for at, waited, took in points:
        point = replace(row, point=at.point, unit="1")
        yield replace(point, metric="slowdown_by_setup", value=took / line.free_s)
        idle_s = at.value(subject, "allreduce_predicted")
        if idle_s:
            slower = 1 + steps.steps * waited / idle_s
            yield replace(point, metric="slowdown_predicted", value=slower, label="analytic")


def _longest_compute_s(runs: Iterable[Run], like: Run) -> float:
    """Of the jobs on the same fabric."""
    there = (run for run in runs if run.plan.setting.name == like.plan.setting.name)
    return max(job.compute_s for run in there for job in run.plan.jobs)
