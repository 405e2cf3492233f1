"""Report the final state of workers: parameters, connections, payload. A simulation trains nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.record.events import WorkerDone
from ringlight.experiments.record.runs import SUCCEEDED, JobRun


def identical(job: JobRun) -> bool:
    """Return whether all ranks ended with the same parameters, bit by bit, as the one-process reference.

    False also if the hash of a rank or of the reference is missing, because equality was not shown.
    """
    hashes = {done.parameters_sha256 for done in job.done.values()}
    return len(job.done) == len(job.last_gpus) and hashes == {job.reference}


@metric("", of="job")
def parameters_identical(context: Context, job: JobRun) -> bool | None:
    """All ranks' parameters and one process's agree bit by bit.

    Return whether they do; None in a simulation, or if the job does not train or did not succeed.
    """
    if context.simulated or job.state != SUCCEEDED or job.plan.training is None:
        return None
    return identical(job)


@metric("count", of="job")
def results_checked(_: Context, job: JobRun) -> int | None:
    """Parts of results of a workload's collectives and messages, each compared with its expected value.

    Return the count; None if no rank reported one.
    """
    counts = [
        done.results_checked
        for done in job.done.values()
        if done.results_checked is not None
    ]
    return sum(counts) if counts else None


_LEARNT = {
    "accuracy": "Share of samples classified correctly at the end",
    "loss_first": "Loss in the first iteration",
    "loss_last": "Loss in the last iteration",
}


@metric("1", of="job", makes=_LEARNT)
@metric(
    "",
    of="job",
    makes={"parameters_sha256": "SHA-256 of the parameters of rank 0 at the end"},
)
def of_rank_0(_: Context, job: JobRun) -> Mapping[str, Any]:
    return vars(job.done[0]) if 0 in job.done else {}


def _table(connections: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((c["peer"], c["local_port"], c["remote_port"]) for c in connections)


@metric("", of="job")
def connections_unchanged(context: Context, job: JobRun) -> bool | None:
    """Every rank ended with the TCP connections it began with.

    Return whether it did; None in a simulation, for guests, after a recovery, or if the job did not
    succeed.
    """
    if (
        context.simulated
        or job.state != SUCCEEDED
        or job.recoveries
        or job.plan.guest is not None
    ):
        return None
    return len(job.done) == len(job.gpus) and all(
        rank in job.ready
        and _table(job.ready[rank].connections) == _table(done.connections)
        for rank, done in job.done.items()
    )


_PAYLOAD = {
    "payload_sent": "Payload that the ranks sent",
    "payload_received": "Payload that the ranks received",
    "payload_lost": "Payload that was sent and not received, once all ranks have ended",
}


@metric("count", makes={"retransmits": "TCP segments that the ranks sent again"})
@metric("bytes", makes=_PAYLOAD)
def payload(context: Context) -> Mapping[str, int]:
    """Return bytes of gradients without headers, and segments that TCP sent again, by metric; empty
    without reports."""
    done = context.run.of(WorkerDone)
    if not done:
        return {}
    sent, received = (
        sum(rank.bytes_sent for rank in done),
        sum(rank.bytes_received for rank in done),
    )
    values = {"payload_sent": sent, "payload_received": received}
    values["retransmits"] = sum(rank.retransmits for rank in done)
    if len(done) >= sum(len(job.gpus) for job in context.run.jobs.values()):
        values["payload_lost"] = sent - received
    return values
