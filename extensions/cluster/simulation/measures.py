"""Results of a replay: completion times of the jobs that count, and the cluster over time.

Jobs that arrive while the cluster fills (``warm_up``) are replayed and do not count. The cluster's figures
count from there to the last arrival: later it only drains. A job that counts and has not ended is *censored*:
its time so far is a lower bound. It is left out of the completion times and counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringlight.extensions.cluster.clusters import Cluster
from ringlight.extensions.cluster.fault_traces import whole_slices
from ringlight.extensions.cluster.job_traces import JobTrace
from ringlight.extensions.cluster.simulation.breaking import ClusterFaults
from ringlight.extensions.cluster.simulation.replay import Replay
from ringlight.testbed.simulation.arrays import FloatArray

#: Points of a distribution and of a course over time that are kept.
POINTS = 200
#: Distributions that are kept: completion times, waits, and completion times over ideal ones.
CURVES = ("completion", "waited", "slower")
#: Sizes by which jobs are told apart, GPUs.
CLASSES = (1, 8, 64)


@dataclass(frozen=True)
class ClusterMeasures:
    """``figures`` by name, None if nothing counts; ``curves``: points of each distribution, by share;
    ``course``: over time, ``t`` in seconds; ``classes``: jobs by size.
    """

    figures: dict[str, float | None]
    curves: Mapping[str, list[float]]
    course: Mapping[str, list[float]]
    classes: list[Mapping[str, Any]]


def measured(
    cluster: Cluster, trace: JobTrace, record: Replay, warm_up: float
) -> ClusterMeasures:
    """Return the figures and curves of a replay. ``warm_up``: share of the span of arrivals that does not
    count.
    """
    begin, end = warm_up * trace.span_s, trace.span_s
    counts = trace.arrival_s >= begin
    ended = np.isfinite(record.end_s)
    mine = counts & ended
    took, waited = record.end_s - trace.arrival_s, record.start_s - trace.arrival_s
    ran = record.end_s - record.start_s
    slower = took / trace.duration_s
    window = end - begin
    figures: dict[str, float | None] = {
        "jobs_counted": int(mine.sum()),
        "jobs_warming_up": int((~counts).sum()),
        "jobs_censored": int((counts & ~ended).sum()),
        "offered_load": _share(
            float((trace.gpus * trace.duration_s)[counts].sum()), window * cluster.size
        ),
        **_quantiles("completion", took[mine]),
        **_quantiles("waited", waited[mine]),
        **_quantiles("completion_slowdown", slower[mine]),
        "network_slowdown": _weighted(
            ran / trace.duration_s, trace.gpus * trace.duration_s, mine
        ),
        "gpus_held": _between(record, record.held, begin, end, cluster.size),
        "goodput": _between(record, record.done, begin, end, cluster.size),
        "scattered": _share(
            _during(record, record.scattered, begin, end),
            _during(record, record.held, begin, end),
        ),
        "fibres_moved_total": record.fibres,
        "regroupings": record.regroupings,
        "moves_per_100_jobs": 100 * record.regroupings / len(trace),
        "dark_total": float(record.dark_s.sum()),
        "little_gap": _little(trace, record),
        "rates_solved": record.solved,
        "trace_events": record.events,
    }
    # What a cluster without end would have done meanwhile.
    alone = np.minimum(end, trace.arrival_s + trace.duration_s) - np.maximum(
        begin, trace.arrival_s
    )
    could = float(trace.gpus @ np.maximum(alone, 0.0))
    figures["sustained"] = _share(_during(record, record.done, begin, end), could)
    return ClusterMeasures(
        figures,
        {
            name: _points(values[mine])
            for name, values in zip(CURVES, (took, waited, slower), strict=True)
        },
        _course(cluster, record),
        [
            row
            for low, high in zip((0, *CLASSES), (*CLASSES, None), strict=True)
            if (row := _class(low, high, trace, record, mine, took, slower)) is not None
        ],
    )


def of_faults(
    faults: ClusterFaults, record: Replay, trace: JobTrace, warm_up: float, servers: int
) -> dict[str, float | None]:
    """Return the effects of faults: how often they met a job, the share of the held GPU time of jobs that
    stood still, and the share of the cluster that was up.

    ``servers``: number of servers in a slice, which is only of use when it is whole. Slices are counted over
    all records, next to the count that the same availability gives if servers fail independently (binomial).
    """
    begin, end = warm_up * trace.span_s, trace.span_s
    up = faults.trace.available
    counts, shares = whole_slices(faults.trace, servers)
    slices = int(counts[-1])
    least = counts[np.searchsorted(np.cumsum(shares), 0.05)] if slices else None
    return {
        "fault_hits": record.hit,
        "gpus_swapped": record.swapped,
        "stalled": _share(
            _during(record, record.stalled, begin, end),
            _during(record, record.held, begin, end),
        ),
        "servers_up": up,
        "slices_whole": _share(float(counts @ shares), slices),
        "slices_whole_95": _share(float(least or 0.0), slices),
        "slices_whole_95_binomial": _share(sure_slices(slices, up**servers), slices),
    }


def sure_slices(slices: int, whole: float, confidence: float = 0.95) -> int:
    """Return how many of ``slices`` slices are whole with this confidence, if each is whole with probability
    ``whole``, independently.
    """
    at_least, count = 0.0, slices + 1
    while count > 0 and at_least < confidence:
        count -= 1
        at_least += (
            math.comb(slices, count) * whole**count * (1 - whole) ** (slices - count)
        )
    return count


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _quantiles(name: str, values: FloatArray) -> dict[str, float | None]:
    keys = [f"{name}_{what}" for what in ("mean", "p50", "p95", "p99")]
    if not len(values):
        return dict.fromkeys(keys)
    figures = [float(values.mean()), *np.quantile(values, [0.5, 0.95, 0.99]).tolist()]
    return dict(zip(keys, figures, strict=True))


def _weighted(values: FloatArray, weights: FloatArray, chosen: Any) -> float | None:
    return (
        float(np.average(values[chosen], weights=weights[chosen]))
        if chosen.any()
        else None
    )


def _during(record: Replay, sums: FloatArray, begin: float, end: float) -> float:
    """Return the increase of a cumulative sum between two times, interpolating linearly between steps."""
    a, b = np.interp([begin, end], record.steps_s, sums)
    return float(b - a)


def _between(
    record: Replay, sums: FloatArray, begin: float, end: float, gpus: int
) -> float | None:
    return _share(_during(record, sums, begin, end), (end - begin) * gpus)


def _little(trace: JobTrace, record: Replay) -> float:
    """Return the relative difference between the integral of the jobs in the system and the sum of their
    times in it.

    By Little's law, which is exact for whole sample paths, it is 0.
    """
    until = float(record.steps_s[-1])
    ends = np.where(np.isfinite(record.end_s), record.end_s, until)
    total = float((ends - trace.arrival_s)[trace.arrival_s <= until].sum())
    return abs(record.in_system - total) / total if total else 0.0


def _points(values: FloatArray) -> list[float]:
    """Return a distribution as values at equal steps of its share; empty if it has no values."""
    if not len(values):
        return []
    points: list[float] = np.quantile(values, np.linspace(0, 1, POINTS)).tolist()
    return points


def _course(cluster: Cluster, record: Replay) -> dict[str, list[float]]:
    edges = np.linspace(0, float(record.steps_s[-1]), POINTS + 1)
    width = float(edges[1]) or 1.0
    held, done, scattered = (
        np.diff(np.interp(edges, record.steps_s, sums)) / width
        for sums in (record.held, record.done, record.scattered)
    )
    indices = np.searchsorted(record.steps_s, edges[1:], side="right") - 1
    return {
        "t": edges[1:].tolist(),
        "held": (held / cluster.size).tolist(),
        "done": (done / cluster.size).tolist(),
        "scattered": (scattered / np.maximum(held, 1e-9)).tolist(),
        "waiting": record.waiting[indices].tolist(),
    }


def _class(
    low: int,
    high: int | None,
    trace: JobTrace,
    record: Replay,
    mine: Any,
    took: FloatArray,
    slower: FloatArray,
) -> Mapping[str, Any] | None:
    """Return the figures of jobs above ``low`` GPUs and up to ``high``; None if there are no such jobs."""
    here = mine & (trace.gpus > low)
    if high is not None:
        here &= trace.gpus <= high
    if not here.any():
        return None
    work = trace.gpus * trace.duration_s
    return {
        "above": low,
        "to": high,
        "jobs": int(here.sum()),
        "work": float(work[here].sum() / work[mine].sum()),
        "completion_mean": float(took[here].mean()),
        "slowdown_mean": float(slower[here].mean()),
        "several_switches": float((record.switches[here] > 1).mean()),
    }
