"""Simulate interconnects that are described as wholes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ringlight.experiments.backends.simulation.carriers import Assumed, Carrier
from ringlight.experiments.backends.simulation.workloads import WorkloadRun, demand_of_jobs
from ringlight.experiments.language.plan import JobPlan, Setting
from ringlight.extensions.sip_ml.simulation.interconnects import interconnect_network
from ringlight.extensions.sip_ml.wholes.whole_plane import WholePlane
from ringlight.fabric.topology import Fabric
from ringlight.testbed.simulation.networks import Network
from ringlight.testbed.simulation.phases import StepCost


@dataclass
class WholeCarrier(Carrier):
    plane: WholePlane

    impaired: ClassVar[bool] = False
    traced: ClassVar[bool] = False

    @staticmethod
    def assumed(setting: Setting) -> Iterator[Assumed]:
        return iter(())

    def network(self, fabric: Fabric, circuits: Sequence[tuple[str, str]]) -> Network:
        gpus = self.plane.nodes
        return interconnect_network(
            self.plane.interconnect,
            gpus,
            lambda: demand_of_jobs(self.plan.jobs, gpus),
            latency_s=self.latency_s,
            share=self.share,
            phases=any(job.phases for job in self.plan.jobs),
        )

    def cost(self) -> StepCost:
        base_cost, set_up_s = super().cost(), self.plane.interconnect.set_up_s
        return replace(base_cost, set_up_s=set_up_s, when="changed-only") if set_up_s else base_cost

    def standing(self, job: JobPlan) -> bool:
        interconnect = self.plane.interconnect
        return not (interconnect.asked or job.phases or self.plane.division is not None)

    def divide(self, run: WorkloadRun) -> None:
        if self.plane.division is not None:
            run.divide(self.plane.interconnect, self.plane.division, self.share)
        if run.phased:
            run.follow_phases(self.plane.fabric, self.plane.phases, self.share)
