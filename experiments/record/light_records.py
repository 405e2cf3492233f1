"""Records of light: divided, given, counted, and asked for by flows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from ringlight.experiments.record.events import Record


class Divisions(Record, event="divisions"):
    """Number of times that light was divided again while a job ran, and the seconds for which bytes waited
    in the dark because of that."""

    job: str
    decisions: int
    dark_s: float


class LightDecisions(Record, event="light_decisions"):
    """Decisions of the controller to divide light while a job ran. Of each decision: ``number``, ``t``,
    the bytes ``left_bytes`` for which it was made, whether any switch ``changed``, the seconds ``read_s``,
    ``decide_s``, ``hold_s``, ``write_s`` and ``dark_s``, the ``problem``, null if there was none, and
    ``lightpaths``, the number of lightpaths from each GPU to each peer at that time."""

    job: str
    decisions: list[Mapping[str, Any]]


class LightGiven(Record, event="light_given"):
    """Pairs of GPUs for which each division of light was made, in a simulation that follows every rank.

    ``pairs``: source and destination of each. ``divisions``, the first of which is made for all that the job
    sends: for each, ``t``, the time at which it was lit, ``left_bytes`` of each pair when it was decided, and
    ``lightpaths`` of each pair.
    """

    job: str
    pairs: list[tuple[str, str]]
    divisions: list[Mapping[str, Any]]


class LightTurns(Record, event="light_turns"):
    """Light that followed the phases of a job. Of each of ``turns``, which is a phase in an iteration:
    ``iteration``, ``phase``, the times at which its circuits began to be ``set`` and were ``lit``, seconds
    of the lab's clock, and whether any circuit was ``moved`` for it."""

    job: str
    turns: list[Mapping[str, Any]]


class Flow(Record, event="flow"):
    """One flow of an O-NIC, from the worker's wish to the transmitter's release. Times of the lab's clock,
    None for what did not happen. ``waited``: it stood in a queue at the sender or the receiver."""

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
    """Flows of an agent that nobody read before it forgot them."""

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


class PlaneShown(Record):
    """A plane as the controller of a lab shows it, kept at a certain time of each run.

    ``plane_kind``: the kind of such planes. ``moment``: at the release of jobs or after the run.
    """

    plane_kind: ClassVar[str]
    moment: ClassVar[Literal["release", "end"]]

    @classmethod
    def shown(cls, plane: Mapping[str, Any], changes: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the record's own fields. ``plane``: the plane's document; ``changes``: those of its light in
        the last job."""
        raise NotImplementedError


class RingSetUps(PlaneShown, event="ring"):
    """A ring of wavelengths as the controller shows it after a run, and each change of its light: ``t``,
    ``step``, ``total_s`` and ``write_s``."""

    plane_kind: ClassVar[str] = "ring"
    moment: ClassVar[Literal["release", "end"]] = "end"

    ring: Mapping[str, Any]
    set_ups: list[dict[str, Any]]

    @classmethod
    def shown(cls, plane: Mapping[str, Any], changes: list[dict[str, Any]]) -> dict[str, Any]:
        return {"ring": {"name": plane["name"], **plane["own"]}, "set_ups": changes}


class Circuits(Record, event="circuits"):
    """Circuits that are lit when a run has ended."""

    circuits: list[list[str]]
