"""What a run waited for light: set-ups of flows on a grid, of steps on a ring."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.record.events import Flow, RingSetUps
from experiments.record.runs import Run


def lit_flows(run: Run) -> list[Flow]:
    """Flows of O-NICs that got light."""
    return [flow for flow in run.of(Flow) if flow.t_lit is not None and flow.t_request is not None]


def set_up_times(run: Run) -> list[float]:
    """Seconds from the request of each flow to its light, or of each step that changed a ring's light from
    the end of the step before to the light of the next."""
    return [*(set_up_s(flow) for flow in lit_flows(run)), *_of_rings(run)]


def set_up_s(flow: Flow) -> float:
    """From the request to the light. The flow must have both."""
    assert flow.t_lit is not None
    assert flow.t_request is not None
    return flow.t_lit - flow.t_request


def _of_rings(run: Run) -> Iterator[float]:
    for ring in run.of(RingSetUps):
        yield from (change["total_s"] for change in ring.set_ups)
