"""Compare the simulation of a run with its emulation, and explain the difference. Pure functions.

The verdict of a run uses this module. All times are seconds of the emulation.
Differences are those of the simulated figure from the emulated figure, in per cent of the emulated figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from ringlight.experiments.analysis.causes import Known, causes_of, mean_of
from ringlight.experiments.analysis.explanations import reasons, which_is_off
from ringlight.experiments.record.runs import Run

#: An iteration, and the all-reduce alone, may differ by so much, per cent. The all-reduce is what is
#: simulated: in an iteration it stands beside computing, which both sides merely wait for.
LIMIT_PERCENT = 10.0
#: All figures that are compared, with what each is called.
FIGURES = {
    "allreduce_s": "all-reduce",
    "iteration_s": "iteration",
    "completion_s": "completion",
}

Entry = dict[str, Any]


def _pair(emulated: float, simulated: float) -> dict[str, float]:
    difference = 100 * (simulated / emulated - 1) if emulated > 0 else 0.0
    return {
        "emulated": emulated,
        "simulated": simulated,
        "difference_percent": difference,
    }


def compared(ours: Sequence[Run], theirs: Run, job: str, known: Known) -> Entry:
    """Return a job's figures on both sides, the ``causes`` of differences, which side is ``off``, and
    ``why``.

    ``ours``: emulated repetitions of the run ``theirs``. The job must have succeeded and have iterations in
    all runs.
    """
    real, ideal = [run.jobs[job] for run in ours], [theirs.jobs[job]]
    completion = (
        statistics.fmean(run_job.jct_s or 0.0 for run_job in jobs)
        for jobs in (real, ideal)
    )
    entry: Entry = {
        "iteration_s": _pair(
            *(mean_of(jobs, lambda it: it.whole_s) for jobs in (real, ideal))
        ),
        "allreduce_s": _pair(
            *(mean_of(jobs, lambda it: it.all_reduce_s) for jobs in (real, ideal))
        ),
        "completion_s": _pair(*completion),
        "causes": causes_of(ours, theirs, job, known),
    }
    entry["off"] = which_is_off(entry)
    entry["why"] = reasons(entry)
    return entry
