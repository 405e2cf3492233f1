"""Bandwidth of the all-reduce as nccl-tests define it; as emulated, of the all-reduce alone."""

from __future__ import annotations

from experiments.analysis.metrics import Context, metric
from experiments.analysis.metrics.training import exchange
from experiments.record.runs import JobRun


@metric("bit/s", of="job")
def algbw(context: Context, job: JobRun) -> float | None:
    """Algorithm bandwidth: the gradient's size over the time of the all-reduce."""
    took_s = exchange(context, job)
    return 8 * job.plan.gradient_bytes / took_s if took_s else None


@metric("bit/s", of="job")
def busbw(context: Context, job: JobRun) -> float | None:
    """Bus bandwidth: 2 (n-1)/n times the algorithm bandwidth, for n ranks."""
    found, n = algbw(context, job), len(job.gpus)
    return 2 * (n - 1) / n * found if found is not None else None
