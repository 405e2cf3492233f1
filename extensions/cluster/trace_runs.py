"""Traces of jobs replayed on a cluster: each run by itself, as data that another process can compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from ringlight.experiments.backends.protocol import Told, untold
from ringlight.experiments.backends.simulation.collectives import run_started
from ringlight.experiments.backends.simulation.losses import RECOVERY_S
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record.events import Record, RunEnded, RunFailed, RunStarted
from ringlight.extensions.cluster.fault_traces import spread_over
from ringlight.extensions.cluster.job_traces import JobTrace, shares_of
from ringlight.extensions.cluster.language import jobs_of
from ringlight.extensions.cluster.plan import TracePlan, trace_of
from ringlight.extensions.cluster.records import TraceReplayed
from ringlight.extensions.cluster.simulation.breaking import ClusterFaults, Losses
from ringlight.extensions.cluster.simulation.by_gpu import Gpus
from ringlight.extensions.cluster.simulation.measures import measured, of_faults
from ringlight.extensions.cluster.simulation.replay import Replay, replay
from ringlight.fabric.cost import ring_edge_bytes
from ringlight.fabric.topology import Fabric

#: Moments at which who is where is kept, and the most GPUs of which that is, and of how many parts of jobs.
MOMENTS, MOST_SEEN, MOST_PARTS = 160, 4096, 60_000


@dataclass(frozen=True)
class TraceRun:
    """One run: each takes long enough to be worth a process.

    ``seed``: the scenario's, and one more for each repeat. ``see``: whether to keep who is where.
    ``names``: of jobs that train, which are the same in every repeat, and ``sent`` what each sends from rank
    to rank in an iteration, and ``start_up_s`` how long each takes to begin. ``fabric``: where the controller
    decides about each GPU."""

    begin: RunStarted
    title: str
    plan: TracePlan
    seed: int
    see: bool
    names: tuple[str, ...] = ()
    sent: tuple[float, ...] = ()
    start_up_s: tuple[float, ...] = ()
    fabric: Fabric | None = None

    @property
    def count(self) -> int:
        """Return the number of runs."""
        return 1

    def compute(self, report: Told = untold) -> list[Record]:
        """Return the records of the run; if it cannot be made, one with the reason."""
        try:
            return _records(self, partial(report, self.title))
        except ValueError as error:
            reason = f"{self.title}: jobs.trace: {error}"
            return [
                RunFailed(t=0.0, run=self.begin.run, arm=self.begin.arm, reason=reason)
            ]


def trace_run(plan: RunPlan) -> TraceRun:
    trace, begin = trace_of(plan), run_started(plan)
    see = plan.repeat == 1 and not plan.point and trace.cluster.size <= MOST_SEEN
    names = tuple(job.name for job in plan.jobs)
    seed = trace.seed + (0 if names else plan.repeat - 1)
    fabric = plan.setting.fabric if trace.policies.placement == "controller" else None
    sent = tuple(
        ring_edge_bytes(job.gpus, job.loop.gradient_bytes) for job in plan.jobs
    )
    # A job's own where they have been measured.
    start_up_s = tuple(job.start_up_s for job in plan.jobs)
    return TraceRun(
        begin, plan.title, trace, seed, see, names, sent, start_up_s, fabric
    )


def _records(of: TraceRun, report: Callable[[float], None]) -> list[Record]:
    plan, run = of.plan, of.begin.run
    trace = jobs_of(plan, of.seed)
    shares, rings = shares_of(trace, plan.sends)
    moments = (
        np.linspace(plan.warm_up * trace.span_s, trace.span_s, MOMENTS).tolist()
        if of.see
        else ()
    )
    until_s = np.inf if plan.until_s is None else plan.until_s
    fails = plan.faults
    faults = None
    if fails is not None:
        servers = plan.cluster.size // fails.policies.server_gpus
        faults = ClusterFaults(
            spread_over(fails.trace, servers, of.seed), fails.policies
        )
    made = replay(
        plan.cluster,
        trace,
        shares,
        rings,
        plan.policies,
        of.seed,
        until_s=until_s,
        see_s=moments,
        faults=faults,
        start_up_s=of.start_up_s or plan.start_up_s,
        by_gpu=None
        if of.fabric is None
        else Gpus(of.fabric, plan.cluster, of.sent or shares.tolist()),
        losses=_losses(plan),
        iteration_s=0.0 if plan.trains is None else plan.trains.iteration_s,
        progress=report,
    )
    seen = [[t, [list(part) for part in where]] for t, where in made.seen]
    every = 1 + sum(len(where) for _, where in made.seen) // MOST_PARTS
    end = float(made.steps_s[-1])
    results = measured(plan.cluster, trace, made, plan.warm_up)
    if fails is not None and faults is not None:
        each = fails.slice_gpus // fails.policies.server_gpus
        results.figures.update(of_faults(faults, made, trace, plan.warm_up, each))
    return [
        of.begin,
        TraceReplayed(
            t=end,
            run=run,
            dropped=dict(trace.counts),
            leaves=list(plan.cluster.gpus),
            seen=seen[::every],
            jobs=_moments(of, trace, made),
            **asdict(results),
        ),
        RunEnded(t=end, run=run),
    ]


def _losses(plan: TracePlan) -> Losses:
    """GPUs that are lost one by one. A job goes on from its last iteration, in the replay as emulated."""
    if plan.trains is None:
        return Losses()
    recovery_s = (
        RECOVERY_S["swap"] if plan.trains.recovery_s is None else plan.trains.recovery_s
    )
    return Losses(
        tuple((loss.at_s, loss.gpu) for loss in plan.lost),
        plan.trains.iteration_s,
        recovery_s,
    )


def _moments(
    run: TraceRun, trace: JobTrace, made: Replay
) -> dict[str, list[float | None]]:
    """Return the seconds at which each named job arrived, had its GPUs, began and ended; None for a missing
    time.
    """
    if not run.names:
        return {}
    columns = (
        trace.arrival_s,
        made.start_s,
        made.start_s + np.array(run.start_up_s),
        made.end_s,
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    moments = ([None if np.isnan(t) else t for t in row] for row in rows)
    return dict(zip(run.names, moments, strict=True))
