"""Flows of a run, simulated together as data that another process can compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringlight.experiments.backends.protocol import Told, untold
from ringlight.experiments.backends.simulation.collectives import run_started
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record.events import Record, RunEnded, RunFailed, RunStarted
from ringlight.extensions.flows.flow_file import SizedFlow
from ringlight.extensions.flows.plan import FlowsPlan, flows_of
from ringlight.extensions.flows.records import FlowsCompleted
from ringlight.extensions.flows.rotors import rotor_times_s, slotted_rotors
from ringlight.extensions.flows.simulation import completion_times_s
from ringlight.extensions.flows.transport import Transport
from ringlight.fabric.paths import NoPathError
from ringlight.fabric.topology import Fabric
from ringlight.testbed.simulation.arrays import FloatArray


@dataclass(frozen=True)
class FlowsRun:
    """One run: the flows of a file over a fabric."""

    begin: RunStarted
    title: str
    plan: FlowsPlan
    fabric: Fabric

    @property
    def count(self) -> int:
        """Return the number of runs."""
        return 1

    def compute(self, report: Told = untold) -> list[Record]:
        """Return the records of the run; if it cannot be made, one with the reason."""
        plan, run = self.plan, self.begin.run
        report(self.title, 0.0)
        try:
            real_s = times_over_fabric_s(
                self.fabric, plan.flows, plan.transport, plan.seed
            )
        except (ValueError, NoPathError) as error:
            reason = f"{self.title}: jobs.flows: {error}"
            return [RunFailed(t=0.0, run=run, arm=self.begin.arm, reason=reason)]
        times_s = (plan.time * real_s).tolist()
        ends_s = [
            plan.time * flow.start_s + time_s
            for flow, time_s in zip(plan.flows, times_s, strict=True)
        ]
        end = max(ends_s)
        return [
            self.begin,
            FlowsCompleted(t=end, run=run, times_s=times_s),
            RunEnded(t=end, run=run),
        ]


def flows_run(plan: RunPlan) -> FlowsRun:
    """Return the flows of a run plan as data."""
    return FlowsRun(run_started(plan), plan.title, flows_of(plan), plan.setting.fabric)


def times_over_fabric_s(
    fabric: Fabric, flows: Sequence[SizedFlow], transport: Transport, seed: int
) -> FloatArray:
    """Return the seconds from the start of each flow until it is complete, over packet switches or rotors.

    Raises ValueError for another interconnect, NoPathError for a pair without a path.
    """
    rotors = slotted_rotors(fabric, transport)
    if rotors is None:
        return completion_times_s(fabric, flows, transport, seed)
    return rotor_times_s(rotors, fabric, flows)
