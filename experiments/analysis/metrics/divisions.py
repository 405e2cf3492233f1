"""A ring whose wavelengths are divided anew by demand while a job runs."""

from __future__ import annotations

from experiments.analysis.metrics import Context, metric
from experiments.record.events import Divisions
from experiments.record.runs import JobRun


def _of(context: Context, job: JobRun) -> Divisions | None:
    return next((record for record in context.run.of(Divisions) if record.job == job.name), None)


@metric("count", of="job")
def divisions(context: Context, job: JobRun) -> int | None:
    """How often a ring's wavelengths were divided anew while the job ran."""
    found = _of(context, job)
    return None if found is None else found.decisions


@metric("s", of="job")
def divisions_dark(context: Context, job: JobRun) -> float | None:
    """Time in which bytes under way waited in the dark because light was retuned, all divisions together."""
    found = _of(context, job)
    return None if found is None else found.dark_s
