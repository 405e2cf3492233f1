"""Records of light: counted, set, and asked for by flows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlight.experiments.record.events import Record


class Flow(Record, event="flow"):
    """One flow of an O-NIC, from the worker's request to the transmitter's release. Times of the lab's
    clock, None if the step did not happen. ``waited``: it was queued at the sender or the receiver."""

    gpu: str
    flow: int
    peer: str
    port: int
    wavelength: int | None
    waited: bool
    t_open: float
    t_request: float | None
    t_grant: float | None
    t_lit: float | None
    t_close: float | None
    t_released: float | None

    @property
    def set_up_s(self) -> float:
        """Seconds from the request to the light, of a flow that has both."""
        assert self.t_lit is not None
        assert self.t_request is not None
        return self.t_lit - self.t_request


class FlowsLost(Record, event="flows_lost"):
    """Flows dropped from an agent's log before they were read."""

    gpu: str
    count: int


class LightCounters(Record, event="light"):
    """``moment``: before or after a run. ``kernel``: counters of switches and O-NICs; ``agents``: by GPU its
    epoch and counters."""

    moment: str
    kernel: Mapping[str, Any]
    agents: Mapping[str, Any]


class OnicsSimulated(Record, event="onics"):
    """Totals of the agents' state machines: messages by kind, flows, and overlaps at a receiver."""

    messages: Mapping[str, int]
    flows: int
    receiver_overlaps: int


class StepSetUps(Record):
    """Changes in a run of light that is set between steps, each with ``t``, ``step``, ``total_s`` from the end
    of the step before to the light, and ``write_s`` of the switches, None if that was not measured. A kind of
    planes whose light is stepped has a record of its own, derived from this."""

    set_ups: list[dict[str, Any]]


class Circuits(Record, event="circuits"):
    """Circuits at the end of a run."""

    circuits: list[list[str]]
