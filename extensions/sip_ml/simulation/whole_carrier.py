"""Simulate interconnects that are described as wholes, and read what runs left on record of their light."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ringlight.controller.light.documents import LitPair
from ringlight.experiments.backends.simulation.carriers import (
    Assumed,
    Carrier,
    LightThen,
    LitJob,
)
from ringlight.experiments.backends.simulation.workloads import Tell, WorkloadRun
from ringlight.experiments.language.plan import JobPlan, Setting
from ringlight.experiments.record.events import JobRecovered, Record
from ringlight.extensions.sip_ml.allocation.demand import placed
from ringlight.extensions.sip_ml.allocation.dividing import divider
from ringlight.extensions.sip_ml.records import (
    Divisions,
    LightDecisions,
    LightGiven,
    LightTurns,
)
from ringlight.extensions.sip_ml.simulation.interconnects import interconnect_network
from ringlight.extensions.sip_ml.simulation.workload_runs import (
    DividedRun,
    PhasedRun,
    demand_of_jobs,
)
from ringlight.extensions.sip_ml.wholes.whole_plane import WholePlane
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.steps import sent_in_steps
from ringlight.fabric.topology import Fabric
from ringlight.testbed.simulation.networks import Network
from ringlight.testbed.simulation.phases import StepCost
from ringlight.workloads.traffic import sent


@dataclass
class WholeCarrier(Carrier):
    plane: WholePlane

    link_effects: ClassVar[bool] = False
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
            phases=any(job.light == "phases" for job in self.plan.jobs),
        )

    def cost(self) -> StepCost:
        base_cost, set_up_s = super().cost(), self.plane.interconnect.set_up_s
        return (
            replace(base_cost, set_up_s=set_up_s, when="changed-only")
            if set_up_s
            else base_cost
        )

    def workload_run(
        self,
        job: JobPlan,
        gpus: Sequence[str],
        network: Network,
        tell: Tell,
        *,
        disturbed: bool,
    ) -> WorkloadRun:
        made = self.engine, network, job, gpus, self.cost(), tell
        interconnect = self.plane.interconnect
        if job.light == "phases":
            assert interconnect.phases is not None
            phased = PhasedRun(*made, disturbed=disturbed, standing=False)
            phased.follow(self.plane.fabric, interconnect.phases, self.share)
            return phased
        if interconnect.division is not None:
            divided = DividedRun(*made, disturbed=disturbed, standing=False)
            divided.divide(interconnect, interconnect.division, self.share)
            return divided
        return WorkloadRun(
            *made, disturbed=disturbed, standing=not interconnect.requests_light
        )

    @staticmethod
    def emulated(
        name: str, read: Callable[[str], Any], jobs: Mapping[str, JobPlan], **where: Any
    ) -> Iterator[Record]:
        """Yield how the controller divided the light of the plane's last job."""
        last = read("")["own"]["statistics"]
        job = None if last is None else jobs.get(last["job"])
        if job is None:
            return
        # The controller keeps only the last decisions.
        made = read("/changes")
        yield Divisions(
            job=job.name,
            decisions=last["decisions"],
            dark_s=last["dark_total_s"],
            **where,
        )
        yield LightDecisions(job=job.name, decisions=made, **where)
        if job.light == "phases":
            yield LightTurns(job=job.name, turns=[*_turns(made)], **where)

    @staticmethod
    def light_over_time(
        recorded: LitJob, records: Sequence[Record]
    ) -> Iterator[LightThen]:
        """Yield the light of each division; of light that is set once, that for an iteration."""
        if not recorded.plane.interconnect.built:
            return
        given = [
            note
            for note in records
            if isinstance(note, LightGiven) and note.job == recorded.job.name
        ]
        made = [
            decision
            for note in records
            if isinstance(note, LightDecisions) and note.job == recorded.job.name
            for decision in note.decisions
            if "lightpaths" in decision
        ]
        first = given[0].divisions[0]["t"] if given else recorded.begin
        if not given:
            yield (
                recorded.begin,
                _for_iteration(recorded.fabric, recorded.job, recorded.gpus),
                False,
            )
        for light in given:
            for division in light.divisions:
                counts = zip(light.pairs, division["lightpaths"], strict=True)
                yield (
                    division["t"],
                    [LitPair(a, b, None, count) for (a, b), count in counts if count],
                    False,
                )
        for note in made:
            pairs = [
                LitPair(gpu, peer, None, count)
                for gpu, peers in note["lightpaths"].items()
                for peer, count in peers.items()
            ]
            held = note["t"] + note["decide_s"] + note["hold_s"]
            if held > first:
                yield held, pairs, True
                yield held + note["dark_s"], pairs, False
        if given or made:
            return
        for back in records:
            if isinstance(back, JobRecovered) and back.job == recorded.job.name:
                yield (
                    back.at,
                    _for_iteration(recorded.fabric, recorded.job, back.gpus),
                    False,
                )


def _turns(decisions: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the turns for which the controller set light while the job ran."""
    for decision in decisions:
        lit_s = (
            decision["t"]
            + decision["decide_s"]
            + decision["hold_s"]
            + decision["dark_s"]
        )
        for iteration, phase in decision["turns"]:
            yield {
                "iteration": iteration,
                "phase": phase,
                "set": decision["t"],
                "lit": lit_s,
                "moved": decision["changed"],
            }


def _for_iteration(fabric: Fabric, job: JobPlan, gpus: Sequence[str]) -> list[LitPair]:
    """Return the light for what a job on these GPUs sends in an iteration; none if the fabric's is not
    divided."""
    names = list(fabric.gpus)
    if job.workload is not None:
        demand = sent(job.workload)
    elif job.training is not None:
        demand = sent_in_steps(
            steps_named(job.training.collective, len(gpus)), job.training.gradient_bytes
        )
    else:
        return []
    try:
        counts = divider(fabric).counts(
            placed(demand, [names.index(gpu) for gpu in gpus], len(names))
        )
    except ValueError:
        return []
    return [
        LitPair(names[a], names[b], None, int(counts[a, b]))
        for a, b in np.argwhere(counts).tolist()
    ]
