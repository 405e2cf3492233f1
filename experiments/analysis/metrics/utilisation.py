"""What part of the time GPUs were busy, by each definition of ``fabric.utilisation``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable

from experiments.analysis.metrics import Context, metric
from experiments.analysis.prediction import ideal_all_reduce_s
from experiments.record.runs import JobRun
from fabric.utilisation import DEFINITIONS, Activity, mean_share

#: Seconds of computing, in the collective, and of these while bytes moved: one iteration of one GPU.
Span = tuple[float, float, float]
#: Compares with another run, so no metric of one: a comparison makes it.
WINDOW = "window"
#: Definitions that suppose what no run shows.
_SUPPOSED = ("overlap", "full_rate")


@metric("1", of="job")
def gpu_utilisation(_: Context, job: JobRun) -> float | None:
    """Share of the job's time that its GPUs computed: mean over GPUs."""
    if not job.jct_s:
        return None
    return sum(it.compute_s for it in job.iterations) / (len(job.gpus) * job.jct_s)


def activity(spans: Iterable[Span], full_rate_s: float, total_s: float) -> Activity:
    """Of one GPU. ``full_rate_s``: what one collective takes at the port's full rate. The rest as there."""
    found = list(spans)
    return Activity(
        compute_s=math.fsum(compute for compute, _, _ in found),
        exchange_s=math.fsum(exchange for _, exchange, _ in found),
        moving_s=math.fsum(moving for _, _, moving in found),
        full_rate_s=len(found) * full_rate_s,
        overlapped_s=math.fsum(max(compute, exchange) for compute, exchange, _ in found),
        total_s=total_s,
        window_s=total_s,
    )


@functools.lru_cache(maxsize=1)
def activities(context: Context, job: JobRun) -> list[Activity]:
    """Of every GPU of a job that has ended, as recorded. Bytes stand still in the pauses that a worker
    reports (20 ms and more)."""
    assert job.jct_s is not None
    full_rate_s = ideal_all_reduce_s(context.run.plan.setting, job.plan, job.gpus)
    spans: list[list[Span]] = [[] for _ in job.gpus]
    for it in job.iterations:
        still_s = math.fsum(end - begin for begin, end in it.stalls)
        spans[it.rank].append((it.compute_s, it.all_reduce_s, max(0.0, it.all_reduce_s - still_s)))
    return [activity(of_rank, full_rate_s, job.jct_s) for of_rank in spans]


def _by_definition(name: str) -> Callable[[Context, JobRun], float | None]:
    def value(context: Context, job: JobRun) -> float | None:
        return mean_share(DEFINITIONS[name], activities(context, job)) if job.jct_s else None

    return value


for _name, _definition in DEFINITIONS.items():
    if _name != WINDOW:
        _what = f"Share of the job's time that its GPUs were busy, where busy is {_definition.title}"
        metric("1", of="job", analytic=_name in _SUPPOSED, name=f"gpu_utilisation.{_name}", help=_what)(
            _by_definition(_name)
        )
