"""A training loop in progress.

Ranks take the steps of the collective as workers do: with light that is asked for, a rank begins a step when
it has sent and received all of its own step before; in a schedule of exchanges when it and its partner have
received that; otherwise it passes on at once what it has, an eighth of a chunk at a time. It waits for nobody
else, so a straggler holds up only who depends on it. With ``synchronised`` steps all ranks begin each step
together, as light that is set for each step makes them; then steps that are equal are computed once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ringlight.fabric.steps import streams
from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.exchange import Exchange, plan_steps
from ringlight.testbed.simulation.job_context import JobContext
from ringlight.testbed.simulation.jobs import GpuLost, Iteration, Job, JobResult, Loss
from ringlight.testbed.simulation.networks import Network
from ringlight.testbed.simulation.operations import Operations, plan_of
from ringlight.testbed.simulation.passing import (
    MOST_IN_PARTS,
    Passing,
    PassingOn,
    Together,
    alike_s,
)
from ringlight.testbed.simulation.phases import synchronous
from ringlight.testbed.simulation.repeating import Loop
from ringlight.testbed.simulation.streaming import (
    Stream,
    Streaming,
    first_of,
    streams_of,
)
from ringlight.testbed.simulation.transfers import Transfers
from ringlight.workloads.graph_writer import data_parallel_loop

#: More transfers than this of one job cannot be followed one by one.
MOST_TRANSFERS = 5_000_000
#: Of the names in a loop's graph; and the number of its collective.
_PURPOSES, _COLLECTIVE = (-1, 0), 1

#: A collective under way.
Execution = Exchange | PassingOn | Streaming | Together


class LoopRun:
    """A training loop in progress, from iteration ``first`` on; after a loss another one takes its place.

    Its iterations are those of the loop's graph: one for each rank, or one of all ranks in step.
    """

    def __init__(
        self,
        context: JobContext,
        job: Job,
        first: int = 0,
        result: JobResult | None = None,
    ) -> None:
        self.context = context
        self.job = job
        self.first = first
        self.result = result or JobResult(job.name, [])
        self.released = self.over = False
        self.waiting = True
        self.sending = Transfers(context, job.ranks, self.fail)
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
            context.engine,
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
        if self.job.synchronised and self.context.gate is None:
            try:
                self.whole = (self.context.network, self._whole_s())
            except ValueError as error:
                raise ValueError(f"job {self.job.name}: {error}") from None
            return
        # Light that is set up, or asked for, waits for all that goes through it.
        waits = (
            self.job.synchronised
            or self.context.gate is not None
            or self.job.cost.set_up_s > 0
        )
        is_stream = not waits and streams(self.job.steps)
        self.large = is_stream and sum(map(len, self.job.steps)) > MOST_IN_PARTS
        self._plan_steps()
        try:
            for lanes in self.sending.lanes():
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
        self.sending.plan = plan_steps(
            steps, self.job.vector_bytes / steps.chunks, self.job.cost, self.sending
        )

    def _plan_ring(self) -> None:
        job = self.job
        if not (
            self.context.disturbed
            or job.compute.stragglers
            or job.cost.reduce_s_per_byte
        ):
            self.alike_s = alike_s(
                self.sending.plan[0].lanes, self.context.network.capacity_bps / 8
            )
        if self.alike_s is not None:
            return
        if self.large:
            self._stream()
        else:
            self.passing = self._passing()

    def _stream(self) -> None:
        job, capacity = self.job, self.context.network.capacity_bps / 8
        self.streams = streams_of(
            self.sending.plan[0].lanes, job.steps, capacity, job.cost.reduce_s_per_byte
        )

    def _passing(self, **how: bool) -> Passing:
        """Return which transfers wait for which. It is the same for all jobs that do the same."""
        key = id(self.job.steps), self.job.vector_bytes, tuple(how.items())
        if key not in self.context.passing:
            self.context.passing[key] = (
                self.job.steps,
                Passing(self.sending.plan, len(self.job.ranks), **how),
            )
        return self.context.passing[key][1]

    def _whole_s(self) -> float:
        job = self.job
        if job.stepless_s is not None:
            return job.stepless_s
        return synchronous(
            self.context.network, job.ranks, job.steps, job.vector_bytes, job.cost
        ).total_s

    # A job's life.

    def begin(self) -> None:
        if self.over:
            return
        self.waiting = False
        if self.first == self.job.iterations:
            self._end()
            return
        if self.context.groups is not None:
            self.context.groups.join(self)
        self.operations.begin()

    def fail(self, reason: str) -> None:
        if self.over:
            return
        self.result.failed = reason
        self._drop()
        self._end()

    def give_up(self) -> None:
        why = self.sending.no_way or "its light never comes back"
        if self.sending.no_way and self.context.cut:
            why += f": {self.context.cut}"
        self.fail(f"it stands still: {why}")

    def go_on(self, job: Job, event: GpuLost) -> LoopRun:
        """End this run after a loss. Return the run of ``job``, which continues it."""
        now_s = self.context.engine.now_s
        begun = not self.waiting or bool(self.result.losses)
        self._drop()
        self.over = True
        if not begun:
            return LoopRun(self.context, job, result=self.result)
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
        return LoopRun(
            self.context, replace(job, start_s=resumed_s), first, self.result
        )

    def _drop(self) -> None:
        """Stop everything that is in progress."""
        if self.context.groups is not None:
            self.context.groups.leave(self)
        self.operations.stop()
        for exchange in self.exchanges.values():
            exchange.over = True
        self.exchanges.clear()
        self.sending.stop()

    def _end(self) -> None:
        self.over, self.waiting = True, False
        self.sending.over = True
        if self.context.groups is not None:
            self.context.groups.leave(self)
        self.result.end_s = self.context.engine.now_s
        if self.context.over is not None:
            self.context.over(self.job.name)

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
        if self.context.progress is not None:
            self.context.progress(
                self.job.name, self.first + iteration, self.context.engine.now_s
            )

    def _communicate(self, row: int, iteration: int, operation: int) -> None:
        """Called when a rank, or all of them in step, come to the collective. Begin it."""
        self.operations.moves(row, operation)
        if self.job.synchronised:
            self._all_reduce()
            return
        self.iteration[row] = iteration
        if self.context.groups is not None:
            self.context.groups.begin(self, row)
        else:
            self.reduce(row)

    def _exchange(self, ended: Callable[[int], None]) -> Execution:
        engine, ranks, cost = self.sending.engine, len(self.job.ranks), self.job.cost
        if self.passing is not None:
            return PassingOn(
                engine,
                self.sending.plan,
                self.passing,
                ranks,
                cost.reduce_s_per_byte,
                self.sending.pass_on,
                ended,
            )
        if self.streams is not None:
            return Streaming(
                engine,
                self.sending.plan[0].lanes,
                self.streams,
                ranks,
                self.sending.begin_stream,
                self.sending.forget,
                ended,
            )
        if self.alike_s is not None:
            return Together(
                engine,
                self.sending.plan[0].lanes,
                self.job.steps.steps,
                self.alike_s,
                ended,
            )
        return Exchange(
            engine,
            self.sending.plan,
            ranks,
            cost.set_up_s,
            self.sending.transfer,
            ended,
        )

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
                self.sending.links(
                    [
                        link
                        for lanes in self.sending.lanes()
                        for link in lanes.routes()[1]
                    ]
                )
            )
        except ValueError:
            # Cut off for now, and patient: its way is not known yet.
            return frozenset(self.context.number.values())

    def looks(self, number: dict[int, int]) -> object:
        looks: list[object] = [
            self.job.steps.name,
            len(self.job.ranks),
            self.job.cost,
            self.alike_s,
        ]
        for lanes in self.sending.lanes():
            offsets, links, latency_s = lanes.routes()
            named = tuple(
                number.setdefault(link, len(number))
                for link in self.sending.links(links)
            )
            looks.append(
                (tuple(offsets), named, tuple(latency_s), tuple(lanes.sizes.tolist()))
            )
        return tuple(looks)

    def transfers(self) -> int:
        return sum(len(plan.step) for plan in self.sending.plan)

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
            ended = self._reduced if self.context.groups is None else self.reduced
            exchange = self.exchanges[iteration] = self._exchange(ended)
        exchange.begin(rank)

    def reduced(self, rank: int) -> None:
        if self.over:
            return
        if self.context.groups is not None:
            self.context.groups.end(self, rank)
        self._reduced(rank)

    def simulate_on(
        self, twin: Engine, begun_s: dict[int, float], over: list[tuple[Loop, int]]
    ) -> None:
        self.sending.engine = twin
        exchange = self._exchange(lambda rank: over.append((self, rank)))
        self.exchanges[self.iteration[next(iter(begun_s))]] = exchange
        for rank, at_s in begun_s.items():
            twin.at(at_s, exchange.begin, rank)

    def back_on(self, engine: Engine) -> None:
        self.sending.engine = engine
        for exchange in self.exchanges.values():
            assert not isinstance(exchange, Exchange)
            exchange.continue_on(engine, self.reduced)

    # Ranks in step.

    def _all_reduce(self) -> None:
        context = self.context
        engine = context.engine
        if self.job.stepless_s is not None:
            engine.at(engine.now_s + self.job.stepless_s, self._reduced)
            return
        try:
            if context.gate is None and not context.disturbed:
                if self.whole is None or self.whole[0] is not context.network:
                    self.whole = (context.network, self._whole_s())
                engine.at(engine.now_s + self.whole[1], self._reduced)
                return
            if not self.sending.plan:
                self._plan_steps()
        except ValueError as error:
            self.fail(str(error))
            return
        self._step_together(0)

    def _step_together(self, number: int) -> None:
        while (
            not self.over
            and number < len(self.sending.plan)
            and len(self.sending.plan[number].step) == 0
        ):
            number += 1
        if self.over:
            return
        if number == len(self.sending.plan):
            self._reduced()
            return
        plan = self.sending.plan[number]

        def go() -> None:
            self.left = len(plan.step)
            for k in range(len(plan.step)):
                if not self.over:
                    self.sending.transfer(number, k, arrived)

        def arrived() -> None:
            self.left -= 1
            if self.left == 0:
                cost_s = max(plan.reduce_s.values(), default=0.0)
                self.context.engine.at(
                    self.context.engine.now_s + cost_s,
                    lambda: self._step_together(number + 1),
                )

        self.context.engine.at(
            self.context.engine.now_s
            + (self.job.cost.set_up_s if plan.set_up else 0.0),
            go,
        )

    # Changes.

    def rerouted(self) -> None:
        """Called when the network has changed. Flows in progress take their new paths, or the job fails."""
        if self.over:
            return
        for lanes in self.sending.lanes():
            lanes.forget()
        if self.streams is not None:
            # Without a way for all, those that have one keep their leads.
            with contextlib.suppress(ValueError):
                self._stream()
        self.sending.reroute()
