"""Continue a job that loses GPUs while it starts or runs. No I/O; times are passed in."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ringlight.controller.jobs.job import (
    LOST_PEER,
    Job,
    JobState,
    Loss,
    Rank,
    describe_failure,
    rank_of,
)


def lose(job: Job, dead_gpus: Collection[str], now: float) -> bool:
    """Return whether a job whose failure :func:`progress` found continues without the ranks that it lost.

    If it does, the ranks are recorded as lost, and the job is as before its workers were started.
    ``dead_gpus``: GPUs that the agent knows to be lost. ``now``: monotonic seconds.
    """
    begun = job.state is JobState.RUNNING or bool(job.losses)
    failed = [rank for rank in job.ranks if rank.failed]
    causes = [rank for rank in failed if rank.lost or rank.exit_code != LOST_PEER]
    if job.on_loss == "fail" or not causes or not all(rank.lost for rank in causes):
        return False
    # A worker that dies before it trains would do so elsewhere, unless it is known that its GPU is gone.
    if not begun and not all(rank.gpu in dead_gpus for rank in causes):
        return False
    for rank in job.ranks:
        if rank in causes or rank.gpu in dead_gpus:
            reason = describe_failure(rank) if rank.lost else f"GPU {rank.gpu} is lost"
            exit_times = [
                e["t"]
                for e in job.events
                if e.get("event") == "exited" and rank_of(job, e) is rank
            ]
            t_lost = min(exit_times, default=now)
            job.losses.append(Loss(rank.rank, rank.gpu, reason, t_lost, t_noticed=now))
            job.tell("lost", t_lost, rank=rank.rank, gpu=rank.gpu, reason=reason)
    job.error = None
    job.started = False
    job.t_first_failure = job.t_all_exited = None
    return True


def pending_losses(job: Job) -> list[Loss]:
    """Return the losses after which the job has not yet resumed."""
    return [loss for loss in job.losses if loss.ranks is None]


def go_on(
    job: Job, gpus: Sequence[str], iteration: int, stopped: float, now: float
) -> None:
    """Change a job for its continuation after its pending losses, on ``gpus`` in rank order, from
    ``iteration`` on.

    ``stopped``: time at which its other ranks had stopped. ``now``: present time. Both in monotonic seconds.
    """
    for loss in pending_losses(job):
        loss.t_stopped = stopped
        loss.spare = gpus[loss.rank] if len(gpus) == len(job.ranks) else None
        loss.ranks, loss.iteration, loss.t_recovering = list(gpus), iteration, now
    job.attempt += 1
    job.ranks = [Rank(rank, gpu) for rank, gpu in enumerate(gpus)]
    job.tell("recovering", now, iteration=iteration, ranks=list(gpus))


def note_start(job: Job, t_lit: float, started: float) -> None:
    """Record in a job's losses when its light was set and its workers were started (monotonic seconds)."""
    for loss in job.losses:
        if loss.t_released is None:
            loss.t_lit, loss.t_started = t_lit, started


def note_release(job: Job, t_released: float) -> None:
    """Record the release of a job at ``t_released`` (monotonic seconds), the first or after a loss."""
    if job.t_released is None:
        job.t_released = t_released
    waiting = [loss for loss in job.losses if loss.t_released is None]
    for loss in waiting:
        loss.t_released = t_released
    if waiting:
        job.tell("recovered", t_released, iteration=job.iteration, ranks=list(job.gpus))


def goes_by_itself(job: Job) -> bool:
    """Return whether a READY job begins without being released, because it is not on hold or was released
    before a loss.
    """
    return not job.hold or job.t_released is not None
