"""Carries out run plans on a backend: submits jobs, makes the timeline happen, writes the records."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from ringlight.experiments.analysis.prediction import expected_s
from ringlight.experiments.backends.protocol import (
    RANK_S,
    Backend,
    BackendError,
    BuiltLab,
)
from ringlight.experiments.language.job_sources import lab_of
from ringlight.experiments.language.plan import EventPlan, JobPlan, RunPlan, When
from ringlight.experiments.record.events import (
    ENDED,
    ActionEnded,
    EventLate,
    GpusGranted,
    JobArrived,
    JobState,
    Record,
    RunEnded,
    RunStarted,
)
from ringlight.experiments.record.lab_records import (
    ProcessBack,
    ProcessEnded,
    SwitchDrifted,
    SwitchMended,
    process_called,
)
from ringlight.experiments.record.runs import AGAIN
from ringlight.experiments.runner.larger import check_links, check_run
from ringlight.experiments.runner.progress import Reporter
from ringlight.experiments.runner.repeats import Repeats
from ringlight.experiments.runner.run_state import RunState, effect_s

#: Deadlines in seconds of the lab's clock: GPUs given back by the run before, workers ready.
FREE_S, READY_S = 30.0, 60.0
#: A run may take this many times its predicted time, and this many seconds more, before it is given up.
PATIENCE, PATIENCE_S = 3.0, 60.0
#: Between two requests for GPUs that are not free yet.
_ASK_S = 0.05
#: An event is late that comes so long after its time, seconds.
LATE_S = 0.5
Write = Callable[[Sequence[Record]], None]


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run. ``failures``: one line for each job that failed and was not meant to."""

    plan: RunPlan
    records: tuple[Record, ...]
    failures: tuple[str, ...]


def run_group(
    backend: Backend,
    plans: Sequence[RunPlan],
    write: Write,
    reporter: Reporter,
    repeats: Repeats | None = None,
    *,
    chosen: bool = False,
) -> Iterator[Outcome]:
    """Carry out plans that share a setting, in a lab of their own. Yield the outcome of each plan.

    ``repeats``: decides which runs are made again. ``chosen``: the scale was chosen for this machine. Raises
    BackendError, and TooFast if the scale was chosen and the machine does not carry it.
    """
    of_lab: list[Record] = []

    def note(record: Record) -> None:
        write([record])
        of_lab.append(record)

    with ExitStack() as undo:
        lab = backend.open(plans[0].setting, note)
        undo.callback(lab.close)
        undo.callback(reporter.end_run)
        if chosen:
            check_links(of_lab)
        for plan in plans:
            outcome = counts = _Run(lab, plan, write, reporter).to_the_end()
            # What failed is never made again.
            why = (
                repeats.why(plan, outcome.records)
                if repeats and not outcome.failures
                else []
            )
            if repeats and why:
                # Its records are called otherwise, its plan is the same.
                other = replace(
                    plan, name=plan.name + AGAIN, title=f"{plan.title}, again"
                )
                second = _Run(lab, other, write, reporter).to_the_end()
                settled = repeats.settled(plan, why, outcome.records, second.records)
                write([settled])
                counts = second if settled.counts == other.name else outcome
                outcome = replace(outcome, failures=second.failures)
            if chosen and not outcome.failures:
                check_links(of_lab)
                check_run(counts.plan, counts.records)
            yield outcome


def run_in(lab: BuiltLab, plan: RunPlan, write: Write, reporter: Reporter) -> Outcome:
    """Carry out one plan in a lab of its setting that the caller opened and closes. Return the outcome.

    Raises BackendError; the state of the lab is then unknown.
    """
    try:
        return _Run(lab, plan, write, reporter).to_the_end()
    finally:
        reporter.end_run()


class _Run:
    def __init__(
        self, lab: BuiltLab, plan: RunPlan, write: Write, reporter: Reporter
    ) -> None:
        self._lab, self._plan = lab_of(plan, lab), plan
        self._reporter, self._write = reporter, write
        awaited = [
            (when.job, when.iteration) for when in (event.when for event in plan.events)
        ]
        self._at = RunState(
            done_at={
                (job, number): 0.0
                for job, number in awaited
                if job is not None and number is not None
            }
        )
        self._records: list[Record] = []
        #: Jobs that have not arrived, those that wait for GPUs, and names of those that were released.
        self._to_come = {job.name: job for job in plan.jobs}
        self._queue: deque[JobPlan] = deque()
        #: Why the first of the queue was not taken when it was last asked for.
        self._no_room: str | None = None
        self._released: set[str] = set()
        self._granted: set[str] = set()
        #: Events that were not begun, and names of those that were.
        self._pending = {event.name: event for event in plan.events}
        self._begun: set[str] = set()
        self._begun_with_gpus: set[str] = set()
        self._begun_s: dict[str, float] = {}
        self._late: set[str] = set()

    def to_the_end(self) -> Outcome:
        plan, lab = self._plan, self._lab
        self._reporter.start_run(
            plan.title, {job.name: job.iterations for job in plan.jobs}
        )
        lab.begin(plan)
        of_plan: dict[str, Any] = {
            "arm": plan.arm,
            "point": dict(plan.point),
            "repeat": plan.repeat,
        }
        jobs, circuits = (
            {job.name: list(job.ranks) for job in plan.jobs},
            [*map(list, plan.circuits)],
        )
        self._note(
            RunStarted,
            **of_plan,
            fabric=plan.setting.name,
            jobs=jobs,
            circuits=circuits,
        )
        first = [job.name for job in plan.jobs if job.start.at_once]
        self._submit_all(first)
        self._fire(lambda when: when.start)
        self._wait(self._begun_are_over, "the events at the start")
        self._release(first)
        ended = self._at.ended
        self._wait(
            lambda: self._at.start_s is not None or ended.keys() >= set(first),
            "the jobs' release",
        )
        #: Start of the first jobs, from which times count; now if there are none.
        self._zero_s = lab.now_s() if self._at.start_s is None else self._at.start_s
        self._follow()
        self._keep(lab.end())
        self._note(RunEnded)
        self._reporter.end_run()
        return Outcome(plan, tuple(self._records), tuple(self._failures()))

    def _error(self, what: str) -> BackendError:
        return BackendError(f"{self._plan.title}: {what}")

    # Jobs.

    def _submit_all(self, names: Sequence[str]) -> None:
        """Jobs of the beginning: each gets its GPUs and is ready, or the run cannot be made."""
        for name in names:
            self._arrive(name)
        self._admit(FREE_S)
        if self._queue:
            raise self._error(
                f"job {self._queue[0].name}: no room at the start: {self._no_room}"
            )
        states, ready = self._at.states, ("READY", *ENDED)
        self._wait(
            lambda: all(states.get(name) in ready for name in names),
            "the jobs' workers",
        )
        for name in names:
            if name in self._at.ended:
                raise self._error(f"job {name} {self._at.state_in_words(name)}")

    def _arrive(self, name: str) -> None:
        self._queue.append(self._to_come.pop(name))
        self._note(JobArrived, job=name)

    def _admit(self, patience_s: float = 0.0) -> None:
        """First come, first served: a job that finds no room holds up those behind it."""
        deadline_s = self._lab.now_s() + patience_s
        while self._queue and self._lab.own_queue:
            self._lab.submit(self._queue.popleft())
        while self._queue:
            granting = self._granting()
            self._no_room = None if granting else self._lab.submit(self._queue[0])
            if self._no_room is None and not granting:
                self._note(GpusGranted, job=self._queue.popleft().name)
                self._fire(lambda when: when.granted in self._granted)
            elif self._lab.now_s() >= deadline_s:
                return
            else:
                self._keep(self._lab.next(self._lab.now_s() + _ASK_S))

    def _granting(self) -> bool:
        """Return whether an event that came with a job's GPUs is in progress. The next job is granted GPUs
        after its end.
        """
        return bool(self._begun_with_gpus - self._at.actions.keys())

    def _release(self, jobs: Sequence[str]) -> None:
        if new := [name for name in jobs if name not in self._released]:
            self._released.update(new)
            self._lab.release(new)

    # The timeline.

    def _follow(self) -> None:
        """Follow the run until all jobs and events are over; in virtual time without a deadline."""
        patience_s = math.inf
        if self._lab.real_time:
            patience_s = sum(expected_s(self._plan).values()) * PATIENCE + PATIENCE_S
        while True:
            # Jobs that came later start as soon as they are ready.
            self._release(
                [name for name, state in self._at.states.items() if state == "READY"]
            )
            # One moment for all that is looked at, so that nothing falls between two.
            self._now_s = self._lab.now_s()
            for name in [
                name for name in self._to_come if self._arrival_s(name) <= self._now_s
            ]:
                self._arrive(name)
            self._admit()
            if self._fire(self._has_come):
                # What was begun may be what others wait for.
                continue
            if self._finished():
                return
            until_s = min(self._next_time_s(), self._zero_s + patience_s)
            records = self._lab.next(until_s)
            self._keep(records)
            self._reporter.advance(
                lambda: {
                    job.name: self._at.iterations(job.name) for job in self._plan.jobs
                }
            )
            if not records and until_s == math.inf:
                raise self._error(f"nothing happens any more; waiting: {self._left()}")
            if self._lab.now_s() >= self._zero_s + patience_s:
                raise self._error(
                    f"{self._left() or 'events'} had not ended after {patience_s:.0f} s"
                )

    def _left(self) -> str:
        """Jobs that have not ended."""
        return ", ".join(
            self._waiting_text(job.name)
            for job in self._plan.jobs
            if job.name not in self._at.ended
        )

    def _waiting_text(self, name: str) -> str:
        """A job that has not ended, with why it was not taken."""
        first = bool(self._queue) and self._queue[0].name == name
        return f"{name} ({self._no_room})" if first else name

    def _arrival_s(self, name: str) -> float:
        """Arrival of a job; infinite while it is not known."""
        start, ended = self._to_come[name].start, self._at.ended
        if start.by_event or not ended.keys() >= set(start.after):
            return math.inf
        return (
            max((ended[other] for other in start.after), default=self._zero_s)
            + start.at_s
        )

    def _next_time_s(self) -> float:
        """Time at which the runner must act; infinite while it waits for records."""
        times = [self._arrival_s(name) for name in self._to_come]
        of_events = (event.when.at_s for event in self._pending.values())
        times += [self._zero_s + at_s for at_s in of_events if at_s is not None]
        return min((t for t in times if t > self._now_s), default=math.inf)

    def _has_come(self, when: When) -> bool:
        if when.at_s is not None:
            return self._now_s >= self._zero_s + when.at_s
        if when.job is not None and when.iteration is not None:
            return self._at.iterations(when.job) >= when.iteration
        if when.granted is not None:
            return when.granted in self._granted
        if when.started is not None:
            return self._at.states.get(when.started) in (
                "RUNNING",
                "RECOVERING",
                *ENDED,
            )
        if when.ended is not None:
            return when.ended in self._at.ended
        return when.after is not None and when.after in self._at.actions

    def _fire(self, due: Callable[[When], bool]) -> bool:
        """Begin the events that are due; whether there were some."""
        events = [event for event in self._pending.values() if due(event.when)]
        for event in events:
            del self._pending[event.name]
            self._begun.add(event.name)
            if event.when.granted is not None:
                self._begun_with_gpus.add(event.name)
            self._perform(event)
        return bool(events)

    def _perform(self, event: EventPlan) -> None:
        self._reporter.say(f"  {event.do} {event.target or ''}".rstrip())
        self._begun_s[event.name] = self._lab.now_s()
        self._note_late(event, self._due_s(event.when), self._begun_s[event.name])
        if event.do == "start" and event.target is not None:
            self._arrive(event.target.names[0])
            self._note(ActionEnded, **event.record_fields)
        else:
            self._lab.perform(event)

    def _due_s(self, when: When) -> float | None:
        """Time at which an event is due; None if it comes with what it waits for."""
        if when.at_s is not None:
            return self._zero_s + when.at_s
        if when.job is not None and when.iteration is not None:
            return self._at.done_at.get((when.job, when.iteration))
        if when.after is not None:
            return self._at.over.get(when.after)
        return self._at.ended.get(when.ended) if when.ended is not None else None

    def _note_late(
        self, event: EventPlan, due: float | None, came: float, *, begun: bool = True
    ) -> None:
        """Note that an event came late, whoever was away. ``begun``: it came when it was begun; the end of
        one that was begun in time takes as long as it takes, and is late where somebody was away."""
        if due is None or came - due < LATE_S:
            return
        away_s, planned_absence = self._at.controller_away(due, came)
        frozen = self._at.stood_still(due, came)
        if away_s < LATE_S and not frozen and not begun:
            return
        planned_absence = planned_absence and away_s >= LATE_S and not frozen
        when = event.when
        planned, came_text = (
            f"{due - self._zero_s:.1f} s after the start",
            f"at {came - self._zero_s:.1f} s",
        )
        if when.start:
            planned, came_text = "the time before the start", "before the start"
        if when.iteration is not None and when.job is not None:
            planned = f"iteration {when.iteration} of {when.job}"
            came_text = f"in iteration {self._at.iterations(when.job)}"
        self._late.add(event.name)
        how_late: dict[str, Any] = {
            "due": due,
            "late_s": came - due,
            "away_s": away_s,
            "asked": planned_absence,
            "frozen": frozen,
        }
        self._note(
            EventLate,
            t=came,
            **event.record_fields,
            planned=planned,
            came=came_text,
            **how_late,
        )

    def _begun_are_over(self) -> bool:
        return self._begun <= self._at.actions.keys()

    def _finished(self) -> bool:
        """Return whether all jobs and all events that began have ended. Raises BackendError for events that
        never came.
        """
        if not self._begun_are_over() or len(self._at.ended) < len(self._plan.jobs):
            return False
        for event in self._pending.values():
            what = f"{event.do} {event.target or ''} (events.{event.name})"
            raise self._error(f"all jobs had ended before {what} was due")
        return True

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        patience_s = READY_S + RANK_S * sum(job.gpus for job in self._plan.jobs)
        deadline_s = self._lab.now_s() + patience_s
        while not done():
            if self._lab.now_s() >= deadline_s:
                raise self._error(f"{what}: not there after {patience_s:.0f} s")
            self._keep(self._lab.next(deadline_s))

    # Records.

    def _note(
        self, kind: type[Record], /, t: float | None = None, **fields: Any
    ) -> None:
        self._keep(
            [
                kind(
                    t=self._lab.now_s() if t is None else t,
                    run=self._plan.name,
                    **fields,
                )
            ]
        )

    def _keep(self, records: Sequence[Record]) -> None:
        self._records += records
        if records:
            self._write(records)
        for record in records:
            self._at.take(record)
            if isinstance(record, GpusGranted):
                self._granted.add(record.job)
            if isinstance(record, JobState) and record.state == "FAILED":
                self._reporter.say(
                    f"  job {record.job} {self._at.state_in_words(record.job)}",
                    style="red",
                )
            if isinstance(record, ProcessEnded):
                planned = record.planned
                how = (
                    f"died as planned ({record.how})"
                    if planned
                    else f"died ({record.how}), which no event asked for"
                )
                self._reporter.say(
                    f"  {record.process} {how}", style=None if planned else "red"
                )
            if isinstance(record, ProcessBack):
                called = process_called(record.kind, record.name)
                self._reporter.say(f"  {called} is back after {record.away_s:.1f} s")
            if isinstance(record, EventLate | SwitchDrifted):
                self._reporter.say(f"  {record.sentence}", style="red")
            if isinstance(record, SwitchMended):
                what = f"{record.what} of {record.switch}"
                self._reporter.say(
                    f"  {what} is as it should be again after {record.after_s:.2f} s"
                )
            if (
                isinstance(record, ActionEnded)
                and record.name in self._begun_s
                and record.name not in self._late
            ):
                # It was begun in time, and waited for whom it was asked of.
                (event,) = [
                    event for event in self._plan.events if event.name == record.name
                ]
                self._note_late(
                    event, self._begun_s[record.name], effect_s(record), begun=False
                )
            if isinstance(record, ActionEnded) and record.error is not None:
                self._reporter.say(
                    f"  {record.do} {record.target}: {record.error}", style="red"
                )

    def _failures(self) -> Iterator[str]:
        for job in self._plan.jobs:
            if self._at.states.get(job.name) == "FAILED" and not job.may_fail:
                yield f"{self._plan.title}: job {job.name} {self._at.state_in_words(job.name)}"
        for name, error in self._at.actions.items():
            if error is not None:
                yield f"{self._plan.title}: events.{name}: {error}"
