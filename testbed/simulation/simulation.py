"""Simulates training jobs that compute and all-reduce in turn, and events under them."""

from __future__ import annotations

import gc
import math
from typing import Protocol

from ringlight.testbed.simulation.job_context import JobContext
from ringlight.testbed.simulation.jobs import (
    Event,
    GpuLost,
    Job,
    JobResult,
    check_job,
    without_gpu,
)
from ringlight.testbed.simulation.loop_run import LoopRun


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


class Simulation(JobContext):
    """Jobs over one network in virtual time, for a caller that adds jobs and makes things happen as it goes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lost: set[str] = set()
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

    def happen(self, event: Event) -> None:
        if isinstance(event, GpuLost):
            self.lose(event)
            return
        if self.groups is not None:
            self.groups.interrupt()
        self.change_network(event)
        for run in self.runs.values():
            run.rerouted()
        if self.groups is not None:
            self.groups.rearrange()

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
                self._check_spare(event)
                job = without_gpu(loop.job, event)
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

    def _check_spare(self, event: GpuLost) -> None:
        """Raise ValueError if the spare of a lost GPU is not there."""
        users = [
            name
            for name, loop in self.loops.items()
            if event.spare in loop.job.ranks and not loop.over
        ]
        if users:
            raise ValueError(f"its spare {event.spare} is taken by job {users[0]}")
        if event.spare in self.lost:
            raise ValueError(f"its spare {event.spare} was lost, too")
