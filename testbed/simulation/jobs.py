"""Training jobs that compute and all-reduce in turn, events under them, and their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np

from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.steps import Steps, check_ranks
from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.testbed.simulation.networks import Network
from ringlight.testbed.simulation.phases import StepCost, check_cost, check_vector


@dataclass(frozen=True)
class Compute:
    """Seconds that each rank computes before each all-reduce.

    ``stragglers``: rank to the factor by which it is slower. Raises ValueError naming what is out of range.
    """

    mean_s: float
    stragglers: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean_s) and self.mean_s >= 0):
            raise ValueError(f"compute: mean_s is {self.mean_s}; it must be 0 or more")
        for rank, factor in self.stragglers.items():
            if not (math.isfinite(factor) and factor > 0):
                raise ValueError(
                    f"compute: straggler {rank} has factor {factor}; it must be above 0"
                )

    def seconds(self, ranks: int) -> FloatArray:
        """Return the seconds of each rank. Raises ValueError for a straggler that is not a rank."""
        times_s = np.full(ranks, self.mean_s)
        for rank, factor in self.stragglers.items():
            if not 0 <= rank < ranks:
                raise ValueError(f"compute: there is no rank {rank} to be a straggler")
            times_s[rank] *= factor
        return times_s


@dataclass(frozen=True)
class Job:
    """``iterations`` of compute and an all-reduce of ``vector_bytes``, on GPUs ``ranks`` in rank order.

    ``stepless_s``: seconds of an all-reduce without steps between ranks (``fabric.steps.without_steps``),
    which all ranks begin and end together (``synchronised``).
    """

    name: str
    ranks: tuple[str, ...]
    steps: Steps
    vector_bytes: float
    compute: Compute = Compute(0.0)
    iterations: int = 1
    cost: StepCost = field(default_factory=StepCost)
    synchronised: bool = False
    start_s: float = 0.0
    stepless_s: float | None = None


@dataclass(frozen=True)
class NetworkChange:
    """Change of the network to ``network`` at ``time_s``; links that it did not have are dark for ``dark_s``.

    A regroup: the packets' paths change at once, flows that need a new link stand still while it is dark and,
    with ``time_out_s`` seconds, until TCP tries again after that; all others go on. A cut link: flows over it
    continue elsewhere, or their job fails; with ``patient`` it stands still until another change gives it a
    way, and with that change's ``time_out_s`` until TCP tries again.
    ``cut``: which links are cut, for a job that has no way.
    """

    time_s: float
    network: Network
    dark_s: float = 0.0
    patient: bool = False
    time_out_s: float | None = None
    cut: str = ""


@dataclass(frozen=True)
class GpuLost:
    """Loss of a GPU at ``time_s``; ``then`` its job fails or continues: with ``spare`` in its place
    (``swap``), or without it (``shrink``, the ranks behind it move up by one).

    It continues from the newest parameters that one of its other ranks has: the iteration after them is begun
    again by all ranks, ``recovery_s`` after the loss. That stands for all that happens meanwhile (the loss is
    noticed, light is set, workers start) and is taken for granted. The spare is no straggler. Raises
    ValueError.
    """

    time_s: float
    gpu: str
    then: Literal["fail", "swap", "shrink"] = "fail"
    spare: str | None = None
    recovery_s: float = 0.0

    def __post_init__(self) -> None:
        if (self.then == "swap") != (self.spare is not None):
            needs = (
                "needs a spare"
                if self.spare is None
                else f"has no use for the spare {self.spare}"
            )
            raise ValueError(f"GPU {self.gpu} lost: {self.then} {needs}")
        if not (math.isfinite(self.recovery_s) and self.recovery_s >= 0):
            raise ValueError(
                f"GPU {self.gpu} lost: recovery_s is {self.recovery_s}; it must be 0 or more"
            )


Event = NetworkChange | GpuLost


@dataclass(frozen=True)
class Iteration:
    """Times of one iteration by rank [ranks], seconds: begin, end of compute, end."""

    begin_s: FloatArray
    computed_s: FloatArray
    end_s: FloatArray


@dataclass(frozen=True)
class Loss:
    """A GPU that a job lost at ``lost_s`` and went on without, on ``ranks``, from ``iteration`` at
    ``resumed_s``. ``rank``: the GPU's until then."""

    gpu: str
    rank: int
    iteration: int
    ranks: tuple[str, ...]
    lost_s: float
    resumed_s: float


@dataclass
class JobResult:
    """Outcome of a job. ``failed``: why it ended early, if it did. ``end_s``: when it ended."""

    name: str
    iterations: list[Iteration]
    failed: str | None = None
    end_s: float = math.nan
    losses: list[Loss] = field(default_factory=list)


class Gate(Protocol):
    """Gate that a flow must pass before it may send, such as the O-NICs' control units."""

    def open(
        self,
        source: str,
        destination: str,
        on_lit: Callable[[], None],
        failed: Callable[[str], None],
    ) -> Hashable:
        """Request light between two GPUs and return the flow's handle.

        Calls ``on_lit`` or ``failed`` once, now or later.
        """
        ...

    def close(self, handle: Hashable) -> None:
        """Release the light of a flow that has sent all, or is given up."""
        ...


def check_job(job: Job) -> Job:
    """Return the job, if it can be run. Raises ValueError naming the job, and rank or GPU."""
    where = f"job {job.name}"
    try:
        check_ranks(job.steps, len(job.ranks))
        check_vector(job.vector_bytes)
        check_cost(job.cost, job.steps)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if len(set(job.ranks)) < len(job.ranks):
        twice = next(gpu for gpu in job.ranks if job.ranks.count(gpu) > 1)
        raise ValueError(f"{where}: GPU {twice} is used twice")
    if job.iterations < 1:
        raise ValueError(
            f"{where}: {job.iterations} iterations; there must be at least one"
        )
    if not (math.isfinite(job.start_s) and job.start_s >= 0):
        raise ValueError(f"{where}: start_s is {job.start_s}; it must be 0 or more")
    return job


def without_gpu(job: Job, event: GpuLost) -> Job:
    """Return the job after it lost a GPU, with the spare in its place or a rank fewer.

    Raises ValueError if it cannot continue.
    """
    rank = job.ranks.index(event.gpu)
    slow = {r: factor for r, factor in job.compute.stragglers.items() if r != rank}
    if event.spare is not None:
        ranks = (*job.ranks[:rank], event.spare, *job.ranks[rank + 1 :])
        return replace(job, ranks=ranks, compute=replace(job.compute, stragglers=slow))
    ranks = (*job.ranks[:rank], *job.ranks[rank + 1 :])
    if len(ranks) < 2:
        raise ValueError("one rank is too few to go on")
    slow = {r - (r > rank): factor for r, factor in slow.items()}
    steps = steps_named(job.steps.name, len(ranks))
    check_cost(job.cost, steps)
    return replace(
        job, ranks=ranks, steps=steps, compute=replace(job.compute, stragglers=slow)
    )
