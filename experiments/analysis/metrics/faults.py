"""Effects of events on running jobs: iterations before, during and after, and losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ringlight.experiments.analysis.carrying import pairs
from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.analysis.metrics.regroup import window
from ringlight.experiments.analysis.statistics import median
from ringlight.experiments.language.light_events import moving_events
from ringlight.experiments.record.events import Iteration
from ringlight.experiments.record.runs import Action, JobRun
from ringlight.fabric.parts import Port

#: What is done to something, so that there is something to recover from.
FAULTS = ("kill", "cut", "lose")
#: What becomes of iterations when nothing else is said.
_QUIET = ("cancel", "start")
#: An iteration may end with the event that its end brings about, but for rounding.
_SAME_S = 1e-9
_WHEN = ("before", "during", "after")


def when(action: Action, it: Iteration) -> str:
    """Return ``before``, ``during`` or ``after``: when an iteration ran, relative to an event."""
    begin, end = window(action)
    if it.allreduce_end <= begin + _SAME_S:
        return "before"
    return "after" if it.compute_start >= end - _SAME_S else "during"


def under(context: Context, action: Action, job: JobRun) -> bool:
    """Return whether the job ran when the event came."""
    if job.released is None or job.end is None or action.begun <= context.run.released:
        return False
    return job.released <= action.begun <= job.end + _SAME_S


def hit(context: Context, action: Action, job: JobRun) -> bool:
    """Return whether the target of an event was the job's: its worker, a GPU of it, or a part that its
    messages pass.

    If it is not known what messages pass, every switch and device counts as every job's. Jobs continue
    without a controller or a server agent, so these count as no job's.
    """
    target, fabric = action.plan.target, context.run.plan.setting.fabric
    if target is None or target.kind in ("controller", "server agent"):
        return False
    if target.kind == "worker":
        return target.names[0] == job.name
    gpus = _gpus_at(job, action.begun)
    nodes = [Port.parse(name).node for name in target.names]
    if of_gpus := fabric.gpus.keys() & nodes:
        return bool(of_gpus & {*gpus})
    passed = _passed(context, action, job, gpus)
    if passed is None:
        return True
    if target.kind == "link":
        return bool(passed & set(map(Port.parse, target.names)))
    return nodes[0] in {port.node for port in passed}


def _gpus_at(job: JobRun, moment: float) -> Sequence[str]:
    """Return the GPUs of a job in rank order at a moment of the lab's clock."""
    return next(
        (back.gpus for back in reversed(job.recoveries) if back.t <= moment), job.gpus
    )


def _passed(
    context: Context, action: Action, job: JobRun, gpus: Sequence[str]
) -> set[Port] | None:
    """Return every port that a job's messages pass as it is lit when an event comes; None if unknown."""
    run = context.run
    moved = any(
        other.plan.do in moving_events() and other.begun < action.begun
        for other in run.actions
    )
    view = context.view if moved else context.view_before
    edge_of = {edge.out: edge for edge in view.graph.edges}
    ports: set[Port] = set()
    try:
        for source, destination in pairs(job.plan, gpus):
            for hop in view.router.path(source, destination):
                ports.update(edge_of[hop.out].path)
    except ValueError:
        return None
    return ports


_ITERATIONS = {
    f"iteration_longest_{word}": f"Longest iteration {word} the event" for word in _WHEN
} | {
    f"iteration_{word}": f"Iteration time {word} the event: median over ranks and iterations"
    for word in _WHEN
}


@metric("s", of="event job", makes=_ITERATIONS)
def around(context: Context, action: Action, job: JobRun) -> Mapping[str, float | None]:
    """Return iteration times before, during and after an event, seconds by metric; empty if the job did
    not run then."""
    if action.plan.do in _QUIET or not under(context, action, job):
        return {}
    times_by_name: dict[str, float | None] = {}
    for word in _WHEN:
        times = [it.whole_s for it in job.iterations if when(action, it) == word]
        times_by_name[f"iteration_{word}"] = median(times)
        times_by_name[f"iteration_longest_{word}"] = max(times, default=None)
    return times_by_name


@metric("s", of="event job")
def recovery(context: Context, action: Action, job: JobRun) -> float | None:
    """From a fault of a part that the job used to the end of the next iteration of all ranks.

    Return seconds; None if the event is not a fault that hit the running job, or no iteration followed.
    """
    if (
        action.plan.do not in FAULTS
        or not under(context, action, job)
        or not hit(context, action, job)
    ):
        return None
    begin, _ = window(action)
    ends = (max(it.allreduce_end for it in group) for group in job.by_index)
    return min((end - begin for end in ends if end > begin + _SAME_S), default=None)


@metric("s", of="job", unscaled=True)
def recovery_assumed(_: Context, job: JobRun) -> float | None:
    """Longest time from a loss to going on that a simulation took by default, without `recovery`.

    Return seconds; None if no time was assumed.
    """
    return max(
        (back.assumed_s for back in job.recoveries if back.assumed_s is not None),
        default=None,
    )


_LOST = {
    "iterations_lost": "Iterations that some rank had done and the job did once more",
    "gpus_lost": "GPUs that were lost under the job",
}


@metric("count", of="job", makes=_LOST)
def lost(_: Context, job: JobRun) -> Mapping[str, int]:
    """Return the counts of GPUs and iterations that a job lost before it continued, by metric; empty
    without losses."""
    if not (job.losses or job.recoveries):
        return {}
    counts = {"iterations_lost": len({it.i for it in job.redone})}
    return counts | ({"gpus_lost": len(job.losses)} if job.losses else {})
