"""Interconnects that are described as wholes, their light divided by demand if they have any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ringlight.fabric.planes.base import NETWORK_S, Plane
from ringlight.fabric.planes.wholes.interconnect import Built, Division, Interconnect, PhaseLight
from ringlight.fabric.steps import Steps, pairs_of
from ringlight.fabric.topology import Fabric


@dataclass(frozen=True)
class WholePlane(Plane):
    """All of a fabric in which nothing is written out port by port."""

    interconnect: Interconnect

    kind: ClassVar[str] = "interconnect"
    standing: ClassVar[bool] = True
    modelled: ClassVar[bool] = False
    latency_s: ClassVar[float] = NETWORK_S
    parts: ClassVar[bool] = False
    untold: ClassVar[str] = "is lit for what jobs say that they send"

    @property
    def survives(self) -> bool:
        return self.interconnect.survives

    @property
    def built(self) -> Built:
        return self.interconnect.built

    @property
    def division(self) -> Division | None:
        return self.interconnect.division

    @property
    def phases(self) -> PhaseLight | None:
        return self.interconnect.phases

    @property
    def degree(self) -> int | None:
        return self.interconnect.partners

    def __str__(self) -> str:
        return self.name or "the interconnect"

    def check(self, ranks: Sequence[str], steps: Steps) -> None:
        place = {node: index for index, node in enumerate(self.nodes)}

        def pairs() -> Iterator[tuple[int, int]]:
            for source, destination in pairs_of(ranks, steps) if ranks else ():
                yield place[source], place[destination]

        self.interconnect.check(pairs())

    def rate_bps(self, gpu: str) -> float:
        """Return all that the GPU can send at once, bits per second."""
        return self.interconnect.gpu_bps


def wholes(fabric: Fabric) -> list[WholePlane]:
    """Return the only plane of a fabric described as a whole, or [].

    The plane has a name if the fabric is plugged together (``divided.plugged``).
    """
    if fabric.interconnect is None:
        return []
    name = "" if fabric.divided is None else fabric.divided.name
    return [WholePlane(fabric, name, tuple(fabric.gpus), fabric.interconnect)]
