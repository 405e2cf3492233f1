"""The keys ``interconnect`` and ``hop_ring`` of a fabric file, each all of a fabric."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from ringlight.extensions.sip_ml.divided.demand_ring import DemandRing
from ringlight.extensions.sip_ml.divided.hop_ring import HopRing, hop_ring_fabric
from ringlight.extensions.sip_ml.divided.planes import ParallelOcs
from ringlight.extensions.sip_ml.wholes.electrical import Ideal, Servers
from ringlight.extensions.sip_ml.wholes.interconnect import Interconnect, slowed
from ringlight.extensions.sip_ml.wholes.one_shot import OneShot
from ringlight.extensions.sip_ml.wholes.rotor import Rotor, Rotors
from ringlight.extensions.sip_ml.wholes.torus import Torus, TorusOfGpus
from ringlight.extensions.sip_ml.wholes.whole_grid import GridOfGpus
from ringlight.extensions.sip_ml.wholes.whole_ring import WavelengthRing
from ringlight.fabric.keys import FabricKey
from ringlight.fabric.parts import Counts, Gpu
from ringlight.fabric.topology import Fabric
from ringlight.fabric.values import KIND_TAG, Duration, Rate, Strict

#: Wavelengths in each direction of a ring, as simulated; far fewer are emulated.
_MOST_EACH_WAY = 4096


class _InterconnectSpec(Strict):
    """``gpus`` GPUs g0, g1, …, each in a server s0, … of its own unless its kind says otherwise. ``rate``:
    of a GPU in all, each way."""

    gpus: int = Field(ge=2, le=16384)
    gpu: str = Field(min_length=1)
    rate: Rate


class IdealSpec(_InterconnectSpec):
    kind: Literal["ideal"]

    def made(self) -> Interconnect:
        return Ideal(self.rate)


class ServersSpec(_InterconnectSpec):
    """Servers of ``each`` GPUs in a row; a GPU has ``inside`` to the others of its server, and ``rate`` to
    those of other servers."""

    kind: Literal["servers"]
    each: int = Field(ge=2, le=1024)
    inside: Rate

    def made(self) -> Interconnect:
        if self.gpus % self.each:
            raise ValueError(
                f"each: {self.gpus} GPUs do not fill servers of {self.each}"
            )
        return Servers(self.each, self.inside, self.rate)


class ParallelOcsSpec(_InterconnectSpec):
    """``switches`` optical circuit switches, a port of each GPU on each, set once for the jobs' demand; with
    ``interval`` and ``dark`` again and again for what is still to be sent, each time decided in
    ``decision``; with ``dark`` alone, and perhaps a ``guard``, also for each phase of a job."""

    kind: Literal["parallel-ocs"]
    switches: int = Field(ge=1, le=1024)
    interval: Duration | None = None
    dark: Duration | None = None
    decision: Duration | None = None
    guard: Duration | None = None

    def made(self) -> Interconnect:
        if self.interval is None:
            if self.decision is not None:
                raise ValueError(
                    "decision: it goes with interval and dark; without them, light is set once"
                )
            if self.guard is not None and self.dark is None:
                raise ValueError(
                    "guard: it goes with dark; without it, light is set once"
                )
            phased = self.dark is not None
            return ParallelOcs(
                self.switches,
                self.rate,
                dark_s=self.dark or 0.0,
                guard_s=self.guard or 0.0,
                phased=phased,
            )
        if self.dark is None:
            raise ValueError(
                "interval: it goes with dark; without both, light is set once"
            )
        if self.guard is not None:
            raise ValueError(
                "guard: it is of light that is set for phases, and goes with no interval"
            )
        _check_interval(self.interval)
        return ParallelOcs(
            self.switches, self.rate, self.interval, self.dark, self.decision or 0.0
        )


def _check_interval(interval_s: float) -> None:
    if interval_s <= 0:
        raise ValueError(f"interval: {interval_s:g} s; it must be above 0")


class DemandRingSpec(_InterconnectSpec):
    """``wavelength``: rate of one; ``rate`` over it, half in each direction, is how many there are. Each
    division holds for ``interval``, after ``dark``, and is decided in ``decision``."""

    kind: Literal["demand-ring"]
    wavelength: Rate
    interval: Duration
    dark: Duration
    decision: Duration = 0.0

    def made(self) -> Interconnect:
        each_way = _each_way(self.rate, self.wavelength)
        _check_interval(self.interval)
        return DemandRing(
            each_way, self.wavelength, self.interval, self.dark, self.decision
        )


def _each_way(rate_bps: float, wavelength_bps: float) -> int:
    """Return the wavelengths in each of a ring's two directions.

    Raises ValueError if they are no whole number.
    """
    each_way = rate_bps / wavelength_bps / 2
    if abs(each_way - round(each_way)) > 1e-9 * each_way or each_way < 1:
        raise ValueError(
            f"rate: {2 * each_way:g} wavelengths do not divide into two directions of whole numbers"
        )
    if each_way > _MOST_EACH_WAY:
        raise ValueError(
            f"wavelength: {each_way:g} in each direction; at most {_MOST_EACH_WAY}"
        )
    return round(each_way)


class TorusSpec(_InterconnectSpec):
    """``sides``: GPUs in each dimension; ``hop``: time that a GPU takes to hand on."""

    kind: Literal["torus"]
    sides: tuple[int, ...] = Field(min_length=1, max_length=8)
    hop: Duration = 0.0

    def made(self) -> Interconnect:
        if min(self.sides) < 2:
            raise ValueError(f"sides: {self.sides}; each must be at least 2")
        torus = Torus(self.sides)
        if torus.gpus != self.gpus:
            raise ValueError(
                f"sides: {self.sides} are {torus.gpus} GPUs, and there are {self.gpus}"
            )
        return TorusOfGpus(torus, self.rate, self.hop)


class OneShotSpec(_InterconnectSpec):
    kind: Literal["one-shot"]
    degree: int = Field(ge=1, le=1024)
    hop: Duration = 0.0

    def made(self) -> Interconnect:
        if self.degree >= self.gpus:
            raise ValueError(
                f"degree: {self.degree}; {self.gpus} GPUs can have one of 1 to {self.gpus - 1}"
            )
        return OneShot(self.degree, self.rate, self.hop)


class RotorSpec(_InterconnectSpec):
    """``slot``: how long a matching stands, the ``dark`` time at its beginning included. ``model``: ``slots``,
    only for flows, or ``fluid``, only for jobs; by default each has its own."""

    kind: Literal["rotor"]
    ports: int = Field(ge=1, le=1024)
    slot: Duration
    dark: Duration = 0.0
    indirect: bool = False
    model: Literal["fluid", "slots"] | None = None

    def made(self) -> Interconnect:
        if not self.dark < self.slot:
            raise ValueError(
                f"dark: {self.dark:g} s; it must be below the slot of {self.slot:g} s"
            )
        if self.ports >= self.gpus:
            raise ValueError(
                f"ports: {self.ports}; {self.gpus} GPUs can have 1 to {self.gpus - 1}"
            )
        return Rotors(
            Rotor(self.gpus, self.ports, self.rate / self.ports, self.slot, self.dark),
            self.indirect,
            self.model,
        )


class GridOfGpusSpec(_InterconnectSpec):
    """``rows`` x ``columns`` GPUs, row by row; ``transceivers``: 1 for row and column, or one for each;
    ``set_up``: of each transfer, on each line that it takes."""

    kind: Literal["grid"]
    rows: int = Field(ge=1, le=4096)
    columns: int = Field(ge=1, le=4096)
    transceivers: Literal[1, 2] = 1
    set_up: Duration = 0.0

    def made(self) -> Interconnect:
        if self.rows * self.columns != self.gpus:
            raise ValueError(
                f"rows: {self.rows} of {self.columns} columns are {self.rows * self.columns} GPUs, "
                f"and there are {self.gpus}"
            )
        return GridOfGpus(
            self.rows, self.columns, self.rate, self.transceivers, self.set_up
        )


class WavelengthRingSpec(_InterconnectSpec):
    """``wavelength``: rate of one, of which ``rate`` has half in each direction; ``dark``: of a step whose
    circuits are others than those of the step before."""

    kind: Literal["wavelength-ring"]
    wavelength: Rate
    dark: Duration = 0.0

    def made(self) -> Interconnect:
        return WavelengthRing(
            _each_way(self.rate, self.wavelength), self.wavelength, self.dark
        )


class HopRingSpec(Strict):
    """``gpus`` GPUs g0, g1, … in a ring, each in a server s0, … of its own with a transceiver on either side
    that reaches the next ``reach`` servers, one at a time (:mod:`sip_ml.divided.hop_ring`). ``rate``:
    of both together; ``dark``: how long choosing another path takes."""

    gpus: int = Field(ge=3, le=4096)
    gpu: str = Field(min_length=1)
    rate: Rate
    reach: int = Field(ge=1, le=16)
    dark: Duration = 0.0

    def fabric(self) -> Fabric:
        """Return the ring as it is plugged together.

        Raises ValueError for a reach that is not less than ``gpus``.
        """
        if self.reach >= self.gpus:
            raise ValueError(
                f"reach: {self.reach}; of {self.gpus} servers it is at most {self.gpus - 1}"
            )
        gpus = [
            Gpu.numbered(f"g{index}", f"s{index}", self.gpu, index)
            for index in range(self.gpus)
        ]
        return hop_ring_fabric(
            HopRing(self.gpus, self.reach, self.rate, self.dark), gpus
        )


#: By the word of a scenario.
KINDS = (
    *(
        "ideal",
        "servers",
        "parallel-ocs",
        "demand-ring",
        "torus",
        "one-shot",
        "rotor",
        "grid",
    ),
    "wavelength-ring",
)


def _kind_tag(value: object) -> str | None:
    kind = (
        value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    )
    return f"{KIND_TAG}{kind}" if kind in KINDS else None


InterconnectSpec = Annotated[
    Annotated[IdealSpec, Tag("kind-ideal")]
    | Annotated[ServersSpec, Tag("kind-servers")]
    | Annotated[ParallelOcsSpec, Tag("kind-parallel-ocs")]
    | Annotated[DemandRingSpec, Tag("kind-demand-ring")]
    | Annotated[TorusSpec, Tag("kind-torus")]
    | Annotated[OneShotSpec, Tag("kind-one-shot")]
    | Annotated[RotorSpec, Tag("kind-rotor")]
    | Annotated[GridOfGpusSpec, Tag("kind-grid")]
    | Annotated[WavelengthRingSpec, Tag("kind-wavelength-ring")],
    Discriminator(
        _kind_tag,
        custom_error_type="kind",
        custom_error_message=f"its kind is one of {', '.join(KINDS)}",
    ),
]


def _interconnected(spec: InterconnectSpec) -> Fabric:
    made = spec.made()
    gpus = [
        Gpu.numbered(f"g{index}", f"s{index // made.server_size}", spec.gpu, index)
        for index in range(spec.gpus)
    ]
    return Fabric(
        {gpu.name: gpu for gpu in gpus}, {}, {}, (), parts={"interconnect": made}
    )


def _plugged(fabric: Fabric) -> Fabric:
    from ringlight.extensions.sip_ml.divided.plugged import plugged_interconnect

    return plugged_interconnect(fabric)


def _counts(fabric: Fabric) -> Counts:
    made: Interconnect = fabric.parts["interconnect"]
    return made.counts(len(fabric.gpus))


INTERCONNECT = FabricKey(
    InterconnectSpec | None,
    whole=_interconnected,
    plugged=_plugged,
    slowed=slowed,
    counts=_counts,
)
HOP_RING = FabricKey(HopRingSpec | None, whole=HopRingSpec.fabric)
