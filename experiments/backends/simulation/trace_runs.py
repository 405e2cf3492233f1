"""Traces of jobs replayed on a cluster: each run by itself, as data that another process can compute."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from ringlight.experiments.backends.simulation.collectives import run_started
from ringlight.experiments.language.plan import RunPlan, TracePlan
from ringlight.experiments.language.traces import jobs_of
from ringlight.experiments.record.events import Record, RunEnded, RunFailed, RunStarted, TraceReplayed
from ringlight.testbed.simulation.cluster.measures import measured, of_faults
from ringlight.testbed.simulation.cluster.replay import Faults, replay
from ringlight.workloads.fault_traces import spread_over
from ringlight.workloads.job_traces import shares_of

#: Moments at which who is where is kept, and the most GPUs of which that is, and of how many parts of jobs.
MOMENTS, MOST_SEEN, MOST_PARTS = 160, 4096, 60_000


@dataclass(frozen=True)
class TraceRun:
    """``seed``: the scenario's, and one more for each repeat. ``see``: whether to keep who is where."""

    begin: RunStarted
    title: str
    plan: TracePlan
    seed: int
    see: bool


@dataclass(frozen=True)
class TraceBatch:
    """One run: each takes long enough to be worth a process."""

    runs: tuple[TraceRun, ...]


def trace_batch(plan: RunPlan) -> TraceBatch:
    assert plan.trace is not None
    begin = run_started(plan)
    see = plan.repeat == 1 and not plan.point and plan.trace.cluster.size <= MOST_SEEN
    seed = plan.trace.seed + plan.repeat - 1
    return TraceBatch((TraceRun(begin, plan.title, plan.trace, seed, see),))


def replayed(batch: TraceBatch) -> list[Record]:
    """The records of a batch's runs; one that cannot be made has a record that says why."""
    found: list[Record] = []
    for one in batch.runs:
        try:
            found += _records(one)
        except ValueError as error:
            reason = f"{one.title}: jobs.trace: {error}"
            found.append(RunFailed(t=0.0, run=one.begin.run, arm=one.begin.arm, reason=reason))
    return found


def _records(one: TraceRun) -> list[Record]:
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
            **asdict(found),
        ),
        RunEnded(t=end, run=run),
    ]
