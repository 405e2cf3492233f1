"""Compare an emulated and a simulated run folder of one experiment. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringlight.experiments.analysis.causes import Known, link_range, mean_of, series
from ringlight.experiments.analysis.differences import LIMIT_PERCENT, Entry, compared
from ringlight.experiments.analysis.explanations import JUDGED
from ringlight.experiments.record.lab_records import LinkRate
from ringlight.experiments.record.runs import Run

SCHEMA_VERSION = 3

#: What makes two runs the same: arm and point of the sweep.
Key = tuple[str, tuple[tuple[str, Any], ...]]


@dataclass(frozen=True)
class Side:
    """One of the two: its folder's whole runs, the links that were measured, its result and environment."""

    name: str
    runs: Sequence[Run]
    links: Sequence[LinkRate]
    result: Mapping[str, Any]
    environment: Mapping[str, Any]

    def by_key(self) -> Mapping[Key, list[Run]]:
        """Return the runs by arm and point, with the repetitions of a run together."""
        grouped: dict[Key, list[Run]] = {}
        for run in self.runs:
            grouped.setdefault(
                (run.plan.arm, tuple(run.plan.point.items())), []
            ).append(run)
        return grouped


def crosscheck(
    emulated: Side, simulated: Side, limit_percent: float = LIMIT_PERCENT
) -> dict[str, Any]:
    """Return the object of ``crosscheck.json``.

    Runs that only one side has are named in ``not_compared``, and so are jobs that did not succeed. For an
    emulated run that was repeated, every figure is the mean over the repetitions. Raises ValueError if the
    two sides have no finished run in common.
    """
    measured, computed = emulated.by_key(), simulated.by_key()
    entries, missing = [], []
    for key in [key for key in computed if key in measured]:
        ours, theirs = measured[key], computed[key][0]
        for job in theirs.jobs:
            if all(run.jobs[job].jct_s is not None for run in (*ours, theirs)):
                entries.append(
                    _entry(ours, theirs, job, emulated, simulated, limit_percent)
                )
            else:
                missing.append(f"{theirs.name}, job {job}")
    if not entries:
        raise ValueError("the two have no finished run in common")
    for mine, other in ((measured, computed), (computed, measured)):
        missing += [
            run.name for key, runs in mine.items() if key not in other for run in runs
        ]
    fidelity, facts = emulated.result["fidelity"], simulated.environment
    return {
        "schema": SCHEMA_VERSION,
        "experiment": simulated.result["experiment"],
        "limit_percent": limit_percent,
        "within_limit": all(entry["within_limit"] for entry in entries),
        "worst": {figure: _worst(entries, figure) for figure in JUDGED},
        "emulated": {
            "run": emulated.environment["run"],
            "folder": emulated.name,
            "runtime": emulated.environment.get("runtime"),
            "complete": emulated.result["complete"],
            "fidelity": fidelity["verdict"],
            "reasons": fidelity["reasons"],
            "links": link_range(emulated.links),
        },
        "simulated": {
            "run": facts["run"],
            "folder": simulated.name,
            "assumptions": facts.get("assumptions", []),
            "left_out": facts.get("left_out", []),
            "payload_share": facts.get("payload_share", 1.0),
        },
        "entries": entries,
        "not_compared": missing,
    }


def predicted_of(simulated: Side) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return the predictions of a simulation, by run and job.

    These are the means of an iteration and of an all-reduce, and the completion time, in seconds. The means
    are None without iterations, the completion time is None if the job is predicted not to succeed.
    """
    return {
        run.name: {
            name: {
                "iteration_s": mean_of([job], lambda it: it.whole_s)
                if job.iterations
                else None,
                "allreduce_s": mean_of([job], lambda it: it.all_reduce_s)
                if job.iterations
                else None,
                "completion_s": job.jct_s,
            }
            for name, job in run.jobs.items()
        }
        for run in simulated.runs
    }


def _worst(entries: Sequence[Entry], figure: str) -> dict[str, Any]:
    """Return run and job with the largest difference of a figure."""
    worst = max(entries, key=lambda entry: abs(entry[figure]["difference_percent"]))
    return {key: worst[key] for key in ("run", "job")} | {
        "difference_percent": worst[figure]["difference_percent"]
    }


def _entry(
    ours: Sequence[Run],
    theirs: Run,
    job: str,
    emulated: Side,
    simulated: Side,
    limit_percent: float,
) -> Entry:
    """Return the entry of one job in one run. ``ours`` are the emulated repetitions."""
    known = Known(
        emulated.links,
        emulated.result["fidelity"]["reasons"],
        simulated.environment.get("payload_share", 1.0),
    )
    figures = compared(ours, theirs, job, known)
    return {
        # Its plain name: one that was made again has another.
        "run": theirs.name,
        "arm": theirs.plan.arm,
        "title": theirs.plan.title,
        "point": dict(theirs.plan.point),
        "job": job,
        "ranks": len(theirs.jobs[job].gpus),
        "repeats": len(ours),
        **figures,
        "within_limit": all(
            abs(figures[f]["difference_percent"]) <= limit_percent for f in JUDGED
        ),
        "series": {
            "emulated": series(ours[0].jobs[job]),
            "simulated": series(theirs.jobs[job]),
        },
    }
