"""Simulate rings of wavelengths: light is set between two steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ringlight.controller.light.documents import LitPair
from ringlight.experiments.backends.simulation.carriers import (
    Assumed,
    Carrier,
    LightThen,
    LitJob,
    Medium,
)
from ringlight.experiments.language.plan import JobPlan, RunPlan, Setting
from ringlight.experiments.record.events import Record
from ringlight.extensions.wrht.network import RingNetwork
from ringlight.extensions.wrht.records import RingSetUps
from ringlight.extensions.wrht.ring import CLOCKWISE, WdmRing
from ringlight.extensions.wrht.ring_plane import RingPlane, rings
from ringlight.extensions.wrht.wdm import (
    RingPlan,
    collective_on_ring,
    plan_ring,
    set_up_steps,
    wdm_ring,
)
from ringlight.fabric.light import Optics
from ringlight.fabric.steps import Step, Steps, frozen, frozen_bool
from ringlight.fabric.topology import Fabric
from ringlight.fabric.units import format_time
from ringlight.testbed.simulation.jobs import Job
from ringlight.testbed.simulation.networks import Network
from ringlight.testbed.simulation.phases import Phases, StepCost, synchronous
from ringlight.testbed.simulation.simulation import Simulation


@dataclass(frozen=True)
class Around:
    """A ring of wavelengths, as far as time depends on it; ``rate_bps`` of a wavelength, as emulated."""

    nodes: int
    wavelengths: int
    rate_bps: float
    optics: Optics
    loss_db: float

    def weight(self, collective: str) -> int:
        lanes = self.wavelengths if collective.endswith("-striped") else 1
        return self.nodes * lanes

    def phases(
        self,
        collective: str,
        places: tuple[int, ...],
        latency_s: float,
        segment_s: float,
        share: float,
    ) -> Phases:
        fabric, ring = _ring(self)
        network = RingNetwork(
            fabric, ring, segment_s=segment_s, latency_s=latency_s, share=share
        )
        steps = collective_on_ring(collective, self.nodes, self.wavelengths, places)
        # Steps are between places on the ring.
        return Phases(network, ring.nodes, steps)


@lru_cache(maxsize=8)
def _ring(of: Around) -> tuple[Fabric, WdmRing]:
    """Batches of one ring are computed one after another."""
    return wdm_ring(
        "n", of.nodes, of.wavelengths, of.rate_bps, optics=of.optics, loss_db=of.loss_db
    )


@dataclass
class RingCarrier(Carrier):
    plane: RingPlane

    link_effects: ClassVar[bool] = False
    traced: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._set_ups: list[dict[str, Any]] = []
        self._declared_s = 0.0

    @staticmethod
    def assumed(setting: Setting) -> Iterator[Assumed]:
        for plane in rings(setting.fabric):
            yield (
                "changing a ring's light between two steps",
                format_time(plane.declared_s(setting.scale.time)),
                "the command and dark times of the switches' profile, times D, in each step in which a "
                "switch changes; the controller's own time for it is left out",
            )

    @staticmethod
    def medium(
        plan: RunPlan, plane: RingPlane
    ) -> tuple[Hashable, Callable[[], Medium], StepCost]:
        setting, ring = plan.setting, plane.ring
        fabric, add_bps = setting.fabric, plan.costs.add_bps
        rate_bps = fabric.links[0].rate_bps / setting.scale.rate
        loss_db = fabric.optical_switches[ring.switches[0]].insertion_loss_db
        around = Around(
            len(ring.nodes), ring.wavelengths, rate_bps, fabric.optics, loss_db
        )
        reduce_s = 0.0 if add_bps is None else 8 / add_bps
        cost = StepCost(
            plane.declared_s(setting.scale.time), ring.reconfigure, reduce_s
        )
        return around, lambda: around, cost

    @staticmethod
    def cannot(do: str) -> str | None:
        left = do in ("cancel", "start")
        return None if left else f"the simulation cannot {do} on a ring of wavelengths"

    @staticmethod
    def emulated(
        name: str, read: Callable[[str], Any], jobs: Mapping[str, JobPlan], **where: Any
    ) -> Iterator[Record]:
        """Yield how long the light between two steps took to set, as the controller counted."""
        yield RingSetUps(
            ring={"name": name, **read("")["own"]}, set_ups=read("/changes"), **where
        )

    @staticmethod
    def light_over_time(
        recorded: LitJob, records: Sequence[Record]
    ) -> Iterator[LightThen]:
        """Yield the light of each step of the collective, dark while it is set."""
        if recorded.job.training is None:
            return
        plan = recorded.plane.plan(recorded.gpus, recorded.job.training.collective)
        settings = [
            [
                LitPair(a, b, plan.transmit[a][b].wavelength, 1)
                for a, b in sorted(step.pairs)
            ]
            for step in plan.steps
        ]
        yield recorded.begin, settings[0], False
        notes = (note for note in records if isinstance(note, RingSetUps))
        for change in {note.ring["name"]: note.set_ups for note in notes}.get(
            recorded.plane.name, ()
        ):
            pairs = settings[change["step"] % len(settings)]
            yield change["t"], pairs, True
            yield change["t"] + change["total_s"], pairs, False

    def network(self, fabric: Fabric, circuits: Sequence[tuple[str, str]]) -> Network:
        segment_s = self.plan.costs.segment_s
        return RingNetwork(
            fabric,
            self.plane.ring,
            segment_s=segment_s,
            latency_s=self.latency_s,
            share=self.share,
        )

    def put(self, job: Job, network: Network) -> Job:
        """Return the job in step, as light is set for all ranks together. Each change takes the declared
        set-up time.
        """
        plan = plan_ring(self.plane.fabric, self.plane.ring, job.steps, job.ranks)
        self._declared_s = self.plane.declared_s(self.plan.setting.scale.time)
        cost = replace(
            job.cost, set_up_s=self._declared_s, in_steps=tuple(set_up_steps(plan))
        )
        return replace(
            job,
            steps=lit_steps(job.steps, plan, job.ranks),
            synchronised=True,
            cost=cost,
        )

    def iterated(self, sim: Simulation, job: str, index: int, begin_s: float) -> None:
        made = sim.loop(job).job
        step_s = synchronous(
            sim.network, made.ranks, made.steps, made.vector_bytes, made.cost
        ).step_s
        begins_s = (np.cumsum(step_s) - step_s).tolist()
        self._set_ups += [
            {
                "t": begin_s + begins_s[number],
                "step": index * len(made.cost.in_steps) + number,
                "total_s": self._declared_s,
                "write_s": None,
            }
            for number, changed in enumerate(made.cost.in_steps)
            if changed
        ]

    def end(self, circuits: Sequence[tuple[str, str]]) -> None:
        ring = {"name": self.plane.name, "statistics": {"declared_s": self._declared_s}}
        self.note(
            RingSetUps(
                t=self.engine.now_s,
                run=self.plan.name,
                ring=ring,
                set_ups=self._set_ups,
            )
        )


def lit_steps(steps: Steps, plan: RingPlan, ranks: Sequence[str]) -> Steps:
    """Return the steps, with the wavelength and the direction that the plan gives each transfer."""
    emits = [[plan.transmit.get(a, {}).get(b) for b in ranks] for a in ranks]

    def make() -> Iterator[Step]:
        for step in steps:
            ends = zip(step.sources.tolist(), step.destinations.tolist(), strict=True)
            chosen = [emits[source][destination] for source, destination in ends]
            wavelengths = frozen([emit.wavelength for emit in chosen if emit])
            clockwise = frozen_bool([emit.port == CLOCKWISE for emit in chosen if emit])
            yield replace(step, wavelengths=wavelengths, clockwise=clockwise)

    return Steps(steps.name, steps.world_size, steps.chunks, steps.steps, make)
