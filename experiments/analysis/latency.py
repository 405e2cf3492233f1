"""Describe the latency that a simulation counts, in words, and give older runs the latency that they had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ringlight.experiments.language.expand import Experiment
from ringlight.experiments.language.plan import RunPlan
from ringlight.fabric.units import format_time

#: In the environment of runs whose transfers have a latency by default.
DEFAULT = "network_latency_s"


def as_simulated(experiment: Experiment, environment: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a run folder with the latency that its runs had: none but the file's before
    there was a default. ``environment``: of the folder."""
    if DEFAULT in environment:
        return experiment
    plans = (
        replace(plan, costs=replace(plan.costs, latency_s=plan.costs.latency_s or 0.0))
        for plan in experiment.plans
    )
    return replace(experiment, plans=tuple(plans))


def latency_words(plans: Iterable[RunPlan], environment: Mapping[str, Any]) -> str:
    """Return the latencies that simulated transfers have before their first byte, each with its source: the
    file, the option, or the default of what carries a job's bytes. Delays of links come besides.

    ``environment``: of the run.
    """
    more_s = float(environment.get("latency_s") or 0.0)
    words = dict.fromkeys(
        word
        for plan in plans
        if not plan.computed
        for word in _words(plan, more_s, DEFAULT in environment)
    )
    return "; ".join(words) or "not added: one model computes all jobs together"


def _words(plan: RunPlan, more_s: float, by_default: bool) -> Iterable[str]:
    for job in plan.jobs:
        plane = job.plane(plan.setting.fabric)
        latency_s = plan.latency_s(plane) + more_s
        if latency_s == 0 and not by_default:
            source = "of before there was a default"
        elif plan.costs.latency_s is not None:
            source = "costs.latency and --latency" if more_s else "costs.latency"
        elif more_s:
            source = "default and --latency" if plan.latency_s(plane) else "--latency"
        elif latency_s:
            source = "default, of NCCL's model of a step between servers"
        elif plane.times.latency_s:
            source = "default of runs scaled for an emulation"
        else:
            yield f"0 s (default on {plane}, whose set-ups are counted)"
            continue
        small = "; small messages are not modelled" if latency_s == 0 else ""
        yield f"{format_time(latency_s)} ({source}{small})"
