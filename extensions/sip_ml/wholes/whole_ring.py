"""A ring of wavelengths described as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ringlight.extensions.sip_ml.wholes.interconnect import Interconnect, of_ring
from ringlight.fabric.parts import Counts


@dataclass(frozen=True)
class WavelengthRing(Interconnect):
    """A ring of fibres with ``wavelengths`` in each direction, whose light is set between the steps of a
    collective, as WRHT does (Dai et al., 2022); ``dark_s``: seconds that this takes.
    """

    kind: ClassVar[str] = "wavelength-ring"

    wavelengths: int
    wavelength_bps: float
    dark_s: float

    @property
    def gpu_bps(self) -> float:
        return 2 * self.wavelengths * self.wavelength_bps

    @property
    def set_up_s(self) -> float:
        return self.dark_s

    def counts(self, gpus: int) -> Counts:
        return of_ring(gpus, self.wavelengths)
