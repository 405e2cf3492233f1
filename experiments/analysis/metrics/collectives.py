"""All-reduces that were computed by themselves."""

from __future__ import annotations

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.record.runs import JobRun


@metric("count", of="job")
def steps(_: Context, job: JobRun) -> int | None:
    """Steps of an all-reduce that is all of a job.

    Return the count; None for other jobs.
    """
    return job.timed.steps if job.timed is not None else None


@metric("count", of="job")
def wavelengths_lit(_: Context, job: JobRun) -> int | None:
    """Wavelengths that the job uses in each direction.

    Return the count; None if the job is not an all-reduce alone.
    """
    return job.timed.wavelengths if job.timed is not None else None
