"""Everything that is on record of a run, one class for each kind of event; one writer, one reader.

A record is one line of events.jsonl: ``t`` (seconds of the lab's clock), ``event`` (its kind), ``run`` and
its fields. Backends make them, the runner writes them, analysis reads them; nobody else knows their keys.
``docs/result-schema.md`` lists them, made from here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from experiments.language.text import ScenarioError, read_text


@dataclass(frozen=True, kw_only=True)
class Record:
    """``t``: when, seconds of the lab's clock. ``run``: of which run, empty for what is of none."""

    t: float
    run: str = ""
    event: ClassVar[str] = ""


@dataclass(frozen=True, kw_only=True)
class RunStarted(Record):
    """``jobs``: GPUs in rank order of those whose ranks are known; ``circuits``: lit at the start."""

    event: ClassVar[str] = "run_started"
    arm: str
    point: Mapping[str, Any]
    repeat: int
    fabric: str
    jobs: Mapping[str, list[str]]
    circuits: list[list[str]] = field(default_factory=list)
    simulated: bool = False


@dataclass(frozen=True, kw_only=True)
class JobArrived(Record):
    """A job asked for GPUs for the first time."""

    event: ClassVar[str] = "job_arrived"
    job: str


@dataclass(frozen=True, kw_only=True)
class JobState(Record):
    """``state``: READY, RUNNING, RECOVERING, SUCCEEDED, FAILED or CANCELLED. ``gpus``: in rank order."""

    event: ClassVar[str] = "job_state"
    job: str
    state: str
    gpus: list[str] = field(default_factory=list)
    reason: str | None = None


#: States in which a job has ended.
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(frozen=True, kw_only=True)
class Released(Record):
    """Jobs that start together at ``at``."""

    event: ClassVar[str] = "released"
    jobs: list[str]
    at: float


@dataclass(frozen=True, kw_only=True)
class WorkerReady(Record):
    """``connections``: each a peer and both ports."""

    event: ClassVar[str] = "ready"
    job: str
    rank: int
    connections: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Iteration(Record):
    """One iteration of one rank. ``lateness_s``: how late the timer of the emulated compute woke.
    ``max_stall_s``: longest time inside the all-reduce in which no byte moved at this rank; ``stalls``: when
    such times began and ended, but for short ones. ``flows``: how many an O-NIC was asked for."""

    event: ClassVar[str] = "iteration"
    job: str
    rank: int
    i: int
    compute_start: float
    compute_end: float
    allreduce_end: float
    lateness_s: float = 0.0
    max_stall_s: float = 0.0
    stalls: list[list[float]] = field(default_factory=list)
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


@dataclass(frozen=True, kw_only=True)
class WorkerDone(Record):
    """What a rank ended with. Bytes are payload. ``beacon_gaps``: long silences of a peer's beacons, each
    with ``t_start``, ``t_end``, ``peer`` (a rank) and ``lost``; ``max_beacon_gap_s``: the longest of all."""

    event: ClassVar[str] = "done"
    job: str
    rank: int
    parameters_sha256: str
    loss_first: float | None = None
    loss_last: float | None = None
    accuracy: float | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_lent: int = 0
    retransmits: int = 0
    connections: list[dict[str, Any]] = field(default_factory=list)
    max_beacon_gap_s: float | None = None
    beacon_gaps: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class WorkerLost(Record):
    """A GPU was lost with the rank on it; ``reason`` in words."""

    event: ClassVar[str] = "lost"
    job: str
    rank: int
    gpu: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class JobRecovered(Record):
    """A job goes on after a loss, from ``iteration`` on, on ``gpus`` in rank order; ``at``: their start."""

    event: ClassVar[str] = "recovered"
    job: str
    iteration: int
    gpus: list[str]
    at: float


@dataclass(frozen=True, kw_only=True)
class ActionBegun(Record):
    """An event of the timeline was asked for. ``name``: of the event, ``do`` and ``target`` as planned."""

    event: ClassVar[str] = "action_begun"
    name: str
    do: str
    target: str = ""


@dataclass(frozen=True, kw_only=True)
class ActionEnded(Record):
    """It is over: what was killed is back, a regroup is done. ``result``: of a regroup the controller's
    resource (plan, timeline, results of the switches), of a fault what the testbed says. ``error``: why it
    did not come about."""

    event: ClassVar[str] = "action_ended"
    name: str
    do: str
    target: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Flow(Record):
    """One flow of an O-NIC, from the worker's wish to the transmitter's release. Times of the lab's clock,
    None for what did not happen. ``waited``: it stood in a queue at the sender or the receiver."""

    event: ClassVar[str] = "flow"
    gpu: str
    flow: int
    peer: str
    port: int
    wavelength: int | None
    waited: bool
    t_open: float
    t_request: float | None
    t_grant: float | None
    t_lit: float | None
    t_close: float | None
    t_released: float | None

    @property
    def set_up_s(self) -> float:
        """Seconds from the request to the light, of a flow that has both."""
        assert self.t_lit is not None
        assert self.t_request is not None
        return self.t_lit - self.t_request


@dataclass(frozen=True, kw_only=True)
class FlowsLost(Record):
    """Flows of an agent that nobody read before it forgot them."""

    event: ClassVar[str] = "flows_lost"
    gpu: str
    count: int


@dataclass(frozen=True, kw_only=True)
class LightCounters(Record):
    """``moment``: before or after a run. ``kernel``: counters of switches and O-NICs; ``agents``: by GPU its
    epoch and counters."""

    event: ClassVar[str] = "light"
    moment: str
    kernel: Mapping[str, Any]
    agents: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class OnicsSimulated(Record):
    """What the agents' state machines did: messages by kind, flows, and overlaps at a receiver."""

    event: ClassVar[str] = "onics"
    messages: Mapping[str, int]
    flows: int
    receiver_overlaps: int


@dataclass(frozen=True, kw_only=True)
class GridLit(Record):
    """A grid as the controller shows it while the jobs run."""

    event: ClassVar[str] = "grid"
    grid: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RingSetUps(Record):
    """A ring of wavelengths as the controller shows it after a run, and each change of its light: ``t``,
    ``step``, ``total_s`` and ``write_s``."""

    event: ClassVar[str] = "ring"
    ring: Mapping[str, Any]
    set_ups: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Circuits(Record):
    """What is lit when a run has ended."""

    event: ClassVar[str] = "circuits"
    circuits: list[list[str]]


@dataclass(frozen=True, kw_only=True)
class ProcessorLoad(Record):
    """Shares (0..1) of all processors: busy, of that stolen by the hypervisor, and taken by processes that
    are no part of the lab."""

    event: ClassVar[str] = "cpu"
    busy: float
    stolen: float | None = None
    others: float | None = None


@dataclass(frozen=True, kw_only=True)
class PortRate(Record):
    """What a packet switch's port received and sent over the last moment, bits per second."""

    event: ClassVar[str] = "port_rate"
    switch: str
    port: int
    gpu: str | None
    peer: str | None
    rx_bps: float
    tx_bps: float


@dataclass(frozen=True, kw_only=True)
class LinkRate(Record):
    """One direction of a link against its setting, bits per second; who took the processors meanwhile."""

    event: ClassVar[str] = "link_rate"
    fabric: str
    link: str
    direction: str
    set_bps: float
    measured_bps: float
    stolen: float | None = None
    others: float | None = None


@dataclass(frozen=True, kw_only=True)
class LinkRateDisturbed(LinkRate):
    """The same, measured while others had the processors; it is measured once more."""

    event: ClassVar[str] = "link_rate_disturbed"


@dataclass(frozen=True, kw_only=True)
class Repeated(Record):
    """Something was made once more because others had the processors. ``what``: links or run; ``counts``:
    which of the two counts; ``set_aside``: the run that does not."""

    event: ClassVar[str] = "repeated"
    what: str
    name: str
    reasons: list[dict[str, Any]]
    first: Mapping[str, Any]
    second: Mapping[str, Any]
    counts: str
    set_aside: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reference(Record):
    """SHA-256 of the parameters that the same training gives in one process."""

    event: ClassVar[str] = "reference"
    job: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class SwitchRestarted(Record):
    """The testbed started a dead optical switch again by itself."""

    event: ClassVar[str] = "switch_restarted"
    switch: str
    times: int


@dataclass(frozen=True, kw_only=True)
class ControllerRestarted(Record):
    """The controller ended unasked and was started again."""

    event: ClassVar[str] = "controller_restarted"
    reason: str


@dataclass(frozen=True, kw_only=True)
class RunEnded(Record):
    """The run is whole: its last job has ended and all its records are written."""

    event: ClassVar[str] = "run_ended"


@dataclass(frozen=True, kw_only=True)
class RunFailed(Record):
    """A run of a sweep could not be made; the others go on."""

    event: ClassVar[str] = "run_failed"
    arm: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Aborted(Record):
    """The experiment ended early."""

    event: ClassVar[str] = "aborted"
    reason: str


def _kinds(base: type[Record]) -> Iterator[type[Record]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


#: Every kind of record by the name of its event.
KINDS: Mapping[str, type[Record]] = {kind.event: kind for kind in _kinds(Record)}
_FIELDS = {name: frozenset(f.name for f in dataclasses.fields(kind)) for name, kind in KINDS.items()}


def table() -> str:
    """All kinds of records as a table in Markdown, for docs/result-schema.md."""
    lines = ["| event | fields besides `t`, `event`, `run` | |", "|---|---|---|"]
    for name, kind in KINDS.items():
        own = [f"`{f.name}`" for f in dataclasses.fields(kind) if f.name not in ("t", "run")]
        said = " ".join((kind.__doc__ or "").replace("``", "`").split())
        lines.append(f"| `{name}` | {', '.join(own)} | {said} |")
    return "\n".join(lines) + "\n"


def line_of(record: Record) -> str:
    """The record as a line of JSON, with its end of line."""
    values = {"t": record.t, "event": record.event, **vars(record)}
    return json.dumps(values, separators=(",", ":")) + "\n"


def record_of(found: Mapping[str, Any]) -> Record | None:
    """The record that an object stands for; None for a kind that is not known here.

    Keys that the kind does not have are left out. Raises TypeError for one that is missing.
    """
    kind = KINDS.get(found["event"])
    if kind is None:
        return None
    known = _FIELDS[found["event"]]
    return kind(**{key: value for key, value in found.items() if key in known})


def read_records(path: Path) -> list[Record]:
    """All records of a file; a last line that a crash cut short is left out.

    Raises ScenarioError naming the file, and the line when any other line is broken.
    """
    lines = read_text(path).splitlines()
    found: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = record_of(json.loads(line))
        except json.JSONDecodeError:
            if number == len(lines):
                break
            raise ScenarioError(f"{path}: line {number} is not JSON") from None
        except (KeyError, TypeError) as error:
            said = str(error).partition("__init__() ")[2] or f"lacks {error}"
            raise ScenarioError(
                f"{path}: line {number}: {said}; another version of ringlight may have made it"
            ) from None
        if record is not None:
            found.append(record)
    return found


def by_run(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each run, in order."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record.run:
            found.setdefault(record.run, []).append(record)
    return found
