"""Decides when runs at a scale that was chosen for this machine were too fast for it after all.

The choice rests on costs; what a run shows counts more. Links that missed their setting, timers that woke
late and processors that were nearly all busy are what a larger D mends. All runs of an experiment have one
scale, so they are made again from the first, in a folder of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringlight.experiments.analysis.machine_faults import (
    CPU_BUSY,
    TAKEN,
    busy,
    late,
    missed_links,
    timers,
)
from ringlight.experiments.analysis.reasons import Reason
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.language.plan import ChosenScale, RunPlan
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.lab_records import LinkRate
from ringlight.experiments.record.runs import runs_of

#: Factor by which D is made larger, and how often at most.
FACTOR, MOST = 2.0, 3


class TooFast(Exception):
    """The machine did not carry a run; the message says what it missed."""


def check_links(records: Sequence[Record]) -> None:
    """Raises TooFast where links missed their setting while the lab had nearly all processors for itself."""
    for rate in (record for record in records if type(record) is LinkRate):
        taken = (rate.stolen or 0.0) + (rate.others or 0.0)
        missed = missed_links([vars(rate)])
        if (
            missed
            and rate.busy is not None
            and taken < TAKEN
            and rate.busy >= CPU_BUSY[0]
        ):
            raise TooFast(
                f"{missed[0].text}, while processors were {100 * rate.busy:.0f} % busy"
            )


def check_run(plan: RunPlan, records: Sequence[Record]) -> None:
    """Raises TooFast where timers woke late, or the lab itself took nearly all processors.

    A run in which something is made to happen after its start is judged by what happens in it alone.
    """
    if any(not event.when.start for event in plan.events):
        return
    (run,) = runs_of(records, [plan])
    missed: list[Reason] = [*late(timers([run])), *busy(run)]
    if missed:
        raise TooFast(missed[0].text)


def larger(scale: ChosenScale, why: str) -> ChosenScale:
    """Return the scale to try next, with ``why`` added to the reasons."""
    return scale.model_copy(
        update={"time": scale.time * FACTOR, "larger": (*scale.larger, why)}
    )


def at_scale(experiment: Experiment, scale: ChosenScale) -> Experiment:
    """Return the same experiment at another chosen scale."""
    repeat = max(plan.repeat for plan in experiment.plans)
    return parse(
        experiment.text,
        experiment.path,
        repeat=repeat,
        sets=experiment.sets,
        scale_for=lambda _: scale,
        auto=True,
    )
