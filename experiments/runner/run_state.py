"""The state of a run, as its records tell it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ringlight.experiments.record.events import (
    ENDED,
    ActionEnded,
    Iteration,
    JobRecovered,
    JobState,
    Record,
    Released,
)
from ringlight.experiments.record.lab_records import (
    ProcessBack,
    ProcessEnded,
    ProcessFrozen,
    ProcessThawed,
    process_called,
)


@dataclass
class RunState:
    """State of a run, read from its records: jobs by name, and the events that have ended."""

    states: dict[str, str] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    done: dict[str, list[int]] = field(default_factory=dict)
    actions: dict[str, str | None] = field(default_factory=dict)
    #: When all ranks of a job had done so many iterations, of those that events wait for; else 0.
    done_at: dict[tuple[str, int], float] = field(default_factory=dict)
    #: Each time that the controller was away: from when to when, or None, and whether an event had it killed.
    absences: list[tuple[float, float | None, bool]] = field(default_factory=list)
    #: Each time that a process stood still: by kind and name, from when to when, or None.
    frozen: list[tuple[tuple[str, str], float, float | None]] = field(
        default_factory=list
    )
    #: When events were over.
    over: dict[str, float] = field(default_factory=dict)
    #: When the first of them were let go.
    start_s: float | None = None

    def take(self, record: Record) -> None:
        if isinstance(record, Iteration):
            self.done[record.job][record.rank] = record.i + 1
            key = record.job, record.i + 1
            if key in self.done_at:
                self.done_at[key] = max(record.allreduce_end, self.done_at[key])
        elif isinstance(record, JobRecovered):
            self.done[record.job] = [record.iteration] * len(record.gpus)
        elif isinstance(record, ActionEnded):
            self.actions[record.name] = record.error
            self.over[record.name] = record.t
        elif isinstance(record, ProcessFrozen):
            self.frozen.append(((record.kind, record.name), record.t, None))
        elif isinstance(record, ProcessThawed):
            process = record.kind, record.name
            self.frozen = [
                (
                    frozen_process,
                    since,
                    record.t if frozen_process == process and until is None else until,
                )
                for frozen_process, since, until in self.frozen
            ]
        elif isinstance(record, ProcessEnded) and record.kind == "controller":
            self.absences.append((record.t, None, record.planned))
        elif (
            isinstance(record, ProcessBack)
            and record.kind == "controller"
            and self.absences
        ):
            since, _, planned = self.absences[-1]
            self.absences[-1] = since, record.t, planned
        elif isinstance(record, Released):
            self.start_s = record.at if self.start_s is None else self.start_s
        elif isinstance(record, JobState):
            self.states[record.job] = record.state
            if record.state in ENDED:
                self.ended[record.job] = record.t
            if record.reason is not None:
                self.reasons[record.job] = record.reason
            if record.gpus and len(self.done.get(record.job, ())) != len(record.gpus):
                self.done[record.job] = [0] * len(record.gpus)

    def iterations(self, job: str) -> int:
        """Return the number of iterations that all ranks of a job have done."""
        return min(self.done.get(job, [0]))

    def controller_away(self, since: float, until: float) -> tuple[float, bool]:
        """Return the seconds without a controller in an interval, and whether events killed it each time."""
        absences = [
            (min(end or until, until) - max(begin, since), planned)
            for begin, end, planned in self.absences
        ]
        within = [(away, planned) for away, planned in absences if away > 0]
        return sum(away for away, _ in within), all(planned for _, planned in within)

    def stood_still(self, since: float, until: float) -> list[str]:
        """Return the processes that stood still in an interval, in words."""
        frozen = [
            key
            for key, begin, end in self.frozen
            if begin < until and (end is None or end > since)
        ]
        return [process_called(*key) for key in dict.fromkeys(frozen)]

    def state_in_words(self, job: str) -> str:
        """Return a job's state, with its reason if there is one, in words."""
        state, reason = self.states[job].lower(), self.reasons.get(job)
        return f"{state}: {reason}" if reason else state


def effect_s(record: ActionEnded) -> float:
    """Return the time in seconds at which an event took effect. A fault takes effect when it is in force."""
    done = record.result.get("t_done")
    return record.t if done is None else float(done)
