"""Bytes of gradients that workers sent and received, headers left out."""

from __future__ import annotations

from experiments.analysis.metrics import Context, metric
from experiments.record.events import WorkerDone
from experiments.record.runs import Run


def _sum(run: Run, field: str) -> int | None:
    done = run.of(WorkerDone)
    return sum(getattr(record, field) for record in done) if done else None


@metric("bytes")
def payload_sent(context: Context) -> int | None:
    """Payload that the ranks sent."""
    return _sum(context.run, "bytes_sent")


@metric("bytes")
def payload_received(context: Context) -> int | None:
    """Payload that the ranks received."""
    return _sum(context.run, "bytes_received")


@metric("bytes")
def payload_lost(context: Context) -> int | None:
    """Payload that was sent and not received, once all ranks have ended."""
    sent, received = _sum(context.run, "bytes_sent"), _sum(context.run, "bytes_received")
    ranks = sum(len(job.gpus) for job in context.run.jobs.values())
    if sent is None or received is None or len(context.run.of(WorkerDone)) < ranks:
        return None
    return sent - received


@metric("count")
def retransmits(context: Context) -> int | None:
    """TCP segments that the ranks sent again."""
    return _sum(context.run, "retransmits")
