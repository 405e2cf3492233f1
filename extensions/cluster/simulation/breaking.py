"""Failures while jobs run, and their effect on the jobs: units that are repaired, or GPUs that are lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ringlight.extensions.cluster.clusters import FaultPolicies
from ringlight.extensions.cluster.fault_traces import FaultTrace
from ringlight.extensions.cluster.simulation.failing import Unit
from ringlight.extensions.cluster.simulation.holding import ByName, InUnits
from ringlight.extensions.cluster.simulation.placing import Placed
from ringlight.extensions.cluster.simulation.queueing import Queue
from ringlight.extensions.cluster.simulation.running import Running

#: Below it are the numbers of what is no job: spares of a switch.
SPARE = -1
#: A moment, and what happens then.
Event = tuple[float, Callable[[], None]]


@dataclass(frozen=True)
class ClusterFaults:
    """Servers that fail, numbered switch by switch, and what becomes of their jobs."""

    trace: FaultTrace
    policies: FaultPolicies

    def outages(self, units: Sequence[Unit]) -> list[tuple[float, Unit, bool]]:
        """Return when which unit goes down (True) or comes up, in seconds and in order. A unit is down while
        any of its servers is.
        """
        per = self.policies.unit_gpus // self.policies.server_gpus
        events = []
        columns = (self.trace.server, self.trace.begin_s, self.trace.end_s)
        for server, begin, end in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            # An outage of no length takes nothing down.
            if end > begin and server // per < len(units):
                unit = units[server // per]
                events += [(begin, unit, True), (end, unit, False)]
        # Of one moment the repairs first.
        return sorted(events, key=lambda event: (event[0], event[2], event[1]))


@dataclass(frozen=True)
class Losses:
    """GPUs that are lost for good, when and by name. A job continues from the last of its checkpoints, one
    after every ``checkpoint_s`` of work, and needs ``restart_s`` for it.
    """

    gpus: tuple[tuple[float, str], ...] = ()
    checkpoint_s: float = 1.0
    restart_s: float = 0.0


def kept_units(leaves: Sequence[int], policies: FaultPolicies) -> list[int]:
    """Return how many GPUs of each leaf are kept as spares, in whole units.

    If a leaf's share is less than one unit, some leaves keep one for several leaves.
    """
    per = policies.unit_gpus
    ends = np.floor(np.cumsum(leaves) * policies.spares / per + 0.5).astype(np.int64)
    kept: list[int] = (np.diff(ends, prepend=0) * per).tolist()
    return kept


class Sound:
    """Nothing fails."""

    def events(self) -> list[Event]:
        """Return the failures and repairs with their times; none here."""
        return []

    def freed(self) -> None:
        """Called when GPUs have become free, which jobs that stand still may be waiting for."""


class Losing(Sound):
    """GPUs are lost, and spares that the controller chooses take their places."""

    def __init__(self, run: Running, holding: ByName, losses: Losses) -> None:
        self._run, self._holding, self._losses = run, holding, losses

    def events(self) -> list[Event]:
        return [
            (time_s, lambda gpu=gpu: self._lose(gpu))  # type: ignore[misc]
            for time_s, gpu in sorted(self._losses.gpus)
        ]

    def _lose(self, gpu: str) -> None:
        """Lose a GPU for good. Its job continues once there are spares for all GPUs that it lost."""
        run = self._run
        job = self._holding.gpus.lose(gpu)
        if job is None:
            self._holding.count()
            return
        run.hit += 1
        if job not in run.stalled:
            placed = run.placed[job]
            run.stall(job, placed, run.broken(job, self._losses.checkpoint_s))
        self.freed()

    def freed(self) -> None:
        run, gpus = self._run, self._holding.gpus
        for job in list(run.stalled):
            if count := gpus.replace(job):
                run.swapped += count
                _, left = run.revived(job)
                run.pause(job, gpus.placed(job), self._losses.restart_s, left)
        self._holding.count()


class Failing(Sound):
    """Units fail and are repaired. ``goes_on`` is called with a job that stood still, once it does not."""

    def __init__(
        self,
        run: Running,
        holding: InUnits,
        queue: Queue,
        faults: ClusterFaults,
        goes_on: Callable[[int], None],
    ) -> None:
        self._run, self._queue, self._faults, self._policies = (
            run,
            queue,
            faults,
            faults.policies,
        )
        self._goes_on = goes_on
        self._units, self._free = holding.units, holding.free
        self._kept = kept_units(run.cluster.gpus, self._policies)
        self._pool = list(self._kept)
        for leaf in range(len(self._pool)):
            self._hold(leaf)

    def events(self) -> list[Event]:
        return [
            (
                time_s,
                lambda unit=unit, does=self._fail if down else self._mend: does(unit),  # type: ignore[misc]
            )
            for time_s, unit, down in self._faults.outages(self._units.all)
        ]

    def _fail(self, unit: Unit) -> None:
        """Take a unit down."""
        run, policies = self._run, self._policies
        idle, jobs = self._units.fail(unit)
        self._free.take({unit[0]: idle})
        for job in jobs:
            if job <= SPARE:
                # A spare of the pool: no job had it.
                continue
            run.hit += 1
            if job in run.stalled:
                continue
            placed = run.placed[job]
            left = run.broken(job, policies.checkpoint_s)
            if policies.policy == "restart":
                run.give(job, placed)
                run.kept[job] = (left, policies.restart_s)
                self._queue.again(job)
            else:
                run.stall(job, placed, left)
        self.freed()

    def _mend(self, unit: Unit) -> None:
        """Repair a unit."""
        if (idle := self._units.mend(unit)) >= 0:
            self._free.give({unit[0]: idle})
            self.freed()
            self._keep(unit[0])

    def _keep(self, leaf: int) -> None:
        """Make a repaired unit a spare again if some spares were used, before a job gets it."""
        within, per = self._within(leaf), self._policies.unit_gpus
        missing = sum(
            self._kept[neighbour] - self._pool[neighbour] for neighbour in within
        )
        if more := min(missing, self._free.counts[leaf]) // per * per:
            self._pool[leaf] += more
            self._free.give(self._units.give(SPARE - leaf))
            self._hold(leaf)

    def freed(self) -> None:
        """Let jobs that stand still continue if all their GPUs are up, or spares are there for them."""
        for job in list(self._run.stalled):
            for unit, count in self._units.broken(job).items():
                if self._policies.policy != "spare" or not self._swap(job, unit, count):
                    break
            else:
                placed, left = self._run.revived(job)
                self._run.pause(job, placed, self._policies.restart_s, left)
                self._goes_on(job)

    def _swap(self, job: int, unit: Unit, count: int) -> bool:
        """Replace a job's GPUs by spares, to which light is moved. Return whether there were enough.

        The job's switch, and so the links that it shares, stays.
        """
        own = unit[0]
        for leaf in sorted(self._within(own), key=lambda leaf: (leaf != own, leaf)):
            keeper = SPARE - leaf
            kept = (
                self._pool[leaf] - sum(self._units.broken(keeper).values())
                if self._pool[leaf]
                else 0
            )
            if kept >= count:
                self._free.give(self._units.give(keeper))
                self._replace(job, unit, leaf, count)
                self._pool[leaf] -= count
                self._hold(leaf)
                return True
            if self._free.counts[leaf] >= count:
                self._replace(job, unit, leaf, count)
                return True
        return False

    def _within(self, own: int) -> Sequence[int]:
        """Return the leaves from which spares for leaf ``own`` may come."""
        parts = self._run.cluster.parts
        if self._policies.pool == "switch":
            return [own]
        if self._policies.pool == "pod" and len(parts) > 1:
            return [leaf for leaf, pod in enumerate(parts[1]) if pod == parts[1][own]]
        return range(len(self._pool))

    def _replace(self, job: int, unit: Unit, leaf: int, count: int) -> None:
        self._units.replace(job, unit, leaf)
        self._free.take({leaf: count})
        if leaf != unit[0]:
            self._run.borrowing.add(job)
        self._run.swapped += count
        self._run.fibres += count

    def _hold(self, leaf: int) -> None:
        """Reserve the rest of a switch's spares as far as they are up. The other ones are reserved once they
        are up.
        """
        kept = self._pool[leaf] = min(self._pool[leaf], self._free.counts[leaf])
        if kept:
            placed: Placed = {leaf: kept}
            self._units.take(SPARE - leaf, placed)
            self._free.take(placed)
