"""``jobs: {trace: …}``: jobs of a trace in place of jobs by name, and the policies that run them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from ringlight.experiments.language.job_sources import Files
from ringlight.experiments.language.plan import (
    EventPlan,
    JobPlan,
    Loop,
    Scale,
    Setting,
    Start,
    When,
)
from ringlight.experiments.language.profiles import ELEMENT_BYTES, LEAST_GRADIENT_BYTES
from ringlight.experiments.language.text import at_key
from ringlight.experiments.language.workload_keys import FileName
from ringlight.extensions.cluster.clusters import (
    Cluster,
    FaultPolicies,
    LightMoves,
    LitCluster,
    OnFault,
    Placement,
    Policies,
    Pool,
    Queueing,
    Sharing,
    Slices,
)
from ringlight.extensions.cluster.fault_traces import FaultTrace
from ringlight.extensions.cluster.formats.fault_traces import read_fault_trace
from ringlight.extensions.cluster.formats.job_traces import read_job_trace
from ringlight.extensions.cluster.job_traces import (
    Fit,
    JobTrace,
    Larger,
    Pattern,
    Sending,
    fitted,
    generated,
    shares_of,
)
from ringlight.extensions.cluster.plan import FaultsPlan, LostGpu, TracePlan, TrainsPlan
from ringlight.extensions.cluster.shared_planes import shared_by_jobs
from ringlight.fabric.frames import LARGEST_MTU_BYTES, payload_share
from ringlight.fabric.parts import Port
from ringlight.fabric.planes.base import Plane
from ringlight.fabric.planes.choice import plane_of
from ringlight.fabric.steps import FloatArray, IntArray
from ringlight.fabric.topology import Fabric
from ringlight.fabric.values import Duration, Strict
from ringlight.workloads.job_settings import Training

#: Most jobs of a trace that are made training jobs of.
MOST_TRAINED = 1000
#: Emulated seconds after which the first job comes. None is there when the run begins: those would be
#: waited for.
SOON_S = 1e-6
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class GenerateSpec(Strict):
    """Jobs that are made up: how many, mean ``gap`` between arrivals, mean ``duration``, ``sizes`` with
    weights."""

    jobs: Annotated[int, Field(ge=1, le=5_000_000)]
    gap: Annotated[Duration, Field(gt=0)]
    duration: Annotated[Duration, Field(gt=0)]
    sizes: Annotated[dict[Count, Annotated[float, Field(ge=0)]], Field(min_length=1)]
    gaps: Literal["exponential", "constant", "lognormal"] = "exponential"
    durations: Literal["exponential", "constant", "lognormal"] = "exponential"


class SendingSpec(Strict):
    """Traffic of jobs of up to ``up_to`` GPUs (without it, of all larger ones).

    ``share`` of an iteration at ideal speed in which each GPU sends at its full rate, and the ``pattern``.
    """

    up_to: Count | None = None
    share: Annotated[float, Field(ge=0, lt=1)]
    pattern: Pattern = "uniform"


class TrainsSpec(Strict):
    """Training loops of a trace's jobs if they are emulated. ``iteration``: duration of one at ideal speed.

    ``recovery``: in a replay, from the loss of a GPU until its job resumes.
    """

    iteration: Annotated[Duration, Field(gt=0)]
    batch: Count = 16
    seed: int = 7
    learning_rate: Annotated[float, Field(gt=0)] = Training.learning_rate
    recovery: Duration | None = None


class FaultsSpec(Strict):
    """Faults of servers, from a ``file`` that recorded ``servers`` of them, and what becomes of jobs."""

    file: FileName
    servers: Count
    server_gpus: Count = 8
    unit: Count | None = None
    policy: OnFault = "restart"
    pool: Pool = "cluster"
    spares: Annotated[float, Field(ge=0, lt=1)] = 0.0
    checkpoint: Annotated[Duration, Field(gt=0)] = 1800.0
    restart: Duration = 300.0
    slice: Count = 64

    def plan(self, trace: FaultTrace, leaves: Sequence[int]) -> FaultsPlan:
        """Return the plan of a fault trace. ``leaves``: GPUs of each switch. Raises ValueError, ``key: what
        is wrong``.
        """
        unit = self.unit or self.server_gpus
        if unit % self.server_gpus or any(own % unit for own in leaves):
            raise ValueError(
                f"unit: {unit} GPUs are no whole servers, or no whole part of each switch"
            )
        if self.slice % self.server_gpus:
            raise ValueError(f"slice: {self.slice} GPUs are no whole servers")
        policies = FaultPolicies(
            self.policy,
            self.pool,
            self.server_gpus,
            unit,
            self.spares,
            self.checkpoint,
            self.restart,
        )
        return FaultsPlan(trace, policies, self.slice)


def _classes(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [{"share": value}]
    return [value] if isinstance(value, Mapping) else value


class TraceSpec(Strict):
    """Jobs of a ``file``, or made up (``generate``); docs/cluster.md says what each key means."""

    file: FileName | None = None
    generate: GenerateSpec | None = None
    bad_rows: Literal["refuse", "skip"] = "refuse"
    seed: Annotated[int, Field(ge=0)] = 0
    days: Positive | None = None
    sizes: Positive = 1.0
    at_most: Count | None = None
    larger: Larger = "drop"
    at_least: Count = 1
    shortest: Duration = 0.0
    longest: Annotated[Duration, Field(gt=0)] | None = None
    first: Count | None = None
    load: Positive | None = None
    faster: Positive = 1.0
    jitter: Duration = 0.0
    resample: Annotated[Duration, Field(gt=0)] | None = None
    sends: Annotated[
        tuple[SendingSpec, ...], BeforeValidator(_classes), Field(min_length=1)
    ] = ()
    warm_up: Annotated[float, Field(ge=0, lt=1)] = 0.0
    until: Annotated[Duration, Field(gt=0)] | None = None
    queueing: Queueing = "first-come"
    placement: Placement | None = None
    light: LightMoves = "none"
    sharing: Sharing = "always"
    spare_ports: Annotated[float, Field(ge=0, le=1)] = 0.0
    moves: Literal["running", "idle"] = "running"
    dark: Duration = 1.0
    every: Annotated[Duration, Field(gt=0)] = 3600.0
    start_up: Duration = 0.0
    faults: FaultsSpec | None = None
    trains: TrainsSpec | None = None

    @model_validator(mode="after")
    def _of_one_kind(self) -> TraceSpec:
        if (self.file is None) == (self.generate is None):
            raise ValueError(
                "give either file (a trace) or generate (jobs that are made up)"
            )
        if not self.sends:
            raise ValueError(
                "sends: missing; write sends: 0.3, the share of an iteration in which a job sends"
            )
        if self.generate is not None and self.resample is not None:
            raise ValueError(
                "resample: made-up jobs follow from the seed; only a file is drawn anew"
            )
        return self

    def plan(
        self,
        fabric: Fabric,
        trace: JobTrace | None,
        faults: FaultTrace | None,
        scale: Scale = Scale(),
        mtu_bytes: int = LARGEST_MTU_BYTES,
        lost: tuple[LostGpu, ...] = (),
    ) -> TracePlan:
        """Return the trace in emulated seconds. ``lost``: GPUs that events lose.

        Raises ValueError, ``key: what is wrong``, if the trace does not fit the fabric or the scale.
        """
        try:
            cluster = shared_by_jobs(_plane_of_all(fabric))
        except ValueError as error:
            raise ValueError(f"fabric: {error}") from None
        if self.faults is not None and scale != Scale():
            raise ValueError(
                "jobs.trace.faults: recorded faults are replayed in real time; leave scale out"
            )
        made, time = self.generate, scale.time
        longest_s = math.inf if self.longest is None else self.longest
        policies = Policies(
            self.queueing,
            self._placement(cluster, bool(lost)),
            self.light,
            self.sharing,
            self.spare_ports,
            self.moves == "running",
            self.dark * time,
            self.every * time,
        )
        if self.sharing == "on-off" and self.trains is None:
            raise ValueError(
                "jobs.trace.sharing: on-off: only what trains has iterations; give trains"
            )
        _fits_cluster(policies, cluster, self.faults is not None)
        plan = TracePlan(
            cluster=cluster,
            trace=trace,
            generated=None if made is None else made.model_dump(),
            fit=Fit(
                self.days,
                self.sizes,
                self.at_most,
                self.larger,
                self.at_least,
                self.shortest,
                longest_s,
                self.first,
                self.load,
                self.faster,
                self.jitter,
                self.resample,
            ),
            sends=tuple(
                Sending(sending.up_to, sending.share, sending.pattern)
                for sending in self.sends
            ),
            policies=policies,
            seed=self.seed,
            warm_up=self.warm_up,
            until_s=None if self.until is None else self.until * time,
            faults=self._faults(cluster.gpus, faults),
            time=time,
            trains=self._trains(fabric, scale, mtu_bytes),
            start_up_s=self.start_up * time,
            lost=lost,
        )
        try:
            shares_of(JobTrace.empty(), plan.sends)
        except ValueError as error:
            raise ValueError(f"jobs.trace.sends: {error}") from None
        return plan

    def _placement(self, cluster: Cluster, lost: bool) -> Placement:
        """The controller's where it decides about light or jobs are emulated; blocks where jobs need them."""
        own = self.light == "controller" or self.trains is not None
        needed = cluster.lattice is not None and cluster.lattice.needed
        placement = self.placement or (
            "controller"
            if own
            else "slices"
            if cluster.slices
            else "blocks"
            if needed
            else "pack"
        )
        if self.light == "controller" and placement != "controller":
            raise ValueError(
                "jobs.trace.placement: if light is the controller's, placement must be, too"
            )
        if lost and placement != "controller":
            raise ValueError(
                "jobs.trace.placement: a GPU can be lost by name only if the controller places jobs"
            )
        return placement

    def _trains(
        self, fabric: Fabric, scale: Scale, mtu_bytes: int
    ) -> TrainsPlan | None:
        of = self.trains
        if of is None:
            return None
        if any(sending.pattern != "ring" for sending in self.sends):
            raise ValueError(
                "jobs.trace.sends: what trains reduces in rings; give pattern: ring"
            )
        if (link := fabric.link_at.get(Port(next(iter(fabric.gpus)), 0))) is None:
            raise ValueError(
                "jobs.trace.trains: jobs can train only if the GPUs have links"
            )
        return TrainsPlan(
            of.iteration * scale.time,
            of.batch,
            of.seed,
            of.learning_rate,
            link.rate_bps / scale.rate * payload_share(mtu_bytes),
            None if of.recovery is None else of.recovery * scale.time,
        )

    def _faults(
        self, leaves: Sequence[int], trace: FaultTrace | None
    ) -> FaultsPlan | None:
        if self.faults is None or trace is None:
            return None
        with at_key("jobs.trace.faults"):
            return self.faults.plan(trace, leaves)


def planned(
    spec: TraceSpec, setting: Setting, events: Sequence[EventPlan], files: Files
) -> TracePlan:
    """Return the plan of a run's trace. Raises ValueError, ``key: what is wrong``."""
    if spec.trains is None and events:
        raise ValueError(
            f"events.{events[0].name}: nothing is made to happen while a trace is replayed whose jobs "
            "do not train (jobs.trace.trains)"
        )
    if spec.trains is None and setting.scale != Scale():
        raise ValueError(
            "scale: a trace is replayed in real time where its jobs do not train; leave it out, or give "
            "jobs.trace.trains"
        )
    has_shapes = spec.placement == "blocks" or "cubes" in setting.fabric.parts
    trace, faults = _jobs_read(spec, files, has_shapes), _faults_read(spec, files)
    lost = tuple(
        LostGpu(event.when.at_s, event.target.names[0])
        for event in events
        if event.capability == "lose gpu then swap"
        and event.target
        and event.when.at_s is not None
    )
    plan = spec.plan(
        setting.fabric, trace, faults, setting.scale, setting.frames.mtu_bytes, lost
    )
    if trace is not None:
        # Here, as otherwise a trace of which no job fits the cluster would only fail in its run.
        key = (
            "jobs of",
            spec.file,
            plan.cluster.size,
            plan.fit,
            plan.policies.placement,
        )
        with at_key("jobs.trace"):
            files.once(key, lambda: len(jobs_of(plan, plan.seed)))
    return plan


def _jobs_read(spec: TraceSpec, files: Files, keep_shapes: bool) -> JobTrace | None:
    if spec.file is None:
        return None
    skip = spec.bad_rows == "skip"
    with at_key("jobs.trace.file"):
        return files.read(
            spec.file,
            lambda path: read_job_trace(path, skip_bad=skip, keep_shapes=keep_shapes),
            (skip, keep_shapes),
        )


def _faults_read(spec: TraceSpec, files: Files) -> FaultTrace | None:
    if spec.faults is None:
        return None
    servers = spec.faults.servers
    with at_key("jobs.trace.faults.file"):
        return files.read(
            spec.faults.file, lambda path: read_fault_trace(path, servers), servers
        )


def iterations_of(duration_s: FloatArray, trains: TrainsPlan) -> IntArray:
    """Return the number of iterations nearest to each duration, at least one."""
    return np.maximum(1, np.rint(duration_s / trains.iteration_s)).astype(np.int64)


def trained(plan: TracePlan) -> tuple[JobPlan, ...]:
    """Return a trace's jobs as training jobs: ``j0``, ``j1``, … in the order of their arrival.

    In an iteration a GPU computes for the part that is left next to the share in which it sends at its full
    rate: of a ring's gradient 2 (n - 1) / n times. Raises ValueError if there are too many, or a gradient is
    too small for a worker.
    """
    trains = plan.trains
    assert trains is not None
    trace = jobs_of(plan, plan.seed)
    if len(trace) > MOST_TRAINED:
        raise ValueError(
            f"{len(trace):,} jobs; up to {MOST_TRAINED} train as an emulation's: give first, days or load"
        )
    shares, _ = shares_of(trace, plan.sends)
    columns = (
        trace.arrival_s,
        trace.gpus,
        iterations_of(trace.duration_s, trains),
        shares,
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    jobs = []
    for number, (at_s, gpus, iterations, share) in enumerate(rows):
        if gpus < 2:
            raise ValueError(
                f"job {number} has one GPU; what trains has two and more: give at_least: 2"
            )
        sends = share * trains.iteration_s * trains.payload_bps / 8
        gradient = ELEMENT_BYTES * round(
            sends * gpus / (2 * (gpus - 1)) / ELEMENT_BYTES
        )
        if share and gradient < LEAST_GRADIENT_BYTES:
            raise ValueError(
                f"job {number} of {gpus} GPUs sends {gradient} bytes in an iteration; what is trained needs "
                f"{LEAST_GRADIENT_BYTES}: give longer iterations or a larger share, or lower scale.payload"
            )
        loop = Loop(
            model=f"{gpus} GPUs",
            collective="ring",
            gradient_bytes=max(gradient, LEAST_GRADIENT_BYTES),
            compute_s=(1 - share) * trains.iteration_s,
            batch=trains.batch,
            seed=trains.seed + number,
            learning_rate=trains.learning_rate,
        )
        jobs.append(
            JobPlan(
                name := f"j{number}",
                name,
                (),
                gpus,
                iterations,
                training=loop,
                start=Start(max(at_s, SOON_S)),
                on_loss="swap" if plan.lost else "fail",
                recovery_s=trains.recovery_s,
                start_up_s=plan.start_up_s,
            )
        )
    return tuple(jobs)


def regroupings(plan: TracePlan, jobs: Sequence[JobPlan]) -> tuple[EventPlan, ...]:
    """Return the events that request regrouping, one for each job once it has its GPUs.

    Return () unless the controller's own regrouping is the policy.
    """
    if plan.policies.light != "controller":
        return ()
    return tuple(
        EventPlan(f"regroup-{job.name}", When(granted=job.name), "regroup")
        for job in jobs
    )


def _plane_of_all(fabric: Fabric) -> Plane:
    """The plane of a trace's jobs. Raises ValueError where some GPU is on another."""
    plane = plane_of(fabric)
    if off := fabric.gpus.keys() - set(plane.nodes):
        raise ValueError(
            f"GPU {min(off)} is not on {plane}; a trace needs GPUs that are all alike"
        )
    return plane


def _fits_cluster(policies: Policies, cluster: Cluster, has_faults: bool) -> None:
    """Raises ValueError, ``key: why``, for a policy that means nothing on a cluster, or cannot be."""
    lattice = cluster.lattice
    if isinstance(cluster, LitCluster):
        if policies.light not in ("none", "at-arrival", "at-intervals", "ideal"):
            raise ValueError(
                f"jobs.trace.light: {policies.light}: light joins switches here, and is divided at-arrival "
                "or at-intervals"
            )
        if policies.light == "none" and not all(cluster.lit_circuits):
            raise ValueError(
                "jobs.trace.light: none: some switches have no circuit to some others"
            )
    if policies.placement == "controller" and (lattice is None or not lattice.needed):
        if not cluster.names:
            raise ValueError(
                "jobs.trace.placement: controller: it places jobs on packet switches"
            )
        if policies.light not in ("none", "controller", "ideal"):
            raise ValueError(
                f"jobs.trace.light: {policies.light}: where the controller places jobs, light is its own "
                "(controller), none or ideal"
            )
        if has_faults:
            raise ValueError(
                "jobs.trace.faults: if the controller places jobs, GPUs are lost by events (do: lose)"
            )
    if (cluster.slices is not None) != (policies.placement == "slices"):
        raise ValueError(
            "jobs.trace.placement: slices are of cubes that light joins, and all of their jobs are"
        )
    if cluster.slices is not None and policies.light not in ("none", "ideal"):
        raise ValueError(
            f"jobs.trace.light: {policies.light}: each slice has light of its own; leave this key out"
        )
    if cluster.slices is not None and has_faults:
        raise ValueError("jobs.trace.faults: which cube a server is in is not known")
    if lattice is None:
        if policies.placement == "blocks":
            raise ValueError(
                "jobs.trace.placement: blocks are of a torus, a grid or a ring"
            )
        return
    if lattice.needed and policies.placement != "blocks":
        raise ValueError(
            f"jobs.trace.placement: {policies.placement}: a job on {lattice.name} needs neighbours"
        )
    if policies.light not in ("none", "ideal"):
        raise ValueError(
            f"jobs.trace.light: {policies.light}: jobs on {lattice.name} share no light"
        )
    if has_faults and policies.placement == "blocks":
        raise ValueError(
            f"jobs.trace.faults: which block of {lattice.name} a server is in is not known"
        )


def _has_slice(slices: Slices, gpus: int, sides: Sequence[int]) -> bool:
    return slices.fits(slices.shape_for(gpus, sides))


def jobs_of(plan: TracePlan, seed: int) -> JobTrace:
    """Return the jobs of a run, scaled to its cluster, in emulated seconds. Raises ValueError.

    Jobs that train last a whole number of iterations.
    """
    trace = plan.trace
    if trace is None:
        assert plan.generated is not None
        made = dict(plan.generated)
        trace = generated(
            made["jobs"],
            made["gap"],
            made["duration"],
            made["sizes"],
            seed,
            gaps=made["gaps"],
            durations=made["durations"],
        )
    jobs = fitted(trace, plan.cluster.size, plan.fit, seed)
    duration_s = jobs.duration_s * plan.time
    if plan.trains is not None:
        duration_s = (
            iterations_of(duration_s, plan.trains) * plan.trains.iteration_s
        ).astype(np.float64)
    jobs = replace(jobs, arrival_s=jobs.arrival_s * plan.time, duration_s=duration_s)
    lattice, slices = plan.cluster.lattice, plan.cluster.slices
    has_place: Callable[[int, Sequence[int]], object]
    if slices is not None:
        name, has_place = "the cubes", partial(_has_slice, slices())
    elif plan.policies.placement == "blocks":
        assert lattice is not None
        name, has_place = lattice.name, lattice.orders
    else:
        return jobs
    kinds = list(zip(jobs.gpus.tolist(), jobs.shapes or [()] * len(jobs), strict=True))
    fits = {kind: bool(has_place(*kind)) for kind in set(kinds)}
    ever = np.array([fits[kind] for kind in kinds], dtype=np.bool_)
    if not ever.any():
        raise ValueError(f"no job of the trace has a block in {name}")
    return jobs.picked(ever, no_block=int((~ever).sum()))
