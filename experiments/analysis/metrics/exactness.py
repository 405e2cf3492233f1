"""Whether what was trained is bit by bit what it should be. A simulation trains nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.analysis.metrics import Context, metric
from experiments.record.runs import SUCCEEDED, JobRun


def identical(job: JobRun) -> bool:
    """Whether all ranks ended with the same parameters, bit by bit, equal to the one-process reference.

    False too when a rank's or the reference's hash is missing: what was not shown is not claimed.
    """
    hashes = {done.parameters_sha256 for done in job.done.values()}
    return len(job.done) == len(job.last_gpus) and hashes == {job.reference}


@metric("", of="job")
def parameters_identical(context: Context, job: JobRun) -> bool | None:
    """All ranks' parameters and one process's agree bit by bit."""
    return None if context.simulated or job.state != SUCCEEDED else identical(job)


@metric("", of="job")
def parameters_sha256(_: Context, job: JobRun) -> str | None:
    """SHA-256 of the parameters of rank 0 at the end."""
    return job.done[0].parameters_sha256 if 0 in job.done else None


def _table(connections: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((c["peer"], c["local_port"], c["remote_port"]) for c in connections)


@metric("", of="job")
def connections_unchanged(context: Context, job: JobRun) -> bool | None:
    """Every rank ended with the TCP connections it began with."""
    if context.simulated or job.state != SUCCEEDED or job.recoveries:
        return None
    return len(job.done) == len(job.gpus) and all(
        rank in job.ready and _table(job.ready[rank].connections) == _table(done.connections)
        for rank, done in job.done.items()
    )
