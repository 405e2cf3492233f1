"""Predicts for ``check`` how long jobs take, by models or simulation, at each point of a sweep."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringlight.experiments.analysis.prediction import model_s, modelled
from ringlight.experiments.backends.simulation.workloads import MOST_RANKS
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.runner.foretold import Foreteller

#: What a check may take: events of all simulations, and the sum of the squares of the numbers of GPUs whose
#: all-reduces are modelled. Each is a few seconds.
MOST_EVENTS, MOST_SQUARES = 30_000, 300_000
#: Seconds from when a job that comes later has its GPUs until its containers are ready. Measured: median of
#: eight runs of scenarios/examples/leaf_spine_arrival.yaml in Docker on two processors (0.67 to 0.97 s).
START_UP_S = 0.9

Point = dict[str, Any]


def points_of(plans: Iterable[RunPlan]) -> dict[str, list[Point]]:
    """By arm, for each point: ``point``, and ``how`` jobs' times ``jct_s`` are known (``model`` or
    ``simulated``; from a job's release to its end, emulated seconds), or ``why_not``. A simulated point
    in which jobs come later has ``start_up_s``, which they are taken to need.
    """
    foretell, squares = Foreteller(MOST_EVENTS), 0
    found: dict[str, dict[str, Point]] = {}
    for plan in plans:
        points, key = found.setdefault(plan.arm, {}), json.dumps(dict(plan.point), default=str)
        if key in points:
            continue
        if any(job.gpus > MOST_RANKS for job in plan.jobs):
            said: Mapping[str, Any] = {"why_not": f"a job has more than {MOST_RANKS} GPUs"}
        elif modelled(plan):
            cost = sum(job.gpus**2 for job in plan.jobs)
            said = _model(plan) if squares + cost <= MOST_SQUARES else {"why_not": _MANY}
            squares += cost if "how" in said else 0
        else:
            simulated = foretell(_started(plan))
            said = {"how": "simulated", "jct_s": dict(simulated.jct_s)}
            if not all(job.start.at_once for job in plan.jobs):
                said["start_up_s"] = START_UP_S
            if simulated.why_not is not None:
                said = {"why_not": simulated.why_not}
        points[key] = {"point": dict(plan.point), **said}
    return {arm: list(points.values()) for arm, points in found.items()}


def _started(plan: RunPlan) -> RunPlan:
    """The same run with the start-up that an emulation's jobs have which come later."""
    jobs = (job if job.start.at_once else replace(job, start_up_s=START_UP_S) for job in plan.jobs)
    return replace(plan, jobs=tuple(jobs))


_MANY = "so many points would take long"


def _model(plan: RunPlan) -> Mapping[str, Any]:
    try:
        return {"how": "model", "jct_s": model_s(plan)}
    except ValueError as error:
        return {"why_not": str(error)}


def said_of(points: Sequence[Point], job: str, how: str) -> str:
    """A job's time, from the least to the most of all points that are known in one way."""
    times = [p["jct_s"][job] for p in points if p.get("how") == how and job in p["jct_s"]]
    if not times:
        return ""
    least, most = (f"{time:.{2 if time < 10 else 1}f}" for time in (min(times), max(times)))
    return f"{least} s" if least == most else f"{least} to {most} s"


def taken(arms: Mapping[str, Sequence[Point]]) -> list[str]:
    """A line about the start-up that simulated jobs are taken to need, where some come later."""
    names = [arm for arm, points in arms.items() if any("start_up_s" in point for point in points)]
    if not names:
        return []
    ready = f"is simulated as ready {START_UP_S:g} s after it has its GPUs"
    return [f"{', '.join(names)}: a job that comes later {ready}, as containers were measured"]


def left_out(arms: Mapping[str, Sequence[Point]]) -> list[str]:
    """A line for each reason why points are not predicted, with the arms and how many of their points."""
    found: dict[str, list[str]] = {}
    for arm, points in arms.items():
        for why in dict.fromkeys(point["why_not"] for point in points if "why_not" in point):
            count = sum(point.get("why_not") == why for point in points)
            found.setdefault(why, []).append(arm if len(points) == 1 else f"{arm} ({count} of {len(points)})")
    return [f"not predicted: {', '.join(names)}: {why}" for why, names in found.items()]
