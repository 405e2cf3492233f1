"""Makes a run once more by itself when others had the processors and that showed.

Which of the two counts is decided by how much of the processors was taken from each, never by its figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ringlight.experiments.analysis.fidelity import TAKEN, Reason, machines_fault, taken
from ringlight.experiments.analysis.prediction import expected_s
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record.events import Record, Repeated
from ringlight.experiments.record.runs import AGAIN, Run, runs_of
from ringlight.experiments.runner.progress import Reporter


class Repeats:
    """Of one experiment's measured runs.

    Once a repetition was disturbed too, nothing is made again any more: the disturbance is there to stay, and
    repeating would only double the time.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._futile = False

    def why(self, plan: RunPlan, records: Sequence[Record]) -> list[Reason]:
        """Why a run should be made once more; empty where it should not.

        A run in which something is made to happen is never made again: what it misses may be its point.
        """
        if self._futile or plan.events:
            return []
        run = _run(plan, records)
        reasons = machines_fault(run, expected_s(plan))
        if reasons:
            share = f"{100 * taken(run):.0f} % of the processors"
            self._reporter.say(f"  others took {share}, and {reasons[0].text}; once more")
        return reasons

    def settled(
        self, plan: RunPlan, why: Sequence[Reason], records: Sequence[Record], again: Sequence[Record]
    ) -> Repeated:
        """Which of the two counts."""
        first, second = _run(plan, records), _run(replace(plan, name=plan.name + AGAIN), again)
        self._futile = taken(second) >= TAKEN
        aside, counts = (first, second) if taken(second) < taken(first) else (second, first)
        return Repeated(
            t=second.ended,
            what="run",
            name=plan.name,
            reasons=[reason.as_json() for reason in why],
            first=_figures(first),
            second=_figures(second),
            counts=counts.name,
            set_aside=aside.name,
        )


def _run(plan: RunPlan, records: Sequence[Record]) -> Run:
    (run,) = runs_of(records, [plan])
    return run


def _figures(run: Run) -> dict[str, Any]:
    return {
        "run": run.name,
        "taken": taken(run),
        "completion_s": {name: job.jct_s for name, job in run.jobs.items()},
    }
