"""Look up the figures of a run for the sections of a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ringlight.experiments.analysis.base import AtBase
from ringlight.experiments.analysis.metrics import metrics
from ringlight.experiments.analysis.result import Analysis
from ringlight.experiments.analysis.rows import Label, Row, Value, key_of
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.analysis.table import Point as Point
from ringlight.experiments.analysis.table import Table
from ringlight.experiments.language.expand import Experiment
from ringlight.experiments.language.plan import RunPlan, Scale, Setting
from ringlight.experiments.language.spec import CompareSpec
from ringlight.experiments.record.lab_records import PortRate
from ringlight.experiments.record.runs import SUCCEEDED, JobRun, Run
from ringlight.experiments.report.page import Draw as Draw
from ringlight.experiments.report.page import text
from ringlight.experiments.report.words import amount, figure

_NOWHERE: Point = {}
PUBLISHED: Label = "published"
#: Of an arm with more jobs only some are listed and drawn: those that failed, then the slowest.
MOST_JOBS, SLOWEST = 24, 10


@dataclass(frozen=True)
class Figures:
    """The figures of one subject of an arm at a point of its sweep: of all repeats where none is asked for.

    ``label``: only one known that way; without it, published ones do not count.
    """

    view: View = field(repr=False)
    arm: str
    subject: str
    point: Point

    @property
    def title(self) -> str:
        """Title of the arm."""
        return self.view.title(self.arm)

    @property
    def name(self) -> str:
        """Name of the subject: ``red`` of ``job red``."""
        return job_of(self.subject)

    def row(self, metric: str, label: Label | None = None) -> Row | None:
        """Return the row of a metric over all repeats; None if there is none."""
        point = _NOWHERE if label == PUBLISHED else self.point
        for row in self.view.table.rows_of(self.arm, point, self.subject, metric):
            if row.repeat is None and (
                row.label == label if label else row.label != PUBLISHED
            ):
                return row
        return None

    def value(self, metric: str, label: Label | None = None) -> Value:
        row = self.row(metric, label)
        return None if row is None else row.value

    def number(self, metric: str, label: Label | None = None) -> float | None:
        """Return the value of a metric if it is a number, in the metric's unit; else None."""
        value = self.value(metric, label)
        return value if is_number(value) else None

    def truth(self, metric: str) -> bool | None:
        """Return the value of a metric if it is a bool; else None."""
        value = self.value(metric)
        return value if isinstance(value, bool) else None

    def numbers(self, *metrics: str) -> list[float | None]:
        return [self.number(metric) for metric in metrics]

    def figure(self, metric: str, label: Label | None = None) -> str:
        """Return a figure with its unit and interval, and the real figure that it stands for, as HTML.

        A dash if there is no figure.
        """
        row, plan = self.row(metric, label), self.view.plans.get(self.arm)
        return figure(row) + (
            "" if row is None or plan is None else _stands_for(row, plan.setting.scale)
        )

    def repeats(self, metric: str) -> list[Row]:
        """Return the figures of single runs in their order; empty if there was only one run."""
        rows = self.view.table.rows_of(self.arm, self.point, self.subject, metric)
        return sorted(
            (row for row in rows if row.repeat is not None),
            key=lambda row: row.repeat or 0,
        )

    def modelled(self, metric: str) -> Row | None:
        """Return the model's figure for a metric, with set-ups if the model knows them; None if there is
        none."""
        return self.row(f"{metric}_predicted_with_setup") or self.row(
            f"{metric}_predicted"
        )


@dataclass(frozen=True)
class Compared(Figures):
    """Figures of an arm against those of its baseline, as one entry of ``compare`` asks for."""

    spec: CompareSpec

    def row(self, metric: str, label: Label | None = None) -> Row | None:
        """Return the row of a metric; rows that the comparison made, such as ``jct_ratio``, included. None
        if absent."""
        own = (
            super().row(f"{metric}.{self.spec.name}", label) if self.spec.name else None
        )
        return own or super().row(metric, label)

    @cached_property
    def base(self) -> Figures:
        """Figures of the baseline at the point that the arm is compared with."""
        place = self.view.table.under(self.spec.baseline, self.point)
        return Figures(
            self.view,
            self.spec.baseline,
            self.subject,
            place.point if place else _NOWHERE,
        )

    def ratio(self, metric: str, label: Label | None = None) -> float | None:
        return self.number(f"{metric}_ratio", label)

    @property
    def phases_overlap(self) -> bool:
        """True if simulated completion times differ as much within one arm as between the arms.

        The times of an arm differ by the moments at which later jobs begin.
        """
        spans = [
            side.numbers("jct_phase_least", "jct_phase_most", "jct")
            for side in (self, self.base)
        ]
        if all(least is None for least, _, _ in spans):
            return False
        lows = [jct if least is None else least for least, _, jct in spans]
        highs = [jct if most is None else most for _, most, jct in spans]
        known = [end for end in (*lows, *highs) if end is not None]
        return len(known) == 4 and max(known[:2]) <= min(known[2:])

    def model_ratio(self, metric: str) -> float | None:
        """Return an arm's modelled figure over its baseline's, a ratio; None if a model is missing."""
        mine, base = (side.modelled(metric) for side in (self, self.base))
        if (
            mine is None
            or base is None
            or not is_number(mine.value)
            or not is_number(base.value)
        ):
            return None
        return mine.value / base.value if base.value else None


@dataclass(frozen=True)
class View:
    """An experiment that was run. ``fidelity``: the object of result.json; ``not_run``: its arms that were
    left out, ``failed``: runs that could not be made, each with ``why``. ``label``: how the runs' figures are
    known. ``port_rates``: of packet switches, where they were sampled. ``name``: of the run folder.
    ``folder``: the run folder, if there is one. ``pages``: HTML by which extensions lead to pages of their
    own. ``not_compared``: what comparisons have no row of, and why."""

    experiment: Experiment
    rows: Sequence[Row]
    runs: Sequence[Run]
    environment: Mapping[str, Any]
    fidelity: Mapping[str, Any]
    label: Label
    name: str = ""
    not_run: Sequence[Mapping[str, str]] = ()
    failed: Sequence[Mapping[str, str]] = ()
    complete: bool = True
    port_rates: Sequence[PortRate] = field(default=(), repr=False)
    folder: Path | None = None
    pages: Sequence[str] = ()
    not_compared: Sequence[str] = ()

    # The file.

    @property
    def simulated(self) -> bool:
        return self.label == "simulated"

    @property
    def scale(self) -> Scale:
        return self.experiment.plans[0].setting.scale

    @cached_property
    def plans(self) -> Mapping[str, RunPlan]:
        """The first run plan of each arm."""
        return {plan.arm: plan for plan in reversed(self.experiment.plans)}

    @cached_property
    def settings(self) -> Sequence[Setting]:
        """Settings of the experiment, each fabric once."""
        return list(
            {plan.setting.name: plan.setting for plan in self.experiment.plans}.values()
        )

    def title(self, arm: str) -> str:
        return self.experiment.titles.get(arm, arm)

    def says(self, part: str) -> str:
        """Return what the file's paper states in this part of the page, as HTML after a space; empty
        without it."""
        paper = self.experiment.spec.paper
        words = "" if paper is None else paper.says.get(part, "")
        return f" {text(words)}" if words else ""

    def paragraph(self, part: str) -> str:
        """Return the text of :meth:`says` as a paragraph of its own; empty without text."""
        return f"<p>{words}</p>" if (words := self.says(part)) else ""

    # Runs.

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """Arms of which there is a whole run, in the order of the file."""
        ran = {run.plan.arm for run in self.runs}
        return tuple(arm for arm in self.experiment.arms if arm in ran)

    @cached_property
    def fixed(self) -> tuple[str, ...]:
        """Arms that ran at one point only."""
        return tuple(arm for arm in self.arms if len(self.points(arm)) == 1)

    @cached_property
    def first(self) -> Mapping[str, Run]:
        """The first run of each arm that ran at one point only."""
        first = {run.plan.arm: run for run in reversed(self.runs)}
        return {arm: first[arm] for arm in self.fixed}

    @cached_property
    def _points(self) -> Mapping[str, list[Point]]:
        points_of: dict[str, dict[str, Point]] = {}
        for run in self.runs:
            points_of.setdefault(run.plan.arm, {}).setdefault(
                key_of(run.plan.point), run.plan.point
            )
        return {arm: list(points.values()) for arm, points in points_of.items()}

    def points(self, arm: str) -> list[Point]:
        """Return the points at which an arm was run."""
        return self._points.get(arm, [])

    # Rows.

    @cached_property
    def table(self) -> Table:
        return Table(self.rows)

    @cached_property
    def metrics(self) -> frozenset[str]:
        """Metrics of which there is a row of a run."""
        return frozenset(row.metric for row in self.rows if row.label != PUBLISHED)

    @cached_property
    def base(self) -> AtBase:
        """Figures looked up from the values that the file has."""
        return AtBase(self.experiment, self.table)

    def figures_at(self, arm: str, subject: str, point: Point | None = None) -> Figures:
        """Return the figures of a subject at ``point``; None: the arm's first point."""
        return Figures(
            self,
            arm,
            subject,
            next(iter(self.points(arm)), _NOWHERE) if point is None else point,
        )

    def having(self, metric: str) -> list[Figures]:
        """Return the figures of each subject and point that has this metric over all repeats."""
        rows = (row for row in self.rows if row.metric == metric and row.repeat is None)
        return [self.figures_at(row.arm, row.subject, row.point) for row in rows]

    def each(self, kind: str, arms: Iterable[str] | None = None) -> Iterator[Figures]:
        """Yield the figures of all subjects of a kind, such as ``job``, in ``arms``; None: arms with one
        point."""
        for arm in self.fixed if arms is None else arms:
            for subject in self._subjects.get((arm, kind), ()):
                yield self.figures_at(arm, subject)

    def listed(self, arm: str) -> list[str]:
        """Return names of an arm's jobs that a page lists: all, or some where there are more than it can."""
        return self._listed.get(arm, [])

    @cached_property
    def _listed(self) -> dict[str, list[str]]:
        return {arm: some_jobs(run.jobs) for arm, run in self.first.items()}

    def each_job(self, arms: Iterable[str] | None = None) -> Iterator[Figures]:
        """Yield the figures of jobs that are :meth:`listed`, in ``arms``; None: arms with one point."""
        for arm in self.fixed if arms is None else arms:
            names = set(self.listed(arm))
            yield from (job for job in self.each("job", [arm]) if job.name in names)

    @cached_property
    def _subjects(self) -> Mapping[tuple[str, str], dict[str, None]]:
        subjects: dict[tuple[str, str], dict[str, None]] = {}
        for row in self.rows:
            if row.label != PUBLISHED:
                kind = row.subject.partition(" ")[0]
                subjects.setdefault((row.arm, kind), {}).setdefault(row.subject)
        return subjects

    # Comparisons.

    def compared(self, spec: CompareSpec) -> Iterator[Compared]:
        """Yield the arms at each of their points with every subject that has a ratio: jobs, the run or a
        fabric."""
        for arm in (
            [a for a in self.arms if a != spec.baseline]
            if spec.arms is None
            else spec.arms
        ):
            of_all = [
                own.subject
                for kind in ("job", "run", "fabric")
                for own in self.each(kind, [arm])
            ]
            for point in self.points(arm):
                for subject in of_all if spec.job is None else [f"job {spec.job}"]:
                    pair = Compared(self, arm, subject, point, spec)
                    if any(pair.row(f"{metric}_ratio") for metric in spec.metrics):
                        yield pair

    @cached_property
    def comparisons(self) -> Sequence[Compared]:
        """Comparisons of the file, in its order."""
        return [
            pair
            for spec in self.experiment.spec.compare
            for pair in self.compared(spec)
        ]


def view_of(
    analysis: Analysis,
    result: Mapping[str, Any],
    environment: Mapping[str, Any],
    rates: Sequence[PortRate] = (),
    folder: Path | None = None,
) -> View:
    """Return the view of an analysis. ``result``, ``environment``: contents of the JSON files of these
    names in ``folder``."""
    return View(
        analysis.experiment,
        analysis.rows,
        analysis.runs,
        environment,
        analysis.fidelity,
        analysis.label,
        str(result["run"] or ""),
        result["not_run"],
        result["failed"],
        result["complete"],
        rates,
        folder,
        not_compared=analysis.not_compared,
    )


def job_of(subject: str) -> str:
    """Return ``red`` of ``job red``; other subjects unchanged."""
    return subject.removeprefix("job ")


def some_jobs(jobs: Mapping[str, JobRun]) -> list[str]:
    """Return the names of failed and of the slowest jobs if there are many jobs, else of all, in order."""
    if len(jobs) <= MOST_JOBS:
        return list(jobs)

    def took_s(name: str) -> float:
        job = jobs[name]
        return math.inf if job.state != SUCCEEDED or job.jct_s is None else job.jct_s

    slowest = set(sorted(jobs, key=took_s, reverse=True)[:SLOWEST])
    return [name for name in jobs if name in slowest]


def _is_unscaled(name: str) -> bool:
    """Return whether a time is real, or that of software, which no scale changes."""
    return name == "setup_told_apart" or (
        name in metrics() and metrics()[name].unscaled
    )


def _stands_for(row: Row, scale: Scale) -> str:
    """Return the real time or rate that an emulated one stands for, in small print; empty for real ones."""
    by = {"s": 1 / scale.time, "bit/s": scale.rate}.get(row.unit, 1.0)
    if (
        by == 1
        or row.label == PUBLISHED
        or _is_unscaled(row.metric)
        or not is_number(row.value)
    ):
        return ""
    return in_small(amount(row.value * by, row.unit, row.metric))


def in_small(words: str) -> str:
    """Return the real figure for an emulated one, in small print next to it or, in a table, below it."""
    return f' <small class="real">real {words}</small>'
