"""Carries out run plans on a backend: submits jobs, makes the timeline happen, writes the records."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from experiments.backends.protocol import Backend, BackendError, Lab
from experiments.language.plan import EventPlan, JobPlan, RunPlan, When
from experiments.record.events import (
    ENDED,
    ActionEnded,
    Iteration,
    JobArrived,
    JobRecovered,
    JobState,
    Record,
    Released,
    RunEnded,
    RunStarted,
)
from experiments.runner.progress import Reporter
from experiments.runner.repeats import Repeats, again_name

#: Deadlines in seconds of the lab's clock: GPUs given back by the run before, workers ready.
FREE_S, READY_S = 30.0, 60.0
#: A run may take this many times its predicted time, and this many seconds more, before it is given up.
PATIENCE, PATIENCE_S = 3.0, 60.0
#: An event that was begun may take so long after the last job's end.
EVENT_S = 60.0

Write = Callable[[Sequence[Record]], None]


@dataclass(frozen=True)
class Outcome:
    """What a run came to: one line for each job that failed and was not meant to."""

    plan: RunPlan
    records: tuple[Record, ...]
    failures: tuple[str, ...]


@dataclass
class _Progress:
    """Where a run stands, read from its records."""

    plan: RunPlan
    states: dict[str, str] = field(default_factory=dict)
    done: dict[str, list[int]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    gpus: dict[str, list[str]] = field(default_factory=dict)
    actions: dict[str, str | None] = field(default_factory=dict)
    released_at: float | None = None

    def take(self, record: Record) -> None:
        if isinstance(record, Iteration):
            self.done[record.job][record.rank] = record.i + 1
        elif isinstance(record, JobState):
            self.states[record.job] = record.state
            if record.gpus:
                self.gpus[record.job] = list(record.gpus)
                if len(self.done.get(record.job, ())) != len(record.gpus):
                    self.done[record.job] = [0] * len(record.gpus)
            if record.reason is not None:
                self.reasons[record.job] = record.reason
        elif isinstance(record, JobRecovered):
            self.gpus[record.job] = list(record.gpus)
            self.done[record.job] = [record.iteration] * len(record.gpus)
        elif isinstance(record, ActionEnded):
            self.actions[record.name] = record.error
        elif isinstance(record, Released) and self.released_at is None:
            self.released_at = record.at

    def iterations(self, job: str) -> int:
        """Iterations that all ranks of a job have done."""
        return min(self.done.get(job, [0]))

    def over(self, job: str) -> bool:
        return self.states.get(job) in ENDED


def run_group(
    backend: Backend,
    plans: Sequence[RunPlan],
    write: Write,
    reporter: Reporter,
    expected_s: Callable[[RunPlan], Mapping[str, float]],
    repeats: Repeats | None = None,
) -> Iterator[Outcome]:
    """Carries out plans that share a setting, in a lab of their own.

    ``expected_s``: what the model says of a plan's jobs. ``repeats``: has runs made once more. Raises
    BackendError.
    """
    lab = backend.open(plans[0].setting, lambda record: write([record]))
    try:
        for plan in plans:
            outcome = _make(lab, plan, write, reporter, expected_s)
            if repeats is not None and not outcome.failures:
                # Its records are called otherwise, its plan is the same.
                other = replace(plan, name=again_name(plan), title=f"{plan.title}, again")
                made: list[Outcome] = []

                def again() -> Sequence[Record]:
                    made.append(_make(lab, other, write, reporter, expected_s))  # noqa: B023
                    return made[0].records  # noqa: B023

                settled = repeats.settle(plan, outcome.records, again)
                if settled is not None:
                    write([settled])
                    outcome = replace(outcome, failures=made[0].failures)
            yield outcome
    finally:
        reporter.end_run()
        lab.close()


def _make(
    lab: Lab,
    plan: RunPlan,
    write: Write,
    reporter: Reporter,
    expected_s: Callable[[RunPlan], Mapping[str, float]],
) -> Outcome:
    return _Run(lab, plan, write, reporter, sum(expected_s(plan).values())).to_the_end()


class _Run:
    def __init__(self, lab: Lab, plan: RunPlan, write: Write, reporter: Reporter, expected_s: float) -> None:
        self._lab, self._plan, self._reporter = lab, plan, reporter
        self._write = write
        self._patience_s = expected_s * PATIENCE + PATIENCE_S
        self._at = _Progress(plan)
        self._records: list[Record] = []
        self._queue: deque[JobPlan] = deque()
        self._arrived: set[str] = set()
        self._released: set[str] = set()
        self._pending = {event.name: event for event in plan.events}
        self._begun: set[str] = set()
        self._totals = {job.name: job.iterations for job in plan.jobs}

    def to_the_end(self) -> Outcome:
        plan, lab = self._plan, self._lab
        self._reporter.start_run(plan.title, self._totals)
        lab.begin(plan)
        self._keep(
            [
                RunStarted(
                    t=lab.now_s(),
                    run=plan.name,
                    arm=plan.arm,
                    point=dict(plan.point),
                    repeat=plan.repeat,
                    fabric=plan.setting.name,
                    jobs={job.name: list(job.ranks) for job in plan.jobs},
                    circuits=[list(pair) for pair in plan.circuits],
                )
            ]
        )
        first = [job for job in plan.jobs if job.start.at_once]
        self._submit_all(first)
        self._fire(lambda when: when.start)
        self._wait(lambda: self._begun <= self._at.actions.keys(), READY_S, "the events at the start")
        self._release([job.name for job in first])
        self._zero_s = lab.now_s()
        self._follow()
        self._keep(lab.end())
        self._keep([RunEnded(t=lab.now_s(), run=plan.name)])
        self._reporter.end_run()
        return Outcome(plan, tuple(self._records), tuple(self._failures()))

    # Jobs.

    def _submit_all(self, jobs: Iterable[JobPlan]) -> None:
        """Jobs of the beginning: each gets its GPUs and is ready, or the run cannot be made."""
        for job in jobs:
            self._arrive(job)
        self._admit(FREE_S)
        if self._queue:
            job = self._queue[0]
            wanted = " ".join(job.ranks) or f"{job.gpus} GPUs"
            raise BackendError(f"{self._plan.title}: job {job.name}: no room for {wanted} at the start")
        waiting = [job.name for job in jobs]
        self._wait(
            lambda: all(self._at.states.get(name) in ("READY", *ENDED) for name in waiting),
            READY_S,
            "the jobs' workers",
        )
        for name in waiting:
            if self._at.over(name):
                raise BackendError(f"{self._plan.title}: job {name} {self._said(name)}")

    def _arrive(self, job: JobPlan) -> None:
        self._arrived.add(job.name)
        self._queue.append(job)
        self._keep([JobArrived(t=self._lab.now_s(), run=self._plan.name, job=job.name)])

    def _admit(self, patience_s: float = 0.0) -> None:
        """First come, first served: a job that finds no room holds up those behind it."""
        deadline_s = self._lab.now_s() + patience_s
        while self._queue:
            if self._lab.submit(self._queue[0]):
                self._queue.popleft()
            elif self._lab.now_s() >= deadline_s:
                return
            else:
                self._keep(self._lab.next(self._lab.now_s() + 0.05))

    def _release_ready(self) -> None:
        """Jobs that came later start as soon as they are ready."""
        self._release([name for name, state in self._at.states.items() if state == "READY"])

    def _release(self, jobs: Sequence[str]) -> None:
        new = [name for name in jobs if name not in self._released]
        if new:
            self._released.update(new)
            self._lab.release(new)

    # The timeline.

    def _follow(self) -> None:
        deadline_s = self._zero_s + self._patience_s if self._lab.real_time else math.inf
        while True:
            self._release_ready()
            now_s = self._lab.now_s()
            for job in self._plan.jobs:
                if job.name not in self._arrived and self._due(job, now_s):
                    self._arrive(job)
            self._admit()
            self._fire(lambda when: self._has_come(when, now_s))  # noqa: B023
            if self._finished():
                return
            until_s = min(self._next_time_s(now_s), deadline_s)
            found = self._lab.next(until_s)
            if not found and until_s == math.inf:
                left = [job.name for job in self._plan.jobs if not self._at.over(job.name)]
                raise BackendError(
                    f"{self._plan.title}: nothing happens any more; waiting: {', '.join(left)}"
                )
            self._keep(found)
            done = {name: self._at.iterations(name) for name in self._totals}
            self._reporter.advance(done, self._totals)
            if self._lab.now_s() >= deadline_s:
                left = [job.name for job in self._plan.jobs if not self._at.over(job.name)]
                raise BackendError(
                    f"{self._plan.title}: {', '.join(left) or 'events'} had not ended after "
                    f"{self._patience_s:.0f} s"
                )

    def _due(self, job: JobPlan, now_s: float) -> bool:
        start = job.start
        if start.by_event or not all(self._at.over(name) for name in start.after):
            return False
        return now_s >= self._due_s(job)

    def _due_s(self, job: JobPlan) -> float:
        """When a job arrives whose predecessors have ended: that much after the last of them."""
        ends = [
            record.t
            for record in self._records
            if isinstance(record, JobState) and record.job in job.start.after and record.state in ENDED
        ]
        return max(ends, default=self._zero_s) + job.start.at_s

    def _has_come(self, when: When, now_s: float) -> bool:
        if when.at_s is not None:
            return now_s >= self._zero_s + when.at_s
        if when.job is not None and when.iteration is not None:
            return self._at.iterations(when.job) >= when.iteration
        if when.started is not None:
            return self._at.states.get(when.started) in ("RUNNING", "RECOVERING", *ENDED)
        if when.ended is not None:
            return self._at.over(when.ended)
        return when.after is not None and when.after in self._at.actions

    def _fire(self, due: Callable[[When], bool]) -> None:
        for name, event in list(self._pending.items()):
            if due(event.when):
                del self._pending[name]
                self._begun.add(name)
                self._perform(event)

    def _perform(self, event: EventPlan) -> None:
        self._reporter.say(f"  {event.do} {event.target or ''}".rstrip())
        if event.do == "start" and event.target is not None:
            self._arrive(self._plan.job(event.target.names[0]))
            now_s, target = self._lab.now_s(), str(event.target)
            self._keep(
                [ActionEnded(t=now_s, run=self._plan.name, name=event.name, do=event.do, target=target)]
            )
        else:
            self._lab.perform(event)

    def _next_time_s(self, now_s: float) -> float:
        """When the runner has to do something by itself; infinite when only records can tell."""
        times = [
            self._zero_s + event.when.at_s for event in self._pending.values() if event.when.at_s is not None
        ]
        times += [
            self._due_s(job)
            for job in self._plan.jobs
            if job.name not in self._arrived
            and not job.start.by_event
            and all(self._at.over(name) for name in job.start.after)
        ]
        return min((t for t in times if t > now_s), default=math.inf)

    def _finished(self) -> bool:
        """Whether all jobs are over and all that was begun. Raises BackendError for what never came."""
        if not self._begun <= self._at.actions.keys():
            return False
        if not all(self._at.over(job.name) for job in self._plan.jobs):
            return False
        for event in self._pending.values():
            raise BackendError(
                f"{self._plan.title}: all jobs had ended before {event.do} {event.target or ''} "
                f"(events.{event.name}) was due"
            )
        return True

    def _wait(self, done: Callable[[], bool], patience_s: float, what: str) -> None:
        deadline_s = self._lab.now_s() + patience_s
        while not done():
            if self._lab.now_s() >= deadline_s:
                raise BackendError(f"{self._plan.title}: {what}: not there after {patience_s:.0f} s")
            self._keep(self._lab.next(deadline_s))

    # Records.

    def _keep(self, records: Sequence[Record]) -> None:
        for record in records:
            self._at.take(record)
        self._records += records
        if records:
            self._write(records)
        for record in records:
            if isinstance(record, JobState) and record.state == "FAILED":
                self._reporter.say(f"  job {record.job} {self._said(record.job)}", style="red")
            if isinstance(record, ActionEnded) and record.error is not None:
                self._reporter.say(f"  {record.do} {record.target}: {record.error}", style="red")

    def _said(self, job: str) -> str:
        state = self._at.states[job].lower()
        reason = self._at.reasons.get(job)
        return f"{state}: {reason}" if reason else state

    def _failures(self) -> Iterator[str]:
        for job in self._plan.jobs:
            if self._at.states.get(job.name) == "FAILED" and not job.may_fail:
                yield f"{self._plan.title}: job {job.name} {self._said(job.name)}"
        for name, error in self._at.actions.items():
            if error is not None:
                yield f"{self._plan.title}: events.{name}: {error}"
