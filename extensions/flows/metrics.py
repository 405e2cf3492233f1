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
    10 ** (3 * thousands + tens): f"{count}{unit}"
    for thousands, unit in enumerate(("b", "kb", "mb", "gb", "tb"))
    for tens, count in enumerate(("", "ten_", "hundred_"))
}
#: Times of a flow from which on it is unlike its simulation, as the house has it for jobs.
MOST_APART = 1.25
_WHAT = "From a flow's start until it is complete"
_TIMES = {
    f"flow_time_{short}": f"{_WHAT}, {words}"
    for short, (_, words) in PERCENTILES.items()
}
_BY_SIZE = {
    f"flow_time_{short}.{name}": f"{_WHAT}, sizes from the named one up to ten times that, {words}"
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
    """Return the times of :func:`run_times_s` in the simulation of a measured run's workers; None if there is
    none.
    """
    foretold = context.foretold
    return (
        None if foretold is None or foretold.run is None else run_times_s(foretold.run)
    )


def packet_times_s(context: Context) -> FloatArray | None:
    """Return the times of a measured run's flows as ``simulate`` has them, packet by packet; None if there are
    none.
    """
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
        made |= _percentiles(times_s[ended & (classes == least)], f".{CLASSES[least]}")
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


_OVER = {
    "flow_time_ratio": "Completion time of an emulated flow over that in the simulation of its workers",
    "flow_time_packet_ratio": "Completion time of an emulated flow over that of its simulated packets",
}
_OF_FLOWS = {
    "": "median of flows",
    "_least": "least of flows",
    "_most": "most of flows",
}


@metric(
    "1",
    makes={
        f"{name}{ending}": f"{what}, {words}"
        for name, what in _OVER.items()
        for ending, words in _OF_FLOWS.items()
    },
)
def flow_ratios(context: Context) -> Mapping[str, float]:
    """Return measured over simulated times, by metric; empty in a simulation."""
    if not _emulated(context):
        return {}
    simulated = simulated_times_s(context), packet_times_s(context)
    made: dict[str, float] = {}
    for name, times_s in zip(_OVER, simulated, strict=True):
        ratios = _ratios(context, times_s)
        if len(ratios):
            figures = np.median(ratios), ratios.min(), ratios.max()
            made |= {
                f"{name}{ending}": float(figure)
                for ending, figure in zip(_OF_FLOWS, figures, strict=True)
            }
    return made


def _emulated(context: Context) -> bool:
    return not context.simulated and isinstance(context.run.plan.source, FlowsPlan)


def _ratios(context: Context, simulated_s: FloatArray | None) -> FloatArray:
    """Return measured over simulated times of the flows that ended in both [flows]."""
    measured_s = run_times_s(context.run)
    if measured_s is None or simulated_s is None:
        return np.empty(0)
    ratios: FloatArray = measured_s / simulated_s
    return ratios[np.isfinite(ratios)]


@metric(
    "count",
    makes={
        "flows_apart": "Emulated flows whose time is beyond 0.8 to 1.25 times that in the simulation of their "
        "workers"
    },
    condemning={"flows_apart": "flows unlike their simulation"},
)
def apart(context: Context) -> Mapping[str, int]:
    """Return the number of such flows, by metric; empty in a simulation."""
    if not _emulated(context):
        return {}
    ratios = _ratios(context, simulated_times_s(context))
    far = (ratios > MOST_APART) | (ratios < 1 / MOST_APART)
    return {"flows_apart": int(far.sum())} if len(ratios) else {}
