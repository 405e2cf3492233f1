"""Compute the share of the time for which GPUs were busy, by each definition of ``fabric.utilisation``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.analysis.prediction import ideal_all_reduce_s
from ringlight.experiments.record.runs import JobRun
from ringlight.fabric.utilisation import DEFINITIONS, Activity, mean_share

#: Seconds of computing, in the collective, and of these while bytes moved: one iteration of one GPU.
Span = tuple[float, float, float]
#: Compares with another run, so no metric of one: a comparison makes it.
WINDOW = "window"
#: Definitions that suppose what no run shows.
_SUPPOSED = ("full_rate", "overlap")


def _descriptions(names: Iterable[str]) -> dict[str, str]:
    """Return the descriptions of utilisation by some definitions, by metric."""
    words = "Share of the job's time that its GPUs were busy, if busy means"
    return {
        f"gpu_utilisation.{name}": f"{words} {DEFINITIONS[name].title}"
        for name in names
    }


@metric("1", of="job")
def gpu_utilisation(_: Context, job: JobRun) -> float | None:
    """Share of the job's time that its GPUs computed: mean over GPUs.

    Return the share (0..1); None for guests and jobs that have not completed.
    """
    if not job.jct_s or job.plan.guest is not None:
        return None
    return sum(it.compute_s for it in job.iterations) / (len(job.gpus) * job.jct_s)


def activity(spans: Iterable[Span], full_rate_s: float, total_s: float) -> Activity:
    """Return the sum of the spans of one GPU. ``full_rate_s``: seconds of one collective at the port's
    full rate."""
    listed = list(spans)
    return Activity(
        compute_s=math.fsum(compute for compute, _, _ in listed),
        exchange_s=math.fsum(exchange for _, exchange, _ in listed),
        moving_s=math.fsum(moving for _, _, moving in listed),
        full_rate_s=len(listed) * full_rate_s,
        overlapped_s=math.fsum(
            max(compute, exchange) for compute, exchange, _ in listed
        ),
        total_s=total_s,
        window_s=total_s,
    )


@metric(
    "1",
    of="job",
    makes=_descriptions(
        name for name in DEFINITIONS if name not in (WINDOW, *_SUPPOSED)
    ),
)
@metric("1", of="job", known="analytic", makes=_descriptions(_SUPPOSED))
def by_definition(context: Context, job: JobRun) -> Mapping[str, float]:
    """Return the utilisation (0..1) of a finished training job by each definition, by metric; empty for other
    jobs.

    Bytes do not move in the pauses that a worker reports (20 ms and more).
    """
    if not job.jct_s or job.plan.training is None:
        return {}
    full_rate_s = ideal_all_reduce_s(context.run.plan.setting, job.plan, job.gpus)
    spans: list[list[Span]] = [[] for _ in job.gpus]
    for it in job.iterations:
        still_s = math.fsum(end - begin for begin, end in it.stalls)
        spans[it.rank].append(
            (it.compute_s, it.all_reduce_s, max(0.0, it.all_reduce_s - still_s))
        )
    gpus = [activity(of_rank, full_rate_s, job.jct_s) for of_rank in spans]
    return {
        f"gpu_utilisation.{name}": mean_share(definition, gpus)
        for name, definition in DEFINITIONS.items()
    }
