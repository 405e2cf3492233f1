"""Times of jobs and iterations, measured and modelled, and the bandwidths that follow."""

from __future__ import annotations

from collections.abc import Mapping

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.analysis.prediction import ideal_all_reduce_s
from ringlight.experiments.analysis.statistics import median
from ringlight.experiments.record.events import JobsComputed
from ringlight.experiments.record.runs import JobRun


@metric("", of="job")
def state(_: Context, job: JobRun) -> str | None:
    """Final state of the job.

    Return None if the state is not known.
    """
    return job.state or None


@metric("s", of="job")
def jct(_: Context, job: JobRun) -> float | None:
    """Job completion time: from the job's release to the end of its last iteration.

    Return seconds; None if the job has not completed.
    """
    return job.jct_s


@metric("s", of="job", unscaled=True)
def jct_real(context: Context, job: JobRun) -> float | None:
    """Job completion time in real time, if the scale changes it.

    Return seconds; None if the job has not completed or the scale is 1.
    """
    scale = context.run.plan.setting.scale.time
    return None if job.jct_s is None or scale == 1 else job.jct_s / scale


@metric("count", of="job")
def iterations(context: Context, job: JobRun) -> int | None:
    """Iterations that all ranks have done.

    Return the count; None for guests, all-reduces alone and jobs that their source computed together.
    """
    if any(isinstance(record, JobsComputed) for record in context.run.records):
        return None
    return len(job.by_index) if job.timed is None and job.plan.guest is None else None


@metric("s", of="job")
def iteration(_: Context, job: JobRun) -> float | None:
    """Iteration time: median over ranks and iterations.

    Return seconds; None without iterations.
    """
    return median(it.whole_s for it in job.iterations)


@metric("s", of="job")
def allreduce(_: Context, job: JobRun) -> float | None:
    """All-reduce time: median over ranks and iterations, waiting for slower ranks included.

    Return seconds; None if the job does not train or has no iterations.
    """
    if job.timed is not None:
        return job.timed.total_s
    return (
        median(it.all_reduce_s for it in job.iterations)
        if job.plan.training is not None
        else None
    )


def exchanges(job: JobRun) -> list[float]:
    """Return the seconds of each all-reduce alone: from the end of the last rank's compute to the last
    rank's end."""
    return [
        max(it.allreduce_end for it in group) - max(it.compute_end for it in group)
        for group in job.by_index
    ]


@metric("s", of="job")
def exchange(_: Context, job: JobRun) -> float | None:
    """All-reduce alone, from the last rank's end of compute to the last's end: median over iterations.

    Return seconds; None if the job does not train or has no iterations.
    """
    return median(exchanges(job)) if job.plan.training is not None else None


_OVER = {
    "allreduce_over_ideal": "All-reduce time over the ideal one",
    "jct_over_model": "Job completion time over the model's, without set-ups",
}
_MODELS = {
    "allreduce_ideal": "All-reduce with every NIC, or lightpath, at its full rate and no waiting",
    "allreduce_predicted": "All-reduce time by the model, without set-ups",
    "jct_predicted": "Job completion time by the model, without set-ups",
    "jct_predicted_with_setup": "Job completion time by the model, each wait for a lightpath as long as the run's "
    "median set-up",
}


@metric("1", of="job", makes=_OVER)
@metric("s", of="job", known="analytic", makes=_MODELS)
def by_model(context: Context, job: JobRun) -> Mapping[str, float]:
    """Return predictions of the models for a training job that had GPUs, and measured figures over these,
    by metric."""
    if not job.gpus or job.plan.training is None:
        return {}
    ideal_s, took_s = (
        ideal_all_reduce_s(context.run.plan.setting, job.plan, job.gpus),
        allreduce(context, job),
    )
    values = {"allreduce_ideal": ideal_s}
    if took_s is not None and ideal_s:
        values["allreduce_over_ideal"] = took_s / ideal_s
    if model := context.predicted.get(job.name):
        values |= {
            "allreduce_predicted": model.all_reduce_s,
            "jct_predicted": model.jct_s,
        }
        if job.jct_s is not None and model.jct_s:
            values["jct_over_model"] = job.jct_s / model.jct_s
        if (set_up_s := median(context.set_up_times)) is not None:
            waits_s = job.plan.iterations * model.set_ups * set_up_s
            values["jct_predicted_with_setup"] = model.jct_s + waits_s
    return values


@metric("s", of="job", known="simulated")
def jct_simulated(context: Context, job: JobRun) -> float | None:
    """Job completion time by a simulation of the measured run, with its start-up times of later jobs.

    Return seconds; None without a simulation.
    """
    return (
        context.foretold.jct_s.get(job.name) if context.foretold is not None else None
    )


_BY_PHASE = {
    "jct_phase_least": "Shortest job completion time of simulations in which later jobs begin at other "
    "moments of an iteration",
    "jct_phase_most": "Longest job completion time of simulations in which later jobs begin at other "
    "moments of an iteration",
}


@metric("s", of="job", known="simulated", makes=_BY_PHASE)
def jct_by_phase(context: Context, job: JobRun) -> Mapping[str, float]:
    """Return least and greatest completion time of a job, seconds by metric, if the start of later jobs
    decides it."""
    span = context.phases.get(job.name)
    return {} if span is None else dict(zip(_BY_PHASE, span, strict=True))


@metric("1", of="job")
def jct_over_simulated(context: Context, job: JobRun) -> float | None:
    """Job completion time over that of a simulation of the same run.

    Return the ratio; None if one of the times is unknown.
    """
    simulated_s = jct_simulated(context, job)
    return job.jct_s / simulated_s if job.jct_s is not None and simulated_s else None


@metric("bit/s", of="job")
def algbw(context: Context, job: JobRun) -> float | None:
    """Algorithm bandwidth: the gradient's size over the time of the all-reduce.

    Return bits per second; None without an all-reduce.
    """
    # As nccl-tests define it; as emulated, of the all-reduce alone.
    took_s = exchange(context, job)
    return 8 * job.plan.loop.gradient_bytes / took_s if took_s else None


@metric("bit/s", of="job")
def busbw(context: Context, job: JobRun) -> float | None:
    """Bus bandwidth: `algbw` times 2 (n-1)/n for n ranks; if the network itself sums, the rate of the bytes sent.

    Return bits per second; None without an all-reduce.
    """
    algorithm_bps: float | None = algbw(context, job)
    if algorithm_bps is None:
        return None
    plane = job.plan.plane(context.run.plan.setting.fabric, job.gpus)
    return algorithm_bps * plane.times.bus_factor(
        len(job.gpus), job.plan.loop.gradient_bytes
    )
