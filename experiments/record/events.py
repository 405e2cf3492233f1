"""Everything that is on record of a run, one class for each kind of event; one writer, one reader.

A record is one line of events.jsonl: ``t`` (seconds of the lab's clock), ``event`` (its kind), ``run`` and
its fields. Backends make them, the runner writes them, analysis reads them; nobody else knows their keys.
``docs/result-schema.md`` lists them, made from here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast, dataclass_transform

from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.language.text import ScenarioError, read_text
from ringlight.fabric.extension import loaded
from ringlight.fabric.text import HalfCharacterError, parse_json

#: Every kind of record that is imported, by the name of its event.
_KINDS: dict[str, type[Record]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class _Dataclass:
    """Every class below is a frozen dataclass with keywords, and one with an ``event`` a kind of record."""

    event: ClassVar[str]

    def __init_subclass__(cls, event: str = "") -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        if event:
            cls.event = event
            _KINDS[event] = cast(type[Record], cls)


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
    """A job asked for GPUs for the first time."""

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
    """One iteration of one rank: computation, then the all-reduce. Of a workload ``compute_end`` is as long
    after the begin as the rank computed in all, and the rest is what that did not hide. ``lateness_s``: how
    late the timer of the emulated compute woke. ``max_stall_s``: longest time inside a collective in which no
    byte moved at this rank; ``stalls``: when such times began and ended, but for short ones.
    ``round_trip_s``: the longest of its connections at the end, as TCP measured it. ``flows``: how many an
    O-NIC was asked for."""

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


class Divisions(Record, event="divisions"):
    """Number of times that light was divided again while a job ran, and the seconds for which bytes waited
    in the dark because of that."""

    job: str
    decisions: int
    dark_s: float


class LightDecisions(Record, event="light_decisions"):
    """Decisions of the controller to divide light while a job ran. Of each decision: ``number``, ``t``,
    the bytes ``left_bytes`` for which it was made, whether any switch ``changed``, the seconds ``read_s``,
    ``decide_s``, ``hold_s``, ``write_s`` and ``dark_s``, the ``problem``, null if there was none, and
    ``lightpaths``, the number of lightpaths from each GPU to each peer at that time."""

    job: str
    decisions: list[Mapping[str, Any]]


class LightGiven(Record, event="light_given"):
    """Pairs of GPUs for which each division of light was made, in a simulation that follows every rank.

    ``pairs``: source and destination of each. ``divisions``, the first of which is made for all that the job
    sends: for each, ``t``, the time at which it was lit, ``left_bytes`` of each pair when it was decided, and
    ``lightpaths`` of each pair.
    """

    job: str
    pairs: list[tuple[str, str]]
    divisions: list[Mapping[str, Any]]


class LightTurns(Record, event="light_turns"):
    """Light that followed the phases of a job. Of each of ``turns``, which is a phase in an iteration:
    ``iteration``, ``phase``, the times at which its circuits began to be ``set`` and were ``lit``, seconds
    of the lab's clock, and whether any circuit was ``moved`` for it."""

    job: str
    turns: list[Mapping[str, Any]]


class CollectiveTimed(Record, event="collective"):
    """An all-reduce that was all of a job: ``total_s``, of it ``set_up_s`` and ``reduce_s`` to add what came.
    ``wavelengths``: channels that it used in each direction, None without a ring of wavelengths."""

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
    parameters. ``results_checked``: for a workload, the number of parts of results that were compared with
    what they must be, and were equal. ``light``: with static lightpaths, the bytes of payload and of
    framing that the rank gave its O-NIC for each rank. ``beacon_gaps``: long silences of a peer's beacons,
    each with ``t_start``, ``t_end``, ``peer`` (a rank) and ``lost``. ``max_beacon_gap_s``: the longest of
    all silences."""

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


class LinkBytes(Record, event="link_bytes"):
    """Traffic over the packet switches' links while a job of guests ran, by the counters of their
    ports: bytes of frames ``from`` the port at one end ``to`` the port at the other. ``beside``: other
    jobs that ran at the same time, whose bytes are also counted."""

    job: str
    links: list[dict[str, Any]]
    beside: list[str] = field(default_factory=list)


class WorkerLost(Record, event="lost"):
    """A GPU was lost with the rank on it; ``reason`` in words."""

    job: str
    rank: int
    gpu: str
    reason: str = ""


class JobRecovered(Record, event="recovered"):
    """A job goes on after a loss, from ``iteration`` on, on ``gpus`` in rank order; ``at``: their start.
    ``assumed_s``: how long after the loss, where a simulation takes its default for that."""

    job: str
    iteration: int
    gpus: list[str]
    at: float
    assumed_s: float | None = None


class ActionBegun(Record, event="action_begun"):
    """An event of the timeline was asked for. ``name``: of the event, ``do`` and ``target`` as planned."""

    name: str
    do: str
    target: str = ""


class ActionEnded(Record, event="action_ended"):
    """End of an event: what was killed is back, a regroup is done. ``result``: of a regroup the controller's
    resource (plan, timeline, results of the switches), of a fault what the testbed says. ``error``: why it
    did not come about."""

    name: str
    do: str
    target: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


class Flow(Record, event="flow"):
    """One flow of an O-NIC, from the worker's wish to the transmitter's release. Times of the lab's clock,
    None for what did not happen. ``waited``: it stood in a queue at the sender or the receiver."""

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


class FlowsLost(Record, event="flows_lost"):
    """Flows of an agent that nobody read before it forgot them."""

    gpu: str
    count: int


class LightCounters(Record, event="light"):
    """``moment``: before or after a run. ``kernel``: counters of switches and O-NICs; ``agents``: by GPU its
    epoch and counters."""

    moment: str
    kernel: Mapping[str, Any]
    agents: Mapping[str, Any]


class ImpairedLinks(Record, event="impaired"):
    """Effects on the frames of a run of links that lose, delay or damage frames, by direction: ``from``
    and ``to``, the frames that arrived and their bytes, and the numbers of frames that were ``lost``,
    ``damaged``, or arrived while the link was ``down``."""

    links: Sequence[Mapping[str, Any]]


class OnicsSimulated(Record, event="onics"):
    """Totals of the agents' state machines: messages by kind, flows, and overlaps at a receiver."""

    messages: Mapping[str, int]
    flows: int
    receiver_overlaps: int


class GridLit(Record, event="grid"):
    """A grid as the controller shows it while the jobs run."""

    grid: Mapping[str, Any]


class RingSetUps(Record, event="ring"):
    """A ring of wavelengths as the controller shows it after a run, and each change of its light: ``t``,
    ``step``, ``total_s`` and ``write_s``."""

    ring: Mapping[str, Any]
    set_ups: list[dict[str, Any]]


class Circuits(Record, event="circuits"):
    """Circuits that are lit when a run has ended."""

    circuits: list[list[str]]


class ProcessorLoad(Record, event="cpu"):
    """Shares (0..1) of all processors: busy, of that stolen by the hypervisor, and taken by processes that
    are no part of the lab."""

    busy: float
    stolen: float | None = None
    others: float | None = None


class PortRate(Record, event="port_rate"):
    """Rates that a packet switch's port received and sent over the last sampling interval, bits per
    second."""

    switch: str
    port: int
    gpu: str | None
    peer: str | None
    rx_bps: float
    tx_bps: float


class LinkRate(Record, event="link_rate"):
    """One direction of a link against its setting, bits per second; who took the processors meanwhile,
    and how busy they were."""

    fabric: str
    link: str
    direction: str
    set_bps: float
    measured_bps: float
    stolen: float | None = None
    others: float | None = None
    busy: float | None = None


class LinkRateDisturbed(LinkRate, event="link_rate_disturbed"):
    """The same, measured while others had the processors; it is measured once more."""


class Repeated(Record, event="repeated"):
    """Something was made once more because others had the processors, or because TCP's time-outs may be all
    that links missed. ``what``: links or run; ``counts``: which of the two counts (``better``: of each link
    the better); ``set_aside``: the run that does not."""

    what: str
    name: str
    reasons: list[dict[str, Any]]
    first: Mapping[str, Any]
    second: Mapping[str, Any]
    counts: str
    set_aside: str | None = None


class Reference(Record, event="reference"):
    """SHA-256 of the parameters that the same training gives in one process. ``unlike``: where devices sum,
    the share of their answers that are not the mean of all ranks' numbers."""

    job: str
    sha256: str
    unlike: float | None = None


class ProcessEnded(Record, event="process_ended"):
    """A process of the lab ended. ``kind``: optical switch, O-NIC agent, controller, a device, the name of a
    program of an extension, Open vSwitch (the machine's), or what a lab's parts elsewhere tell of; ``how`` in
    words; ``planned``: by an event of the run."""

    kind: str
    name: str
    how: str
    planned: bool

    @property
    def process(self) -> str:
        """The process as a sentence names it."""
        return process_called(self.kind, self.name)


class ProcessBack(Record, event="process_back"):
    """A process that had ended was started again; ``away_s``: after so long."""

    kind: str
    name: str
    away_s: float


class ProcessFrozen(Record, event="process_frozen"):
    """A process stood still from ``t`` on, for longer than its work bears. ``kind`` as of ``process_ended``,
    and worker on GPU, container on GPU, fork server, Docker, testbed, runner, machine; ``how``: stopped by a
    signal, frozen by its control group, held by a debugger, its clock has a gap, it was suspended."""

    kind: str
    name: str
    how: str

    @property
    def process(self) -> str:
        """The process as a sentence names it."""
        return process_called(self.kind, self.name)


class ProcessThawed(Record, event="process_thawed"):
    """A process that stood still goes on, or has ended, ``after_s`` later."""

    kind: str
    name: str
    after_s: float


class SwitchDrifted(Record, event="switch_drifted"):
    """A switch was not as the controller, or the testbed, had set it. ``what``: ``flow table``, ``light``,
    ``bridge`` or ``port`` with its number; ``text``: how it differed, in words; ``planned``: an event of the
    run was done to this switch."""

    switch: str
    what: str
    text: str
    planned: bool

    @property
    def said(self) -> str:
        """A sentence about the drift, without a full stop."""
        return f"{self.what} of {self.switch}: {self.text}"


class SwitchMended(Record, event="switch_mended"):
    """A switch is again as the controller had set it, ``after_s`` after that was first seen to be not so."""

    switch: str
    what: str
    after_s: float


class EventLate(Record, event="event_late"):
    """An event of the timeline came late. ``name``: of the event; ``planned``, ``came``: in words; ``due``,
    ``late_s``: when it should have come, and how long after it did; ``away_s``: how long of that the
    controller was away; ``asked``: by an event of the run; ``frozen``: which processes stood still meanwhile,
    in words, as far as that was known then."""

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
    def said(self) -> str:
        """A sentence about the delay, without a full stop."""
        what = f"{self.do} {self.target}".rstrip()
        why = [f"the controller was away for {self.away_s:.1f} s"] if self.away_s else []
        why += [f"{process} stood still" for process in self.frozen]
        because = f": {', '.join(why)}" if why else ""
        return (
            f"{what} was planned for {self.planned} and came {self.late_s:.1f} s later, {self.came}{because}"
        )


class RunEnded(Record, event="run_ended"):
    """The run is whole: its last job has ended and all its records are written."""


class RunFailed(Record, event="run_failed"):
    """A run of a sweep could not be made; the others go on."""

    arm: str
    reason: str


class Aborted(Record, event="aborted"):
    """The experiment ended early."""

    reason: str


_CALLED = {
    "controller": "the controller",
    "Open vSwitch": "Open vSwitch",
    "fork server": "the fork server",
    "testbed": "the testbed",
    "runner": "the runner",
    "machine": "the machine",
}


def process_called(kind: str, name: str) -> str:
    """Return the name of a process in a sentence; ``kind`` as of :class:`ProcessEnded`."""
    # There is one process of each program, which is its kind.
    return _CALLED.get(kind) or f"{'the process of' if kind == name else kind} {name}"


@cache
def kinds() -> Mapping[str, type[Record]]:
    """Return every kind of record by the name of its event: those here and those of extensions."""
    loaded("events")
    return _KINDS


def table(module: str = __name__) -> str:
    """Return the kinds of records of a module as a table in Markdown: the core's for docs/result-schema.md,
    an extension's for its page."""
    lines = ["| event | fields besides `t`, `event`, `run` | |", "|---|---|---|"]
    for name, kind in kinds().items():
        if kind.__module__ != module:
            continue
        own = [f"`{f.name}`" for f in dataclasses.fields(kind) if f.name not in ("t", "run")]
        words = " ".join((kind.__doc__ or "").replace("``", "`").split())
        lines.append(f"| `{name}` | {', '.join(own)} | {words} |")
    return "\n".join(lines) + "\n"


def line_of(record: Record) -> str:
    """Return the record as a line of JSON, with its end of line."""
    values = {"t": record.t, "event": record.event, **vars(record)}
    return json.dumps(values, separators=(",", ":")) + "\n"


def record_of(document: Mapping[str, Any]) -> Record | None:
    """Return the record that an object stands for; None for an unknown kind.

    Keys that the kind does not have are left out. Raises TypeError for a missing key.
    """
    kind = kinds().get(document["event"])
    if kind is None:
        return None
    known = kind.__dataclass_fields__
    return kind(**{key: value for key, value in document.items() if key in known})


def _as_now(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Convert an object that an earlier version wrote. Return the objects that are written now in its
    place."""
    fields: dict[str, Any]
    if document["event"] == "switch_restarted":
        fields = {"kind": "optical switch", "name": document["switch"], "how": "how is not on record"}
    elif document["event"] == "controller_restarted":
        fields = {"kind": "controller", "name": "controller", "how": document["reason"]}
    else:
        return [document]
    fields |= {key: document[key] for key in ("t", "run")} | {"planned": False, "away_s": 0.0}
    both = [{**fields, "event": kind.event} for kind in (ProcessEnded, ProcessBack)]
    return both * int(document.get("times", 1))


def read_records(path: Path) -> list[Record]:
    """Return all records of a file; a last line that a crash cut short is left out.

    Raises ScenarioError naming the file, and the line if any other line is broken.
    """
    lines = read_text(path).splitlines()
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            of_line = [record_of(document) for document in _as_now(parse_json(line))]
        except HalfCharacterError as error:
            raise ScenarioError(f"{path}: line {number}: {error.msg}") from None
        except json.JSONDecodeError:
            if number == len(lines):
                break
            raise ScenarioError(f"{path}: line {number} is not JSON") from None
        except RecursionError:
            raise ScenarioError(f"{path}: line {number} is nested too deep") from None
        except (KeyError, TypeError) as error:
            message = str(error).partition("__init__() ")[2] or f"lacks {error}"
            known = "another version of ringlight may have made it"
            raise ScenarioError(f"{path}: line {number}: {message}; {known}") from None
        records += [record for record in of_line if record is not None]
    return records
