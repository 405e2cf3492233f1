"""Simulates training jobs that compute and all-reduce in turn, and events under them.

Ranks take the steps of the collective as workers do: with light that is asked for, a rank begins a step when
it has sent and received all of its own step before; in a schedule of exchanges when it and its partner have
received that; otherwise it passes on at once what it has, an eighth of a chunk at a time. It waits for nobody
else, so a straggler holds up only who depends on it. With ``synchronised`` steps all ranks begin each step
together, as light that is set for each step makes them; then steps that are equal are computed once.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, Protocol

import numpy as np

from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.steps import Step, Steps, check_ranks, streams
from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.exchange import Exchange, Lanes, StepPlan, plan_steps
from ringlight.testbed.simulation.link_flows import LinkFlow, More
from ringlight.testbed.simulation.networks import Network, Routes
from ringlight.testbed.simulation.operations import Operations, plan_of
from ringlight.testbed.simulation.passing import (
    MOST_IN_PARTS,
    Part,
    Passing,
    PassingOn,
    Together,
    alike_s,
)
from ringlight.testbed.simulation.phases import (
    StepCost,
    check_cost,
    check_vector,
    synchronous,
)
from ringlight.testbed.simulation.repeating import Groups, Loop
from ringlight.testbed.simulation.streaming import (
    Stream,
    Streaming,
    first_of,
    streams_of,
)
from ringlight.testbed.simulation.tcp import resumed_s
from ringlight.workloads.graph_writer import data_parallel_loop

#: More transfers than this of one job cannot be followed one by one.
MOST_TRANSFERS = 5_000_000
#: Of the names in a loop's graph; and the number of its collective.
_PURPOSES, _COLLECTIVE = (-1, 0), 1


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

    ``averaged_s``: seconds of an all-reduce that does not go by steps between ranks but through devices that
    sum, which no other job has; then ``steps`` has none, and all ranks begin and end it together
    (``synchronised``).
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
    averaged_s: float | None = None


@dataclass(frozen=True)
class NetworkChange:
    """Change of the network to ``network`` at ``time_s``; links that it did not have are dark for ``dark_s``.

    A regroup: the packets' paths change at once, flows that need a new link stand still while it is dark and,
    with ``time_out_s`` seconds, until TCP tries again after that; all others go on. A cut link: flows over it
    continue elsewhere, or their job fails; with ``patient`` it stands still until another change gives it a
    way.
    """

    time_s: float
    network: Network
    dark_s: float = 0.0
    patient: bool = False
    time_out_s: float | None = None


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


#: A collective under way.
Execution = Exchange | PassingOn | Streaming | Together


class Run(Protocol):
    """A job in progress, of any kind. ``over``: it has ended or failed."""

    @property
    def over(self) -> bool: ...

    def begin(self) -> None:
        """Begin its first iteration now."""

    def give_up(self) -> None:
        """Fail, unless it is over: nothing will happen any more."""

    def rerouted(self) -> None:
        """Called when the network has changed."""


class Simulation:
    """Jobs over one network in virtual time, for a caller that adds jobs and makes things happen as it goes.

    ``progress`` is called with job, iteration and time at each iteration's end, ``over`` with a job's name at
    its end; both only of training loops. ``disturbed``: something may happen at any time, so that no
    collective is computed in one piece.
    """

    def __init__(
        self,
        network: Network,
        engine: Engine | None = None,
        *,
        gate: Gate | None = None,
        progress: Callable[[str, int, float], None] | None = None,
        over: Callable[[str], None] | None = None,
        disturbed: bool = False,
    ) -> None:
        self.network = network
        self.engine = engine or Engine()
        self.gate = gate
        self.progress = progress
        self.over = over
        self.disturbed = disturbed
        self.patient = False
        #: Of loops that go on at once with what comes; None if something else has flows, or all are traced.
        self.groups = (
            Groups(self.engine) if gate is None and self.engine.passed is None else None
        )
        #: By schedule, which is kept so that its identity stays its own, size and how chunks are passed on.
        self.passing: dict[
            tuple[int, float, tuple[tuple[str, bool], ...]], tuple[Steps, Passing]
        ] = {}
        self.lost: set[str] = set()
        self.number: dict[int, int] = {}
        self.runs: dict[str, Run] = {}

    @property
    def loops(self) -> dict[str, LoopRun]:
        """The jobs that are training loops."""
        return {
            name: run for name, run in self.runs.items() if isinstance(run, LoopRun)
        }

    def loop(self, name: str) -> LoopRun:
        """Return a job that is a training loop. Raises KeyError for any other name."""
        run = self.runs[name]
        if not isinstance(run, LoopRun):
            raise KeyError(name)
        return run

    @property
    def results(self) -> dict[str, JobResult]:
        """Return the outcome of each training loop so far, by name."""
        return {name: run.result for name, run in self.loops.items()}

    def add(self, job: Job) -> None:
        """Add a job. Raises ValueError for a job that cannot be run or is there already, and for a transfer
        without a way.
        """
        if job.name in self.runs:
            raise ValueError(f"two jobs are called {job.name}")
        run = self.runs[job.name] = LoopRun(self, check_job(job))
        run.prepare()
        if not run.grouped:
            self._ungroup()

    def put(self, name: str, run: Run) -> None:
        """Add a job of another kind."""
        self.runs[name] = run
        self._ungroup()

    def _ungroup(self) -> None:
        """Something else has flows."""
        if self.groups is not None:
            self.groups.end_all()
            self.groups = None

    def begin(self, name: str) -> None:
        """Start a job that was added: now, or a training loop at its ``start_s``."""
        run, start_s = self.runs[name], self.engine.now_s
        if isinstance(run, LoopRun):
            run.released = True
            start_s = max(start_s, run.job.start_s)
        self.engine.at(start_s, run.begin)

    def stop(self, name: str, reason: str) -> None:
        """End a training loop now, as failed for a reason. A loop that has ended stays as it is."""
        self.loop(name).fail(reason)

    def run(self, until_s: float = math.inf) -> None:
        """Run like :meth:`Engine.run`."""
        # Millions of small objects live for a moment, and none of them in a cycle: the collector would look
        # through the whole fabric again and again for nothing.
        collecting = gc.isenabled()
        gc.disable()
        try:
            self.engine.run(until_s)
        finally:
            if collecting:
                gc.enable()

    def give_up(self) -> None:
        """Fail what is not over: nothing will happen any more."""
        for run in list(self.runs.values()):
            run.give_up()

    def links(self, locals_: Sequence[int]) -> tuple[int, ...]:
        """Return the engine's numbers of the present network's links."""
        numbers = []
        for link in locals_:
            number = self.number.get(link)
            if number is None:
                capacity = float(self.network.capacity_bps[link]) / 8
                number = self.number[link] = self.engine.link(
                    self.network.key(link), capacity
                )
            numbers.append(number)
        return tuple(numbers)

    def happen(self, event: Event) -> None:
        if isinstance(event, GpuLost):
            self.lose(event)
            return
        if self.groups is not None:
            self.groups.interrupt()
        old = {self.network.key(link) for link in range(len(self.network.capacity_bps))}
        self.network = event.network
        self.number = {}
        self.patient = event.patient
        for key in old - {
            event.network.key(link) for link in range(len(event.network.capacity_bps))
        }:
            self.engine.set_capacity(self.engine.link(key, 0.0), 0.0)
        for link in range(len(event.network.capacity_bps)):
            key = event.network.key(link)
            capacity = float(event.network.capacity_bps[link]) / 8
            number = self.engine.link(key, capacity)
            self.number[link] = number
            if key not in old and event.dark_s > 0:
                self.engine.set_capacity(number, 0.0)
                lit_s = self.engine.now_s + event.dark_s
                if lit_s == math.inf:
                    continue
                self.engine.at(
                    lit_s, partial(self.shine, number, capacity, event.time_out_s)
                )
            else:
                self.engine.set_capacity(number, capacity)
        for run in self.runs.values():
            run.rerouted()
        if self.groups is not None:
            self.groups.rearrange()

    def shine(self, link: int, capacity: float, time_out_s: float | None) -> None:
        """Give a link light again, with ``capacity`` bytes per second. Senders notice it after their
        time-outs.
        """
        self.engine.set_capacity(link, capacity)
        if time_out_s is not None:
            self.engine.hold_back(link, partial(resumed_s, time_out_s=time_out_s))

    def lose(self, event: GpuLost) -> None:
        self.lost.add(event.gpu)
        for name, loop in self.loops.items():
            if loop.over or event.gpu not in loop.job.ranks:
                continue
            if event.then == "fail":
                loop.fail(
                    f"GPU {event.gpu} (rank {loop.job.ranks.index(event.gpu)}) was lost"
                )
                continue
            try:
                job = self.without(loop.job, event)
            except ValueError as error:
                loop.fail(
                    f"GPU {event.gpu} (rank {loop.job.ranks.index(event.gpu)}) was lost: {error}"
                )
                continue
            following = self.runs[name] = loop.go_on(job, event)
            try:
                following.prepare()
            except ValueError as error:
                following.fail(str(error))
                continue
            if not following.grouped:
                self._ungroup()
            if loop.released:
                self.begin(name)

    def without(self, job: Job, event: GpuLost) -> Job:
        """Return the job after the loss. Raises ValueError if it cannot continue."""
        rank = job.ranks.index(event.gpu)
        slow = {r: factor for r, factor in job.compute.stragglers.items() if r != rank}
        if event.spare is not None:
            users = [
                name
                for name, loop in self.loops.items()
                if event.spare in loop.job.ranks and not loop.over
            ]
            if users:
                raise ValueError(f"its spare {event.spare} is taken by job {users[0]}")
            if event.spare in self.lost:
                raise ValueError(f"its spare {event.spare} was lost, too")
            ranks = (*job.ranks[:rank], event.spare, *job.ranks[rank + 1 :])
            return replace(
                job, ranks=ranks, compute=replace(job.compute, stragglers=slow)
            )
        ranks = (*job.ranks[:rank], *job.ranks[rank + 1 :])
        if len(ranks) < 2:
            raise ValueError("one rank is too few to go on")
        slow = {r - (r > rank): factor for r, factor in slow.items()}
        steps = steps_named(job.steps.name, len(ranks))
        check_cost(job.cost, steps)
        return replace(
            job, ranks=ranks, steps=steps, compute=replace(job.compute, stragglers=slow)
        )


class LoopRun:
    """A training loop in progress, from iteration ``first`` on; after a loss another one takes its place.

    Its iterations are those of the loop's graph: one for each rank, or one of all ranks in step.
    """

    def __init__(
        self, run: Simulation, job: Job, first: int = 0, result: JobResult | None = None
    ) -> None:
        self.run = run
        #: What has its flows.
        self.engine = run.engine
        self.job = job
        self.first = first
        self.result = result or JobResult(job.name, [])
        self.released = self.over = False
        self.waiting = True
        self.flows: dict[LinkFlow, tuple[Lanes, int]] = {}
        self.opened: dict[Hashable, None] = {}
        #: Transfers that have no way for now.
        self.stranded: list[Callable[[], None]] = []
        self.plan: list[StepPlan] = []
        self.passing: Passing | None = None
        #: Whether it is a ring that is not followed part by part; its plan is of the first step.
        self.large = False
        self.streams: list[Stream] | None = None
        #: Seconds that each transfer is on its links, where ranks all do the same at the same time.
        self.alike_s: float | None = None
        self.exchanges: dict[int, Execution] = {}
        self.left = 0
        #: By rank, of its newest all-reduce.
        self.iteration = [0] * len(job.ranks)
        self.whole: tuple[Network, float] | None = None
        ranks = len(job.ranks)
        self.seconds = job.compute.seconds(ranks)
        rows = (
            [float(self.seconds.max())] if job.synchronised else self.seconds.tolist()
        )
        loop = data_parallel_loop(ranks, 0.0, 0)
        plan = plan_of(loop, loop.programs[0], _PURPOSES)
        self.operations = Operations(
            run.engine,
            [plan._replace(local_s=[seconds, math.nan]) for seconds in rows],
            range(len(rows)),
            job.iterations - first,
            1,
            self._communicate,
            progress=self._row_ended,
        )
        #: Iterations that all ranks have ended, of those from ``first`` on.
        self.closed = 0

    def prepare(self) -> None:
        """Look at every transfer once, so that one without a way is named before anything runs. Raises
        ValueError.
        """
        if self.job.synchronised and self.run.gate is None:
            try:
                self.whole = (self.run.network, self._whole_s())
            except ValueError as error:
                raise ValueError(f"job {self.job.name}: {error}") from None
            return
        # Light that is set up, or asked for, waits for all that goes through it.
        waits = (
            self.job.synchronised
            or self.run.gate is not None
            or self.job.cost.set_up_s > 0
        )
        is_stream = not waits and streams(self.job.steps)
        self.large = is_stream and sum(map(len, self.job.steps)) > MOST_IN_PARTS
        self._plan_steps()
        try:
            for lanes in self._lanes():
                lanes.routes()
        except ValueError as error:
            raise ValueError(f"job {self.job.name}: {error}") from None
        if is_stream:
            self._plan_ring()
        elif not waits:
            self.passing = self._passing(step_by_step=self.job.steps.step_by_step)

    def _plan_steps(self) -> None:
        steps = self.job.steps
        if self.large:
            steps = first_of(steps)
        elif sum(map(len, steps)) > MOST_TRANSFERS:
            raise ValueError(
                f"job {self.job.name}: more than {MOST_TRANSFERS} transfers cannot be followed one by "
                "one; use synchronised steps, and nothing else at the same time"
            )
        self.plan = plan_steps(
            steps, self.job.vector_bytes / steps.chunks, self.job.cost, self
        )

    def _plan_ring(self) -> None:
        job = self.job
        if not (
            self.run.disturbed or job.compute.stragglers or job.cost.reduce_s_per_byte
        ):
            self.alike_s = alike_s(
                self.plan[0].lanes, self.run.network.capacity_bps / 8
            )
        if self.alike_s is not None:
            return
        if self.large:
            self._stream()
        else:
            self.passing = self._passing()

    def _stream(self) -> None:
        job, capacity = self.job, self.run.network.capacity_bps / 8
        self.streams = streams_of(
            self.plan[0].lanes, job.steps, capacity, job.cost.reduce_s_per_byte
        )

    def _passing(self, **how: bool) -> Passing:
        """Return which transfers wait for which. It is the same for all jobs that do the same."""
        key = id(self.job.steps), self.job.vector_bytes, tuple(how.items())
        if key not in self.run.passing:
            self.run.passing[key] = (
                self.job.steps,
                Passing(self.plan, len(self.job.ranks), **how),
            )
        return self.run.passing[key][1]

    def routes(self, step: Step, number: int) -> Routes:
        return self.run.network.routes(self.job.ranks, step, number)

    def links(self, locals_: Sequence[int]) -> tuple[int, ...]:
        return self.run.links(locals_)

    def _whole_s(self) -> float:
        job = self.job
        if job.averaged_s is not None:
            return job.averaged_s
        return synchronous(
            self.run.network, job.ranks, job.steps, job.vector_bytes, job.cost
        ).total_s

    # A job's life.

    def begin(self) -> None:
        if self.over:
            return
        self.waiting = False
        if self.first == self.job.iterations:
            self._end()
            return
        if self.run.groups is not None:
            self.run.groups.join(self)
        self.operations.begin()

    def fail(self, reason: str) -> None:
        if self.over:
            return
        self.result.failed = reason
        self._drop()
        self._end()

    def give_up(self) -> None:
        self.fail("it stands still: its light never comes back")

    def go_on(self, job: Job, event: GpuLost) -> LoopRun:
        """End this run after a loss. Return the run of ``job``, which continues it."""
        now_s = self.run.engine.now_s
        begun = not self.waiting or bool(self.result.losses)
        self._drop()
        self.over = True
        if not begun:
            return LoopRun(self.run, job, result=self.result)
        rank, end_s = (
            self.job.ranks.index(event.gpu),
            self._by_rank(self.operations.end_s),
        )
        first = int(np.delete(np.isfinite(end_s).sum(axis=0), rank).max())
        # Who had not ended the last of them yet does so by what it is given.
        self.operations.end_s[:first] = np.nan_to_num(
            self.operations.end_s[:first], nan=now_s
        )
        while self.closed < first:
            self._close()
        resumed_s = now_s + event.recovery_s
        first += self.first
        self.result.losses.append(
            Loss(event.gpu, rank, first, job.ranks, now_s, resumed_s)
        )
        return LoopRun(self.run, replace(job, start_s=resumed_s), first, self.result)

    def _drop(self) -> None:
        """Stop everything that is in progress."""
        if self.run.groups is not None:
            self.run.groups.leave(self)
        self.operations.stop()
        for exchange in self.exchanges.values():
            exchange.over = True
        self.exchanges.clear()
        for flow in list(self.flows):
            self.run.engine.stop(flow)
        self.flows.clear()
        if self.run.gate is not None:
            for handle in list(self.opened):
                self.run.gate.close(handle)
        self.opened.clear()
        self.stranded.clear()

    def _end(self) -> None:
        self.over, self.waiting = True, False
        if self.run.groups is not None:
            self.run.groups.leave(self)
        self.result.end_s = self.run.engine.now_s
        if self.run.over is not None:
            self.run.over(self.job.name)

    def _by_rank(self, rows: FloatArray) -> FloatArray:
        """Return the times of all ranks [..., ranks]. ``rows`` may have one time for all ranks in step."""
        return np.broadcast_to(rows, (*rows.shape[:-1], len(self.job.ranks)))

    def _row_ended(self, _row: int, iteration: int) -> None:
        if np.isfinite(self.operations.end_s[iteration]).all():
            self._close()
            if self.closed == self.operations.iterations:
                self._end()

    def _close(self) -> None:
        """End the next iteration and add it to the result."""
        iteration = self.closed
        self.closed += 1
        self.exchanges.pop(iteration, None)
        begin_s = self._by_rank(self.operations.begin_s[iteration])
        end_s = self._by_rank(self.operations.end_s[iteration])
        self.result.iterations.append(Iteration(begin_s, begin_s + self.seconds, end_s))
        if self.run.progress is not None:
            self.run.progress(
                self.job.name, self.first + iteration, self.run.engine.now_s
            )

    def _communicate(self, row: int, iteration: int, operation: int) -> None:
        """Called when a rank, or all of them in step, come to the collective. Begin it."""
        self.operations.moves(row, operation)
        if self.job.synchronised:
            self._all_reduce()
            return
        self.iteration[row] = iteration
        if self.run.groups is not None:
            self.run.groups.begin(self, row)
        else:
            self.reduce(row)

    def _exchange(self, ended: Callable[[int], None]) -> Execution:
        engine, ranks, cost = self.engine, len(self.job.ranks), self.job.cost
        if self.passing is not None:
            return PassingOn(
                engine,
                self.plan,
                self.passing,
                ranks,
                cost.reduce_s_per_byte,
                self._pass_on,
                ended,
            )
        if self.streams is not None:
            return Streaming(
                engine,
                self.plan[0].lanes,
                self.streams,
                ranks,
                self._begin_stream,
                self._forget,
                ended,
            )
        if self.alike_s is not None:
            return Together(
                engine, self.plan[0].lanes, self.job.steps.steps, self.alike_s, ended
            )
        return Exchange(engine, self.plan, ranks, cost.set_up_s, self._transfer, ended)

    def _reduced(self, row: int = 0) -> None:
        if not self.over:
            self.operations.ended(row, _COLLECTIVE)

    # For groups.

    @property
    def grouped(self) -> bool:
        """Return whether each of its ranks passes data on immediately, independently of the others."""
        followed = (
            self.passing is not None
            or self.streams is not None
            or self.alike_s is not None
        )
        return not self.job.synchronised and followed

    def links_used(self) -> frozenset[int]:
        try:
            return frozenset(
                self.links(
                    [link for lanes in self._lanes() for link in lanes.routes()[1]]
                )
            )
        except ValueError:
            # Cut off for now, and patient: its way is not known yet.
            return frozenset(self.run.number.values())

    def looks(self, number: dict[int, int]) -> object:
        looks: list[object] = [
            self.job.steps.name,
            len(self.job.ranks),
            self.job.cost,
            self.alike_s,
        ]
        for lanes in self._lanes():
            offsets, links, latency_s = lanes.routes()
            named = tuple(
                number.setdefault(link, len(number)) for link in self.links(links)
            )
            looks.append(
                (tuple(offsets), named, tuple(latency_s), tuple(lanes.sizes.tolist()))
            )
        return tuple(looks)

    def _lanes(self) -> list[Lanes]:
        """Return the lanes of all steps, each once."""
        return list(dict.fromkeys(plan.lanes for plan in self.plan))

    def transfers(self) -> int:
        return sum(len(plan.step) for plan in self.plan)

    def upcoming_s(self) -> Iterator[tuple[int, float]]:
        if self.over:
            return
        for rank, iteration in enumerate(self.operations.at_iteration):
            if not math.isfinite(self.operations.end_s[iteration, rank]):
                yield (
                    rank,
                    float(self.operations.begin_s[iteration, rank])
                    + float(self.seconds[rank]),
                )

    def reduce(self, rank: int) -> None:
        iteration = self.iteration[rank]
        exchange = self.exchanges.get(iteration)
        if exchange is None:
            ended = self._reduced if self.run.groups is None else self.reduced
            exchange = self.exchanges[iteration] = self._exchange(ended)
        exchange.begin(rank)

    def reduced(self, rank: int) -> None:
        if self.over:
            return
        if self.run.groups is not None:
            self.run.groups.end(self, rank)
        self._reduced(rank)

    def simulate_on(
        self, twin: Engine, begun_s: dict[int, float], over: list[tuple[Loop, int]]
    ) -> None:
        self.engine = twin
        exchange = self._exchange(lambda rank: over.append((self, rank)))
        self.exchanges[self.iteration[next(iter(begun_s))]] = exchange
        for rank, at_s in begun_s.items():
            twin.at(at_s, exchange.begin, rank)

    def back_on(self, engine: Engine) -> None:
        self.engine = engine
        for exchange in self.exchanges.values():
            assert not isinstance(exchange, Exchange)
            exchange.continue_on(engine, self.reduced)

    # Transfers.

    def _transfer(self, number: int, k: int, done: Callable[[], None]) -> None:
        """Start transfer ``k`` of step ``number``, through the gate if there is one."""
        plan = self.plan[number]
        gate = self.run.gate
        if gate is None:
            self._flow(plan, k, done)
            return
        handle: list[Hashable] = []

        def on_lit() -> None:
            self._flow(plan, k, over)

        def over() -> None:
            self.opened.pop(handle[0], None)
            gate.close(handle[0])
            done()

        ranks, lanes = self.job.ranks, plan.lanes
        source, destination = ranks[lanes.sources[k]], ranks[lanes.destinations[k]]
        try:
            handle.append(gate.open(source, destination, on_lit, self.fail))
        except ValueError as error:
            self.fail(str(error))
            return
        self.opened[handle[0]] = None

    def _pass_on(
        self, part: Part, waited_s: float, more: More, done: Callable[[], None]
    ) -> None:
        self._flow(
            self.plan[part.number],
            part.k,
            done,
            size=part.size,
            waited_s=waited_s,
            more=more,
        )

    def _flow(
        self,
        plan: StepPlan,
        k: int,
        done: Callable[[], None],
        *,
        size: float | None = None,
        waited_s: float = 0.0,
        more: More | None = None,
    ) -> None:
        """Start ``size`` bytes of transfer ``k``, by default all of it, which could have gone ``waited_s``
        ago."""
        size = float(plan.lanes.sizes[k]) if size is None else size

        def end() -> None:
            self._forget(flow)
            done()

        flow = LinkFlow(size, end, more)
        self._begin_flow(flow, plan.lanes, k, waited_s)

    def _begin_stream(self, stream: Stream, flow: LinkFlow) -> None:
        self._begin_flow(flow, self.plan[0].lanes, stream.k)

    def _begin_flow(
        self, flow: LinkFlow, lanes: Lanes, k: int, waited_s: float = 0.0
    ) -> None:
        if self.over:
            return
        try:
            links, latency_s = lanes.way(k)
        except ValueError as error:
            if self.run.patient:
                self.stranded.append(lambda: self._begin_flow(flow, lanes, k))
            else:
                self.fail(str(error))
            return
        self.flows[flow] = (lanes, k)
        self.engine.begin(flow, links, max(0.0, latency_s - waited_s))

    def _forget(self, flow: LinkFlow) -> None:
        del self.flows[flow]

    # Ranks in step.

    def _all_reduce(self) -> None:
        engine, run = self.run.engine, self.run
        if self.job.averaged_s is not None:
            engine.at(engine.now_s + self.job.averaged_s, self._reduced)
            return
        try:
            if run.gate is None and not run.disturbed:
                if self.whole is None or self.whole[0] is not run.network:
                    self.whole = (run.network, self._whole_s())
                engine.at(engine.now_s + self.whole[1], self._reduced)
                return
            if not self.plan:
                self._plan_steps()
        except ValueError as error:
            self.fail(str(error))
            return
        self._step_together(0)

    def _step_together(self, number: int) -> None:
        while (
            not self.over
            and number < len(self.plan)
            and len(self.plan[number].step) == 0
        ):
            number += 1
        if self.over:
            return
        if number == len(self.plan):
            self._reduced()
            return
        plan = self.plan[number]

        def go() -> None:
            self.left = len(plan.step)
            for k in range(len(plan.step)):
                if not self.over:
                    self._transfer(number, k, arrived)

        def arrived() -> None:
            self.left -= 1
            if self.left == 0:
                cost_s = max(plan.reduce_s.values(), default=0.0)
                self.run.engine.at(
                    self.run.engine.now_s + cost_s,
                    lambda: self._step_together(number + 1),
                )

        self.run.engine.at(
            self.run.engine.now_s + (self.job.cost.set_up_s if plan.set_up else 0.0), go
        )

    # Changes.

    def rerouted(self) -> None:
        """Called when the network has changed. Flows in progress take their new paths, or the job fails."""
        if self.over:
            return
        for lanes in self._lanes():
            lanes.forget()
        if self.streams is not None:
            # Without a way for all, those that have one keep their leads.
            with contextlib.suppress(ValueError):
                self._stream()
        for flow, (lanes, k) in list(self.flows.items()):
            try:
                links, _ = lanes.way(k)
            except ValueError as error:
                if self.run.patient:
                    continue
                self.fail(str(error))
                return
            self.run.engine.reroute(flow, links)
        stranded, self.stranded = self.stranded, []
        for start in stranded:
            start()
