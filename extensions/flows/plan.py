"""The plan of a run's flows. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ringlight.experiments.language.plan import RunPlan, SourcePlan
from ringlight.extensions.flows.flow_file import SizedFlow
from ringlight.extensions.flows.transport import Transport

#: Name of the job that sends flows where they are emulated.
JOB = "flows"


@dataclass(frozen=True)
class FlowsPlan(SourcePlan):
    """Flows of a file in place of jobs by name, in real seconds and bytes, as is their ``transport``.

    ``time``: D, emulated seconds for each real one. ``seed``: of the phases of long flows' packets.
    """

    flows: tuple[SizedFlow, ...]
    transport: Transport
    seed: int
    time: float

    key: ClassVar[str] = "flows"


def flows_of(plan: RunPlan) -> FlowsPlan:
    """Return the flows of a run whose jobs are those of a file of flows."""
    assert isinstance(plan.source, FlowsPlan)
    return plan.source
