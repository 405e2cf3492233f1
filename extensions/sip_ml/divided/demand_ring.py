"""A ring of wavelengths that are divided by demand (SiP-Ring)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ringlight.extensions.sip_ml.wholes.interconnect import (
    Division,
    Interconnect,
    of_ring,
)
from ringlight.fabric.parts import Counts


@dataclass(frozen=True)
class DemandRing(Interconnect):
    """SiP-Ring (Khani et al., SIGCOMM 2021): a ring of fibres, ``wavelengths`` in each direction, which are
    divided again by what the GPUs still have to send.

    A division holds for ``interval_s`` seconds; before it, all light is dark for ``dark_s`` seconds. It is
    decided in ``decision_s`` seconds, in which light shines on as before.
    """

    kind: ClassVar[str] = "demand-ring"

    wavelengths: int
    wavelength_bps: float
    interval_s: float
    dark_s: float
    decision_s: float = 0.0

    @property
    def gpu_bps(self) -> float:
        return 2 * self.wavelengths * self.wavelength_bps

    @property
    def division(self) -> Division:
        return Division(self.interval_s, self.dark_s, self.decision_s)

    def counts(self, gpus: int) -> Counts:
        return of_ring(gpus, self.wavelengths)
