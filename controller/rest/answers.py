"""Answers of ``/v1`` as OpenAPI describes them.

Documentation only: handlers send plain dictionaries, and the tests hold them to these. Times ``t`` are
seconds of CLOCK_MONOTONIC; rates are bit/s; a port name is ``g0`` or ``tor0:1``.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ringlight.controller.circuits.drift import Policy
from ringlight.controller.circuits.transaction import Found
from ringlight.controller.jobs.job import JobState
from ringlight.fabric.crossconnect import CrossConnectState, PortState


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ApplicationsProcess(Answer):
    """The process that applications of others run in. ``since``: CLOCK_MONOTONIC seconds of its last start;
    ``last_error``: how the one before ended."""

    alive: bool
    pid: int
    since: float
    restarts: int
    last_error: str | None


class OtherController(Answer):
    """The controller of a packet switch that is left to others, as Open vSwitch sees it. ``for_s``: seconds
    that it has been connected, or has not been since it was last; None where it never was."""

    controller: str
    connected: bool
    for_s: int | None
    last_error: str | None


class FlowTableState(Answer):
    """``drift``: how a packet switch's flow table differs now from what it should have, null where it does
    not; ``drifts``: how often it was found to differ, ``mends``: how often the controller put it right, both
    since the controller's start; ``last``: how it differed last."""

    drift: str | None
    drifts: int
    mends: int
    last: str | None


class Health(Answer):
    """``reasons``: one line for each thing that is not as it should be. ``controllers``: of others, by packet
    switch; that one is not connected is no reason, as it may come later. ``restarts``: how often this lab's
    controller was started again; ``uptime_s``: since it was last."""

    status: Literal["ok", "degraded"]
    reasons: list[str]
    lab: str
    uptime_s: float
    restarts: int
    t: float
    packet_switches: dict[str, bool]
    flow_tables: dict[str, FlowTableState]
    optical_switches: dict[str, bool]
    onics: dict[str, bool]
    agent: bool
    applications: ApplicationsProcess | None
    controllers: dict[str, OtherController]


# Fabric


class FabricGpu(Answer):
    name: str
    server: str
    model: str
    ip: str
    mac: str


class FabricPacketSwitch(Answer):
    """``controller``: who writes its tables: ringlight, none, app or tcp:HOST:PORT."""

    name: str
    dpid: int
    ports: int
    controller: str


class FabricOpticalSwitch(Answer):
    name: str
    size: int
    driver: str
    profile: str
    wavelengths: int | None


class FabricOnic(Answer):
    gpu: str
    ports: int
    tuning_s: float
    transmitters: str


class FabricGrid(Answer):
    name: str
    rows: int
    columns: int
    nodes: list[str]
    wavelengths: int


class FabricRing(Answer):
    name: str
    nodes: list[str]
    switches: list[str]
    wavelengths: int


class FabricLink(Answer):
    ends: list[str]
    rate_bps: float
    queue_s: float


class FabricDocument(Answer):
    gpus: list[FabricGpu]
    packet_switches: list[FabricPacketSwitch]
    optical_switches: list[FabricOpticalSwitch]
    onics: list[FabricOnic]
    grids: list[FabricGrid]
    rings: list[FabricRing]
    links: list[FabricLink]
    circuits: list[list[str]]
    paths: str


class Node(Answer):
    name: str
    kind: str


class Edge(Answer):
    """One direction of a connection; ``path``: every port that packets pass."""

    tail: str = Field(alias="from")
    head: str = Field(alias="to")
    out_port: int
    in_port: int
    rate_bps: float
    path: list[str]


class Topology(Answer):
    nodes: list[Node]
    edges: list[Edge]


class Hop(Answer):
    """One link; ``path``: every port that packets pass."""

    out: str = Field(alias="from")
    into: str = Field(alias="to")
    rate_bps: float
    path: list[str]
    choices: int


class PathDocument(Answer):
    """``paths``: how one of several is chosen; ``rate_bps``: of the slowest link."""

    source: str
    destination: str
    paths: str
    rate_bps: float
    hops: list[Hop]


class Circuit(Answer):
    ends: list[str]
    path: list[str]
    duplex: bool


class LitCircuits(Answer):
    circuits: list[Circuit]


# Light


class CrossConnectPlace(Answer):
    ingress: int
    egress: int
    wavelength: int | None
    name: str | None


class StandingCrossConnect(CrossConnectPlace):
    state: CrossConnectState


class PlanDocument(Answer):
    """What a change keeps, removes and adds; ``dark_ports`` are without light meanwhile."""

    keep: list[CrossConnectPlace]
    remove: list[CrossConnectPlace]
    add: list[CrossConnectPlace]
    dark_ports: list[int]


class CrossConnectOutcome(Answer):
    ingress: int
    egress: int | None
    action: Literal["keep", "remove", "add", "foreign"]
    state: CrossConnectState
    reason: str
    t_dark: float | None
    t_lit: float | None


class LeftoverDocument(CrossConnectPlace):
    """What a change that was taken back has left otherwise than it was: a cross-connect that still STANDS, is
    GONE, or of which it is UNKNOWN."""

    switch: str
    found: Found
    reason: str


class SwitchChange(Answer):
    plan: PlanDocument
    applied: bool
    results: list[CrossConnectOutcome]


class WholeChange(Answer):
    """``undone``: a switch did not do its part, and all was taken back but what is ``left``."""

    problems: list[str]
    undone: bool
    left: list[LeftoverDocument]


class OneSwitchChange(SwitchChange, WholeChange):
    pass


class Phase(BaseModel):
    """A moment of a change, with what belongs to it."""

    model_config = ConfigDict(extra="allow")

    t: float
    phase: str


class CircuitsChange(WholeChange):
    applied: bool
    optical_switches: dict[str, SwitchChange]
    timeline: list[Phase]


class OpticalSwitchOverview(Answer):
    """``error``: why it cannot be reached."""

    name: str
    size: int
    wavelengths: int | None
    driver: str
    reachable: bool
    error: str | None
    cross_connects: int
    alarms: int


class IdentityDocument(Answer):
    vendor: str
    model: str
    serial: str
    version: str


class BoundsDocument(Answer):
    least_s: float
    typical_s: float
    most_s: float


class TimingDocument(Answer):
    command: BoundsDocument
    per_cross_connect_s: float
    dark: BoundsDocument
    settle_s: float


class OpticalSwitchDocument(OpticalSwitchOverview):
    """``timing`` as declared; ``profile``: the emulated device's settings."""

    identity: IdentityDocument | None
    timing: TimingDocument
    profile: dict[str, Any] | None


class OpticalFault(Answer):
    """A fault injected into an emulated switch. ``hits``: how often it has acted; ``left``: how often it may
    still, null until it is cleared. What each kind does: docs/optical-management.md."""

    id: int
    kind: str
    protocol: str | None
    count: int | None
    probability: float
    seed: int
    seconds: float | None
    port: int | None
    ingress: int | None
    egress: int | None
    wavelength: int | None
    hits: int
    left: int | None


class OpticalFaultsCleared(Answer):
    """``cleared``: the faults that have ended, by their ids."""

    cleared: list[int]


class OpticalPort(Answer):
    """``cross_connect``: the first of ``cross_connects``. ``power_dbm``: null where it was not asked for, or
    the port has no meter."""

    port: int
    side: Literal["ingress", "egress"]
    faceplate: int
    plugged: str | None
    state: PortState
    enabled: bool
    power_dbm: float | None
    cross_connect: CrossConnectPlace | None
    cross_connects: list[CrossConnectPlace]


class PortStatusDocument(Answer):
    port: int
    state: PortState
    enabled: bool


class PortPower(Answer):
    """``power_dbm`` is null where the port has no meter."""

    port: int
    power_dbm: float | None


class AlarmDocument(Answer):
    kind: Literal["LOS", "PORT_FAILED", "PORT_DISABLED", "SWITCH"]
    port: int | None
    text: str


class SwitchAlarm(AlarmDocument):
    switch: str


class DriftDocument(Answer):
    """``missing``: wanted and not there; ``broken``: there, without light; ``foreign``: there and not asked
    for; ``left``: to be removed, and still there."""

    missing: list[CrossConnectPlace]
    broken: list[CrossConnectPlace]
    foreign: list[CrossConnectPlace]
    left: list[CrossConnectPlace]


class IntentDocument(Answer):
    """What a switch should carry; ``drift``: how it differs, as last read; ``job``: which has it alone, and
    then knows what it should carry."""

    switch: str
    policy: Policy
    job: str | None
    cross_connects: list[CrossConnectPlace]
    drift: DriftDocument


class PolicyDocument(Answer):
    """``policy``: of all switches without one of their own. ``optical_switches``: what holds for each;
    ``own``: which have one of their own."""

    policy: Policy
    optical_switches: dict[str, Policy]
    own: list[str]


class AuditEntry(Answer):
    """``at``: UTC. ``who``: the name of a REST token, `job X`, `reconciler`, or `outside`: nobody here."""

    id: int
    at: str
    who: str
    action: str
    switch: str | None
    outcome: str
    detail: dict[str, Any]


# Packet switches


class Attached(Answer):
    """What light reaches from a port, and of a GPU its addresses; null where it is dark."""

    port: int
    peer: str | None
    gpu: str | None
    ip: str | None
    mac: str | None


class PacketSwitchDocument(FabricPacketSwitch):
    """``connected``: to our controller, as those are whose tables it writes."""

    connected: bool
    attached: list[Attached]


class Flow(Answer):
    priority: int
    match: dict[str, int | str]
    out_ports: list[int]
    cookie: int
    table_id: int
    packets: int
    bytes: int
    duration_s: float


class PacketPort(Answer):
    """Counters are missing for a port that came just now; rx is what the switch received."""

    port: int
    interface: str
    up: bool
    gpu: str | None
    peer: str | None
    rx_packets: int = 0
    tx_packets: int = 0
    rx_bytes: int = 0
    tx_bytes: int = 0
    rx_dropped: int = 0
    tx_dropped: int = 0
    rx_errors: int = 0
    tx_errors: int = 0


class PortBytes(Answer):
    """What a port of a packet switch has received and sent, bytes of frames without FCS."""

    switch: str
    port: int
    rx_bytes: int
    tx_bytes: int


class SeriesSample(Answer):
    t: float
    switch: str
    port: int
    gpu: str | None
    peer: str | None
    rx_bps: float
    tx_bps: float


# O-NICs


class OnicFlows(Answer):
    """``dropped``: how many of the timeline are gone already."""

    ok: bool
    flows: list[dict[str, Any]]
    cursor: int
    dropped: int


# Jobs


class RankDocument(Answer):
    rank: int
    gpu: str
    state: str
    exit_code: int | None
    signal: int | None
    oom: bool
    error: str | None
    worker: str


class LossDocument(Answer):
    """A GPU that a running job lost. What is None is not known yet: ``spare``, which took its place (None too
    where ranks became fewer), and the ``iteration`` from which the job goes on, on the GPUs ``ranks``."""

    rank: int
    gpu: str
    reason: str
    t_lost: float
    spare: str | None
    ranks: list[str] | None
    iteration: int | None
    t_recovering: float | None
    t_released: float | None


class JobDocument(Answer):
    """``spec``: what its workers are told. ``plane``: the one with light that it is on, whose
    ``switches`` carry its light. ``spares``: GPUs that
    are kept for it until they are used."""

    id: str
    name: str
    state: JobState
    error: str | None
    hold: bool
    plane: str | None
    switches: list[str]
    ranks: list[RankDocument]
    spec: dict[str, Any]
    on_loss: Literal["fail", "swap", "shrink"]
    spares: list[str]
    losses: list[LossDocument]
    t_submitted: float
    t_released: float | None
    t_ended: float | None


class WorkloadDocument(Answer):
    """A workload that jobs may execute. ``operations``: of all ranks; ``bytes``: as packed."""

    sha256: str
    name: str
    ranks: int
    operations: int
    bytes: int


class JobEvents(Answer):
    cursor: int
    events: list[dict[str, Any]]


class JobOutput(Answer):
    rank: int
    stdout: str
    stderr: str


class Move(Answer):
    gpu: str
    source: str | None = Field(alias="from")
    destination: str = Field(alias="to")


class Predicted(Answer):
    """Seconds per iteration, as emulated; None where a rank has no light."""

    job: str
    before_s: float | None
    after_s: float | None


class RegroupPair(Answer):
    ingress: int
    egress: int
    name: str | None


class RegroupCrossConnects(Answer):
    remove: list[RegroupPair]
    add: list[RegroupPair]


class RegroupPlan(Answer):
    """``crossing_bytes``: what passes between packet switches in an iteration."""

    moves: list[Move]
    stay_lit: list[list[str]]
    circuits: list[list[str]]
    crossing_bytes_before: float
    crossing_bytes_after: float
    fibres_moved: int
    optimal: bool
    predicted: list[Predicted]
    cross_connects: dict[str, RegroupCrossConnects]


class RegroupOutcome(CrossConnectOutcome):
    name: str | None
    wavelength: int | None


class RegroupDocument(Answer):
    """``left_to_others``: packet switches at which light moves whose tables we do not write, and who does:
    packets come through again once it has followed."""

    id: str
    state: Literal["PLANNED", "APPLYING", "DONE", "FAILED"]
    jobs: list[str]
    dry_run: bool
    plan: RegroupPlan
    timeline: list[Phase]
    problems: list[str]
    results: dict[str, list[RegroupOutcome]]
    undone: bool
    left: list[LeftoverDocument]
    left_to_others: dict[str, str]
    error: str | None
