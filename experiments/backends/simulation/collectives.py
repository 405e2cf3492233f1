"""Single all-reduces in step, thousands at a time: each needs no engine, but the time of its phases.

What such runs have in common is worked out once: a schedule on a network, for all sizes and costs. What is
to be computed is small data, so that other processes can do it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cache, partial

from ringlight.experiments.analysis.carrying import left_by_tcp
from ringlight.experiments.backends.protocol import Told, untold
from ringlight.experiments.backends.simulation.carriers import Medium, carriers
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record.events import (
    CollectiveTimed,
    JobState,
    Record,
    RunEnded,
    RunFailed,
    RunStarted,
)
from ringlight.fabric.control_faults import ControlFaults
from ringlight.testbed.simulation.phases import Phases, StepCost


@dataclass(frozen=True)
class AllReduce:
    """One run. ``share``: payload's of a link's rate."""

    begin: RunStarted
    title: str
    job: str
    vector_bytes: int
    cost: StepCost
    latency_s: float
    segment_s: float
    share: float


@dataclass(frozen=True)
class CollectiveBatch:
    """Runs of one collective on one medium, at emulated rates.

    ``places``: of each rank among the medium's nodes.
    """

    collective: str
    medium: Medium
    places: tuple[int, ...]
    runs: list[AllReduce]

    @property
    def count(self) -> int:
        """Return the number of runs."""
        return len(self.runs)

    def compute(self, report: Told = untold) -> list[Record]:
        """Return the records of the runs; a run that cannot be made has a record with the reason."""
        phases = cache(partial(self.medium.phases, self.collective, self.places))
        records: list[Record] = []
        for run in self.runs:
            try:
                timed = phases(run.latency_s, run.segment_s, run.share)
                records += _records(run, timed)
            except ValueError as error:
                reason = f"{run.title}: job {run.job}: {error}"
                records.append(
                    RunFailed(
                        t=0.0, run=run.begin.run, arm=run.begin.arm, reason=reason
                    )
                )
        return records


def alone(plan: RunPlan) -> bool:
    """Return whether a run is one all-reduce in step, of all GPUs, and nothing else."""
    if len(plan.jobs) != 1 or plan.events or plan.control != ControlFaults():
        return False
    (job,), fabric = plan.jobs, plan.setting.fabric
    if fabric.has_link_effects:
        return False
    if job.training is None or not job.start.at_once:
        return False
    plane = job.plane(fabric)
    in_step = plane.light == "stepped" or (
        plane.shared and not plane.sums and job.loop.synchronised
    )
    # Where packets carry it, its GPUs are chosen by where they stand.
    known = bool(job.ranks) or plane.whole
    return (
        in_step
        and known
        and (job.loop.compute_s, job.iterations, job.gpus) == (0.0, 1, len(fabric.gpus))
    )


def batches(
    plans: Iterable[RunPlan], share: float, latency_s: float
) -> list[CollectiveBatch]:
    """Return the runs, each of them :func:`alone`, in batches that share a network; first those with most
    lightpaths.

    ``latency_s``: seconds that every transfer takes longer than a plan states.
    """
    batch_of: dict[Hashable, CollectiveBatch] = {}
    for plan in plans:
        (job,) = plan.jobs
        collective = job.loop.collective
        plane = job.plane(plan.setting.fabric)
        key_of_medium, medium, cost = carriers()[plane.kind].medium(plan, plane)
        nodes = plane.nodes
        ranks = job.ranks or nodes
        key = key_of_medium, collective, None if ranks == nodes else ranks
        if key not in batch_of:
            index_of = {node: place for place, node in enumerate(nodes)}
            batch_of[key] = CollectiveBatch(
                collective, medium(), tuple(index_of[gpu] for gpu in ranks), []
            )
        batch_of[key].runs.append(_all_reduce(plan, cost, share, latency_s))
    return sorted(
        batch_of.values(),
        key=lambda batch: batch.medium.weight(batch.collective),
        reverse=True,
    )


def run_started(plan: RunPlan) -> RunStarted:
    """Return the first record of a run that is computed as a whole."""
    return RunStarted(
        t=0.0,
        run=plan.name,
        arm=plan.arm,
        point=dict(plan.point),
        repeat=plan.repeat,
        fabric=plan.setting.name,
        jobs={},
        simulated=True,
    )


def _all_reduce(
    plan: RunPlan, cost: StepCost, share: float, latency_s: float
) -> AllReduce:
    (job,), costs = plan.jobs, plan.costs
    began = run_started(plan)
    return AllReduce(
        began,
        plan.title,
        job.name,
        job.loop.gradient_bytes,
        cost,
        latency_s + plan.latency_s(job.plane(plan.setting.fabric)),
        costs.segment_s,
        payload_part(plan, share),
    )


def payload_part(plan: RunPlan, share: float) -> float:
    """Return the payload's share of a link's rate: ``share``, less the share that TCP gives away; 1 without
    headers.
    """
    return share * left_by_tcp(plan) if plan.costs.headers else 1.0


def _records(all_reduce: AllReduce, phases: Phases) -> list[Record]:
    took, run = (
        phases.time(all_reduce.vector_bytes, all_reduce.cost),
        all_reduce.begin.run,
    )
    return [
        all_reduce.begin,
        CollectiveTimed(
            t=took.total_s,
            run=run,
            job=all_reduce.job,
            total_s=took.total_s,
            set_up_s=took.set_up_s,
            reduce_s=took.reduce_s,
            steps=len(took.step_s),
            wavelengths=phases.wavelengths,
        ),
        JobState(t=took.total_s, run=run, job=all_reduce.job, state="SUCCEEDED"),
        RunEnded(t=took.total_s, run=run),
    ]
