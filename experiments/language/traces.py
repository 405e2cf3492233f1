"""``jobs: {trace: …}``: jobs of a trace in place of jobs by name, and the policies that run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from ringlight.experiments.language.plan import FaultsPlan, TracePlan
from ringlight.experiments.language.text import at
from ringlight.experiments.language.workloads import FileName
from ringlight.fabric.clusters import (
    FaultPolicies,
    LightMoves,
    OnFault,
    Placement,
    Policies,
    Pool,
    Queueing,
    Sharing,
    cluster_of,
    fits_in_torus,
)
from ringlight.fabric.schema import Duration, Strict
from ringlight.fabric.topology import Fabric
from ringlight.workloads.fault_traces import FaultTrace
from ringlight.workloads.job_traces import (
    Fit,
    JobTrace,
    Larger,
    Pattern,
    Sending,
    fitted,
    generated,
    shares_of,
)

#: Name of the only job of a file whose jobs are a trace's.
TRACE = "trace"
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
    """What jobs of up to ``up_to`` GPUs send (without it, all larger ones): ``share`` of an iteration at
    ideal speed in which each GPU sends at its full rate, and the ``pattern``."""

    up_to: Count | None = None
    share: Annotated[float, Field(ge=0, lt=1)]
    pattern: Pattern = "uniform"


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
        """Raises ValueError, ``key: what is wrong``. ``leaves``: GPUs of each switch."""
        unit = self.unit or self.server_gpus
        if unit % self.server_gpus or any(own % unit for own in leaves):
            raise ValueError(f"unit: {unit} GPUs are no whole servers, or no whole part of each switch")
        if self.slice % self.server_gpus:
            raise ValueError(f"slice: {self.slice} GPUs are no whole servers")
        policies = FaultPolicies(
            self.policy, self.pool, self.server_gpus, unit, self.spares, self.checkpoint, self.restart
        )
        return FaultsPlan(trace, policies, self.slice)


def _classes(found: object) -> object:
    if isinstance(found, int | float) and not isinstance(found, bool):
        return [{"share": found}]
    return [found] if isinstance(found, Mapping) else found


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
    load: Positive | None = None
    faster: Positive = 1.0
    jitter: Duration = 0.0
    sends: Annotated[tuple[SendingSpec, ...], BeforeValidator(_classes), Field(min_length=1)]
    warm_up: Annotated[float, Field(ge=0, lt=1)] = 0.0
    until: Annotated[Duration, Field(gt=0)] | None = None
    queueing: Queueing = "first-come"
    placement: Placement = "pack"
    light: LightMoves = "none"
    sharing: Sharing = "always"
    spare_ports: Annotated[float, Field(ge=0, le=1)] = 0.0
    moves: Literal["running", "idle"] = "running"
    dark: Duration = 1.0
    every: Annotated[Duration, Field(gt=0)] = 3600.0
    faults: FaultsSpec | None = None

    @model_validator(mode="after")
    def _of_one_kind(self) -> TraceSpec:
        if (self.file is None) == (self.generate is None):
            raise ValueError("give either file (a trace) or generate (jobs that are made up)")
        return self

    def plan(self, fabric: Fabric, trace: JobTrace | None, faults: FaultTrace | None) -> TracePlan:
        """Raises ValueError, ``key: what is wrong``, where it does not fit the fabric."""
        try:
            cluster = cluster_of(fabric)
        except ValueError as error:
            raise ValueError(f"fabric: {error}") from None
        made = self.generate
        found = TracePlan(
            cluster=cluster,
            trace=trace,
            generated=None if made is None else made.model_dump(),
            fit=Fit(self.days, self.sizes, self.at_most, self.larger, self.load, self.faster, self.jitter),
            sends=tuple(Sending(one.up_to, one.share, one.pattern) for one in self.sends),
            policies=Policies(
                self.queueing, self.placement, self.light, self.sharing, self.spare_ports,
                self.moves == "running", self.dark, self.every,
            ),
            seed=self.seed,
            warm_up=self.warm_up,
            until_s=self.until,
            faults=self._faults(cluster.gpus, faults),
        )  # fmt: skip
        try:
            shares_of(JobTrace.empty(), found.sends)
        except ValueError as error:
            raise ValueError(f"jobs.trace.sends: {error}") from None
        return found

    def _faults(self, leaves: Sequence[int], trace: FaultTrace | None) -> FaultsPlan | None:
        if self.faults is None or trace is None:
            return None
        with at("jobs.trace.faults"):
            return self.faults.plan(trace, leaves)


def is_trace(jobs: Any) -> bool:
    """Whether a file's jobs, as written, are a trace's; a job may have that name."""
    one = jobs.get(TRACE) if isinstance(jobs, Mapping) else None
    return isinstance(one, Mapping) and not one.keys().isdisjoint(("file", "generate"))


def jobs_of(plan: TracePlan, seed: int) -> JobTrace:
    """The jobs of a run, scaled to its cluster. Raises ValueError."""
    trace = plan.trace
    if trace is None:
        assert plan.generated is not None
        made = dict(plan.generated)
        trace = generated(made["jobs"], made["gap"], made["duration"], made["sizes"], seed,
                          gaps=made["gaps"], durations=made["durations"])  # fmt: skip
    found = fitted(trace, plan.cluster.size, plan.fit, seed)
    if plan.policies.placement != "blocks":
        return found
    ever = np.array([fits_in_torus(sides, plan.cluster.torus) for sides in found.shapes], dtype=np.bool_)
    return found.picked(ever, no_block=int((~ever).sum()))
