"""Interconnects that are described as wholes, their light divided by demand if they have any."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ringlight.extensions.sip_ml.wholes.fitting import (
    check_run,
    only_simulated,
    patience_s,
)
from ringlight.extensions.sip_ml.wholes.interconnect import Interconnect
from ringlight.fabric.planes.base import (
    NETWORK_S,
    Lighting,
    Plane,
    PlaneFit,
    PlaneTimes,
)
from ringlight.fabric.planes.streams import LinkTestStream
from ringlight.fabric.steps import Steps, pairs_of
from ringlight.fabric.topology import Fabric

if TYPE_CHECKING:
    from ringlight.experiments.language.draft import Draft
    from ringlight.experiments.language.plan import JobPlan, RunPlan


@dataclass(frozen=True)
class WholeTimes(PlaneTimes):
    """Nothing is written out that a model could look at."""

    modelled: ClassVar[bool] = False
    latency_s: ClassVar[float] = NETWORK_S

    plane: WholePlane

    def rate_bps(self, gpu: str) -> float:
        """Return all that the GPU can send at once, bits per second."""
        return self.plane.interconnect.gpu_bps


@dataclass(frozen=True)
class WholeFit(PlaneFit):
    """Judges what fits an interconnect."""

    plane: WholePlane

    parts: ClassVar[bool] = False
    untold: ClassVar[str] = "is lit for what jobs say that they send"

    def check_run(self, run: Draft) -> None:
        check_run(self.plane.interconnect, run)

    def check(self, ranks: Sequence[str], steps: Steps) -> None:
        place = {node: index for index, node in enumerate(self.plane.nodes)}

        def pairs() -> Iterator[tuple[int, int]]:
            for source, destination in pairs_of(ranks, steps) if ranks else ():
                yield place[source], place[destination]

        self.plane.interconnect.check(pairs())

    def only_simulated(self, plan: RunPlan) -> str | None:
        return only_simulated(self.plane.interconnect, plan)

    def patience_s(self, job: JobPlan, time: float) -> float:
        return patience_s(self.plane.interconnect, job, len(self.plane.nodes)) * time

    @property
    def survives(self) -> bool:
        return self.plane.interconnect.survives

    def place(self, count: int, free: Collection[str]) -> None:
        """Raise ValueError if light is for what the GPUs send, which then are to be named."""
        if self.plane.interconnect.built:
            what = f"the light of {self.plane} is divided for what they send"
            raise ValueError(f"{count} GPUs: name them (ranks); {what}")

    def streams(self) -> Iterator[list[LinkTestStream]]:
        """Yield GPUs that send to the next one over all lightpaths that they get for that, then to the third
        next.

        Every other GPU at once: all together are more than two processors carry. Who gets no light is left
        out.
        """
        # Simulated interconnects do without.
        from ringlight.extensions.sip_ml.allocation.dividing import divider

        divides, nodes = divider(self.plane.fabric), self.plane.nodes
        for hops, first in itertools.product(
            sorted({1, 3 % len(nodes)} - {0}), range(2)
        ):
            pairs = [(i, (i + hops) % len(nodes)) for i in range(first, len(nodes), 2)]
            while pairs:
                demand = np.zeros((len(nodes), len(nodes)))
                demand[tuple(np.array(pairs).T)] = 1.0
                counts = divides.counts(demand)
                lit_pairs = [pair for pair in pairs if counts[pair]]
                if lit_pairs == pairs:
                    break
                pairs = lit_pairs
            yield [
                LinkTestStream(
                    nodes[i],
                    nodes[j],
                    ((f"lightpaths of {nodes[i]}", f"{nodes[i]} to {nodes[j]}"),),
                    float(counts[i, j]) * divides.rate_bps,
                )
                for i, j in pairs
            ]


@dataclass(frozen=True)
class WholePlane(Plane):
    """All of a fabric in which nothing is written out port by port."""

    interconnect: Interconnect

    kind: ClassVar[str] = "interconnect"
    light: ClassVar[Lighting] = "stands"

    def __str__(self) -> str:
        return self.name or "the interconnect"

    @property
    def times(self) -> WholeTimes:
        return WholeTimes(self)

    @property
    def fit(self) -> WholeFit:
        return WholeFit(self)


def wholes(fabric: Fabric) -> list[WholePlane]:
    """Return the only plane of a fabric described as a whole, or [].

    The plane has a name if the fabric is plugged together (``divided.plugged``).
    """
    if "interconnect" not in fabric.parts:
        return []
    divided = fabric.parts.get("divided")
    name = "" if divided is None else divided.name
    return [WholePlane(fabric, name, tuple(fabric.gpus), fabric.parts["interconnect"])]
