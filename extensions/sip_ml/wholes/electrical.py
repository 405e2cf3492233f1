"""Electrical interconnects that never hold anything up: the baseline of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ringlight.extensions.sip_ml.wholes.interconnect import Interconnect
from ringlight.fabric.parts import Counts


@dataclass(frozen=True)
class Ideal(Interconnect):
    """One electrical switch that never holds anything up."""

    kind: ClassVar[str] = "ideal"

    gpu_bps: float

    def counts(self, gpus: int) -> Counts:
        """Return the parts: one packet switch with a port for every GPU."""
        return Counts(gpus, gpus, 2 * gpus, 2 * gpus, 1, gpus)


@dataclass(frozen=True)
class Servers(Interconnect):
    """Servers of ``gpus_each`` GPUs in a row: within one over a switch of its own, at ``inside_bps`` for each
    GPU, and between them over one that never holds anything up, at ``gpu_bps``."""

    kind: ClassVar[str] = "servers"

    gpus_each: int
    inside_bps: float
    gpu_bps: float

    @property
    def server_size(self) -> int:
        return self.gpus_each

    def counts(self, gpus: int) -> Counts:
        """Return the parts: for every GPU a port on one packet switch, and a copper cable in its server.

        The copper cable leads to the switch of the server.
        """
        switches = 1 + gpus // self.gpus_each
        return Counts(
            gpus, 2 * gpus, 2 * gpus, 2 * gpus, switches, 2 * gpus, copper_cables=gpus
        )
