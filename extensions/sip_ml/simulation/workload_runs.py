"""Workloads whose light is divided, or set for phases, while they run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringlight.experiments.backends.simulation.workloads import WorkloadRun, fidelity_of
from ringlight.experiments.language.plan import JobPlan
from ringlight.extensions.sip_ml.allocation.dividing import divider
from ringlight.extensions.sip_ml.records import Divisions, LightGiven, LightTurns
from ringlight.extensions.sip_ml.simulation.interconnects import (
    Demand,
    LightDivision,
    demand_of_steps,
    demand_of_workload,
    together,
)
from ringlight.extensions.sip_ml.simulation.phased import PhasedLight
from ringlight.extensions.sip_ml.simulation.reallocation import Reallocation
from ringlight.extensions.sip_ml.simulation.zoo import CircuitNetwork
from ringlight.extensions.sip_ml.wholes.interconnect import (
    Division,
    Interconnect,
    PhaseLight,
)
from ringlight.extensions.sip_ml.workload_phases import phases_of
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.topology import Fabric
from ringlight.testbed.simulation.arrays import FloatArray


def demand_of_jobs(jobs: Sequence[JobPlan], gpus: Sequence[str]) -> Demand:
    """Return the demand of one iteration of each job that names its GPUs, in bytes."""
    number = {gpu: index for index, gpu in enumerate(gpus)}
    demands = []
    for job in jobs:
        if not job.ranks:
            continue
        indices = np.array([number[gpu] for gpu in job.ranks], dtype=np.int64)
        if job.workload is not None:
            demands.append(demand_of_workload(job.workload, indices, len(gpus)))
        else:
            steps = steps_named(job.loop.collective, job.gpus)
            demands.append(
                demand_of_steps(steps, job.loop.gradient_bytes, indices, len(gpus))
            )
    return together(demands, len(gpus))


class DividedRun(WorkloadRun):
    """A workload whose light is divided again and again by the remaining traffic."""

    def divide(self, interconnect: Interconnect, when: Division, share: float) -> None:
        """Divide the light of ``interconnect``, this run's network, from the beginning of the run on."""
        assert isinstance(self.network, CircuitNetwork)
        classes = fidelity_of(self.job) == "classes"
        division = LightDivision(interconnect, self.network, share, turns=classes)
        first_bps = division.of(
            demand_of_jobs([self.job], tuple(self.network.gpus)).total
        )
        self._lightpath_bps = division.rate_bps
        self._reallocation = Reallocation(
            self.engine,
            self.execution,
            first_bps,
            when.interval_s,
            when.dark_s,
            division,
            decision_s=when.decision_s,
            trace=not classes,
        )

    def begin(self) -> None:
        """Divide the light first, then begin."""
        self._reallocation.begin()
        super().begin()

    def end(self, state: str, reason: str | None) -> None:
        """Put the divisions on record, then the end."""
        divided = self._reallocation
        self.tell(Divisions, decisions=divided.decisions, dark_s=divided.dark_s)
        if divided.made is not None:
            self._tell_given(divided.made)
        super().end(state, reason)

    def _tell_given(self, made: Sequence[tuple[float, FloatArray, FloatArray]]) -> None:
        network = self.network
        assert isinstance(network, CircuitNetwork)
        self.tell(
            LightGiven,
            pairs=[
                (network.gpus[source], network.gpus[to])
                for source, to in network.pairs.tolist()
            ],
            divisions=[
                {
                    "t": t,
                    "left_bytes": np.round(left).astype(np.int64).tolist(),
                    "lightpaths": np.round(bps / self._lightpath_bps)
                    .astype(np.int64)
                    .tolist(),
                }
                for t, left, bps in made
            ],
        )


class PhasedRun(WorkloadRun):
    """A workload whose light is set for each of its phases."""

    def follow(self, fabric: Fabric, takes: PhaseLight, share: float) -> None:
        """Set the light of ``fabric``, whose network is this run's, from its beginning on.

        Raises ValueError.
        """
        assert isinstance(self.network, CircuitNetwork)
        number = {gpu: index for index, gpu in enumerate(self.network.gpus)}
        circuits = divider(fabric)
        self._phased = PhasedLight(
            self.engine,
            self.execution,
            self.network,
            phases_of(self.workload),
            self.job.iterations,
            [number[gpu] for gpu in self.gpus],
            circuits,
            circuits.rate_bps * share,
            takes,
        )

    def begin(self) -> None:
        """Light the first phases, then begin."""
        self._phased.begin()
        super().begin()

    def end(self, state: str, reason: str | None) -> None:
        """Put the turns of phases on record, then the end."""
        turns = [
            {
                "iteration": change.turn.iteration,
                "phase": change.turn.phase,
                "set": change.set_s,
                "lit": change.lit_s,
                "moved": change.moved,
            }
            for change in self._phased.made
        ]
        self.tell(LightTurns, turns=turns)
        super().end(state, reason)
