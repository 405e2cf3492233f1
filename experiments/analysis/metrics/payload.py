"""Bytes of gradients that workers sent and received, headers left out."""

from __future__ import annotations

from experiments.analysis.metrics import Context, metric
from experiments.record.events import WorkerDone
from experiments.record.runs import Run


def _done(run: Run) -> list[WorkerDone]:
    return [done for job in run.jobs.values() for done in job.done.values()]


@metric("payload_sent", "bytes", "payload that the ranks sent")
def payload_sent(context: Context) -> int | None:
    done = _done(context.run)
    return sum(record.bytes_sent for record in done) if done else None


@metric("payload_received", "bytes", "payload that the ranks received")
def payload_received(context: Context) -> int | None:
    done = _done(context.run)
    return sum(record.bytes_received for record in done) if done else None


@metric("payload_lost", "bytes", "payload that was sent and not received, once all ranks have ended")
def payload_lost(context: Context) -> int | None:
    done = _done(context.run)
    if not done or len(done) < sum(len(job.gpus) for job in context.run.jobs.values()):
        return None
    return sum(record.bytes_sent - record.bytes_received for record in done)


@metric("retransmits", "count", "TCP segments that the ranks sent again")
def retransmits(context: Context) -> int | None:
    done = _done(context.run)
    return sum(record.retransmits for record in done) if done else None
