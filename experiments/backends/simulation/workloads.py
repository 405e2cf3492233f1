"""A job's workload in a simulated lab, and the records that it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ringlight.experiments.language.plan import JobPlan
from ringlight.experiments.record.events import Iteration, JobState, Operations
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.networks import Network
from ringlight.testbed.simulation.phases import StepCost
from ringlight.testbed.simulation.workload import Execution, Fidelity
from ringlight.workloads.graph import Kind, covered_s

#: Makes a record of this run, of a kind, with the fields that are given by name.
Tell = Callable[..., None]
#: More ranks are not followed one by one, but in classes that are in lock-step.
MOST_RANKS = 128
#: Begins and ends of more operations, of all ranks and iterations, are not on record.
MOST_RECORDED = 100_000


def fidelity_of(job: JobPlan) -> Fidelity:
    """Return "exact" if a job's workload is simulated rank by rank, "classes" if by classes of ranks."""
    return "exact" if job.gpus <= MOST_RANKS else "classes"


class WorkloadRun:
    """One job. Raises ValueError as :class:`Execution`."""

    def __init__(
        self,
        engine: Engine,
        network: Network,
        job: JobPlan,
        gpus: Sequence[str],
        cost: StepCost,
        tell: Tell,
        *,
        disturbed: bool,
        standing: bool,
    ) -> None:
        """``disturbed``: others use
        its links; ``standing``: its light is neither asked for nor set anew while it runs."""
        assert job.workload is not None
        self.engine, self.job, self.gpus = engine, job, gpus
        self.tell = partial(tell, job=job.name)
        self.workload = job.workload
        self._recorded = job.workload.operations * job.iterations <= MOST_RECORDED
        self.network, self._failed = network, False
        self.execution = Execution(
            engine,
            network,
            gpus,
            job.workload,
            iterations=job.iterations,
            fidelity=fidelity_of(job),
            cost=cost,
            operations=True,
            slower=job.stragglers,
            progress=self._iteration_done,
            disturbed=disturbed,
            standing=standing,
        )

    @property
    def over(self) -> bool:
        """Return whether all ranks have ended, or nothing will happen any more."""
        return self._failed or self.execution.over

    def begin(self) -> None:
        """Begin to execute the workload."""
        self.execution.begin()

    def rerouted(self) -> None:
        """Nothing changes the network under a graph: such events are refused beforehand."""

    def give_up(self) -> None:
        """Fail what is not over: nothing will happen any more."""
        if (why := self.execution.standstill()) is not None and not self._failed:
            self._failed = True
            self.end("FAILED", why)

    def _iteration_done(self, row: int, index: int) -> None:
        run = self.execution.operations
        assert run.records is not None
        begin_s, end_s = float(run.begin_s[index, row]), self.engine.now_s
        times_s = np.stack(
            (run.records[row].begin_s[index], run.records[row].end_s[index]), axis=1
        )
        ranks = np.flatnonzero(self.execution.row_of == row).tolist()
        program = self.workload.programs[int(self.workload.program_of[ranks[0]])]
        computed_s = covered_s(
            times_s[np.isin(program.kind, (Kind.COMPUTE, Kind.MEMORY))]
        )
        since_begin = (times_s - begin_s).tolist() if self._recorded else []
        for rank in ranks:
            computed = {"compute_start": begin_s, "compute_end": begin_s + computed_s}
            self.tell(
                Iteration, t=end_s, rank=rank, i=index, **computed, allreduce_end=end_s
            )
            if self._recorded:
                self.tell(
                    Operations,
                    t=end_s,
                    rank=rank,
                    i=index,
                    begin=begin_s,
                    times_s=since_begin,
                )
        if self.execution.over:
            self.end("SUCCEEDED", None)

    def end(self, state: str, reason: str | None) -> None:
        """Put the end of the job on record, with the reason if it failed."""
        self.tell(JobState, state=state, gpus=[*self.gpus], reason=reason)
