"""Makes a run once more by itself when others had the processors and that showed.

Which of the two counts is decided by how much of the processors was taken from each, never by its figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringlight.experiments.analysis.machine_faults import TAKEN, machines_fault, taken
from ringlight.experiments.analysis.prediction import Foretell, expected_s, modelled
from ringlight.experiments.analysis.reasons import Reason
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record.events import Record, Repeated
from ringlight.experiments.record.runs import AGAIN, Run, runs_of
from ringlight.experiments.runner.progress import Reporter


class Repeats:
    """Decides which measured runs of an experiment are disturbed and repeated.

    Once a repetition was disturbed too, nothing is repeated any more: the disturbance lasts, and repeating
    would only double the time.
    """

    def __init__(self, reporter: Reporter, foretell: Foretell | None = None) -> None:
        """``foretell``: simulates what the models do not know."""
        self._reporter, self._foretell = reporter, foretell
        self._futile = False

    def why(self, plan: RunPlan, records: Sequence[Record]) -> list[Reason]:
        """Return the reasons why a run should be made again; [] if it should not.

        A run with events is never made again: what it misses may be its point.
        """
        if self._futile or plan.events:
            return []
        run = _run(plan, records)
        reasons = machines_fault(run, self._expected_s(plan))
        if reasons:
            share = f"{100 * taken(run):.0f} % of the processors"
            self._reporter.say(
                f"  other programs used {share}, and {reasons[0].text}; the run is repeated"
            )
        return reasons

    def _expected_s(self, plan: RunPlan) -> Mapping[str, float]:
        """Return the expected end of each job in seconds, by name.

        If nothing predicts a job's end, its value is a longer time, which is meant for waiting.
        """
        if self._foretell is None or modelled(plan):
            return expected_s(plan)
        return self._foretell(plan).end_s or expected_s(plan)

    def settled(
        self,
        plan: RunPlan,
        why: Sequence[Reason],
        records: Sequence[Record],
        again: Sequence[Record],
    ) -> Repeated:
        """Return which of the two runs counts: the one that lost less processor time to other processes."""
        first, second = (
            _run(plan, records),
            _run(replace(plan, name=plan.name + AGAIN), again),
        )
        self._futile = taken(second) >= TAKEN
        aside, counts = (
            (first, second) if taken(second) < taken(first) else (second, first)
        )
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
