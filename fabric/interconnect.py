"""Interconnects described as wholes rather than port by port: what joins n GPUs, at which rates.

``gpu_bps`` is what a GPU can send in all, bits per second, and receive as much; so fabrics compare at equal
bandwidth per GPU. Of servers it is what leaves the server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeGuard

from ringlight.fabric.zoo.rotor import Rotor
from ringlight.fabric.zoo.torus import Torus


@dataclass(frozen=True)
class Ideal:
    """One electrical switch that never holds anything up."""

    gpu_bps: float


@dataclass(frozen=True)
class Servers:
    """Servers of ``gpus_each`` GPUs in a row: within one over a switch of its own, at ``inside_bps`` for each
    GPU, and between them over one that never holds anything up, at ``gpu_bps``."""

    gpus_each: int
    inside_bps: float
    gpu_bps: float


@dataclass(frozen=True)
class ParallelOcs:
    """SiP-OCS (Khani et al., SIGCOMM 2021): each GPU's wavelengths are divided over ``switches`` optical
    circuit switches, one port on each.

    They are set once for the demand of the jobs, or, where ``interval_s`` is given, again and again for what
    the GPUs still have to send: a division holds for so many seconds; before it, all light is dark for
    ``dark_s`` seconds. It is decided in ``decision_s`` seconds, in which light shines on as before.
    """

    switches: int
    gpu_bps: float
    interval_s: float | None = None
    dark_s: float = 0.0
    decision_s: float = 0.0

    @property
    def circuit_bps(self) -> float:
        return self.gpu_bps / self.switches


@dataclass(frozen=True)
class DemandRing:
    """SiP-Ring (Khani et al., SIGCOMM 2021): a ring of fibres, ``wavelengths`` in each direction, which are
    divided anew by what the GPUs still have to send.

    A division holds for ``interval_s`` seconds; before it, all light is dark for ``dark_s`` seconds. It is
    decided in ``decision_s`` seconds, in which light shines on as before.
    """

    wavelengths: int
    wavelength_bps: float
    interval_s: float
    dark_s: float
    decision_s: float = 0.0

    @property
    def gpu_bps(self) -> float:
        return 2 * self.wavelengths * self.wavelength_bps


@dataclass(frozen=True)
class TorusOfGpus:
    """GPUs that forward, in a torus; ``hop_s``: seconds that one takes to do so."""

    torus: Torus
    gpu_bps: float
    hop_s: float = 0.0

    @property
    def link_bps(self) -> float:
        return self.gpu_bps / self.torus.ports


@dataclass(frozen=True)
class OneShot:
    """A graph of degree ``degree`` built once for the demand of the jobs, whose GPUs forward
    (``fabric.zoo.one_shot``); ``hop_s``: seconds that one takes to do so."""

    degree: int
    gpu_bps: float
    hop_s: float = 0.0


@dataclass(frozen=True)
class Rotors:
    """Round-robin matchings (``fabric.zoo.rotor``): straight, or over one GPU in between (``indirect``)."""

    rotor: Rotor
    indirect: bool = False

    @property
    def gpu_bps(self) -> float:
        return self.rotor.ports * self.rotor.port_bps


@dataclass(frozen=True)
class GridOfGpus:
    """ODDL (Li et al., OFC 2024): ``rows`` rows and ``columns`` columns of GPUs, each line with one switch of
    wavelengths.

    ``transceivers``: 1 that serves row and column with all of the GPU's rate, or 2 with half of it each.
    ``set_up_s``: seconds of request, grant and tuning before the first byte of each transfer, once on each
    line that it takes.
    """

    rows: int
    columns: int
    gpu_bps: float
    transceivers: int = 1
    set_up_s: float = 0.0


@dataclass(frozen=True)
class WavelengthRing:
    """A ring of fibres with ``wavelengths`` in each direction, whose light is set between the steps of a
    collective, as WRHT does (Dai et al., 2022); ``dark_s``: seconds that this takes.
    """

    wavelengths: int
    wavelength_bps: float
    dark_s: float

    @property
    def gpu_bps(self) -> float:
        return 2 * self.wavelengths * self.wavelength_bps


Interconnect = (
    Ideal | Servers | ParallelOcs | DemandRing | TorusOfGpus | OneShot | Rotors | GridOfGpus | WavelengthRing
)


#: Light of these is divided anew every ``interval_s`` seconds, after ``dark_s`` seconds without.
Divided = ParallelOcs | DemandRing


def divided_anew(one: Interconnect | None) -> TypeGuard[Divided]:
    """Whether its light is divided again and again while a job runs."""
    return isinstance(one, Divided) and one.interval_s is not None


def slowed(one: Interconnect | None, time: float, rate: float) -> Interconnect | None:
    """Interconnect with times multiplied by ``time`` and rates divided by ``rate``, as emulated."""
    if one is None:
        return None
    if isinstance(one, Rotors):
        rotor = one.rotor
        return replace(
            one,
            rotor=replace(
                rotor,
                port_bps=rotor.port_bps / rate,
                slot_s=rotor.slot_s * time,
                dark_s=rotor.dark_s * time,
            ),
        )
    if isinstance(one, DemandRing):
        return replace(
            one,
            wavelength_bps=one.wavelength_bps / rate,
            interval_s=one.interval_s * time,
            dark_s=one.dark_s * time,
            decision_s=one.decision_s * time,
        )
    if isinstance(one, ParallelOcs):
        return replace(
            one,
            gpu_bps=one.gpu_bps / rate,
            interval_s=None if one.interval_s is None else one.interval_s * time,
            dark_s=one.dark_s * time,
            decision_s=one.decision_s * time,
        )
    if isinstance(one, WavelengthRing):
        return replace(one, wavelength_bps=one.wavelength_bps / rate, dark_s=one.dark_s * time)
    slower = replace(one, gpu_bps=one.gpu_bps / rate)
    if isinstance(slower, Servers):
        return replace(slower, inside_bps=slower.inside_bps / rate)
    if isinstance(slower, GridOfGpus):
        return replace(slower, set_up_s=slower.set_up_s * time)
    return replace(slower, hop_s=slower.hop_s * time) if isinstance(slower, TorusOfGpus | OneShot) else slower
