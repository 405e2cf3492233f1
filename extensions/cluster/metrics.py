"""A trace that was replayed on a cluster: completion times of its jobs, and what the cluster did."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.analysis.rows import Value
from ringlight.experiments.record.runs import JobRun
from ringlight.extensions.cluster.plan import TracePlan
from ringlight.extensions.cluster.records import TraceReplayed, replay_in

_OF_TIMES = {
    "mean": "mean",
    "p50": "median",
    "p95": "95 % within",
    "p99": "99 % within",
}
_TIMES = {
    f"{name}_{short}": f"{what}, {words}"
    for name, what in (
        ("completion", "From a job's arrival in a trace to its end"),
        ("waited", "From a job's arrival in a trace until it has its GPUs"),
    )
    for short, words in _OF_TIMES.items()
} | {
    "dark_total": "Seconds for which jobs of a trace waited for moved circuits, summed over jobs"
}
_RATIOS = {
    f"completion_slowdown_{short}": f"From a job's arrival to its end over its ideal duration, {words}"
    for short, words in _OF_TIMES.items()
} | {
    "network_slowdown": "Run time of a trace's jobs over their ideal durations, weighted by work",
    "offered_load": "GPU seconds at ideal speed of a trace's counted jobs, per GPU second of the cluster",
    "gpus_held": "Share of GPU time that jobs of a trace held, from warm-up to the last arrival",
    "goodput": "Work done in the counted time, GPU seconds at ideal speed, over all GPU time",
    "scattered": "Share of the held GPU time of jobs that were on more switches than they need",
    "sustained": "Work done, over the work of an endless cluster in the same time",
    "stalled": "Share of the held GPU time in which jobs were paused by a fault",
    "servers_up": "Share of the servers' time in which they were up, as recorded",
    "slices_whole": "Share of slices whose servers are all up, mean over time",
    "slices_whole_95": "Share of slices whose servers are all up in 95 % of the time, as recorded",
    "slices_whole_95_binomial": "Share of slices whose servers are all up in 95 % of the time, if "
    "servers fail independently",
    "moves_per_100_jobs": "Regroupings per 100 jobs of a trace",
    "little_gap": "Distance from Little's law: jobs in the system over time, against their times in it",
}
_COUNTS = {
    "jobs_counted": "Jobs of a trace that arrived after the warm-up and ended",
    "jobs_warming_up": "Jobs that arrived during the warm-up; they are replayed and not counted",
    "jobs_censored": "Jobs that had not ended at the end of the replay; their times are not known",
    "jobs_dropped": "Jobs that were left out of a trace, for any reason",
    "fibres_moved_total": "Fibres that were moved to bring a trace's jobs together",
    "regroupings": "Number of times that fibres were moved for a job of a trace",
    "fault_hits": "Number of faults that affected a job of a trace",
    "gpus_swapped": "GPUs replaced by a spare over moved circuits",
    "rates_solved": "Number of times that rates of jobs that share links were recomputed",
    "trace_events": "Arrivals, ends and other moments of a replay",
}
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
#: What was changed, and not left out.
_KEPT = ("cut", "copied", "resampled")


def _figures(context: Context) -> Mapping[str, Value]:
    replay = next(iter(context.run.of(TraceReplayed)), None)
    if replay is None:
        return (
            _emulated(context) if isinstance(context.run.plan.source, TracePlan) else {}
        )
    dropped = sum(count for why, count in replay.dropped.items() if why not in _KEPT)
    return {**replay.figures, "jobs_dropped": dropped}


def _emulated(context: Context) -> Mapping[str, Value]:
    """Return the times of a trace's jobs that were emulated, all of which count."""
    jobs = context.run.jobs.values()
    of = {
        "completion": [
            completion_s
            for job in jobs
            if (completion_s := completion(context, job)) is not None
        ],
        "waited": [
            job.granted - job.arrived for job in jobs if job.granted and job.arrived
        ],
    }
    return {
        f"{name}_{short}": float(
            np.mean(times) if short == "mean" else np.quantile(times, _SHARES[short])
        )
        for name, times in of.items()
        for short in _OF_TIMES
        if times
    }


@metric("s", makes=_TIMES)
@metric("1", makes=_RATIOS)
@metric("count", makes=_COUNTS)
def of_trace(context: Context) -> Mapping[str, Value]:
    """Return the figures of a replay by metric, as they were computed with the replay."""
    return _figures(context)


# Jobs that are emulated, beside their replay.


def _replayed(context: Context) -> Mapping[str, Sequence[float | None]]:
    """Return the moments of the jobs in the replay: of this run, or of the simulation of a measured run."""
    if (own := next(iter(context.run.of(TraceReplayed)), None)) is not None:
        return own.jobs
    if (
        context.foretold is None
        or (replay := replay_in(context.foretold.computed)) is None
    ):
        return {}
    return replay.jobs


def _between(context: Context, job: JobRun, first: int, last: int) -> float | None:
    moments = _replayed(context).get(job.name)
    if moments is None:
        return None
    begin, end = moments[first], moments[last]
    return None if begin is None or end is None else end - begin


@metric("s", of="job", column="arrival to end")
def completion(context: Context, job: JobRun) -> float | None:
    """From the arrival of a trace's job to its end.

    Return seconds; None if the run replays no trace or the job has not ended.
    """
    if not isinstance(context.run.plan.source, TracePlan):
        return None
    if context.run.of(TraceReplayed):
        return _between(context, job, 0, 3)
    return (
        None
        if job.jct_s is None or job.end is None or job.arrived is None
        else job.end - job.arrived
    )


@metric("s", of="job", known="simulated", column="replayed")
def completion_replayed(context: Context, job: JobRun) -> float | None:
    """From the arrival of an emulated job to its end in the replay of the trace.

    Return seconds; None in a simulation.
    """
    return None if context.simulated else _between(context, job, 0, 3)


@metric("1", of="job", column="over replayed")
def completion_over_replayed(context: Context, job: JobRun) -> float | None:
    """From the arrival of a trace's job to its end, over that time in the replay.

    Return the ratio; None if one of the times is unknown.
    """
    took_s, replayed_s = completion(context, job), completion_replayed(context, job)
    return took_s / replayed_s if took_s is not None and replayed_s else None


@metric("s", of="job", known="simulated")
def waited_replayed(context: Context, job: JobRun) -> float | None:
    """Queueing delay of an emulated job in the replay of the trace.

    Return seconds; None in a simulation.
    """
    return None if context.simulated else _between(context, job, 0, 1)


@metric("count")
def starts_out_of_order(context: Context) -> int | None:
    """Jobs of an emulated trace that do not have the position of the replay in the order of starts.

    Return the count; None in a simulation or without a replay.
    """
    moments = {
        name: times[1]
        for name, times in _replayed(context).items()
        if times[1] is not None
    }
    if context.simulated or not moments:
        return None
    jobs = context.run.jobs
    mine = sorted(
        (n for n in moments if jobs[n].granted is not None),
        key=lambda n: jobs[n].granted or 0.0,
    )
    theirs = sorted(moments, key=lambda name: moments[name] or 0.0)
    return sum(bool(a != b) for a, b in itertools.zip_longest(mine, theirs))
