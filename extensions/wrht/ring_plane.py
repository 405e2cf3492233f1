"""A ring of wavelengths (WRHT): light is set between the steps of a collective, for one job on all nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ringlight.extensions.wrht.collective import fitted
from ringlight.extensions.wrht.ring import WdmRing
from ringlight.extensions.wrht.wdm import RingPlan, plan_ring, reach, set_up_steps
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.parts import Port
from ringlight.fabric.planes.base import Lighting, Plane, PlaneFit, PlaneTimes
from ringlight.fabric.planes.streams import LinkTestStream
from ringlight.fabric.steps import Steps
from ringlight.fabric.topology import Fabric

#: Nodes up to which a collective's light is planned to see whether it fits: beyond, that takes as long as
#: running it.
MOST_PLANNED = 32


@dataclass(frozen=True)
class RingTimes(PlaneTimes):
    """Light is set anew in the steps that change it."""

    plane: RingPlane

    lightpaths: ClassVar[bool] = True

    def set_ups(self, ranks: Sequence[str], collective: str) -> int:
        return sum(set_up_steps(self.plane.plan(ranks, collective)))

    def wait_s(
        self, time: float, control_s: float, tuning_s: Mapping[str, float]
    ) -> float:
        return self.plane.declared_s(time)


@dataclass(frozen=True)
class RingFit(PlaneFit):
    """Judges what fits a ring: one job on all of its nodes."""

    plane: RingPlane

    untold: ClassVar[str] = (
        "light leads to the partners of one step of a known collective, and is set anew for the next"
    )

    def check_size(self, ranks: int) -> None:
        nodes = len(self.plane.nodes)
        if ranks != nodes:
            raise ValueError(
                f"{ranks} GPUs, but ring {self.plane.name} carries one job on all its {nodes} nodes"
            )

    def check(self, ranks: Sequence[str], steps: Steps) -> None:
        if len(self.plane.nodes) <= MOST_PLANNED:
            plan_ring(self.plane.fabric, self.plane.ring, steps, ranks)

    def fitted(self, collective: str, ranks: int) -> str:
        if ranks != len(self.plane.nodes):
            return collective
        ring = self.plane.ring
        return fitted(
            collective, ranks, ring.wavelengths, reach(self.plane.fabric, ring)
        )

    def streams(self) -> Iterator[list[LinkTestStream]]:
        """Yield streams of nodes to their neighbours on one wavelength, clockwise, then the other way."""
        fabric, nodes = self.plane.fabric, list(self.plane.nodes)
        # Between two nodes the shorter way is always the same.
        for port, ways in enumerate(
            (nodes, nodes[::-1]) if len(nodes) > 2 else (nodes,)
        ):
            batch = []
            for a, b in itertools.pairwise([*ways, ways[0]]):
                link = f"{a}:{port} to {b}, one wavelength", f"{a} to {b}"
                batch.append(
                    LinkTestStream(
                        a, b, (link,), fabric.link_at[Port(a, port)].rate_bps
                    )
                )
            yield batch


@dataclass(frozen=True)
class RingPlane(Plane):
    """Nodes around a ring, each with a WSS."""

    ring: WdmRing

    kind: ClassVar[str] = "ring"
    light: ClassVar[Lighting] = "stepped"
    whole: ClassVar[bool] = True

    @property
    def times(self) -> RingTimes:
        return RingTimes(self)

    @property
    def fit(self) -> RingFit:
        return RingFit(self)

    def plan(self, ranks: Sequence[str], collective: str) -> RingPlan:
        """Return the light of a collective. Raises ValueError if :func:`plan_ring` does."""
        return plan_ring(
            self.fabric, self.ring, steps_named(collective, len(ranks)), ranks
        )

    def wavelengths_used(self, ranks: Sequence[str], collective: str) -> int:
        """Return how many wavelengths an all-reduce uses."""
        plan = self.plan(ranks, collective)
        return len(
            {
                emit.wavelength
                for peers in plan.transmit.values()
                for emit in peers.values()
            }
        )

    @property
    def sets_all(self) -> bool:
        """Return whether every step sets all of its light again."""
        return self.ring.reconfigure == "each-step"

    def declared_s(self, time: float) -> float:
        """Return the emulated seconds from the command to light that is certain.

        They are as the profile of the WSSs declares. If each step sets its light again, the present light is
        taken away by a command of its own.
        """
        profile = self.fabric.optical_switches[self.ring.switches[0]].device.dilated(
            time
        )
        commands = 2 if self.sets_all else 1
        return profile.command_s + profile.dark_bounds_s(commands=commands)[2]


def rings(fabric: Fabric) -> list[RingPlane]:
    return [
        RingPlane(fabric, ring.name, ring.nodes, ring)
        for ring in fabric.parts.get("rings", {}).values()
    ]
