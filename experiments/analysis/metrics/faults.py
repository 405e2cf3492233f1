"""What an event under running jobs does to them: iterations before, during and after, and what is lost."""

from __future__ import annotations

import statistics

from experiments.analysis.metrics import Context, metric
from experiments.analysis.metrics.regroup import window
from experiments.record.events import Iteration
from experiments.record.runs import Action, JobRun

#: What is done to something, so that there is something to recover from.
FAULTS = ("kill", "cut", "lose")
#: What becomes of iterations when nothing else is said.
_QUIET = ("cancel", "start")
#: An iteration may end with the event that its end brings about, but for rounding.
_SAME_S = 1e-9


@metric("s", of="event")
def away(_: Context, action: Action) -> float | None:
    """From the kill until what was killed is back."""
    if action.plan.do != "kill" or action.ended is None or action.error is not None:
        return None
    begin, end = window(action)
    return end - begin


def when(action: Action, it: Iteration) -> str:
    """before, during or after the event."""
    begin, end = window(action)
    if it.allreduce_end <= begin + _SAME_S:
        return "before"
    return "after" if it.compute_start >= end - _SAME_S else "during"


def under(context: Context, action: Action, job: JobRun) -> bool:
    """Whether the job ran when the event came."""
    if job.released is None or job.end is None or action.begun <= context.run.released:
        return False
    return job.released <= action.begun <= job.end + _SAME_S


def _times(context: Context, action: Action, job: JobRun, wanted: str) -> list[float]:
    if action.plan.do in _QUIET or not under(context, action, job):
        return []
    return [it.allreduce_end - it.compute_start for it in job.iterations if when(action, it) == wanted]


def _register(wanted: str) -> None:
    def usual(context: Context, action: Action, job: JobRun) -> float | None:
        times = _times(context, action, job, wanted)
        return statistics.median(times) if times else None

    def longest(context: Context, action: Action, job: JobRun) -> float | None:
        return max(_times(context, action, job, wanted), default=None)

    said = f"{wanted} the event"
    what = f"Iteration time {said}: median over ranks and iterations"
    metric("s", of="event job", name=f"iteration_{wanted}", help=what)(usual)
    metric("s", of="event job", name=f"iteration_longest_{wanted}", help=f"Longest iteration {said}")(longest)


for _when in ("before", "during", "after"):
    _register(_when)


@metric("s", of="event job")
def recovery(context: Context, action: Action, job: JobRun) -> float | None:
    """From the fault to the end of the next iteration of all ranks."""
    if action.plan.do not in FAULTS or not under(context, action, job):
        return None
    begin, _ = window(action)
    ends = (max(it.allreduce_end for it in group) for group in job.by_index)
    return min((end - begin for end in ends if end > begin + _SAME_S), default=None)


@metric("count", of="job")
def iterations_lost(_: Context, job: JobRun) -> int | None:
    """Iterations that some rank had done and the job did once more."""
    return len({it.i for it in job.redone}) if job.losses or job.recoveries else None


@metric("count", of="job")
def gpus_lost(_: Context, job: JobRun) -> int | None:
    """GPUs that were lost under the job."""
    return len(job.losses) or None
