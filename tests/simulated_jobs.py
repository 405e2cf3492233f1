"""Training loops on a network in virtual time, without a lab, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.jobs import Event, Gate, Iteration, Job, JobResult
from ringlight.testbed.simulation.networks import Network
from ringlight.testbed.simulation.simulation import Simulation


def simulate(
    network: Network,
    jobs: Iterable[Job],
    events: Iterable[Event] = (),
    *,
    gate: Gate | None = None,
    engine: Engine | None = None,
) -> dict[str, JobResult]:
    """Runs all jobs to their end, in virtual time; results by job name.

    ``gate`` must use the same ``engine``. Raises ValueError as :meth:`Simulation.add`; what goes wrong later
    makes the job concerned fail, and the others go on.
    """
    jobs, events = list(jobs), list(events)
    run = Simulation(
        network, engine or Engine(), gate=gate, disturbed=bool(events) or len(jobs) > 1
    )
    for event in events:
        run.engine.at(event.time_s, run.happen, event)
    for job in jobs:
        run.add(job)
    for job in jobs:
        run.begin(job.name)
    run.run()
    run.give_up()
    return run.results


def duration_s(iteration: Iteration) -> float:
    """Seconds from the first rank's begin of an iteration to the last one's end."""
    return float(iteration.end_s.max() - iteration.begin_s.min())


def all_reduce_s(iteration: Iteration) -> float:
    """Mean over ranks of the time in the all-reduce, waiting for others included, seconds."""
    return float((iteration.end_s - iteration.computed_s).mean())


def iteration_s(result: JobResult) -> float:
    """Median over a job's iterations of how long each took, seconds."""
    return float(np.median([duration_s(iteration) for iteration in result.iterations]))
