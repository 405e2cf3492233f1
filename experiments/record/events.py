"""Records of a run and its jobs, one class for each kind of event; beside it those of light and of the lab.

A record is one line of events.jsonl: ``t`` (seconds of the lab's clock), ``event`` (its kind), ``run`` and
its fields. Backends make them, the runner writes them, analysis reads them; nobody else knows their keys.
``docs/records.md`` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast, dataclass_transform

from ringlight.experiments.language.plan import RunPlan

#: Every kind of record that is imported, by the name of its event.
KINDS: dict[str, type[Record]] = {}


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(field,)
)
class _Dataclass:
    """Every record's class is a frozen dataclass with keywords; one with an ``event`` is a kind of record."""

    event: ClassVar[str]

    def __init_subclass__(cls, event: str = "") -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        if event:
            cls.event = event
            KINDS[event] = cast(type[Record], cls)


class Record(_Dataclass):
    """``t``: when, seconds of the lab's clock. ``run``: of which run, empty for what is of none."""

    t: float
    run: str = ""


class RunStarted(Record, event="run_started"):
    """``jobs``: GPUs in rank order of those whose ranks are known; ``circuits``: lit at the start."""

    arm: str
    point: Mapping[str, Any]
    repeat: int
    fabric: str
    jobs: Mapping[str, list[str]]
    circuits: list[list[str]] = field(default_factory=list)
    simulated: bool = False


class JobArrived(Record, event="job_arrived"):
    """A job requested GPUs for the first time."""

    job: str


class GpusGranted(Record, event="gpus_granted"):
    """A job has its GPUs; its workers are being started."""

    job: str


class JobState(Record, event="job_state"):
    """``state``: READY, RUNNING, RECOVERING, SUCCEEDED, FAILED or CANCELLED. ``gpus``: in rank order."""

    job: str
    state: str
    gpus: list[str] = field(default_factory=list)
    reason: str | None = None


#: States in which a job has ended.
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


class Released(Record, event="released"):
    """Jobs that start together at ``at``."""

    jobs: list[str]
    at: float


class WorkerReady(Record, event="ready"):
    """``connections``: each a peer and both ports."""

    job: str
    rank: int
    connections: list[dict[str, Any]] = field(default_factory=list)


class Iteration(Record, event="iteration"):
    """One iteration of one rank: computation, then the all-reduce. For a workload, ``compute_end`` is
    the begin plus the rank's whole computing time; the rest is exposed communication. ``lateness_s``:
    how late the timer of the emulated compute woke. ``max_stall_s``: longest time inside a collective
    in which no byte moved at this rank; ``stalls``: begin and end of such times, except short ones.
    ``round_trip_s``: the longest of its connections at the end, as TCP measured it. ``flows``: number
    of flows requested from its O-NIC."""

    job: str
    rank: int
    i: int
    compute_start: float
    compute_end: float
    allreduce_end: float
    lateness_s: float = 0.0
    max_stall_s: float = 0.0
    stalls: list[list[float]] = field(default_factory=list)
    round_trip_s: float = 0.0
    loss: float | None = None
    flows: int = 0

    @property
    def whole_s(self) -> float:
        return self.allreduce_end - self.compute_start

    @property
    def compute_s(self) -> float:
        return self.compute_end - self.compute_start

    @property
    def all_reduce_s(self) -> float:
        return self.allreduce_end - self.compute_end


class Operations(Record, event="operations"):
    """Begin and end of a rank's operations of a workload, in the order of its program. ``times_s``: begin
    and end of each operation, seconds after ``begin``, which is the begin of its iteration."""

    job: str
    rank: int
    i: int
    begin: float
    times_s: list[list[float]]


class CollectiveTimed(Record, event="collective"):
    """An all-reduce that was all of a job: ``total_s``, with ``set_up_s`` and, for adding received
    data, ``reduce_s``. ``wavelengths``: channels that it used in each direction, None without a ring of
    wavelengths."""

    job: str
    total_s: float
    set_up_s: float
    reduce_s: float
    steps: int
    wavelengths: int | None


class JobsComputed(Record):
    """All jobs of a run, computed together by their source: nothing else is on record of them. ``limits``:
    what cannot be claimed of that, sentences in HTML; ``metric``: the one that stands for all jobs."""

    limits: ClassVar[tuple[str, ...]] = ()
    metric: ClassVar[str] = "makespan"

    def held(self, plan: RunPlan, begin: float) -> dict[str, Any]:
        """Return what the jobs held over time, for the page that shows a run; {} if it shows none of that."""
        return {}


class WorkerDone(Record, event="done"):
    """Final report of a rank. Bytes are payload. ``wire_bytes``: bytes with headers that each NIC
    (``eth0``, …) sent and received while the job trained. ``parameters_sha256``: hash of the trained
    parameters. ``results_checked``: for a workload, the number of parts of results that equalled their
    expected values. ``light``: with static lightpaths, the bytes of payload and of framing that the
    rank gave its O-NIC for each rank. ``beacon_gaps``: long silences of a peer's beacons, each with
    ``t_start``, ``t_end``, ``peer`` (a rank) and ``lost``. ``max_beacon_gap_s``: the longest of all
    silences."""

    job: str
    rank: int
    parameters_sha256: str | None = None
    results_checked: int | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    accuracy: float | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_lent: int = 0
    wire_bytes: Mapping[str, list[int]] = field(default_factory=dict)
    retransmits: int = 0
    light: Mapping[str, list[int]] = field(default_factory=dict)
    connections: list[dict[str, Any]] = field(default_factory=list)
    max_beacon_gap_s: float | None = None
    beacon_gaps: list[dict[str, Any]] = field(default_factory=list)


class CommandStarted(Record, event="command_started"):
    """The guest of a rank was started."""

    job: str
    rank: int


class CommandEnded(Record, event="command_ended"):
    """The command of a rank's guest ended: ``exit_code``, or the ``signal`` that ended it; ``oom``: its
    memory was not enough; ``error``: why it could not be started."""

    job: str
    rank: int
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    error: str | None = None


class WorkerLost(Record, event="lost"):
    """A GPU was lost with the rank on it; ``reason`` in words."""

    job: str
    rank: int
    gpu: str
    reason: str = ""


class JobRecovered(Record, event="recovered"):
    """A job continues after a loss, from ``iteration`` on, on ``gpus`` in rank order; ``at``: their
    start. ``assumed_s``: time after the loss, if a simulation uses its default."""

    job: str
    iteration: int
    gpus: list[str]
    at: float
    assumed_s: float | None = None


class ActionBegun(Record, event="action_begun"):
    """An event of the timeline was started. ``name``: of the event, ``do`` and ``target`` as planned."""

    name: str
    do: str
    target: str = ""


class ActionEnded(Record, event="action_ended"):
    """End of an event: a killed process is back, a regroup is done. ``result``: the controller's
    resource of a regroup (plan, timeline, results of the switches), or the testbed's state of a fault.
    ``error``: the reason for a failure."""

    name: str
    do: str
    target: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


class Repeated(Record, event="repeated"):
    """A run or link test was repeated because other programs used the processors, or because only TCP's
    time-outs may have slowed links down. ``what``: links or run; ``counts``: the counting attempt
    (``better``: the better of both for each link); ``set_aside``: the other run."""

    what: str
    name: str
    reasons: list[dict[str, Any]]
    first: Mapping[str, Any]
    second: Mapping[str, Any]
    counts: str
    set_aside: str | None = None


class Reference(Record, event="reference"):
    """SHA-256 of the parameters that the same training gives in one process. ``unlike``: if devices
    compute sums, the share of their answers that differ from the mean of all ranks' numbers."""

    job: str
    sha256: str
    unlike: float | None = None


class EventLate(Record, event="event_late"):
    """An event of the timeline came late. ``name``: of the event; ``planned``, ``came``: in words;
    ``due``: its planned time; ``late_s``: its delay; ``away_s``: the controller's absence in that time;
    ``asked``: by an event of the run. ``frozen``: known processes that stood still meanwhile, in words."""

    name: str
    do: str
    target: str
    planned: str
    came: str
    due: float
    late_s: float
    away_s: float
    asked: bool
    frozen: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """A sentence about the delay, without a full stop."""
        what = f"{self.do} {self.target}".rstrip()
        why = (
            [f"the controller was away for {self.away_s:.1f} s"] if self.away_s else []
        )
        why += [f"{process} stood still" for process in self.frozen]
        because = f": {', '.join(why)}" if why else ""
        return f"{what} was planned for {self.planned} and came {self.late_s:.1f} s later, {self.came}{because}"


class RunEnded(Record, event="run_ended"):
    """The run is whole: its last job has ended and all its records are written."""


class RunFailed(Record, event="run_failed"):
    """A run of a sweep could not be made; the others continue."""

    arm: str
    reason: str


class Aborted(Record, event="aborted"):
    """The experiment ended early."""

    reason: str
