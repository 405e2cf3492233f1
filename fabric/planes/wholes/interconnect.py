"""What each kind of interconnect says that is described as a whole rather than port by port.

``gpu_bps`` is what a GPU can send in all, bits per second, and receive as much; so fabrics compare at equal
bandwidth per GPU. Of servers it is what leaves the server. Kinds are frozen dataclasses whose fields end in
their unit: ``_bps`` or ``_s``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

from ringlight.fabric.clusters import Cluster, Lattice
from ringlight.fabric.parts import Counts

Kind = TypeVar("Kind")
Built = Literal["", "once", "anew"]


class Division(NamedTuple):
    """How often light is divided anew, seconds: a division holds for ``interval_s``; before it, it is decided
    for ``decision_s``, and then all light is dark for ``dark_s``."""

    interval_s: float
    dark_s: float
    decision_s: float


class PhaseLight(NamedTuple):
    """What setting circuits for a phase takes, seconds: ``guard_s`` before the first is taken, then
    ``dark_s`` until all are lit."""

    guard_s: float
    dark_s: float


class Interconnect:
    """What joins n GPUs, and at which rates."""

    #: As a scenario says it.
    kind: ClassVar[str]
    #: Whether a job can go on without a GPU that is lost.
    survives: ClassVar[bool] = False
    #: Whether its light is asked for, transfer by transfer.
    asked: ClassVar[bool] = False
    #: Whether it is built for what jobs say that they send.
    for_demand: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def gpu_bps(self) -> float: ...

    @property
    def server_size(self) -> int:
        """GPUs of each server, which are in a row."""
        return 1

    @property
    def built(self) -> Built:
        """Whether it is built for what jobs say that they send: once before all, or anew as they send it."""
        if self.division is not None:
            return "anew"
        return "once" if self.for_demand else ""

    @property
    def division(self) -> Division | None:
        """How often light is divided anew, if it is."""
        return None

    @property
    def phases(self) -> PhaseLight | None:
        """How long light takes that is set for a phase of a job, where it can be."""
        return None

    @property
    def partners(self) -> int | None:
        """To how many others a GPU can send in the whole job; None where there is no such bound."""
        return None

    @property
    def set_up_s(self) -> float:
        """Seconds before each step of a collective whose circuits differ from the step before."""
        return 0.0

    def check(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Raises ValueError where these GPUs (source, destination) cannot send to each other in one job."""

    def cluster(self, gpus: int) -> Cluster:
        """So many GPUs as a cluster that jobs of a trace share. Raises ValueError where they are none."""
        raise ValueError(f"no trace is replayed on an interconnect of kind {self.kind}")

    def counts(self, gpus: int) -> Counts:
        """Parts of one that joins so many GPUs."""
        raise NotImplementedError


def of_blocks(lattice: Lattice) -> Cluster:
    """GPUs of which jobs have blocks."""
    return Cluster((math.prod(lattice.sides),), (), (), lattice=lattice)


def slowed(one: Kind, time: float, rate: float) -> Kind:
    """Interconnect with times multiplied by ``time`` and rates divided by ``rate``, as emulated."""
    assert is_dataclass(one)
    assert not isinstance(one, type)
    changed: dict[str, Any] = {}
    for field in fields(one):
        value = getattr(one, field.name)
        if is_dataclass(value):
            changed[field.name] = slowed(value, time, rate)
        elif value is not None and field.name.endswith("_bps"):
            changed[field.name] = value / rate
        elif value is not None and field.name.endswith("_s"):
            changed[field.name] = value * time
    return replace(one, **changed)


def of_circuits(gpus: int, switches: int) -> Counts:
    """``switches`` optical switches in parallel with a port for every GPU: SiP-OCS, one-shot graphs, rotors.
    Each of a GPU's fibres has one wavelength."""
    ports = gpus * switches
    return Counts(gpus, ports, ports, ports, optical_switches=switches, optical_ports=ports)


def of_ring(gpus: int, wavelengths: int) -> Counts:
    """A ring without switches: GPUs pick wavelengths by micro-rings (SiP-Ring).

    ``wavelengths``: in each of both directions, which have a fibre each.
    """
    ports = 2 * gpus
    return Counts(gpus, ports, ports, ports * wavelengths)
