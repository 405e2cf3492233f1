"""A job's workload in a simulated lab, and the records that it makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ringlight.experiments.language.plan import JobPlan
from ringlight.experiments.record.events import (
    Divisions,
    Iteration,
    JobState,
    LightGiven,
    LightTurns,
    Operations,
)
from ringlight.extensions.sip_ml.allocation.dividing import divider
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
from ringlight.extensions.sip_ml.wholes.interconnect import Division, Interconnect, PhaseLight
from ringlight.extensions.sip_ml.workload_phases import phases_of
from ringlight.fabric.schedules import steps_named
from ringlight.fabric.topology import Fabric
from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.networks import Network
from ringlight.testbed.simulation.phases import StepCost
from ringlight.testbed.simulation.workload import Execution, Fidelity
from ringlight.workloads.graph import Kind, covered_s

#: More ranks are not followed one by one, but in classes that are in lock-step.
MOST_RANKS = 128
#: Begins and ends of more operations, of all ranks and iterations, are not on record.
MOST_RECORDED = 100_000


def fidelity_of(job: JobPlan) -> Fidelity:
    """Return "exact" if a job's workload is simulated rank by rank, "classes" if by classes of ranks."""
    return "exact" if job.gpus <= MOST_RANKS else "classes"


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
            demands.append(demand_of_steps(steps, job.loop.gradient_bytes, indices, len(gpus)))
    return together(demands, len(gpus))


class WorkloadRun:
    """One job. Raises ValueError as :class:`Execution`."""

    def __init__(
        self,
        engine: Engine,
        network: Network,
        job: JobPlan,
        gpus: Sequence[str],
        cost: StepCost,
        tell: Callable[..., None],
        *,
        disturbed: bool,
        standing: bool,
    ) -> None:
        """``tell`` is given the kind of a record of this run, and what is in it. ``disturbed``: others use
        its links; ``standing``: its light is neither asked for nor set anew while it runs."""
        assert job.workload is not None
        self._engine, self._job, self._gpus = engine, job, gpus
        self._tell = partial(tell, job=job.name)
        self._workload = job.workload
        self._recorded = job.workload.operations * job.iterations <= MOST_RECORDED
        self._network, self._failed = network, False
        self._reallocation: Reallocation | None = None
        self._phased: PhasedLight | None = None
        self._lightpath_bps = math.nan
        self._execution = Execution(
            engine, network, gpus, job.workload, iterations=job.iterations, fidelity=fidelity_of(job),
            cost=cost, operations=True, slower=job.stragglers, progress=self._iteration_done,
            disturbed=disturbed, standing=standing,
        )  # fmt: skip

    @property
    def over(self) -> bool:
        """Return whether all ranks have ended, or nothing will happen any more."""
        return self._failed or self._execution.over

    def divide(self, interconnect: Interconnect, when: Division, share: float) -> None:
        """Divide the light of ``interconnect``, this run's network, again by the remaining traffic."""
        assert isinstance(self._network, CircuitNetwork)
        classes = fidelity_of(self._job) == "classes"
        division = LightDivision(interconnect, self._network, share, turns=classes)
        first_bps = division.of(demand_of_jobs([self._job], tuple(self._network.gpus)).total)
        self._lightpath_bps = division.rate_bps
        self._reallocation = Reallocation(
            self._engine, self._execution, first_bps, when.interval_s, when.dark_s, division,
            decision_s=when.decision_s, trace=not classes,
        )  # fmt: skip

    @property
    def phased(self) -> bool:
        """Return whether light follows the job's phases."""
        return self._job.phases

    def follow_phases(self, fabric: Fabric, takes: PhaseLight | None, share: float) -> None:
        """The network is of ``fabric``, whose light is set for each phase of the job. Raises ValueError."""
        assert isinstance(self._network, CircuitNetwork)
        assert takes is not None
        number = {gpu: index for index, gpu in enumerate(self._network.gpus)}
        circuits = divider(fabric)
        self._phased = PhasedLight(
            self._engine, self._execution, self._network, phases_of(self._workload), self._job.iterations,
            [number[gpu] for gpu in self._gpus], circuits, circuits.rate_bps * share, takes,
        )  # fmt: skip

    def begin(self) -> None:
        if self._phased is not None:
            self._phased.begin()
        if self._reallocation is not None:
            self._reallocation.begin()
        self._execution.begin()

    def rerouted(self) -> None:
        """Nothing changes the network under a graph: such events are refused beforehand."""

    def give_up(self) -> None:
        """Fail what is not over: nothing will happen any more."""
        if (why := self._execution.standstill()) is not None and not self._failed:
            self._failed = True
            self._end("FAILED", why)

    def _iteration_done(self, row: int, index: int) -> None:
        run = self._execution.operations
        assert run.records is not None
        begin_s, end_s = float(run.begin_s[index, row]), self._engine.now_s
        times_s = np.stack((run.records[row].begin_s[index], run.records[row].end_s[index]), axis=1)
        ranks = np.flatnonzero(self._execution.row_of == row).tolist()
        program = self._workload.programs[int(self._workload.program_of[ranks[0]])]
        computed_s = covered_s(times_s[np.isin(program.kind, (Kind.COMPUTE, Kind.MEMORY))])
        since_begin = (times_s - begin_s).tolist() if self._recorded else []
        for rank in ranks:
            computed = {"compute_start": begin_s, "compute_end": begin_s + computed_s}
            self._tell(Iteration, t=end_s, rank=rank, i=index, **computed, allreduce_end=end_s)
            if self._recorded:
                self._tell(Operations, t=end_s, rank=rank, i=index, begin=begin_s, times_s=since_begin)
        if self._execution.over:
            self._end("SUCCEEDED", None)

    def _end(self, state: str, reason: str | None) -> None:
        if (light := self._reallocation) is not None:
            self._tell(Divisions, decisions=light.decisions, dark_s=light.dark_s)
            if light.made is not None:
                self._tell_given(light.made)
        if self._phased is not None:
            turns = [
                {"iteration": change.turn.iteration, "phase": change.turn.phase, "set": change.set_s,
                 "lit": change.lit_s, "moved": change.moved}
                for change in self._phased.made
            ]  # fmt: skip
            self._tell(LightTurns, turns=turns)
        self._tell(JobState, state=state, gpus=[*self._gpus], reason=reason)

    def _tell_given(self, made: Sequence[tuple[float, FloatArray, FloatArray]]) -> None:
        network = self._network
        assert isinstance(network, CircuitNetwork)
        self._tell(
            LightGiven,
            pairs=[(network.gpus[source], network.gpus[to]) for source, to in network.pairs.tolist()],
            divisions=[
                {
                    "t": t,
                    "left_bytes": np.round(left).astype(np.int64).tolist(),
                    "lightpaths": np.round(bps / self._lightpath_bps).astype(np.int64).tolist(),
                }
                for t, left, bps in made
            ],
        )
