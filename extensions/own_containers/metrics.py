"""Jobs that run containers of somebody else's: how they ended, and what went over the links meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.language.light_events import moving_events
from ringlight.experiments.record.runs import JobRun


@metric("count", of="job")
def commands_failed(_: Context, job: JobRun) -> int | None:
    """Ranks whose command did not end with exit code 0.

    Return the count; None for jobs without containers.
    """
    if job.plan.guest is None:
        return None
    # One of which no end is on record did not end with 0 either.
    return len(job.gpus) - sum(end.exit_code == 0 for end in job.ends.values())


@metric("s", of="job", unscaled=True)
def start_spread(_: Context, job: JobRun) -> float | None:
    """From the start of the first rank's container to that of the last.

    Return seconds; None if no container was started.
    """
    times = [started.t for started in job.commands]
    return max(times) - min(times) if times else None


@metric("count", of="job")
def regroups_under(context: Context, job: JobRun) -> int | None:
    """Changes of light that were made while a job's containers ran.

    Return the count; None if the job has no containers, or has not begun or ended.
    """
    if job.plan.guest is None or job.released is None or job.end is None:
        return None
    moves = [
        action
        for action in context.run.actions
        if action.plan.do in moving_events() and action.error is None
    ]
    return sum(job.released <= action.begun <= job.end for action in moves)


_NICS = {
    "nic_sent": "Bytes of frames that the NICs of a job's containers sent",
    "nic_received": "Bytes of frames that they received",
}


@metric("bytes", of="job", makes=_NICS)
def nics(_: Context, job: JobRun) -> Mapping[str, int]:
    """Return the bytes at the GPUs' NICs, by metric; empty for jobs without containers and unless every
    rank reported."""
    if job.plan.guest is None or len(job.done) < len(job.gpus):
        return {}
    counts = [count for done in job.done.values() for count in done.wire_bytes.values()]
    return {
        "nic_sent": sum(sent for sent, _ in counts),
        "nic_received": sum(got for _, got in counts),
    }


@metric("bytes", of="traffic")
def link_bytes(_: Context, job: JobRun, link: Mapping[str, Any]) -> int:
    """Bytes of frames over one direction of a link while a job's containers ran, other jobs' among them.

    Return the bytes.
    """
    return int(link["bytes"])
