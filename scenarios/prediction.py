"""What the analytic model (``fabric.cost``) says a run should take, for comparison with what it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fabric.cost import RingJob, predict
from fabric.topology import Port, circuit_cross_connects
from scenarios.profiles import MODELS
from scenarios.schema import Scenario


def predict_completions(
    scenario: Scenario, circuits: Sequence[tuple[str, str]], jobs: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Emulated seconds from the common start of all jobs to the end of each.

    ``circuits``: pairs of port names; ``jobs``: GPUs in rank order by job. While a set of jobs runs, each
    iterates at the rate that ``fabric.cost.predict`` gives for that set; when one ends, the others are
    predicted anew. Real rates, gradient and compute time go in; the result is multiplied by D.
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
