"""Parallel optical circuit switches whose light is divided by demand (SiP-OCS)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ringlight.extensions.sip_ml.wholes.interconnect import (
    Division,
    Interconnect,
    PhaseLight,
    of_circuits,
)
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.parts import Counts, OpticalSwitch


class Lightpath(NamedTuple):
    """One of a pair: the port of the sender's O-NIC and the wavelength; None through a circuit switch."""

    port: int
    wavelength: int | None = None


#: The lightpaths of each pair (source, destination) that has any.
Paths = Mapping[tuple[int, int], tuple[Lightpath, ...]]


@dataclass(frozen=True)
class ParallelOcs(Interconnect):
    """SiP-OCS (Khani et al., SIGCOMM 2021): each GPU's wavelengths are divided over ``switches`` optical
    circuit switches, one port on each.

    They are set once for the demand of the jobs, or, if ``interval_s`` is given, again and again for what
    the GPUs still have to send: a division holds for so many seconds; before it, all light is dark for
    ``dark_s`` seconds. It is decided in ``decision_s`` seconds, in which light shines on as before.

    Where they are ``phased``, they may also be set for each phase of a job (``sip_ml.phases``), circuit by
    circuit: one that is set is dark for ``dark_s`` seconds, and begins to be set ``guard_s`` seconds after
    the last byte has passed what it takes the place of.
    """

    kind: ClassVar[str] = "parallel-ocs"
    for_demand: ClassVar[bool] = True

    switches: int
    gpu_bps: float
    interval_s: float | None = None
    dark_s: float = 0.0
    decision_s: float = 0.0
    guard_s: float = 0.0
    phased: bool = False

    @property
    def division(self) -> Division | None:
        return (
            None
            if self.interval_s is None
            else Division(self.interval_s, self.dark_s, self.decision_s)
        )

    @property
    def phases(self) -> PhaseLight | None:
        return PhaseLight(self.guard_s, self.dark_s) if self.phased else None

    @property
    def partners(self) -> int | None:
        return self.switches if self.interval_s is None else None

    @property
    def circuit_bps(self) -> float:
        return self.gpu_bps / self.switches

    def counts(self, gpus: int) -> Counts:
        return of_circuits(gpus, self.switches)


@dataclass(frozen=True)
class Planes:
    """GPUs with one fibre on each of several optical circuit switches, whose light goes one way.

    ``nodes``: GPU names; node i is on faceplate i + 1 of every switch, its port q on ``switches[q]``.
    """

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]

    def passes(
        self, switches: Mapping[str, OpticalSwitch], paths: Paths
    ) -> dict[str, frozenset[CrossConnect]]:
        """Return the cross-connects of every switch for these lightpaths, and no others."""
        groups: dict[str, set[CrossConnect]] = {name: set() for name in self.switches}
        for (source, destination), own in paths.items():
            for path in own:
                switch = switches[self.switches[path.port]]
                ends = switch.ingress(source + 1), switch.egress(destination + 1)
                groups[switch.name].add(CrossConnect(*ends))
        return {name: frozenset(group) for name, group in groups.items()}
