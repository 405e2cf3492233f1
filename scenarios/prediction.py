"""What the analytic models say a run should take, for comparison with what it took.

Of jobs that run at once it is the all-send model of ``fabric.cost``, which bounds the time neither way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from experiments.language.profiles import MODELS
from fabric.cost import RingJob, predict
from fabric.steps import Steps
from fabric.topology import Port, circuit_cross_connects
from scenarios.schema import Scenario


def predict_completions(
    scenario: Scenario, circuits: Sequence[tuple[str, str]], jobs: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Emulated seconds from the common start of all jobs to the end of each.

    ``circuits``: pairs of port names; ``jobs``: GPUs in rank order by job. While a set of jobs runs, each
    iterates at the rate that ``fabric.cost.predict`` gives for that set; when one ends, the others are
    predicted anew. Real rates, gradient and compute time go in; the result is multiplied by D. Jobs that
    share a link may take less than this (they do not send all the time) or more (headers, losses).
    """
    fabric = scenario.fabric
    lit = circuit_cross_connects(fabric, [(Port.parse(a), Port.parse(b)) for a, b in circuits])
    gradient = MODELS[scenario.spec.training.model].gradient_bytes
    compute_s = scenario.compute_s / scenario.time_scale
    left = {name: float(scenario.iterations(len(gpus))) for name, gpus in jobs.items()}
    ends: dict[str, float] = {}
    now = 0.0
    while left:
        running = [RingJob.all_reduce(name, jobs[name], gradient, compute_s) for name in left]
        pace = predict(fabric, lit, running)
        first = min(left, key=lambda name: left[name] * pace[name])
        step = left[first] * pace[first]
        now += step
        ends[first] = now * scenario.time_scale
        left = {name: n - step / pace[name] for name, n in left.items() if name != first}
    return ends


def all_reduce_time(steps: Steps, vector_bytes: float, rate_bps: float, *, lightpaths: bool = False) -> float:
    """Seconds of an all-reduce whose steps follow each other and cost nothing but their transfers.

    Sum over the steps of ``8 * (most bytes that a rank sends or receives in the step) / rate_bps``, each
    rank having one port of that rate in each direction. For halving-doubling at a power of two P that is
    ``2 (P-1)/P * 8 vector_bytes / rate_bps``. ``lightpaths``: every pair of ranks has a wavelength of that
    rate for itself, so what counts is the most bytes from one rank to another.
    """
    n = steps.world_size
    chunk_s = 8 * vector_bytes / steps.chunks / rate_bps
    total = 0.0
    for step in steps:
        ends = (step.sources * n + step.destinations,) if lightpaths else (step.sources, step.destinations)
        most = max(
            (float(np.bincount(end, step.count).max(initial=0)) for end in ends if len(end)), default=0
        )
        total += chunk_s * most
    return total


def break_even_set_up(
    steps: Steps,
    vector_bytes: float,
    rate_bps: float,
    tolerance: float,
    compute_s: float = 0.0,
) -> float:
    """Seconds that each step's set-up may take until an iteration is ``tolerance`` times as long as without.

    An iteration is ``compute_s`` seconds and the all-reduce, none of it at the same time; with 0 the
    all-reduce alone. Raises ValueError for a collective without a step.
    """
    if not steps.steps:
        raise ValueError(f"{steps.name} of {steps.world_size} ranks sends nothing")
    idle = compute_s + all_reduce_time(steps, vector_bytes, rate_bps)
    return (tolerance - 1) * idle / steps.steps
