"""Figures of jobs that came through Slurm, and of the same jobs simulated by its rule."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.record.runs import JobRun, Run
from ringlight.extensions.slurm.experiment_records import SlurmJob


def slurm_job(run: Run | None, name: str) -> SlurmJob | None:
    """Return a job as Slurm knew it at its end; None if it has not ended, or came by another way."""
    return None if run is None else next(iter(run.of(SlurmJob, name)), None)


def _simulated(context: Context) -> Run | None:
    """Return the simulation of a measured run; None in a simulation."""
    return None if context.foretold is None else context.foretold.run


def _there(job: SlurmJob) -> float:
    return job.freed - job.submitted


@metric(
    "s",
    of="job",
    makes={
        "slurm_waited": "From the submission of a job to Slurm until Slurm gave it nodes"
    },
    column="in Slurm's queue",
)
@metric(
    "s",
    of="job",
    makes={
        "slurm_ran": "From when Slurm gave a job its nodes until it had them back",
        "slurm_completion": "From the submission of a job to Slurm until its nodes were free again",
    },
)
@metric(
    "s",
    of="job",
    known="simulated",
    makes={
        "slurm_waited_simulated": "From the submission of a job until it has nodes, simulated by Slurm's rule",
        "slurm_completion_simulated": "From the submission of a job until its nodes are free again, "
        "simulated by Slurm's rule",
    },
)
def slurm_times(context: Context, job: JobRun) -> dict[str, float]:
    """Return the times of a job that ended in Slurm, and of a measured job in its simulation, seconds."""
    times: dict[str, float] = {}
    runs = {"": context.run, "_simulated": _simulated(context)}
    for suffix, run in runs.items():
        if (in_slurm := slurm_job(run, job.name)) is not None:
            times |= {
                f"slurm_waited{suffix}": in_slurm.allocated - in_slurm.submitted,
                f"slurm_ran{suffix}": in_slurm.freed - in_slurm.allocated,
                f"slurm_completion{suffix}": _there(in_slurm),
            }
    return times


@metric("count", of="job")
def slurm_switches(context: Context, job: JobRun) -> float | None:
    """Packet switches to which the GPUs of a job in Slurm were lit when it began.

    Return their number; None for a job that did not end in Slurm.
    """
    in_slurm = slurm_job(context.run, job.name)
    return None if in_slurm is None else len(in_slurm.switches)


@metric("s")
def slurm_completion_mean(context: Context) -> float | None:
    """From the submission of a job to Slurm until its nodes were free again, mean over the jobs.

    Return seconds; None if no job came through Slurm.
    """
    return _mean(context.run, _there)


@metric("1")
def slurm_completion_over_simulated(context: Context) -> float | None:
    """Mean completion time of a run's jobs in Slurm, over the mean of its simulation.

    Return the ratio; None in a simulation.
    """
    measured_s, simulated_s = (
        _mean(context.run, _there),
        _mean(_simulated(context), _there),
    )
    return measured_s / simulated_s if measured_s and simulated_s else None


@metric("count")
def slurm_other_nodes(context: Context) -> int | None:
    """Jobs that Slurm gave other nodes than the simulation of the run does.

    Return the count; None in a simulation.
    """
    simulated = _simulated(context)
    pairs = [
        (slurm_job(context.run, name), slurm_job(simulated, name))
        for name in context.run.jobs
    ]
    both = [(mine, other) for mine, other in pairs if mine and other]
    return sum(mine.nodes != other.nodes for mine, other in both) if both else None


@metric("count")
def slurm_spanning(context: Context) -> int | None:
    """Jobs in Slurm whose GPUs were lit to more than one packet switch when they began.

    Return the count; None if no job came through Slurm.
    """
    jobs = context.run.of(SlurmJob)
    return sum(len(job.switches) > 1 for job in jobs) if jobs else None


def _mean(run: Run | None, value: Callable[[SlurmJob], float]) -> float | None:
    jobs = [] if run is None else run.of(SlurmJob)
    return fmean(map(value, jobs)) if jobs else None
