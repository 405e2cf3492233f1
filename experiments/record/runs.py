"""Records read back as runs, jobs and what was made to happen. No judgement here."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, cast

from ringlight.experiments.language.plan import EventPlan, JobPlan, RunPlan
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.events import (
    ENDED,
    ActionBegun,
    ActionEnded,
    CollectiveTimed,
    CommandEnded,
    CommandStarted,
    GpusGranted,
    Iteration,
    JobArrived,
    JobRecovered,
    JobState,
    Record,
    Reference,
    Released,
    Repeated,
    RunEnded,
    RunStarted,
    WorkerDone,
    WorkerLost,
    WorkerReady,
)
from ringlight.experiments.record.lab_records import (
    LinkBytes,
    SwitchDrifted,
    SwitchMended,
)
from ringlight.experiments.record.light_records import Circuits, Flow

#: Added to the name of a run that was made once more.
AGAIN = "-again"
SUCCEEDED = "SUCCEEDED"

AnyRecord = TypeVar("AnyRecord", bound=Record)
Pair = tuple[str, str]


@dataclass(frozen=True, eq=False)
class JobRun:
    """One job in one run. Times are of the lab's clock, None for what did not come.

    ``gpus``: in rank order, as it began; ``recoveries`` have later ones. ``granted``: when it had its GPUs;
    ``placed``: when its workers were ready.
    ``iterations``: that count, by index and rank; ``redone``: those that a recovery did once more;
    ``timed``: in their place, of a job that is one all-reduce.
    ``ready`` and ``done``: by rank. ``reference``: SHA-256 of the parameters of the same training in one
    process; ``unlike``: the share of summing devices' answers there that are not the mean. ``commands``,
    ``ends`` (by rank) and ``links``: of a job of guests, in place of iterations.
    """

    plan: JobPlan
    gpus: tuple[str, ...]
    state: str
    reason: str | None
    arrived: float | None
    granted: float | None
    placed: float | None
    released: float | None
    end: float | None
    iterations: tuple[Iteration, ...]
    redone: tuple[Iteration, ...]
    ready: Mapping[int, WorkerReady]
    done: Mapping[int, WorkerDone]
    reference: str | None
    unlike: float | None
    losses: tuple[WorkerLost, ...]
    recoveries: tuple[JobRecovered, ...]
    timed: CollectiveTimed | None = None
    commands: tuple[CommandStarted, ...] = ()
    ends: Mapping[int, CommandEnded] = field(default_factory=dict)
    links: LinkBytes | None = None

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def jct_s(self) -> float | None:
        """Job completion time: seconds from its release to its end, if it succeeded."""
        if self.state != SUCCEEDED or self.released is None or self.end is None:
            return None
        return self.end - self.released

    @property
    def last_gpus(self) -> tuple[str, ...]:
        """GPUs in rank order, as the job ended."""
        return tuple(self.recoveries[-1].gpus) if self.recoveries else self.gpus

    @cached_property
    def by_index(self) -> tuple[tuple[Iteration, ...], ...]:
        """Iterations of all ranks, by iteration in order."""
        return tuple(
            tuple(group)
            for _, group in itertools.groupby(self.iterations, key=lambda it: it.i)
        )

    @cached_property
    def spans(self) -> tuple[tuple[float, float], ...]:
        """Begin and end of each iteration: the first rank's start, the last one's end."""
        ranks = self.by_index
        return tuple(
            (min(it.compute_start for it in g), max(it.allreduce_end for it in g))
            for g in ranks
        )


@dataclass(frozen=True)
class Action:
    """An event of the timeline as it happened. ``ended``: None when its end is not on record."""

    plan: EventPlan
    begun: float
    ended: float | None
    result: Mapping[str, Any]
    error: str | None

    @property
    def sentence(self) -> str:
        """The event in words: ``kill agent n1``."""
        return f"{self.plan.do} {self.plan.target or ''}".strip()


@dataclass(frozen=True, eq=False)
class Run:
    """A run plan as it was carried out. ``name``: of its records. ``released``: when its first jobs were.

    ``circuits_before`` and ``circuits``: pairs of port names lit at the start and at the end. ``records``:
    all of the run, in order.
    """

    plan: RunPlan
    name: str
    released: float
    ended: float
    jobs: Mapping[str, JobRun]
    actions: tuple[Action, ...]
    circuits_before: tuple[Pair, ...]
    circuits: tuple[Pair, ...]
    records: tuple[Record, ...]

    @cached_property
    def _by_kind(self) -> Mapping[type[Record], list[Record]]:
        records_of: dict[type[Record], list[Record]] = {}
        for record in self.records:
            records_of.setdefault(type(record), []).append(record)
        return records_of

    @property
    def later(self) -> list[Action]:
        """Actions that were begun after the first jobs were released."""
        return [action for action in self.actions if action.begun > self.released]

    def of(self, kind: type[AnyRecord], job: str | None = None) -> list[AnyRecord]:
        """Return the records of one kind, in order; only those of ``job`` if given."""
        matching = cast(list[AnyRecord], self._by_kind.get(kind, []))
        return (
            matching
            if job is None
            else [record for record in matching if getattr(record, "job", None) == job]
        )

    def derived(self, kind: type[AnyRecord]) -> list[AnyRecord]:
        """Return the records of all kinds that are derived from one, kind by kind."""
        return [
            cast(AnyRecord, record)
            for own, records in self._by_kind.items()
            if issubclass(own, kind)
            for record in records
        ]

    @property
    def drifts(self) -> list[tuple[SwitchDrifted, SwitchMended | None]]:
        """Deviations of switches from their settings, each with its repair; None if no repair is on
        record."""
        return [(drift, self._mended(drift)) for drift in self.of(SwitchDrifted)]

    def _mended(self, drift: SwitchDrifted) -> SwitchMended | None:
        of_switch = (
            m
            for m in self.of(SwitchMended)
            if (m.switch, m.what) == (drift.switch, drift.what)
        )
        return next((mended for mended in of_switch if mended.t >= drift.t), None)

    @property
    def lit_flows(self) -> list[Flow]:
        """Flows of O-NICs that got light."""
        return [
            flow
            for flow in self.of(Flow)
            if flow.t_lit is not None and flow.t_request is not None
        ]


def runs_of(records: Iterable[Record], plans: Iterable[RunPlan]) -> list[Run]:
    """Return the whole runs that count, in the order of ``plans``.

    A run without its end is left out. So is a run that was set aside in favour of its repetition, or a
    repetition that was set aside in favour of the run. If no record says which of the two counts, the first
    does.

    Raises ScenarioError, one line, for a whole run of which something is missing.
    """
    records_of: dict[str, list[Record]] = {}
    aside: set[str | None] = set()
    for record in records:
        records_of.setdefault(record.run, []).append(record)
        if isinstance(record, Repeated):
            aside.add(record.set_aside)
    names = {
        plan.name + AGAIN if plan.name in aside else plan.name: plan for plan in plans
    }
    return [
        _run(plan, name, records_of[name])
        for name, plan in names.items()
        if any(isinstance(record, RunEnded) for record in records_of.get(name, ()))
    ]


def _all(kind: type[AnyRecord], records: Iterable[Record]) -> tuple[AnyRecord, ...]:
    return tuple(record for record in records if isinstance(record, kind))


def _first(kind: type[AnyRecord], records: Iterable[Record]) -> AnyRecord | None:
    return next(iter(_all(kind, records)), None)


def _run(plan: RunPlan, name: str, records: Sequence[Record]) -> Run:
    started = _first(RunStarted, records)
    if started is None:
        raise ScenarioError(
            f"events.jsonl: run {name} has ended and has no event run_started"
        )
    circuits = [
        started.circuits,
        *(record.circuits for record in _all(Circuits, records)),
    ]
    begins = {record.name: record for record in _all(ActionBegun, records)}
    ends = {record.name: record for record in _all(ActionEnded, records)}
    of_job: dict[str | None, list[Record]] = {}
    released: dict[str, Released] = {}
    for record in records:
        of_job.setdefault(getattr(record, "job", None), []).append(record)
        if isinstance(record, Released):
            for job in record.jobs:
                released.setdefault(job, record)
    return Run(
        plan=plan,
        name=name,
        released=next((record.at for record in _all(Released, records)), started.t),
        ended=max(record.t for record in _all(RunEnded, records)),
        jobs={
            job.name: _job(
                job,
                name,
                started.jobs.get(job.name, ()),
                of_job.get(job.name, ()),
                released.get(job.name),
            )
            for job in plan.jobs
        },
        actions=tuple(
            _action(event, begins.get(event.name), ends.get(event.name))
            for event in plan.events
            if event.name in begins or event.name in ends
        ),
        circuits_before=_pairs(circuits[0]),
        circuits=_pairs(circuits[-1]),
        records=tuple(records),
    )


def _pairs(circuits: Iterable[Sequence[str]]) -> tuple[Pair, ...]:
    return tuple((a, b) for a, b in circuits)


def _action(
    plan: EventPlan, begun: ActionBegun | None, end: ActionEnded | None
) -> Action:
    first = begun or end
    assert first is not None
    if end is None:
        return Action(plan, first.t, None, {}, None)
    return Action(plan, first.t, end.t, end.result, end.error)


def _job(
    plan: JobPlan,
    run: str,
    gpus: Sequence[str],
    mine: Sequence[Record],
    released: Released | None,
) -> JobRun:
    """``mine``: what is on record of the job; ``released``: its release."""
    states, recoveries = _all(JobState, mine), _all(JobRecovered, mine)
    gpus = gpus or next((record.gpus for record in states if record.gpus), ())
    iterations = sorted(_all(Iteration, mine), key=lambda it: (it.i, it.rank))
    kept = tuple(
        it for it in iterations if not any(_again(it, back) for back in recoveries)
    )
    timed = _first(CollectiveTimed, mine)
    succeeded = (
        bool(states)
        and states[-1].state == SUCCEEDED
        and timed is None
        and plan.guest is None
    )
    if succeeded and (
        silent := set(range(len(gpus) or plan.gpus)) - {it.rank for it in kept}
    ):
        raise ScenarioError(
            f"events.jsonl: run {run} has ended and has no iteration of rank {min(silent)} of job {plan.name}"
        )
    end = next((record.t for record in states if record.state in ENDED), None)
    ends = {record.rank: record for record in _all(CommandEnded, mine)}
    if succeeded:
        end = max(it.allreduce_end for it in kept)
    elif ends and states[-1].state == SUCCEEDED:
        # A job's state is known a moment after its last command has ended.
        end = max(record.t for record in ends.values())
    reference = _first(Reference, mine)
    return JobRun(
        plan=plan,
        gpus=tuple(gpus),
        state=states[-1].state if states else "",
        reason=states[-1].reason if states else None,
        arrived=next((record.t for record in _all(JobArrived, mine)), None),
        granted=next((record.t for record in _all(GpusGranted, mine)), None),
        placed=next((record.t for record in states if record.state == "READY"), None),
        released=None if released is None else released.at,
        end=end,
        iterations=kept,
        redone=tuple(
            it for it in iterations if any(_again(it, back) for back in recoveries)
        ),
        ready={record.rank: record for record in _all(WorkerReady, mine)},
        done={record.rank: record for record in _all(WorkerDone, mine)},
        reference=None if reference is None else reference.sha256,
        unlike=None if reference is None else reference.unlike,
        losses=_all(WorkerLost, mine),
        recoveries=recoveries,
        timed=timed,
        commands=_all(CommandStarted, mine),
        ends=ends,
        links=_first(LinkBytes, mine),
    )


def _again(it: Iteration, back: JobRecovered) -> bool:
    """Return whether a recovery caused an iteration to be repeated."""
    return it.i >= back.iteration and it.allreduce_end <= back.at
