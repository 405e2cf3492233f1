"""How long jobs and their iterations took, what the models say of that, and what was learnt."""

from __future__ import annotations

import statistics

from experiments.analysis.metrics import Context, metric
from experiments.analysis.prediction import ideal_all_reduce_s
from experiments.analysis.setups import set_up_times
from experiments.record.events import WorkerDone
from experiments.record.runs import JobRun


@metric("", of="job")
def state(_: Context, job: JobRun) -> str | None:
    """What became of the job."""
    return job.state or None


@metric("s", of="job")
def jct(_: Context, job: JobRun) -> float | None:
    """Job completion time: from the job's release to the end of its last iteration."""
    return job.jct_s


@metric("count", of="job")
def iterations(_: Context, job: JobRun) -> int:
    """Iterations that all ranks have done."""
    return len(job.by_index)


@metric("s", of="job")
def iteration(_: Context, job: JobRun) -> float | None:
    """Iteration time: median over ranks and iterations."""
    times = [it.allreduce_end - it.compute_start for it in job.iterations]
    return statistics.median(times) if times else None


@metric("s", of="job")
def allreduce(_: Context, job: JobRun) -> float | None:
    """All-reduce time: median over ranks and iterations, waiting for slower ranks included."""
    return statistics.median(it.all_reduce_s for it in job.iterations) if job.iterations else None


def exchanges(job: JobRun) -> list[float]:
    """Seconds of each all-reduce alone: from the end of the last rank's compute to the last rank's end."""
    return [
        max(it.allreduce_end for it in group) - max(it.compute_end for it in group) for group in job.by_index
    ]


@metric("s", of="job")
def exchange(_: Context, job: JobRun) -> float | None:
    """All-reduce alone, from the last rank's end of compute to the last's end: median over iterations."""
    return statistics.median(exchanges(job)) if job.iterations else None


@metric("s", of="job", analytic=True)
def allreduce_ideal(context: Context, job: JobRun) -> float | None:
    """All-reduce with every NIC, or lightpath, at its full rate and no waiting."""
    if not job.gpus:
        return None
    return ideal_all_reduce_s(context.run.plan.setting, job.plan, job.gpus)


@metric("1", of="job")
def allreduce_over_ideal(context: Context, job: JobRun) -> float | None:
    """All-reduce time over the ideal one."""
    took, ideal = allreduce(context, job), allreduce_ideal(context, job)
    return took / ideal if took is not None and ideal else None


@metric("s", of="job", analytic=True)
def allreduce_predicted(context: Context, job: JobRun) -> float | None:
    """All-reduce time by the model, without set-ups."""
    found = context.predicted.get(job.name)
    return found.all_reduce_s if found else None


@metric("s", of="job", analytic=True)
def jct_predicted(context: Context, job: JobRun) -> float | None:
    """Job completion time by the model, without set-ups."""
    found = context.predicted.get(job.name)
    return found.jct_s if found else None


@metric("s", of="job", analytic=True)
def jct_predicted_with_setup(context: Context, job: JobRun) -> float | None:
    """Job completion time by the model, each wait for light as long as the run's median set-up."""
    found, times = context.predicted.get(job.name), set_up_times(context.run)
    if found is None or not times:
        return None
    return found.jct_s + job.plan.iterations * found.set_ups * statistics.median(times)


@metric("1", of="job")
def jct_over_model(context: Context, job: JobRun) -> float | None:
    """Job completion time over the model's, without set-ups."""
    took, model = job.jct_s, jct_predicted(context, job)
    return took / model if took is not None and model else None


def _rank_0(job: JobRun) -> WorkerDone | None:
    return job.done.get(0)


@metric("1", of="job")
def accuracy(_: Context, job: JobRun) -> float | None:
    """Share of samples told right at the end."""
    done = _rank_0(job)
    return done.accuracy if done else None


@metric("1", of="job")
def loss_first(_: Context, job: JobRun) -> float | None:
    """Loss in the first iteration."""
    done = _rank_0(job)
    return done.loss_first if done else None


@metric("1", of="job")
def loss_last(_: Context, job: JobRun) -> float | None:
    """Loss in the last iteration."""
    done = _rank_0(job)
    return done.loss_last if done else None
