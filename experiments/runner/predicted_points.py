"""Predict how long jobs take, by models or simulation, at each point of a sweep."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ringlight.experiments.analysis.prediction import by_phase, model_s, modelled
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.backends.simulation.workloads import MOST_RANKS
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.runner.foretold import Foreteller

#: What a check may take: events of all simulations, and the sum of the squares of the numbers of GPUs whose
#: all-reduces are modelled. Each is a few seconds.
MOST_EVENTS, MOST_SQUARES = 300_000, 300_000


_MANY = "so many points would take long"
Point = dict[str, Any]


def points_of(plans: Iterable[RunPlan]) -> dict[str, list[Point]]:
    """Return the predictions of all points, by arm.

    Each prediction contains ``point``, and either ``how`` jobs' times are known (``model`` or ``simulated``)
    with the times ``jct_s`` (from a job's release to its end, emulated seconds), or the reason ``why_not``. A
    simulated point also contains ``phases`` if job times depend on when in an iteration of other jobs a later
    job begins: the least and the greatest time of each such job.
    """
    plans = list(plans)
    # As a simulation of the whole file does.
    mtu_bytes = min((plan.setting.frames.mtu_bytes for plan in plans), default=None)
    foretell, squares = Foreteller(MOST_EVENTS, SimulationBackend(mtu_bytes)), 0
    predictions: dict[str, dict[str, Point]] = {}
    simulated_of: dict[tuple[str, str], RunPlan] = {}
    for plan in plans:
        points, key = (
            predictions.setdefault(plan.arm, {}),
            json.dumps(dict(plan.point), default=str),
        )
        if key in points:
            continue
        if any(job.gpus > MOST_RANKS for job in plan.jobs):
            prediction: Mapping[str, Any] = {
                "why_not": f"a job has more than {MOST_RANKS} GPUs"
            }
        elif modelled(plan):
            cost = sum(job.gpus**2 for job in plan.jobs)
            prediction = (
                _model(plan) if squares + cost <= MOST_SQUARES else {"why_not": _MANY}
            )
            squares += cost if "how" in prediction else 0
        else:
            simulated = foretell(plan)
            prediction = {"how": "simulated", "jct_s": simulated.jct_s}
            if simulated.why_not is not None:
                prediction = {"why_not": simulated.why_not}
        points[key] = {"point": dict(plan.point), **prediction}
        simulated_of[plan.arm, key] = plan
    # Last, so that no point goes without a figure for others' ranges.
    for (arm, key), plan in simulated_of.items():
        if predictions[arm][key].get("how") == "simulated" and (
            phases := by_phase(plan, foretell)
        ):
            predictions[arm][key]["phases"] = phases
    return {arm: list(points.values()) for arm, points in predictions.items()}


def _model(plan: RunPlan) -> Mapping[str, Any]:
    try:
        return {"how": "model", "jct_s": model_s(plan)}
    except ValueError as error:
        return {"why_not": str(error)}
