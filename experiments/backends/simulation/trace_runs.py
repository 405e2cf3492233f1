"""Traces of jobs replayed on a cluster: each run by itself, as data that another process can compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from ringlight.experiments.backends.protocol import Told, untold
from ringlight.experiments.backends.simulation.collectives import run_started
from ringlight.experiments.backends.simulation.lab import RECOVERY_S
from ringlight.experiments.language.plan import RunPlan, TracePlan
from ringlight.experiments.language.traces import jobs_of
from ringlight.experiments.record.events import Record, RunEnded, RunFailed, RunStarted, TraceReplayed
from ringlight.fabric.cost import ring_edge_bytes
from ringlight.fabric.topology import Fabric
from ringlight.testbed.simulation.cluster.breaking import Faults, Losses
from ringlight.testbed.simulation.cluster.by_gpu import Gpus
from ringlight.testbed.simulation.cluster.measures import measured, of_faults
from ringlight.testbed.simulation.cluster.replay import Replay, replay
from ringlight.workloads.fault_traces import spread_over
from ringlight.workloads.job_traces import JobTrace, shares_of

#: Moments at which who is where is kept, and the most GPUs of which that is, and of how many parts of jobs.
MOMENTS, MOST_SEEN, MOST_PARTS = 160, 4096, 60_000


@dataclass(frozen=True)
class TraceRun:
    """``seed``: the scenario's, and one more for each repeat. ``see``: whether to keep who is where.
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


@dataclass(frozen=True)
class TraceBatch:
    """One run: each takes long enough to be worth a process."""

    runs: tuple[TraceRun, ...]


def not_replayed(plan: RunPlan) -> str | None:
    """Return why a trace's run cannot be replayed, ``key: reason``; None if it can."""
    assert plan.trace is not None
    lost = {(one.at_s, one.gpu) for one in plan.trace.lost}
    for event in plan.events:
        if event.do == "regroup" and event.when.granted is not None:
            # The policy's own.
            continue
        if event.target is None or (event.when.at_s, event.target.names[0]) not in lost:
            return (
                f"events.{event.name}: while a trace is replayed only GPUs are lost (do: lose, then: swap), "
                "at a time"
            )
    return None


def trace_batch(plan: RunPlan) -> TraceBatch:
    assert plan.trace is not None
    begin = run_started(plan)
    see = plan.repeat == 1 and not plan.point and plan.trace.cluster.size <= MOST_SEEN
    names = tuple(job.name for job in plan.jobs)
    seed = plan.trace.seed + (0 if names else plan.repeat - 1)
    fabric = plan.setting.fabric if plan.trace.policies.placement == "controller" else None
    sent = tuple(ring_edge_bytes(job.gpus, job.loop.gradient_bytes) for job in plan.jobs)
    # A job's own where they have been measured.
    start_up_s = tuple(job.start_up_s for job in plan.jobs)
    run = TraceRun(begin, plan.title, plan.trace, seed, see, names, sent, start_up_s, fabric)
    return TraceBatch((run,))


def replayed(batch: TraceBatch, told: Told = untold) -> list[Record]:
    """Return the records of a batch's runs; a run that cannot be made has a record with the reason.

    ``told`` is called with the title of a long run and its done share, as in ``BatchBackend.compute``.
    """
    found: list[Record] = []
    for one in batch.runs:
        try:
            found += _records(one, partial(told, one.title))
        except ValueError as error:
            reason = f"{one.title}: jobs.trace: {error}"
            found.append(RunFailed(t=0.0, run=one.begin.run, arm=one.begin.arm, reason=reason))
    return found


def _records(one: TraceRun, told: Callable[[float], None]) -> list[Record]:
    plan, run = one.plan, one.begin.run
    trace = jobs_of(plan, one.seed)
    shares, rings = shares_of(trace, plan.sends)
    moments = np.linspace(plan.warm_up * trace.span_s, trace.span_s, MOMENTS).tolist() if one.see else ()
    until_s = np.inf if plan.until_s is None else plan.until_s
    fails = plan.faults
    faults = None
    if fails is not None:
        servers = plan.cluster.size // fails.policies.server_gpus
        faults = Faults(spread_over(fails.trace, servers, one.seed), fails.policies)
    made = replay(
        plan.cluster,
        trace,
        shares,
        rings,
        plan.policies,
        one.seed,
        until_s=until_s,
        see_s=moments,
        faults=faults,
        start_up_s=one.start_up_s or plan.start_up_s,
        by_gpu=None if one.fabric is None else Gpus(one.fabric, plan.cluster, one.sent or shares.tolist()),
        losses=_losses(plan),
        iteration_s=0.0 if plan.trains is None else plan.trains.iteration_s,
        told=told,
    )
    seen = [[t, [list(part) for part in where]] for t, where in made.seen]
    every = 1 + sum(len(where) for _, where in made.seen) // MOST_PARTS
    end = float(made.steps_s[-1])
    found = measured(plan.cluster, trace, made, plan.warm_up)
    if fails is not None and faults is not None:
        each = fails.slice_gpus // fails.policies.server_gpus
        found.figures.update(of_faults(faults, made, trace, plan.warm_up, each))
    return [
        one.begin,
        TraceReplayed(
            t=end,
            run=run,
            dropped=dict(trace.counts),
            leaves=list(plan.cluster.gpus),
            seen=seen[::every],
            jobs=_moments(one, trace, made),
            **asdict(found),
        ),
        RunEnded(t=end, run=run),
    ]


def _losses(plan: TracePlan) -> Losses:
    """GPUs that are lost one by one. A job goes on from its last iteration, in the replay as emulated."""
    if plan.trains is None:
        return Losses()
    recovery_s = RECOVERY_S["swap"] if plan.trains.recovery_s is None else plan.trains.recovery_s
    return Losses(tuple((one.at_s, one.gpu) for one in plan.lost), plan.trains.iteration_s, recovery_s)


def _moments(one: TraceRun, trace: JobTrace, made: Replay) -> dict[str, list[float | None]]:
    """Return the seconds at which each named job arrived, had its GPUs, began and ended; None for a missing
    time.
    """
    if not one.names:
        return {}
    columns = (trace.arrival_s, made.start_s, made.start_s + np.array(one.start_up_s), made.end_s)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    found = ([None if np.isnan(t) else t for t in row] for row in rows)
    return dict(zip(one.names, found, strict=True))
