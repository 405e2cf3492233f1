"""What the golden matrix has of a job on averagers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ringlight.experiments.language.plan import JobPlan
from ringlight.extensions.optinc.averaging import averaging_of
from ringlight.fabric.algorithms import parse_collective
from ringlight.fabric.topology import Fabric


def planned(fabric: Fabric, job: JobPlan) -> Iterator[tuple[str, Any]]:
    """Yield the averagers of a job, its servers in their order, and its hops."""
    if job.training is not None and parse_collective(job.training.collective).stepless:
        averaging = averaging_of(fabric, job.ranks)
        names = [averager.name for averager in averaging.first]
        yield (
            "averagers",
            [names, averaging.servers, [str(hop) for hop in averaging.hops]],
        )
