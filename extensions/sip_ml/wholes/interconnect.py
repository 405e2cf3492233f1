"""Describe each kind of interconnect that is given as a whole rather than port by port.

``gpu_bps`` is what a GPU can send in all, bits per second, and receive as much; so fabrics compare at equal
bandwidth per GPU. Of servers it is what leaves the server. Kinds are frozen dataclasses whose fields end in
their unit: ``_bps`` or ``_s``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

from ringlight.fabric.parts import Counts

Kind = TypeVar("Kind")
Built = Literal["", "once", "anew"]


class Division(NamedTuple):
    """Period of dividing light, seconds: a division holds for ``interval_s``.

    Before a division holds, it is decided for ``decision_s``, and then all light is dark for ``dark_s``.
    """

    interval_s: float
    dark_s: float
    decision_s: float


class PhaseLight(NamedTuple):
    """Times of setting circuits for a phase, seconds: ``guard_s`` before the first is taken, then ``dark_s``
    until all are lit.
    """

    guard_s: float
    dark_s: float


class Interconnect:
    """Interconnect that joins n GPUs, with its rates."""

    #: As a scenario says it.
    kind: ClassVar[str]
    #: Whether a job can go on without a GPU that is lost.
    survives: ClassVar[bool] = False
    #: Whether its light is asked for, transfer by transfer.
    requests_light: ClassVar[bool] = False
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
        """Return when the interconnect is built for what jobs send.

        The result is "" for never, "once" for before all, "anew" for again as jobs send.
        """
        if self.division is not None:
            return "anew"
        return "once" if self.for_demand else ""

    @property
    def division(self) -> Division | None:
        """Return how often light is divided again; None if it is not."""
        return None

    @property
    def phases(self) -> PhaseLight | None:
        """Return the times of setting light for a phase of a job; None if light cannot be set so."""
        return None

    @property
    def partners(self) -> int | None:
        """Number of others to which a GPU can send in the whole job; None without such a bound."""
        return None

    @property
    def refuses_jobs(self) -> str | None:
        """Return why no job can run on it, ``key: reason``; None if jobs can."""
        return None

    @property
    def set_up_s(self) -> float:
        """Seconds before each step of a collective whose circuits differ from the step before."""
        return 0.0

    def check(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Raise ValueError if these GPUs (source, destination) cannot send to each other in one job."""

    def counts(self, gpus: int) -> Counts:
        """Return the parts of an interconnect that joins so many GPUs."""
        raise NotImplementedError


def slowed(kind: Kind, time: float, rate: float) -> Kind:
    """Return the interconnect as emulated: times multiplied by ``time``, rates divided by ``rate``."""
    assert is_dataclass(kind)
    assert not isinstance(kind, type)
    changed: dict[str, Any] = {}
    for field in fields(kind):
        value = getattr(kind, field.name)
        if is_dataclass(value):
            changed[field.name] = slowed(value, time, rate)
        elif value is not None and field.name.endswith("_bps"):
            changed[field.name] = value / rate
        elif value is not None and field.name.endswith("_s"):
            changed[field.name] = value * time
    return replace(kind, **changed)


def of_circuits(gpus: int, switches: int) -> Counts:
    """Return the parts of ``switches`` optical switches in parallel with a port for every GPU.

    These are SiP-OCS, one-shot graphs and rotors. Each of a GPU's fibres has one wavelength.
    """
    ports = gpus * switches
    return Counts(
        gpus, ports, ports, ports, optical_switches=switches, optical_ports=ports
    )


def of_ring(gpus: int, wavelengths: int) -> Counts:
    """Return the parts of a ring without switches, on which GPUs pick wavelengths by micro-rings (SiP-Ring).

    ``wavelengths``: in each of both directions, which have a fibre each.
    """
    ports = 2 * gpus
    return Counts(gpus, ports, ports, ports * wavelengths)
