"""A graph built once for the demand of the jobs (:mod:`extensions.sip_ml.allocation.one_shot`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ringlight.extensions.sip_ml.wholes.interconnect import Interconnect, of_circuits
from ringlight.fabric.parts import Counts


@dataclass(frozen=True)
class OneShot(Interconnect):
    """A graph of degree ``degree``, whose GPUs forward; ``hop_s``: seconds that one takes to do
    so."""

    kind: ClassVar[str] = "one-shot"
    for_demand: ClassVar[bool] = True

    degree: int
    gpu_bps: float
    hop_s: float = 0.0

    def counts(self, gpus: int) -> Counts:
        return of_circuits(gpus, self.degree)
