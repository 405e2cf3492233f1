"""Plans of traces: jobs, faults and policies of a run, in emulated seconds. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ringlight.experiments.language.plan import RunPlan, SourcePlan
from ringlight.extensions.cluster.clusters import Cluster, FaultPolicies, Policies
from ringlight.extensions.cluster.fault_traces import FaultTrace
from ringlight.extensions.cluster.job_traces import Fit, JobTrace, Sending


@dataclass(frozen=True)
class FaultsPlan:
    """Faults of a cluster's servers. ``trace``: as recorded; ``slice_gpus``: of slices whose share is counted
    that is whole."""

    trace: FaultTrace
    policies: FaultPolicies
    slice_gpus: int


@dataclass(frozen=True)
class TrainsPlan:
    """Training loops of a trace's jobs if they are emulated, with iterations of ``iteration_s`` at ideal
    speed.

    In an iteration a job computes for as long as it does not send. ``payload_bps``: rate of a GPU's link
    without headers. ``recovery_s``: from the loss of a GPU until its job resumes, None for the default.
    """

    iteration_s: float
    batch: int
    seed: int
    learning_rate: float
    payload_bps: float
    recovery_s: float | None


@dataclass(frozen=True)
class LostGpu:
    """A GPU that is lost, ``at_s`` after the first job could come; its job goes on with a spare one."""

    at_s: float
    gpu: str


@dataclass(frozen=True)
class TracePlan(SourcePlan):
    """Jobs of a trace on a cluster, in place of jobs by name. ``trace``: as read; None where its jobs are
    made up, as ``generated`` says. ``fit``: how it is scaled to the cluster, ``sends``: what its jobs send.
    ``warm_up``: share of the span of arrivals before which jobs do not count; ``until_s``: the end of the
    replay, None once all have ended.

    ``time``: D, by which the trace's own times are multiplied; all others are emulated seconds. ``trains``:
    what its jobs are where they are emulated, None where they are only replayed. ``start_up_s``: from when a
    job has its GPUs until it begins. ``lost``: GPUs that are lost meanwhile."""

    cluster: Cluster
    trace: JobTrace | None
    generated: Mapping[str, Any] | None
    fit: Fit
    sends: tuple[Sending, ...]
    policies: Policies
    seed: int
    warm_up: float
    until_s: float | None
    faults: FaultsPlan | None = None
    time: float = 1.0
    trains: TrainsPlan | None = None
    start_up_s: float = 0.0
    lost: tuple[LostGpu, ...] = ()

    key: ClassVar[str] = "trace"


def trace_of(plan: RunPlan) -> TracePlan:
    """Return the trace of a run whose jobs are a trace's."""
    assert isinstance(plan.source, TracePlan)
    return plan.source
