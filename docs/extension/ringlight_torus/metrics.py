"""What an all-reduce asks of the torus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.record.runs import JobRun
from ringlight.fabric.algorithms import steps_named

_TORUS = {
    "torus_links": "Links of the torus that a transfer of an all-reduce passes, on average",
    "torus_shared": "Transfers of one step on the busiest link of the torus, one way",
}


@metric("count", of="job", known="analytic", makes=_TORUS)
def torus(context: Context, job: JobRun) -> Mapping[str, float]:
    """Return both for a job that trains on a torus, by metric; empty for other jobs."""
    if "torus" not in context.run.plan.setting.fabric.parts or not job.gpus or job.plan.training is None:
        return {}
    router = context.view_before.router
    links, busiest = [], 0
    for step in steps_named(job.plan.loop.collective, len(job.gpus)):
        pairs = set(zip(step.sources.tolist(), step.destinations.tolist(), strict=True))
        # The first and the last link of a path are those of GPUs.
        ways = [router.path(job.gpus[a], job.gpus[b])[1:-1] for a, b in pairs]
        links += [len(way) for way in ways]
        busiest = max(busiest, *Counter(hop.out for way in ways for hop in way).values())
    return {"torus_links": sum(links) / len(links), "torus_shared": busiest}
