"""What a report is made from, and how its sections look figures up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from experiments.analysis.result import Analysis
from experiments.analysis.rows import Label, Row
from experiments.analysis.statistics import is_number
from experiments.language.expand import Experiment
from experiments.language.plan import RunPlan, Scale
from experiments.language.spec import CompareSpec
from experiments.record.events import PortRate, Record, RunFailed
from experiments.record.runs import Run

Point = Mapping[str, Any]
_NOWHERE: Point = {}
PUBLISHED: Label = "published"


@dataclass(frozen=True)
class Compared:
    """An arm at a point of its sweep against its baseline, as one entry of ``compare`` asks for."""

    spec: CompareSpec
    arm: str
    point: Point

    @property
    def name(self) -> str:
        return self.spec.name or "comparison"


@dataclass(frozen=True)
class View:
    """An experiment that was run. ``fidelity``: the object of result.json; ``not_run``: its arms that were
    left out, ``failed``: runs that could not be made, each with ``why``. ``label``: how the runs' figures are
    known. ``port_rates``: of packet switches, where they were sampled. ``name``: of the run folder."""

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

    def title(self, arm: str) -> str:
        return self.plans[arm].title if arm in self.plans else arm

    def says(self, part: str) -> str:
        """What the file's paper says in this part of the page; empty without one."""
        paper = self.experiment.spec.paper
        return "" if paper is None else paper.says.get(part, "")

    # Runs.

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """Arms of which there is a whole run, in the order of the file."""
        ran = {run.plan.arm for run in self.runs}
        return tuple(arm for arm in self.experiment.arms if arm in ran)

    def runs_of(self, arm: str) -> list[Run]:
        return [run for run in self.runs if run.plan.arm == arm]

    def first(self, arm: str) -> Run | None:
        """The first run of an arm: of its first point, once."""
        return next((run for run in self.runs if run.plan.arm == arm), None)

    @cached_property
    def fixed(self) -> tuple[str, ...]:
        """Arms that ran at one point only."""
        return tuple(arm for arm in self.arms if len(self.points(arm)) == 1)

    # Rows.

    @cached_property
    def _index(self) -> Mapping[tuple[str, str, str, str], list[Row]]:
        found: dict[tuple[str, str, str, str], list[Row]] = {}
        for row in self.rows:
            found.setdefault((row.arm, _key(row.point), row.subject, row.metric), []).append(row)
        return found

    @cached_property
    def metrics(self) -> frozenset[str]:
        """Metrics of which there is a row of a run."""
        return frozenset(row.metric for row in self.rows if row.label != PUBLISHED)

    @cached_property
    def _points(self) -> Mapping[str, list[Point]]:
        found: dict[str, dict[str, Point]] = {}
        for run in self.runs:
            found.setdefault(run.plan.arm, {}).setdefault(_key(run.plan.point), run.plan.point)
        return {arm: list(points.values()) for arm, points in found.items()}

    def points(self, arm: str) -> list[Point]:
        """Where an arm was run."""
        return self._points.get(arm, [])

    def row(
        self,
        arm: str,
        subject: str,
        metric: str,
        point: Point | None = None,
        label: Label | None = None,
    ) -> Row | None:
        """The figure of all repeats; without ``point`` at the arm's first. ``label``: only one known that
        way; without it, published ones do not count."""
        if point is None:
            point = next(iter(self.points(arm)), _NOWHERE)
        for found in self._index.get((arm, _key(point), subject, metric), ()):
            wanted = found.label != PUBLISHED if label is None else found.label == label
            if found.repeat is None and wanted:
                return found
        return None

    def value(
        self,
        arm: str,
        subject: str,
        metric: str,
        point: Point | None = None,
        label: Label | None = None,
    ) -> Any:
        """Its value, None where there is no row."""
        found = self.row(arm, subject, metric, point, label)
        return None if found is None else found.value

    def number(
        self,
        arm: str,
        subject: str,
        metric: str,
        point: Point | None = None,
        label: Label | None = None,
    ) -> float | None:
        """Its value where that is a number."""
        found = self.value(arm, subject, metric, point, label)
        return found if is_number(found) else None

    def repeats(self, arm: str, subject: str, metric: str, point: Point | None = None) -> list[Row]:
        """The figures of single runs; none where there was one."""
        if point is None:
            point = next(iter(self.points(arm)), _NOWHERE)
        found = self._index.get((arm, _key(point), subject, metric), ())
        return [row for row in found if row.repeat is not None]

    def published(self, arm: str, subject: str, metric: str) -> Row | None:
        """What a paper says of an arm, at whatever point."""
        return self.row(arm, subject, metric, _NOWHERE, PUBLISHED)

    def subjects(self, arm: str, kind: str) -> list[str]:
        """What an arm has figures of: all ``job ...``, ``event ...`` and so on, in order."""
        return list(self._subjects.get((arm, kind), ()))

    @cached_property
    def _subjects(self) -> Mapping[tuple[str, str], dict[str, None]]:
        found: dict[tuple[str, str], dict[str, None]] = {}
        for row in self.rows:
            if row.label != PUBLISHED:
                kind = row.subject.partition(" ")[0]
                found.setdefault((row.arm, kind), {}).setdefault(row.subject)
        return found

    # Comparisons.

    def compared(self, spec: CompareSpec) -> list[Compared]:
        """The arms, at each of their points, of which there is a ratio."""
        wanted = [a for a in self.arms if a != spec.baseline] if spec.arms is None else spec.arms
        found = [Compared(spec, arm, point) for arm in wanted for point in self.points(arm)]
        return [one for one in found if self.compared_subjects(one)]

    def compared_subjects(self, one: Compared) -> list[str]:
        """What is compared: jobs, the run or a fabric."""
        if one.spec.job is not None:
            subjects = [f"job {one.spec.job}"]
        else:
            subjects = [s for kind in ("job", "run", "fabric") for s in self.subjects(one.arm, kind)]
        return [
            subject
            for subject in subjects
            if any(self.of_comparison(one, subject, f"{metric}_ratio") for metric in one.spec.metrics)
        ]

    def of_comparison(
        self, one: Compared, subject: str, metric: str, label: Label | None = None
    ) -> Row | None:
        """A row that the comparison made: ``jct_ratio``, ``within_limit`` and the like."""
        point = _NOWHERE if label == PUBLISHED else one.point
        if one.spec.name and (own := self.row(one.arm, subject, f"{metric}.{one.spec.name}", point, label)):
            return own
        return self.row(one.arm, subject, metric, point, label)

    def baseline_point(self, one: Compared) -> Point:
        """Where the baseline was run that the arm is compared with."""
        there = [p for p in self.points(one.spec.baseline) if p.items() <= one.point.items()]
        return max(there, key=len, default=_NOWHERE)


def view_of(
    analysis: Analysis,
    environment: Mapping[str, Any],
    records: Iterable[Record] = (),
    rates: Sequence[PortRate] = (),
) -> View:
    """Of what was analysed. ``environment``: environment.json, of which ``run``, ``arms`` and ``not_run`` say
    what was to be made; ``records``: all of the experiment, for runs that failed."""
    experiment = analysis.experiment
    arms = environment.get("arms") or experiment.arms
    whole = {run.plan.name for run in analysis.runs}
    return View(
        experiment,
        analysis.rows,
        analysis.runs,
        environment,
        analysis.fidelity,
        analysis.label,
        name=str(environment.get("run", "")),
        not_run=[{"arm": arm, "why": why} for arm, why in (environment.get("not_run") or {}).items()],
        failed=[{"run": r.run, "why": r.reason} for r in records if isinstance(r, RunFailed)],
        complete=whole.issuperset(plan.name for plan in experiment.plans if plan.arm in arms),
        port_rates=rates,
    )


def _key(point: Point) -> str:
    return json.dumps(point, sort_keys=True) if point else ""


def job_of(subject: str) -> str:
    """``red`` of ``job red``; what is said of other subjects, as it is."""
    return subject.removeprefix("job ")


def swept(points: Iterable[Point]) -> list[str]:
    """The dotted paths that points give values to."""
    return list(dict.fromkeys(path for point in points for path in point))
