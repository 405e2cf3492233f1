"""Completion times of the flows of a file, by size."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.record.events import Operations
from ringlight.experiments.record.runs import Run
from ringlight.extensions.flows.plan import JOB, FlowsPlan, flows_of
from ringlight.extensions.flows.records import FlowsCompleted
from ringlight.extensions.flows.workload import times_of
from ringlight.testbed.simulation.arrays import FloatArray

PERCENTILES: Mapping[str, tuple[int, str]] = {
    "median": (50, "median"),
    "p90": (90, "90 % within"),
    "p99": (99, "99 % within"),
}
#: Classes of sizes by their least bytes: powers of ten.
CLASSES: Mapping[int, str] = {
    10**power: f"{10 ** (power % 3)}{prefix}B"
    for power, prefix in enumerate(
        prefix for prefix in ("", "k", "M", "G", "T") for _ in range(3)
    )
}
_WHAT = "From a flow's start until it is complete"
_TIMES = {
    f"flow_time_{short}": f"{_WHAT}, {words}"
    for short, (_, words) in PERCENTILES.items()
}
_BY_SIZE = {
    f"flow_time_{short}.{name}": f"{_WHAT}, flows of {name} to ten times that, {words}"
    for name in CLASSES.values()
    for short, (_, words) in PERCENTILES.items()
}


def run_times_s(run: Run) -> FloatArray | None:
    """Return the completion time of each flow of a run in emulated seconds [flows], in the order of the file.

    NaN for a flow that did not end; None for a run of other jobs.
    """
    if not isinstance(run.plan.source, FlowsPlan):
        return None
    if (record := next(iter(run.of(FlowsCompleted)), None)) is not None:
        return np.array(record.times_s)
    plan, job = flows_of(run.plan), run.jobs.get(JOB)
    if job is None or job.plan.workload is None:
        return None
    starts_s = [plan.time * flow.start_s for flow in plan.flows]
    return times_of(job.plan.workload, run.of(Operations, JOB), starts_s)


def simulated_times_s(context: Context) -> FloatArray | None:
    """Return the same of the simulation of a measured run, as :func:`run_times_s`; None in a simulation."""
    if context.foretold is None:
        return None
    for record in context.foretold.computed:
        if isinstance(record, FlowsCompleted):
            return np.array(record.times_s)
    return None


def class_of(size_bytes: int) -> int:
    """Return the least bytes of a flow's class."""
    return max(least for least in CLASSES if least <= size_bytes)


@metric("s", makes=_TIMES | _BY_SIZE)
def flow_times(context: Context) -> Mapping[str, float]:
    """Return percentiles of the completion times of all flows, and by size, by metric."""
    times_s = run_times_s(context.run)
    if times_s is None:
        return {}
    flows = flows_of(context.run.plan).flows
    classes = np.array([class_of(flow.size_bytes) for flow in flows])
    ended = np.isfinite(times_s)
    made = _percentiles(times_s[ended], "")
    for least in np.unique(classes).tolist():
        made |= _percentiles(
            times_s[ended & (classes == least)], f".{CLASSES[least]}"
        )
    return made


def _percentiles(times_s: FloatArray, ending: str) -> dict[str, float]:
    if not len(times_s):
        return {}
    return {
        f"flow_time_{short}{ending}": float(np.percentile(times_s, percentile))
        for short, (percentile, _) in PERCENTILES.items()
    }


@metric("count")
def flows_completed(context: Context) -> int | None:
    """Number of flows of a file that were complete at the end of the run.

    Return the count; None for a run of other jobs.
    """
    times_s = run_times_s(context.run)
    return None if times_s is None else int(np.isfinite(times_s).sum())


@metric(
    "1",
    makes={
        "flow_time_ratio": "Completion time of an emulated flow over its simulated time, median of flows",
        "flow_time_ratio_least": "The same, least of all flows",
        "flow_time_ratio_most": "The same, most of all flows",
    },
)
def flow_ratios(context: Context) -> Mapping[str, float]:
    """Return measured over simulated times, by metric; empty in a simulation."""
    measured_s, simulated_s = run_times_s(context.run), simulated_times_s(context)
    if measured_s is None or simulated_s is None:
        return {}
    ratios = (measured_s / simulated_s)[np.isfinite(measured_s)]
    if not len(ratios):
        return {}
    return {
        "flow_time_ratio": float(np.median(ratios)),
        "flow_time_ratio_least": float(ratios.min()),
        "flow_time_ratio_most": float(ratios.max()),
    }
