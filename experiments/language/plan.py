"""Run plans that a scenario file becomes: one lab setting each, with jobs and timeline. Plain data.

All times and sizes here are those of the emulation: times of the file multiplied by D, rates divided by D·S,
gradients divided by S. A simulation computes what an emulation with the same D and S should take.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar

from pydantic import Field

from ringlight.fabric.control_faults import ControlFaults
from ringlight.fabric.frames import Frames, choose_frames
from ringlight.fabric.link_effects import Effects
from ringlight.fabric.planes.base import Plane
from ringlight.fabric.planes.choice import plane_of
from ringlight.fabric.topology import Fabric
from ringlight.fabric.values import Duration, Strict
from ringlight.workloads.graph import Workload
from ringlight.workloads.job_settings import Training

P = TypeVar("P", bound=Plane)
OnLoss = Literal["fail", "swap", "shrink"]


class Scale(Strict):
    """D and S: rates are divided by ``time * payload``, times multiplied by ``time``, gradients divided by
    ``payload``; the ratio of compute to communication stays."""

    time: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    payload: Annotated[float, Field(gt=0, le=1e9)] = 1.0

    @property
    def rate(self) -> float:
        """D * S: real bits per second per emulated one."""
        return self.time * self.payload


class ChosenScale(Strict):
    """A scale that was chosen for a machine (``scale: auto``).

    ``limit``: the part of the machine that asked for its D; ``wants``: the D that each part asks for;
    ``busy``: how many processors sending and forwarding keep busy; ``costs``: whose costs of messages and
    frames it rests on; ``larger``: why D was made larger after a run, once for each time.
    """

    time: float
    payload: float
    limit: str
    wants: Mapping[str, float]
    busy: float
    costs: str
    larger: tuple[str, ...] = ()

    @property
    def scale(self) -> Scale:
        return Scale(time=self.time, payload=self.payload)


class Tcp(Strict):
    """``rto_min``: least retransmission time-out of the workers' sockets, real seconds. ``headers``: false
    where a simulation is to leave them out; ``full_load``: true where it is to take what TCP gives away."""

    congestion_control: Literal["reno", "cubic", "bbr"] = "reno"
    rto_min: Duration = 0.2
    headers: bool = True
    full_load: bool = False


@dataclass(frozen=True)
class Setting:
    """Setting of a lab: one fabric at one scale.

    ``fabric`` has real rates. ``section`` is the fabric as written (units as strings), for the processes that
    read it. ``link_test_s``: how long each link is filled before the runs, emulated seconds. ``onic_faults``:
    some run disturbs the O-NICs' control network or tunes their lasers in another time than that of
    ``fabric``, so their agents must accept such orders. ``delays``: in some run an event has a link delay
    frames. Runs whose fabrics differ in the lasers' tuning alone share one setting; the time that holds is
    ``RunPlan.tuning_s``.
    """

    name: str
    title: str
    fabric: Fabric
    section: Mapping[str, Any]
    scale: Scale
    tcp: Tcp
    link_test_s: float
    onic_faults: bool = False
    delays: bool = False

    @cached_property
    def frames(self) -> Frames:
        """Return frame size and queues as emulated, and what cannot be filled as ``problem``."""
        return choose_frames(self.fabric, self.scale.time, self.scale.payload)


@dataclass(frozen=True)
class Start:
    """Arrival of a job, which then waits in a queue until it has its GPUs.

    A job arrives ``at_s`` seconds after the run began, or once all of ``after`` have ended (and then ``at_s``
    later), or never by itself (``by_event``).
    """

    at_s: float = 0.0
    after: tuple[str, ...] = ()
    by_event: bool = False

    @property
    def at_once(self) -> bool:
        """Return whether the job is there when the run begins; such jobs are released together."""
        return not self.at_s and not self.after and not self.by_event


@dataclass(frozen=True, kw_only=True)
class Loop(Training):
    """Training of a ``model``. ``collective``: with what the job's plane decides of it. ``synchronised``: no
    rank begins a step before all have ended the one before."""

    model: str
    synchronised: bool = False


class Machine(Protocol):
    """The machine on which guests run. ``runtime``: what makes its workers."""

    runtime: str

    def lacks_image(self, name: str) -> str | None:
        """Return that the machine has no image of this name; None if it has, or cannot tell."""


class Guest(ABC):
    """Program that runs beside each of a job's workers, which then only hold the NICs (``fabric.guests``).

    ``kind``: name of its kind. ``key``: key of a job that asks for it. ``noun``: what one is called.
    ``deadline_s``: emulated seconds from the start that it may take.
    """

    kind: ClassVar[str]
    key: ClassVar[str]
    noun: ClassVar[str]
    deadline_s: float

    @abstractmethod
    def request(self) -> dict[str, Any]:
        """Return the fields of the key ``kind`` in ``POST /v1/jobs``."""

    @abstractmethod
    def lacks(self, machine: Machine) -> str | None:
        """Return what it needs and the machine lacks, ``key: reason``; None if nothing."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Return what ``show`` tells of it, ``key`` among that."""


@dataclass(frozen=True)
class JobPlan:
    """One job, of a training loop, a workload or a guest for each rank. ``ranks``: GPUs in rank order;
    empty where the controller places ``gpus`` of them.

    ``on_loss``: what becomes of it when one of its GPUs is lost; ``spares``: GPUs that may take the place,
    any free one when empty. ``stragglers``: rank to the factor by which its computing takes longer.
    ``recovery_s``: in a simulation, from a loss to going on, None for its default; ``start_up_s``: there,
    from when a job that comes later has its GPUs until its workers are ready. ``may_fail``: that it fails is
    expected. ``light``: what of its workload light follows (``workloads.following``), or once.
    """

    name: str
    title: str
    ranks: tuple[str, ...]
    gpus: int
    iterations: int
    training: Loop | None = None
    workload: Workload | None = None
    light: str = "once"
    guest: Guest | None = None
    start: Start = Start()
    on_loss: OnLoss = "fail"
    spares: tuple[str, ...] = ()
    beacon_s: float = 0.0
    stragglers: Mapping[int, float] = field(default_factory=dict)
    recovery_s: float | None = None
    start_up_s: float = 0.0
    may_fail: bool = False

    @property
    def loop(self) -> Loop:
        """Return the training of a job that has one. Raises ValueError for another."""
        if self.training is None:
            raise ValueError(f"job {self.name} has no training loop")
        return self.training

    def plane(self, fabric: Fabric, gpus: Sequence[str] = ()) -> Plane:
        """Return the plane that carries the job's bytes on these GPUs, else on its ranks. Raises Misfit."""
        return plane_of(
            fabric,
            gpus or self.ranks,
            "" if self.training is None else self.training.collective,
        )


@dataclass(frozen=True)
class When:
    """Exactly one kind: before the release (``start``), ``at_s`` seconds after the first jobs' common start,
    once every rank of ``job`` has done ``iteration`` iterations, once ``granted`` (a job) has its GPUs, once
    ``started`` (a job) has been released, once ``ended`` (a job) has ended, or once the event ``after`` is
    over."""

    start: bool = False
    at_s: float | None = None
    job: str | None = None
    iteration: int | None = None
    started: str | None = None
    ended: str | None = None
    after: str | None = None
    granted: str | None = None


@dataclass(frozen=True)
class Target:
    """Target of an event. ``kind``: controller, switch, agent, server agent, worker, link, gpu, nic or job.

    ``names``: of a link its two ports, of a worker job and rank, else one name, or none.
    """

    kind: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.kind, *self.names))


@dataclass(frozen=True)
class Costs:
    """Costs that a simulation counts of each step in addition to set-ups and transfers.

    ``latency_s``: emulated seconds before a transfer's first byte counts, None if a file states none
    (:meth:`RunPlan.latency_s`). ``segment_s``: for each segment of a ring that its light passes. ``add_bps``:
    emulated rate at which a rank adds what it received (None: in no time). ``headers``: whether packets'
    headers take their part of a link's rate.
    """

    latency_s: float | None = None
    segment_s: float = 0.0
    add_bps: float | None = None
    headers: bool = True


@dataclass(frozen=True)
class EventPlan:
    """Something that is made to happen in a run. ``back_after_s``: a killed thing is started again only then.

    ``jobs``: which a regroup is for, all that run when empty. ``then``: what becomes of the job whose GPU is
    lost. ``circuits``: pairs of port names to light, of ``do: circuits``. ``effects``: what a link does to
    frames from then on, in place of its own, by the event's key.
    """

    name: str
    when: When
    do: str
    target: Target | None = None
    back_after_s: float = 0.0
    jobs: tuple[str, ...] = ()
    then: OnLoss | None = None
    circuits: tuple[tuple[str, str], ...] = ()
    control: ControlFaults | None = None
    effects: Effects = field(default_factory=dict)

    @property
    def record_fields(self) -> dict[str, Any]:
        """Return the first fields of the event's records."""
        return {"name": self.name, "do": self.do, "target": str(self.target or "")}

    @property
    def capability(self) -> str:
        """Return the capability that a backend needs for the event: words as in ``backends.protocol``."""
        words: list[str] = [self.do]
        if self.target is not None and (
            self.effects or self.do in ("kill", "cut", "restore", "lose")
        ):
            words.append(self.target.kind)
        if self.then in ("swap", "shrink"):
            words += ["then", self.then]
        return " ".join(words)


@dataclass(frozen=True)
class SourcePlan:
    """Plan from which a source makes a run's jobs (``job_sources``), in place of jobs by name.

    ``key``: the source's. ``computed``: in a simulation the source computes all jobs of a run together; else
    they run in the simulated lab.
    """

    key: ClassVar[str]
    computed: ClassVar[bool] = True


@dataclass(frozen=True)
class RunPlan:
    """One run: an arm of the experiment at one point of its sweep, once.

    ``point``: swept dotted paths with their values as written. ``control``: faults of the control network
    from the start. ``circuits``: pairs of port names that are lit at the start. ``tuning_s``: of the lasers
    of tunable O-NICs by GPU, emulated seconds. ``source``: of its jobs; None where the file names them.
    """

    name: str
    title: str
    arm: str
    point: Mapping[str, Any]
    repeat: int
    setting: Setting
    jobs: tuple[JobPlan, ...]
    events: tuple[EventPlan, ...] = ()
    control: ControlFaults = field(default_factory=ControlFaults)
    circuits: tuple[tuple[str, str], ...] = ()
    tuning_s: Mapping[str, float] = field(default_factory=dict)
    costs: Costs = Costs()
    source: SourcePlan | None = None

    def on(self, kind: type[P]) -> P | None:
        """Return the plane of such a kind that one of the run's jobs is on; None if no job is."""
        planes = (job.plane(self.setting.fabric) for job in self.jobs)
        return next((plane for plane in planes if isinstance(plane, kind)), None)

    def latency_s(self, plane: Plane) -> float:
        """Return the emulated seconds before the first byte of a transfer on a plane counts in a simulation.

        It is the file's, else the plane's. A run that is scaled for an emulation has none by default: its
        messages have the latency of workers and software switches there, which does not grow with D.
        """
        if self.costs.latency_s is not None:
            return self.costs.latency_s
        return plane.times.latency_s if self.setting.scale == Scale() else 0.0

    @property
    def computed(self) -> bool:
        """Return whether in a simulation the source of the jobs computes them together, without a lab."""
        return self.source is not None and self.source.computed

    def job(self, name: str) -> JobPlan:
        """Return the job with this name. Raises KeyError."""
        return next(job for job in self.jobs if job.name == name)

    @property
    def point_name(self) -> str:
        """Return the name that all repeats of this run share: its arm, with the number of its point if it is
        swept.
        """
        return (
            self.name.removesuffix(f"-r{self.repeat}") if self.repeat > 1 else self.name
        )

    @property
    def place(self) -> str:
        """The same for a person, with the values of its point."""
        values = ", ".join(f"{path} = {value}" for path, value in self.point.items())
        return f"{self.point_name} ({values})" if values else self.point_name
