"""GPUs that a simulated run has lost, and what becomes of the jobs that had them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping
from functools import partial

from ringlight.experiments.backends.simulation.workloads import Tell
from ringlight.experiments.language.plan import JobPlan, OnLoss
from ringlight.experiments.record.events import JobRecovered, WorkerLost
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.jobs import GpuLost
from ringlight.testbed.simulation.simulation import Simulation

#: Seconds from the loss of a GPU until its job goes on, where a file gives no ``recovery``: medians of twenty
#: losses each, eight with a spare that is only free (``benchmarks.swap``, Docker, two processors). It is the
#: software's own time, from the event to the start of the next iteration, and taken as the same for every D.
RECOVERY_S: Mapping[OnLoss, float] = {"swap": 0.42, "shrink": 0.14}
#: The same with a spare that the job names, whose worker waits for it.
NAMED_SPARE_S = 0.18


class Losses:
    """``gpus``: those that were lost. ``ranks``: of each job, in rank order; changed when it goes on without
    a GPU. ``free``: returns which of some GPUs no job has."""

    def __init__(
        self,
        engine: Engine,
        sim: Simulation,
        ranks: MutableMapping[str, tuple[str, ...]],
        free: Callable[[Collection[str]], list[str]],
        tell: Tell,
    ) -> None:
        self._engine, self._sim, self._ranks = engine, sim, ranks
        self._free, self._tell = free, tell
        self.gpus: set[str] = set()
        self._seen: dict[str, int] = {}

    def lose(self, gpu: str, job: JobPlan | None, nodes: Collection[str]) -> None:
        """Lose a worker, or the GPU if that is among ``gpus``, of a job, if any. ``nodes``: may be spares.

        Raises ValueError.
        """
        then: OnLoss = "fail" if job is None else job.on_loss
        spare = None
        if job is not None and then == "swap":
            spare = next(iter(self._free(job.spares or nodes)), None)
            then = "fail" if spare is None else then
        assumed_s = None
        if job is not None and job.recovery_s is None:
            assumed_s = NAMED_SPARE_S if spare in job.spares else RECOVERY_S.get(then)
        stated_s = None if job is None else job.recovery_s
        recovery_s = assumed_s or stated_s or 0.0
        before = dict(self._ranks)
        now_s = self._engine.now_s
        self._sim.happen(GpuLost(now_s, gpu, then, spare, recovery_s))
        for name, ranks in before.items():
            self._go_on(name, ranks, gpu, assumed_s)

    def _go_on(
        self, job: str, ranks: tuple[str, ...], gpu: str, assumed_s: float | None
    ) -> None:
        """Put on record that a job has lost one of its GPUs ``ranks``, and when it goes on, if it has."""
        losses = self._sim.loop(job).result.losses
        if len(losses) <= self._seen.get(job, 0):
            return
        loss = losses[-1]
        self._seen[job] = len(losses)
        self._ranks[job] = loss.ranks
        self._tell(WorkerLost, job=job, rank=ranks.index(gpu), gpu=gpu, reason="lost")
        recovered = partial(
            self._tell,
            JobRecovered,
            t=loss.resumed_s,
            at=loss.resumed_s,
            assumed_s=assumed_s,
            job=job,
            iteration=loss.iteration,
            gpus=[*loss.ranks],
        )
        self._engine.at(loss.resumed_s, recovered)
