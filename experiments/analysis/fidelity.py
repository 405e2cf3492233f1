"""Judge whether a testbed gave what it was set to give, and so whether its figures can be believed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ringlight.experiments.analysis.beside_simulation import (
    beside_model,
    beside_simulation,
    figures_of,
    unlike_simulation,
)
from ringlight.experiments.analysis.lab_faults import (
    astray,
    between_runs,
    broken_off,
    deaths,
    died,
    differing,
    drifted,
    failed,
    stood_still,
    without_bytes,
)
from ringlight.experiments.analysis.machine_faults import (
    busy,
    late,
    missed_links,
    processors,
    samples_missing,
    timers,
)
from ringlight.experiments.analysis.metrics import Context
from ringlight.experiments.analysis.reasons import Reason, over
from ringlight.experiments.record.events import Record, Repeated
from ringlight.experiments.record.lab_records import LinkRate, PortRate
from ringlight.experiments.record.runs import Run

# From which value on a run is doubtful, and from which bad.
SAMPLES_MISSING = (0.05, 0.20)
#: What is concluded from a baseline's time are ratios of this size; rings' collectives differ by factors.
BASELINE_OVER_MODEL, BASELINE_OVER_MODEL_IN_STEPS = (1.01, 1.03), (1.05, 1.10)


def judged(
    contexts: Sequence[Context],
    records: Iterable[Record],
    rates: Iterable[PortRate],
    *,
    baselines: Collection[str],
    untimed: Collection[str],
) -> dict[str, Any]:
    """Return the verdict on measured runs and on each arm, and its grounds. ``rates``: throughput of the
    ports.

    ``baselines``: arms with which others are compared. ``untimed``: arms whose computing has no figure.
    """
    records, runs = list(records), [context.run for context in contexts]
    links = [_link(record) for record in records if type(record) is LinkRate]
    arms = dict.fromkeys(run.plan.arm for run in runs)
    timed = [arm for arm in arms if arm not in untimed]
    missing = samples_missing(runs, rates)
    all_reasons = [
        *missed_links(links),
        *([] if links else [Reason("links_not_measured", "doubtful", {})]),
        *(reason for arm in timed for reason in late(timers(_of(arm, runs)), arm=arm)),
        *(reason for run in runs for reason in busy(run)),
        *(reason for run in runs for reason in died(run)),
        *(reason for run in runs for reason in drifted(run)),
        *(reason for run in runs for reason in stood_still(run)),
        *(reason for run in runs for reason in failed(run)),
        *(reason for context in contexts for reason in without_bytes(context)),
        *between_runs(records, runs),
        *broken_off(records),
    ]
    for name, share in missing.items():
        all_reasons += over(
            share, SAMPLES_MISSING, "samples_missing", run=name, share=share
        )
    stepped = any(
        job.plane(run.plan.setting.fabric).light == "stepped"
        for run in runs
        for job in run.plan.jobs
    )
    limits = BASELINE_OVER_MODEL_IN_STEPS if stepped else BASELINE_OVER_MODEL
    for context in contexts:
        all_reasons += beside_model(
            context, limits if context.run.plan.arm in baselines else None
        )
    all_reasons += [reason for run in runs for reason in differing(run)]
    all_reasons += [reason for context in contexts for reason in astray(context)]
    # Last, as what is known of a run may be the cause.
    rates_of_links = [record for record in records if type(record) is LinkRate]
    beside = {
        context.run.name: beside_simulation(context, rates_of_links, all_reasons)
        for context in contexts
    }
    for context in contexts:
        all_reasons += unlike_simulation(
            context.run, beside[context.run.name], all_reasons
        )
    reasons = [
        reason
        for number, reason in enumerate(all_reasons)
        if reason not in all_reasons[:number]
    ]
    of_arms = [_concerned(reason, runs) for reason in reasons]
    return {
        "verdict": _worst(reasons),
        "arms": {
            arm: _worst(
                r
                for r, concerned in zip(reasons, of_arms, strict=True)
                if arm in concerned
            )
            for arm in arms
        },
        "reasons": [
            {**reason.as_json(), "arms": concerned}
            for reason, concerned in zip(reasons, of_arms, strict=True)
        ],
        "simulated": {
            run.name: figures_of(run, beside[run.name])
            for run in runs
            if beside[run.name]
        },
        "not_compared": {
            context.run.name: context.foretold.why_not
            for context in contexts
            if context.foretold is not None and context.foretold.why_not is not None
        },
        "links": links,
        "timer": timers([run for arm in timed for run in _of(arm, runs)]),
        "cpu": {run.name: shares for run in runs if (shares := processors(run))},
        "processes_restarted": {run.name: deaths(run) for run in runs},
        "switches_restarted": {
            run.name: sum(
                d["kind"] == "optical switch" and not d["planned"] for d in deaths(run)
            )
            for run in runs
        },
        "repeated": [
            {
                key: value
                for key, value in vars(record).items()
                if key not in ("t", "run")
            }
            for record in records
            if isinstance(record, Repeated)
        ],
        "samples_missing": missing,
    }


def _of(arm: str, runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if run.plan.arm == arm]


def _worst(reasons: Iterable[Reason]) -> str:
    levels = {reason.level for reason in reasons}
    return next((level for level in ("bad", "doubtful") if level in levels), "good")


def _concerned(reason: Reason, runs: Sequence[Run]) -> list[str]:
    """Return the arms that a reason is about: its own or its run's, those on its fabric, or all."""
    data = reason.data
    mine = [
        run
        for run in runs
        if data.get("run") in (None, run.name)
        and data.get("arm") in (None, run.plan.arm)
        and data.get("fabric") in (None, run.plan.setting.name)
    ]
    return list(dict.fromkeys(run.plan.arm for run in mine))


def _link(rate: LinkRate) -> dict[str, Any]:
    """Return a link's rate against its setting."""
    link = {
        key: value
        for key, value in vars(rate).items()
        if key not in ("t", "run", "busy")
    }
    return link | {"ratio": rate.measured_bps / rate.set_bps}
