"""A trace that was replayed on a cluster: completion times of its jobs, and what the cluster did."""

from __future__ import annotations

from collections.abc import Mapping

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.analysis.rows import Value
from ringlight.experiments.record.events import TraceReplayed

_OF_TIMES = {"mean": "mean", "p50": "median", "p95": "95 % within", "p99": "99 % within"}
_TIMES = {
    f"{name}_{short}": f"{what}, {said}"
    for name, what in (
        ("completion", "From a job's arrival in a trace to its end"),
        ("waited", "From a job's arrival in a trace until it has its GPUs"),
    )
    for short, said in _OF_TIMES.items()
} | {"dark_total": "Seconds that jobs of a trace waited for their light, all together"}
_RATIOS = {
    f"completion_slowdown_{short}": f"From a job's arrival to its end over its ideal duration, {said}"
    for short, said in _OF_TIMES.items()
} | {
    "network_slowdown": "Run time of a trace's jobs over their ideal durations, weighted by work",
    "offered_load": "GPU seconds at ideal speed of a trace's jobs that count, over those that pass",
    "gpus_held": "Share of GPU time that jobs of a trace held, from warm-up to the last arrival",
    "goodput": "Work that was done meanwhile, GPU seconds at ideal speed, over all GPU time",
    "scattered": "Share of the held GPU time of jobs that were on more switches than they need",
    "sustained": "Work that was done over what an endless cluster would have done meanwhile",
    "stalled": "Share of the held GPU time of jobs that stood still for a fault",
    "servers_up": "Share of the servers' time in which they were up, as recorded",
    "slices_whole": "Share of slices of which all servers are up, mean over time",
    "slices_whole_95": "Share of slices that are whole in 95 % of the time, as recorded",
    "slices_whole_95_binomial": "The same where servers fail independently",
    "moves_per_100_jobs": "Regroupings for 100 jobs of a trace",
    "little_gap": "Distance from Little's law: jobs in the system over time, against their times in it",
}
_COUNTS = {
    "jobs_counted": "Jobs of a trace that count: they arrived after the warm-up and ended",
    "jobs_warming_up": "Jobs that arrived while the cluster filled; they are replayed and do not count",
    "jobs_censored": "Jobs that had not ended when the replay did; their times are not known",
    "jobs_dropped": "Jobs that were left out of a trace, for whatever reason",
    "fibres_moved_total": "Fibres that were moved to bring a trace's jobs together",
    "regroupings": "Times at which fibres were moved for a job of a trace",
    "fault_hits": "How often a fault met a job of a trace",
    "gpus_swapped": "GPUs in whose place light put a spare",
    "rates_solved": "Times at which rates of jobs that share links were found anew",
    "trace_events": "Arrivals, ends and other moments of a replay",
}
#: What was changed, and not left out.
_KEPT = ("cut", "copied")


def _figures(context: Context) -> Mapping[str, Value]:
    found = next(iter(context.run.of(TraceReplayed)), None)
    if found is None:
        return {}
    dropped = sum(count for why, count in found.dropped.items() if why not in _KEPT)
    return {**found.figures, "jobs_dropped": dropped}


@metric("s", makes=_TIMES)
@metric("1", makes=_RATIOS)
@metric("count", makes=_COUNTS)
def of_trace(context: Context) -> Mapping[str, Value]:
    """Figures of a replay, as they were computed with it."""
    return _figures(context)
