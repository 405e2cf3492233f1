"""Makes a run once more by itself when others had the processors and that showed.

Which of the two counts is decided by how much of the processors was taken from each, never by its figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.analysis.fidelity import TAKEN, machines_fault, taken
from experiments.language.plan import RunPlan
from experiments.record.events import Record, Repeated
from experiments.record.runs import AGAIN, Run, runs_of
from experiments.runner.progress import Reporter


class Repeats:
    """Of one experiment's measured runs. ``expected_s``: what the model says of a plan's jobs.

    Once a repetition was disturbed too, nothing is made again any more: the disturbance is there to stay, and
    repeating would only double the time.
    """

    def __init__(self, reporter: Reporter, expected_s: Callable[[RunPlan], Mapping[str, float]]) -> None:
        self._reporter, self._expected_s = reporter, expected_s
        self._futile = False

    def settle(
        self, plan: RunPlan, records: Sequence[Record], again: Callable[[], Sequence[Record]]
    ) -> Repeated | None:
        """After a run: have ``again`` make it once more, if need be, and say which of the two counts.

        A run in which something is made to happen is never made again: what it misses may be its point.
        """
        if self._futile or plan.events:
            return None
        first = _run(plan, records)
        reasons = machines_fault(first, self._expected_s(plan))
        if not reasons:
            return None
        share = f"{100 * taken(first):.0f} % of the processors"
        self._reporter.say(f"  others took {share}, and {reasons[0].text}; once more")
        second = _run(replace(plan, name=again_name(plan)), again())
        self._futile = taken(second) >= TAKEN
        aside, counts = (first, second) if taken(second) < taken(first) else (second, first)
        return Repeated(
            t=second.ended,
            what="run",
            name=plan.name,
            reasons=[reason.as_json() for reason in reasons],
            first=_figures(first),
            second=_figures(second),
            counts=counts.name,
            set_aside=aside.name,
        )


def again_name(plan: RunPlan) -> str:
    """What the records of a run that is made once more are called."""
    return plan.name + AGAIN


def _run(plan: RunPlan, records: Sequence[Record]) -> Run:
    (run,) = runs_of(records, [plan])
    return run


def _figures(run: Run) -> dict[str, Any]:
    return {
        "run": run.name,
        "taken": taken(run),
        "completion_s": {name: job.jct_s for name, job in run.jobs.items()},
    }
