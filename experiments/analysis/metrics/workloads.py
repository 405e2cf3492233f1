"""Measure a workload's communication: exposed, or hidden behind computing, by purpose.

All figures are means over ranks and iterations, because ranks of different programs have different work. So
``computing`` and ``exposed`` add up to an iteration.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from statistics import fmean

import numpy as np

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.record.events import Operations
from ringlight.experiments.record.runs import JobRun
from ringlight.fabric.kinds import KINDS
from ringlight.workloads.graph import covered_s
from ringlight.workloads.summary import MESSAGE, PURPOSES, purposes

#: Purposes during which a rank computes; the others communicate.
COMPUTING = ("compute", "memory")
#: All purposes of communication that there are.
COMMUNICATION = (*PURPOSES, *KINDS, MESSAGE)


def of_purpose(metric: str, purpose: str) -> str:
    """Return the name of a metric of one purpose, such as ``exposed.all_gather``."""
    return f"{metric}.{purpose.replace('-', '_')}"


@metric("s", of="job")
def computing(_: Context, job: JobRun) -> float | None:
    """Time of a workload's iteration in which a rank computed: mean over ranks and iterations.

    Return seconds; None if the job has not executed a workload.
    """
    return fmean(it.compute_s for it in job.iterations) if _executed(job) else None


@metric("s", of="job")
def exposed(_: Context, job: JobRun) -> float | None:
    """Time of a workload's iteration in which a rank computed nothing: mean over ranks and iterations.

    Return seconds; None if the job has not executed a workload.
    """
    return fmean(it.all_reduce_s for it in job.iterations) if _executed(job) else None


def _executed(job: JobRun) -> bool:
    return job.plan.workload is not None and bool(job.iterations)


_BY_PURPOSE = {
    of_purpose(
        name, purpose
    ): f"Time of an iteration in which {purpose} was under way at a rank {while_}: "
    "mean over ranks and iterations"
    for name, while_ in (
        ("exposed", "that computed nothing"),
        ("hidden", "that computed"),
    )
    for purpose in COMMUNICATION
}


@metric("s", of="job", makes=_BY_PURPOSE)
def by_purpose(context: Context, job: JobRun) -> Mapping[str, float]:
    """Return the exposed and hidden seconds of each purpose, by metric; empty without a workload's records.

    Waiting for partners counts, and several purposes may be in progress at the same time.
    """
    workload = job.plan.workload
    records = context.run.of(Operations, job.name)
    if workload is None or not records:
        return {}

    @cache
    def operations(number: int) -> Mapping[str, list[int]]:
        numbers = defaultdict(list)
        for k, purpose in enumerate(purposes(workload, workload.programs[number])):
            numbers[purpose].append(k)
        return numbers

    sums: defaultdict[str, float] = defaultdict(float)
    for record in records:
        of, times_s = (
            operations(int(workload.program_of[record.rank])),
            np.array(record.times_s).reshape(-1, 2),
        )
        local = [k for purpose in COMPUTING for k in of.get(purpose, ())]
        local_s = covered_s(times_s[local])
        for purpose in of.keys() - COMPUTING:
            both_s = covered_s(times_s[[*local, *of[purpose]]])
            sums[of_purpose("exposed", purpose)] += both_s - local_s
            sums[of_purpose("hidden", purpose)] += covered_s(times_s[of[purpose]]) - (
                both_s - local_s
            )
    # What is left of the difference of equal sums is no time: a picosecond is less than anything takes.
    return {
        name: max(0.0, round(total_s / len(records), 12))
        for name, total_s in sums.items()
    }
