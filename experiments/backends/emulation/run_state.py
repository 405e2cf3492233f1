"""The state of a run that is under way on an emulated lab, and of its jobs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringlight.experiments.backends.emulation.drifts import DriftLog
from ringlight.experiments.backends.emulation.flows import FlowLog
from ringlight.experiments.backends.emulation.link_counters import PortBytes
from ringlight.experiments.backends.emulation.load_log import LoadLog
from ringlight.experiments.language.plan import EventPlan, JobPlan, RunPlan
from ringlight.experiments.record.events import ENDED
from ringlight.testbed.deaths import Death
from ringlight.testbed.devices import DeviceLog


@dataclass
class LabJob:
    """A submitted job. ``segments``: numbers of ranks, each from an iteration on. ``gpus``: as last told;
    ``lost_s``: when it last lost one."""

    plan: JobPlan
    id: str
    request: Mapping[str, Any]
    state: str = "PENDING"
    released: bool = False
    cursor: int = 0
    #: For a job of guests: the links' counters before its start, and the jobs that ran beside it.
    before: PortBytes = field(default_factory=dict)
    beside: set[str] = field(default_factory=set)
    segments: list[tuple[int, int]] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)
    lost_s: float | None = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def awaited(self) -> bool:
        """Return whether the run waits for the job's next state."""
        return not self.released and not self.ended

    def triggers(self, events: Iterable[EventPlan]) -> bool:
        """Return whether an event waits for an iteration of this job; False once the job has ended."""
        name = self.plan.name
        return not self.ended and any(event.when.job == name for event in events)


@dataclass
class LabRun:
    """A run from its begin to its end."""

    plan: RunPlan
    flows: FlowLog
    devices: list[DeviceLog]
    drifts: DriftLog
    load: LoadLog
    jobs: dict[str, LabJob] = field(default_factory=dict)
    #: Jobs to release together, tried until then.
    releases: list[tuple[list[LabJob], float]] = field(default_factory=list)
    #: Where the series goes on: from the first release.
    since_s: float | None = None
    next_look_s: float = 0.0
    #: When the controller last answered, or was away on purpose.
    heard_s: float = field(default_factory=time.monotonic)
    #: Processes that have ended and are not back: since when.
    away: dict[tuple[str, str], float] = field(default_factory=dict)
    #: Whether an event has killed the controller, and its process is not started again yet.
    killed: bool = False
    #: Submissions that nobody answered.
    unanswered: set[str] = field(default_factory=set)
    #: Names of the events that have been made to happen.
    performed: set[str] = field(default_factory=set)

    @property
    def ids(self) -> dict[str, str]:
        return {name: job.id for name, job in self.jobs.items() if not job.ended}

    @property
    def to_come(self) -> list[EventPlan]:
        return [event for event in self.plan.events if event.name not in self.performed]


#: What a run's event calls a process of each kind.
_TARGETS = {"optical switch": "switch {}", "O-NIC agent": "agent {}"}


def is_planned(plan: RunPlan, death: Death) -> bool:
    """Return whether a run has an event that kills this process."""
    words = {
        f"{death.kind} {death.name}",
        _TARGETS.get(death.kind, death.kind).format(death.name),
    }
    return any(
        event.do == "kill" and str(event.target) in words for event in plan.events
    )


def goes_on(
    segments: Sequence[tuple[int, int]], ranks: int, first: int
) -> list[tuple[int, int]]:
    """Return the numbers of ranks, each from an iteration on, of a job that resumes with ``ranks`` at
    ``first``.

    Iterations that the job did from ``first`` on before are done again.
    """
    kept = [segment for segment in segments if segment[1] < first]
    return kept if kept and kept[-1][0] == ranks else [*kept, (ranks, first)]
