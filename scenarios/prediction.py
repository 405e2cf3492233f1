"""What the analytic model (``fabric.cost``) says a run should take, for comparison with what it took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from fabric.collectives import Schedule, all_reduce
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


def collective_time(schedule: Schedule, vector_bytes: float, rate_bps: float, set_up_s: float = 0.0) -> float:
    """Seconds of an all-reduce whose steps follow each other, each rank at ``rate_bps`` in each direction.

    Sum over the steps of ``set_up_s + 8 * (most bytes that a rank sends in the step) / rate_bps``: every
    flow of a step waits once for its light. For halving-doubling at a power of two P that is
    ``2 log2(P) set_up_s + 2 (P-1)/P * 8 vector_bytes / rate_bps``. Nothing for one rank.
    """
    chunk = 8 * vector_bytes / schedule.chunks / rate_bps
    steps: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for transfer in schedule.transfers:
        steps[transfer.step][transfer.source] += 1
    return sum(set_up_s + chunk * max(sent.values()) for sent in steps.values())


def break_even_set_up(
    collective: str,
    world_size: int,
    vector_bytes: float,
    rate_bps: float,
    tolerance: float,
    compute_s: float = 0.0,
) -> float:
    """Seconds that a flow's set-up may take until an iteration lasts ``tolerance`` times as long as without.

    An iteration is ``compute_s`` seconds and the all-reduce, none of it at the same time; with 0 the
    all-reduce alone. Raises ValueError for a collective without a step.
    """
    schedule = all_reduce(collective, world_size)
    if not schedule.steps:
        raise ValueError(f"{collective} of {world_size} ranks sends nothing")
    idle = compute_s + collective_time(schedule, vector_bytes, rate_bps)
    return (tolerance - 1) * idle / schedule.steps
