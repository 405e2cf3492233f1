"""Jobs of a run beside the model and beside their simulation, and reasons where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringlight.experiments.analysis.causes import Known
from ringlight.experiments.analysis.differences import FIGURES, Entry, compared
from ringlight.experiments.analysis.explanations import REACH_PERCENT, cause_of, signed
from ringlight.experiments.analysis.lab_faults import PLAIN_EVENTS
from ringlight.experiments.analysis.metrics import Context
from ringlight.experiments.analysis.metrics.training import by_model
from ringlight.experiments.analysis.reasons import Reason, over
from ringlight.experiments.record.lab_records import LinkRate
from ringlight.experiments.record.runs import SUCCEEDED, Run

# From which value on a run is doubtful, and from which bad.
ALL_REDUCE_OVER_IDEAL = (1.10, 1.25)
#: A job that took this much longer than simulated makes a run bad. With other events than `PLAIN_EVENTS` it
#: is doubtful only, as the simulation assumes what a fault or a move of light costs.
BAD_OVER_SIMULATED = 1.25
#: Reasons that say how long something took, and not why.
OF_MODELS = (
    "all_reduce_over_ideal",
    "baseline_over_model",
    "unlike_simulation",
    "unlike_model",
    "ended_otherwise",
    "samples_missing",
)


@dataclass(frozen=True)
class Compared:
    """A job beside its simulation: its ``state`` here and there, and where it succeeded in both its
    ``figures`` (``differences.compared``)."""

    state: str
    simulated: str
    figures: Entry | None

    @property
    def beyond(self) -> dict[str, dict[str, float]]:
        """The figures that are beyond the simulation's reach."""
        figures = self.figures or {}
        return {
            figure: figures[figure]
            for figure, most in REACH_PERCENT.items()
            if figures and abs(figures[figure]["difference_percent"]) > most
        }


def beside_model(
    context: Context, limits: tuple[float, float] | None
) -> Iterator[Reason]:
    """Yield reasons for jobs that differ from the model, though they had their links for themselves and
    nothing happened.

    The model is exact there, except for headers, losses and the machine's own time. ``limits``: limits of a
    baseline; None for other arms.
    """
    run = context.run
    if any(action.begun > run.released for action in run.actions):
        return
    for name, job in run.jobs.items():
        model, by_itself = context.predicted.get(name), context.alone.get(name)
        if job.jct_s is None or model is None or by_itself is None:
            continue
        if model.jct_s > by_itself.jct_s * (1 + 1e-9):
            continue
        common, modelled = {"run": run.name, "job": name}, by_model(context, job)
        model_s = modelled.get("jct_predicted_with_setup", model.jct_s)
        unsimulated = context.foretold is not None and context.foretold.run is None
        if (
            unsimulated
            and abs(model_s / job.jct_s - 1) > REACH_PERCENT["completion_s"] / 100
        ):
            took = {"measured_s": job.jct_s, "model_s": model_s}
            yield Reason("unlike_model", "doubtful", {**common, **took})
        # Where light is waited for, or the job's own edges share a link, NICs are not what counts.
        if not model.set_ups and model.all_reduce_s <= modelled["allreduce_ideal"] * (
            1 + 1e-9
        ):
            times = modelled.get("allreduce_over_ideal", 0.0)
            yield from over(
                times,
                ALL_REDUCE_OVER_IDEAL,
                "all_reduce_over_ideal",
                over=times,
                **common,
            )
        if limits is not None:
            times = job.jct_s / model_s
            yield from over(times, limits, "baseline_over_model", over=times, **common)


def beside_simulation(
    context: Context, links: Sequence[LinkRate], known: Sequence[Reason]
) -> dict[str, Compared]:
    """Return each job of a run compared with the simulation of the run, by name; empty without a simulation.

    ``links``: measured link rates. ``known``: reasons that were found before.
    """
    run, foretold = context.run, context.foretold
    if foretold is None or foretold.run is None:
        return {}
    other = foretold.run
    bearing = Known(
        links, [reason.as_json() for reason in known], foretold.payload_share
    )
    comparisons = {}
    for name, job in run.jobs.items():
        theirs = other.jobs[name]
        both = (
            job.jct_s is not None
            and theirs.jct_s is not None
            and job.iterations
            and theirs.iterations
        )
        figures = compared([run], other, name, bearing) if both else None
        comparisons[name] = Compared(job.state, theirs.state, figures)
    return comparisons


def unlike_simulation(
    run: Run, beside: Mapping[str, Compared], known: Sequence[Reason]
) -> Iterator[Reason]:
    """Yield reasons for jobs that have a figure beyond the simulation's reach, or that ended otherwise."""
    for name, job in beside.items():
        common: dict[str, Any] = {"run": run.name, "job": name}
        if SUCCEEDED in (job.state, job.simulated) and job.state != job.simulated:
            yield Reason(
                "ended_otherwise",
                "doubtful",
                {**common, "state": job.state, "simulated": job.simulated},
            )
        if job.figures is None:
            continue
        far = {
            figure: pair
            for figure, pair in job.beyond.items()
            if figure in _judged(run, name)
        }
        if not far:
            continue
        cause = cause_of(job.figures) or _other_reason(run, known)
        words = [
            f"{FIGURES[figure]} {pair['emulated']:.4g} s, simulated {pair['simulated']:.4g} s "
            f"({signed(pair['difference_percent'])}%)"
            for figure, pair in far.items()
        ]
        sentence = f"{', '.join(words)}; {'no cause is known' if cause is None else f'cause: {cause}'}"
        completion = job.figures["completion_s"]
        quiet = all(action.plan.do in PLAIN_EVENTS for action in run.later)
        longer = completion["emulated"] > BAD_OVER_SIMULATED * completion["simulated"]
        yield Reason(
            "unlike_simulation",
            "bad" if quiet and longer else "doubtful",
            {**common, "figures": far, "cause": cause, "said": sentence},
        )


def _other_reason(run: Run, known: Sequence[Reason]) -> str | None:
    """Return another known fault of a run, in words; None if no other is known."""
    mine = (
        reason
        for reason in known
        if reason.code not in OF_MODELS
        and (reason.data.get("run"), reason.data.get("arm"))
        in ((run.name, None), (None, run.plan.arm))
    )
    first = next(mine, None)
    return None if first is None else first.text.removeprefix(f"{run.name}: ")


def _judged(run: Run, job: str) -> list[str]:
    """Return the figures of a job that are compared: a workload's iteration has no all-reduce of its own."""
    return [
        figure
        for figure in FIGURES
        if figure != "allreduce_s" or run.plan.job(job).training is not None
    ]


def figures_of(run: Run, jobs: Mapping[str, Compared]) -> dict[str, Any]:
    """Return the figures on both sides of each job that was compared."""
    return {
        name: {figure: job.figures[figure] for figure in _judged(run, name)}
        for name, job in jobs.items()
        if job.figures is not None
    }
