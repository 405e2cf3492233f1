"""State of a job, derived from its workers' events. No I/O; times are passed in."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal

from typing_extensions import TypedDict

from ringlight.fabric.extension import entries

#: Reaction of a job to the death of a worker while it runs.
OnLoss = Literal["fail", "swap", "shrink"]
#: What workers do by themselves. For any other workload they hold the NICs of guests (``fabric.guests``).
OWN_WORKLOADS = ("train", "graph", "linktest")
#: Exit code of a worker that lost a peer: a consequence, not a cause.
LOST_PEER = 3
#: Time to wait for the cause once only consequences have been seen, seconds.
CAUSE_GRACE_S = 2.0
#: Exit code of a worker that somebody terminated.
TERMINATED = 128 + signal.SIGTERM
#: Time to wait for the last events of workers that ended well, seconds.
EVENT_GRACE_S = 2.0


def guest_of(spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a job's settings say of the guests beside its workers; None if the workers do the work."""
    kind = spec.get("workload", "train")
    return None if kind in OWN_WORKLOADS else spec[kind]


class JobState(StrEnum):
    """States of a job; `TRANSITIONS` defines which may follow which, and when."""

    PENDING = "PENDING"
    STARTING = "STARTING"
    READY = "READY"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


_BEGUN = "a worker says that it trains"
_LOST = "a GPU is lost, and on_loss is swap or shrink"
_DONE = "all workers have ended well"
#: From each state that is no end to those that may follow, and when. Whoever looks late may skip one.
TRANSITIONS: Mapping[str, Mapping[str, str]] = {
    "PENDING": {"STARTING": "its GPUs are free"},
    "STARTING": {
        "READY": "all ranks are connected",
        "RUNNING": _BEGUN,
        "RECOVERING": _LOST,
        "SUCCEEDED": _DONE,
    },
    "READY": {"RUNNING": "released", "RECOVERING": _LOST, "SUCCEEDED": _DONE},
    "RUNNING": {"RECOVERING": _LOST, "SUCCEEDED": _DONE},
    "RECOVERING": {
        "READY": "its new ranks are connected",
        "RUNNING": _BEGUN,
        "RECOVERING": "another GPU is lost",
        "SUCCEEDED": _DONE,
    },
}
#: Ends that may follow each of these.
FROM_ALL: Mapping[str, str] = {
    "FAILED": "it cannot be started, or a worker failed",
    "CANCELLED": "a client cancels it",
}


@dataclass
class Rank:
    """One worker. ``state``: pending, running, ready, started, exited or gone."""

    rank: int
    gpu: str
    state: str = "pending"
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    error: str | None = None
    done: bool = False

    @property
    def failed(self) -> bool:
        return self.state == "gone" or (
            self.state == "exited"
            and (self.exit_code != 0 or self.signal is not None or self.oom)
        )

    @property
    def lost(self) -> bool:
        """True if the rank failed by no fault of its own: its GPU, its host, or the whole worker is gone."""
        # Nobody can tell how a worker ended whose host is lost.
        ended = (
            self.signal is not None or self.oom or self.exit_code in (None, TERMINATED)
        )
        return self.failed and (self.state == "gone" or ended)


@dataclass
class Loss:
    """GPU that a job lost while it started or ran, and the job's continuation; None for values that are not
    yet known.

    ``spare``: the replacement GPU, None if the job continues with fewer ranks. ``ranks``: the GPUs from then
    on. ``iteration``: first iteration after the loss. The times are monotonic seconds: ``t_lost`` the worker
    ended, ``t_noticed`` the controller was notified, ``t_stopped`` the other ranks had stopped,
    ``t_recovering`` the continuation was decided, ``t_lit`` the light was set, ``t_started`` the workers were
    started, ``t_released`` they were released.
    """

    rank: int
    gpu: str
    reason: str
    t_lost: float
    spare: str | None = None
    ranks: list[str] | None = None
    iteration: int | None = None
    t_noticed: float | None = None
    t_stopped: float | None = None
    t_recovering: float | None = None
    t_lit: float | None = None
    t_started: float | None = None
    t_released: float | None = None


class RankDocument(TypedDict):
    rank: int
    gpu: str
    state: str
    exit_code: int | None
    signal: int | None
    oom: bool
    error: str | None
    worker: str


class JobDocument(TypedDict):
    """Job as a document.

    ``spec``: settings of its workers. ``plane``: name of the plane with light on which it runs, and
    ``switches``: switches that carry its light. ``spares``: GPUs that are kept for it until they are used.
    """

    id: str
    name: str
    state: JobState
    error: str | None
    hold: bool
    plane: str | None
    switches: list[str]
    ranks: list[RankDocument]
    spec: dict[str, Any]
    on_loss: OnLoss
    spares: list[str]
    losses: list[Loss]
    t_submitted: float
    t_released: float | None
    t_ended: float | None


class JobEvents(TypedDict):
    """``cursor``: to go on with."""

    cursor: int
    events: list[dict[str, Any]]


class JobOutput(TypedDict):
    rank: int
    stdout: str
    stderr: str


@dataclass
class Job:
    """Job and its history. Times are CLOCK_MONOTONIC seconds.

    ``plane``: name of the plane with light on which the job runs, None on packet switches. ``switches``:
    switches that carry the job's light. ``started``: the agent has confirmed all workers. ``clean``: its
    workers are removed and its GPUs free. ``on_loss``: fail, swap or shrink. ``spares``: GPUs kept for a
    swap. ``attempt``: number of restarts of its workers. ``announced``: events that do not come from a
    worker, with their index in ``events``.
    """

    id: str
    name: str
    ranks: list[Rank]
    spec: dict[str, Any]
    hold: bool
    t_submitted: float
    state: JobState = JobState.PENDING
    error: str | None = None
    started: bool = False
    clean: bool = False
    t_released: float | None = None
    t_ended: float | None = None
    plane: str | None = None
    switches: list[str] = field(default_factory=list)
    on_loss: OnLoss = "fail"
    spares: list[str] = field(default_factory=list)
    attempt: int = 0
    losses: list[Loss] = field(default_factory=list)
    announced: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    t_first_failure: float | None = None
    t_all_exited: float | None = None

    def worker(self, rank: int) -> str:
        """Return the agent's name of a rank's worker."""
        return f"{self.id}-{rank}" + (f"-r{self.attempt}" if self.attempt else "")

    @property
    def workers(self) -> list[str]:
        return [self.worker(rank.rank) for rank in self.ranks]

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(rank.gpu for rank in self.ranks)

    @property
    def iteration(self) -> int:
        """The first iteration that its present workers do."""
        return next(
            (
                loss.iteration
                for loss in reversed(self.losses)
                if loss.iteration is not None
            ),
            0,
        )

    @property
    def kept(self) -> list[str]:
        """The spares that it has not used or lost."""
        used = {*self.gpus, *(loss.gpu for loss in self.losses)}
        return [gpu for gpu in self.spares if gpu not in used]

    def enter(self, state: JobState, now: float) -> None:
        """Change the state at ``now`` (monotonic seconds).

        Raises ValueError if `TRANSITIONS` has no such change.
        """
        if self.state.ended or state not in {**TRANSITIONS[self.state], **FROM_ALL}:
            raise ValueError(
                f"job {self.id}: no way leads from {self.state.value} to {state.value}"
            )
        self.state = state
        if state.ended:
            self.t_ended = now

    def tell(self, event: str, t: float, **more: Any) -> None:
        """Enter an event of its own, which outlives a restart at the same place."""
        entry = {"t": t, "event": event, "job": self.id, **more}
        self.announced.append((len(self.events), entry))
        self.events.append(entry)

    def document(self) -> JobDocument:
        """Return the job as a document of the REST API."""
        fields: Any = {key: getattr(self, key) for key in JobDocument.__annotations__}
        fields["ranks"] = [
            {k: v for k, v in asdict(rank).items() if k != "done"}
            | {"worker": self.worker(rank.rank)}
            for rank in self.ranks
        ]
        fields |= {
            "spares": list(self.spares),
            "losses": [asdict(loss) for loss in self.losses],
        }
        document: JobDocument = fields
        return document

    def record(self) -> dict[str, Any]:
        """Return the record of the job that is kept on disk. The workers' events are kept by the agent."""
        more = {
            "started": self.started,
            "clean": self.clean,
            "attempt": self.attempt,
            "told": self.announced,
        }
        return {**self.document(), **more}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Job:
        known = Rank.__dataclass_fields__.keys()
        # Earlier versions stored a job's plane by its kind.
        named = (
            record[key]
            for key in ("plane", *entries("planes"))
            if record.get(key) is not None
        )
        fields = {key: record[key] for key in cls.__dataclass_fields__ if key in record}
        fields |= {
            "ranks": [
                Rank(**{k: v for k, v in rank.items() if k in known})
                for rank in record["ranks"]
            ],
            "spec": dict(record["spec"]),
            "state": JobState(record["state"]),
            "plane": next(named, None),
            "switches": list(record.get("switches", ())),
            "spares": list(record.get("spares", ())),
            "losses": [Loss(**loss) for loss in record.get("losses", ())],
            "announced": [
                (index, dict(event)) for index, event in record.get("told", ())
            ],
        }
        return cls(**fields)


def linktest_targets(settings: Mapping[str, Any], ranks: int) -> list[int | None]:
    """Return the rank that each rank sends to in a link test with these settings; None for a rank that only
    receives.
    """
    to = (settings.get("linktest") or {}).get("to")
    targets = to if isinstance(to, list) else [to] * ranks
    return [None if target == rank else target for rank, target in enumerate(targets)]


def insert_announced(job: Job) -> None:
    """Insert the job's own events at their places, once all events of its workers have been read again."""
    for index, event in job.announced:
        job.events.insert(index, event)


def note_event(job: Job, event: Mapping[str, Any]) -> None:
    """Take in one event of one of the job's workers."""
    job.events.append(dict(event))
    rank = rank_of(job, event)
    if rank is None:
        return
    kind = event.get("event")
    if kind == "ready" and rank.state in ("pending", "running"):
        rank.state = "ready"
    elif kind in ("started", "iteration") and rank.state in (
        "pending",
        "running",
        "ready",
    ):
        rank.state = "started"
    elif kind == "done":
        rank.done = True
    elif kind == "failed":
        peer = event.get("peer")
        about = (
            ""
            if peer is None or f"rank {peer}" in str(event.get("reason"))
            else f" (rank {peer})"
        )
        rank.error = f"{event.get('reason')}{about}"


def note_workers(
    job: Job, workers: Mapping[str, Mapping[str, Any]], *, complete: bool = True
) -> None:
    """Take in the agent's list of workers (by worker name).

    ``complete``: all of the job's had been started before the list was made, so one that is missing is gone.
    """
    for rank in job.ranks:
        worker = workers.get(job.worker(rank.rank))
        if worker is None:
            if complete and rank.state != "exited":
                rank.state = "gone"
                rank.error = rank.error or "its worker was removed by someone else"
            continue
        if worker["state"] == "exited":
            rank.state = "exited"
            rank.exit_code = worker.get("exit_code")
            rank.signal = worker.get("signal")
            rank.oom = bool(worker.get("oom"))
            rank.error = (
                rank.error
                or worker.get("error")
                or _last_line(worker.get("stderr_tail"))
            )
        elif rank.state == "pending":
            rank.state = "running"


def progress(job: Job, now: float) -> JobState:
    """Return the job's state at ``now`` (monotonic seconds), derived from what is known.

    Sets ``job.error`` if the state is FAILED.
    """
    if job.state.ended or not job.started:
        return job.state
    failed = [rank for rank in job.ranks if rank.failed]
    # Exit codes of somebody's own command mean nothing to us.
    ours = guest_of(job.spec) is None
    if failed:
        if job.t_first_failure is None:
            job.t_first_failure = now
        causes = [
            r
            for r in failed
            if not ours or r.exit_code != LOST_PEER or r.signal or r.oom
        ]
        if causes or now - job.t_first_failure > CAUSE_GRACE_S:
            job.error = describe_failure(
                min(causes or failed, key=lambda r: _weight(job, r)), ours=ours
            )
            return JobState.FAILED
        return job.state
    if all(rank.state == "exited" for rank in job.ranks):
        if job.t_all_exited is None:
            job.t_all_exited = now
        if (
            all(rank.done for rank in job.ranks)
            or now - job.t_all_exited > EVENT_GRACE_S
        ):
            return JobState.SUCCEEDED
        return job.state
    starting = job.state in (JobState.STARTING, JobState.RECOVERING)
    if (starting or job.state is JobState.READY) and any(
        rank.state == "started" for rank in job.ranks
    ):
        return JobState.RUNNING
    if starting and all(rank.state not in ("pending", "running") for rank in job.ranks):
        return JobState.READY
    return job.state


def describe_failure(rank: Rank, *, ours: bool = True) -> str:
    """Return one line with the rank, the GPU and the reason.

    ``ours``: the rank ran the project's own program, whose exit codes are known.
    """
    who = f"rank {rank.rank} on GPU {rank.gpu}"
    if rank.oom:
        return f"{who} ran out of memory"
    if rank.signal is not None:
        try:
            name = signal.Signals(rank.signal).name
        except ValueError:
            name = f"signal {rank.signal}"
        return f"{who} was killed by {name}"
    if rank.state == "gone":
        return f"{who} is gone: {rank.error}"
    why = f": {rank.error}" if rank.error else ""
    if ours and rank.exit_code == LOST_PEER:
        return f"{who} lost a peer{why}"
    if rank.exit_code is None and rank.error:
        return f"{who} ended{why}"
    return f"{who} ended with exit code {rank.exit_code}{why}"


def _weight(job: Job, rank: Rank) -> tuple[int, float, int]:
    """Return a sort key of failures: external causes first, then by the time of the worker's report."""
    outside = (
        0
        if rank.oom
        else 1
        if rank.signal is not None
        else 2
        if rank.state == "gone"
        else 3
    )
    ends = ("failed", "command_ended")
    end_times = [
        e["t"] for e in job.events if e.get("event") in ends and rank_of(job, e) is rank
    ]
    return outside, min(end_times, default=float("inf")), rank.rank


def rank_of(job: Job, event: Mapping[str, Any]) -> Rank | None:
    """Return the rank that an event came from; None for a worker that no longer belongs to the job."""
    worker = event.get("worker")
    return next((rank for rank in job.ranks if job.worker(rank.rank) == worker), None)


def _last_line(text: str | None) -> str | None:
    """Return the last line that a worker wrote, safe to print; None if there is none.

    The worker may be untrusted, so unprintable characters, which could control a terminal, become "?".
    """
    lines = (text or "").strip().splitlines()
    return (
        "".join(c if c.isprintable() else "?" for c in lines[-1][:200])
        if lines
        else None
    )
