"""Several jobs on one fabric: their waits, their placement, and whether they are treated alike."""

from __future__ import annotations

import itertools

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.analysis.statistics import jain
from ringlight.experiments.record.runs import JobRun


@metric("s")
def makespan(context: Context) -> float | None:
    """From the release of the first jobs to the end of the last.

    Return seconds; None if no job has ended.
    """
    ends = [job.end for job in context.run.jobs.values() if job.end is not None]
    return max(ends) - context.run.released if ends else None


@metric("s", of="job")
def queueing_delay(context: Context, job: JobRun) -> float | None:
    """From a job's arrival until it has its GPUs; 0 for those of the beginning.

    Return seconds; None if the job has not arrived or has no GPUs.
    """
    if job.arrived is None or job.granted is None:
        return None
    return max(0.0, job.granted - max(job.arrived, context.run.released))


@metric("s", of="job", unscaled=True)
def start_up(context: Context, job: JobRun) -> float | None:
    """From when a job has its GPUs until its workers are ready; a simulation starts none.

    Return seconds; None in a simulation, or if one of the times is not recorded.
    """
    if context.simulated or job.granted is None or job.placed is None:
        return None
    return max(0.0, job.placed - job.granted)


@metric("1", of="job")
def slowdown(context: Context, job: JobRun) -> float | None:
    """From a job's arrival to its end, over the model's time of the job alone.

    Return the ratio; None if the job has not ended or the model does not know it.
    """
    alone = context.alone.get(job.name)
    if job.jct_s is None or job.end is None or alone is None:
        return None
    arrived = (
        context.run.released
        if job.arrived is None
        else max(job.arrived, context.run.released)
    )
    return max(job.jct_s, job.end - arrived) / alone.jct_s


@metric("1")
def fairness(context: Context) -> float | None:
    """Jain's index of the jobs' slowdowns: 1 if all are slowed down alike.

    Return the index, a ratio; None for fewer than two jobs with a slowdown.
    """
    slowdowns = [slowdown(context, job) for job in context.run.jobs.values()]
    known = [value for value in slowdowns if value is not None]
    return jain(known) if len(known) > 1 else None


@metric("1", of="job")
def fragmentation(context: Context, job: JobRun) -> float | None:
    """Share of a job's neighbouring ranks that are on different packet switches, with the circuits at the end.

    Return the share (0..1); None with fewer than two packet switches, or for a job without GPUs.
    """
    fabric = context.run.plan.setting.fabric
    if len(fabric.packet_switches) < 2 or not job.gpus:
        return None
    on = [next(iter(context.view.graph.heads(gpu)), None) for gpu in job.gpus]
    pairs = list(itertools.pairwise([*on, on[0]]))
    return float(sum(a != b for a, b in pairs) / len(pairs))
