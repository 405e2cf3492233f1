"""Jobs that have their GPUs: where each is, what is left of it, when it is over, and what stands still."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ringlight.extensions.cluster.clusters import Cluster, Policies
from ringlight.extensions.cluster.job_traces import JobTrace
from ringlight.extensions.cluster.simulation.crossing import Crossing
from ringlight.extensions.cluster.simulation.holding import Holding
from ringlight.extensions.cluster.simulation.placing import Placed
from ringlight.testbed.simulation.arrays import FloatArray


class Running:
    """The jobs of one replay at the moment ``now``. Jobs on one switch share no link and end when they
    should; those that share links are in ``crossing``."""

    def __init__(
        self,
        cluster: Cluster,
        trace: JobTrace,
        shares: FloatArray,
        rings: npt.NDArray[np.bool_],
        policies: Policies,
        holding: Holding,
        crossing: Crossing,
        start_up_s: float | Sequence[float],
    ) -> None:
        self.cluster, self.holding, self.crossing = cluster, holding, crossing
        self.start_up_s: list[float] = np.broadcast_to(start_up_s, len(trace)).tolist()
        self.never_short = policies.light == "ideal"
        self.gpus: list[int] = trace.gpus.tolist()
        self.work_s: list[float] = trace.duration_s.tolist()
        self.share: list[float] = shares.tolist()
        self.once_round: list[bool] = rings.tolist()
        self.now = 0.0
        self.placed: dict[int, Placed] = {}
        #: Ends of jobs that share no link; a job that moved meanwhile has another end by now.
        self._ends: list[tuple[float, int]] = []
        self._end_of: dict[int, float] = {}
        #: Jobs that are whole on each switch, and may make room on it.
        self.whole_on: dict[int, dict[int, int]] = {
            leaf: {} for leaf in range(len(cluster.gpus))
        }
        #: Jobs some of whose GPUs are of another switch than it looks, by a spare's light; they stay there.
        self.borrowing: set[int] = set()
        count = len(trace)
        self.start = np.full(count, np.nan)
        self.end = np.full(count, np.nan)
        self.dark = np.zeros(count)
        self.switches = np.ones(count, dtype=np.int64)
        #: Most switches that so many GPUs need, where all are equal, and GPUs of jobs that are on more.
        self._each = max(cluster.gpus)
        self.scattered = self.held = 0
        #: What is left of jobs that wait again, once they have started once more for so long; and ideal GPU
        #: seconds that were done in vain or only waited for.
        self.kept: dict[int, tuple[float, float]] = {}
        self.repeated = 0.0
        #: Jobs that stand still, with their places and what is left of them.
        self.stalled: dict[int, tuple[Placed, float]] = {}
        #: What is left of jobs that have their GPUs and pause, once that is over.
        self.pausing: dict[int, float] = {}
        self.stalled_gpus = self.hit = self.swapped = self.fibres = self.regroupings = 0

    def _is_scattered(self, job: int, placed: Placed) -> bool:
        """Return whether a job is on more switches than its GPUs need."""
        return len(placed) > -(-self.gpus[job] // self._each)

    def fits(self, job: int) -> bool:
        """Return whether a job has room."""
        return self.holding.fits(job, self.gpus[job])

    def begin(self, job: int, placed: Placed) -> None:
        """Start a job that waited where it is to be."""
        if np.isnan(self.start[job]):
            self.start[job] = self.now
        left_s, before_s = self.kept.pop(job, (self.work_s[job], self.start_up_s[job]))
        if before_s:
            self.pausing[job] = left_s
            left_s = self.wait_s(job, before_s)
        self.put(job, placed, left_s)

    def put(self, job: int, placed: Placed, left_s: float) -> None:
        """Give a job its GPUs and let it continue."""
        self.holding.take(job, placed)
        self.held += self.gpus[job]
        self.go(job, placed, left_s)

    def go(self, job: int, placed: Placed, left_s: float) -> None:
        """Let a job that has its GPUs continue."""
        self.placed[job] = placed
        several = len(placed) > 1
        if several:
            self.switches[job] = max(int(self.switches[job]), len(placed))
            self.scattered += self.gpus[job] * self._is_scattered(job, placed)
        elif job not in self.borrowing:
            (leaf,) = placed
            self.whole_on[leaf][job] = self.gpus[job]
        sends = (
            several
            and self.share[job]
            and job not in self.pausing
            and not self.never_short
        )
        loads = self.holding.loads(job, placed, self.once_round[job]) if sends else []
        if loads:
            self.crossing.add(
                job, self.now, loads, left_s, self.share[job], self.gpus[job]
            )
        else:
            end = self.now + left_s
            self._end_of[job] = end
            heapq.heappush(self._ends, (end, job))

    def remove(self, job: int) -> float:
        """Take a job off its GPUs. Return its remaining work in seconds at ideal speed."""
        placed = self.placed[job]
        left = self.halt(job)
        self.give(job, placed)
        return left

    def give(self, job: int, placed: Placed) -> None:
        """Take the GPUs of a job that stands still."""
        self.held -= self.gpus[job]
        self.holding.give(job, placed)
        self.borrowing.discard(job)

    def halt(self, job: int) -> float:
        """Stop a job where it is. Return its remaining work in seconds at ideal speed."""
        placed = self.placed.pop(job)
        if len(placed) == 1:
            (leaf,) = placed
            self.whole_on[leaf].pop(job, None)
        else:
            self.scattered -= self.gpus[job] * self._is_scattered(job, placed)
        if job in self.crossing:
            return self.crossing.remove(job, self.now)
        return self._end_of.pop(job) - self.now

    def finish(self, job: int) -> bool:
        """Return whether a job has ended that has reached its next moment. A job that only paused, or whose
        turn is over, continues.
        """
        if job in self.crossing and not self.crossing.turn(job, self.now):
            return False
        if (left_s := self.pausing.pop(job, None)) is not None:
            placed = self.placed[job]
            self.halt(job)
            self.go(job, placed, left_s)
            return False
        self.remove(job)
        self.end[job] = self.now
        return True

    def pause(self, job: int, placed: Placed, seconds: float, left_s: float) -> None:
        """Let a job that stands still send nothing for a while, and then continue."""
        if seconds:
            self.pausing[job] = left_s
            left_s = self.wait_s(job, seconds)
        self.go(job, placed, left_s)

    def stall(self, job: int, placed: Placed, left_s: float) -> None:
        """Keep a job that stands still until it has all its GPUs again."""
        self.stalled[job] = (placed, left_s)
        self.stalled_gpus += self.gpus[job]

    def revived(self, job: int) -> tuple[Placed, float]:
        """Remove a job from those that stand still. Return its place and its remaining work in seconds at
        ideal speed.
        """
        self.stalled_gpus -= self.gpus[job]
        return self.stalled.pop(job)

    def broken(self, job: int, checkpoint_s: float) -> float:
        """Stop a job of which some GPUs are gone. Return its remaining work from its last checkpoint, in
        seconds at ideal speed.
        """
        left_s = self.halt(job)
        if job in self.pausing:
            # The rest of the pause is not awaited: the restart replaces it.
            self.wait_s(job, -left_s)
            left_s = self.pausing.pop(job)
        done = self.work_s[job] - left_s
        return left_s + (self.wait_s(job, done % checkpoint_s) if done > 0 else 0.0)

    def wait_s(self, job: int, seconds: float) -> float:
        """Count seconds at ideal speed that a job has to repeat, or only waits for. Return ``seconds``."""
        self.repeated += self.gpus[job] * seconds
        return seconds

    def when_over(self, crossing: float) -> float:
        """Return when the next job ends, in seconds. ``crossing``: time of the next job that shares links."""
        while self._ends and self._end_of.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        return min(self._ends[0][0] if self._ends else math.inf, crossing)

    def over(self, crossing: float) -> int:
        """Return the job that ends now. ``crossing``: time of the next job that shares links."""
        if self._ends and self._ends[0][0] <= crossing:
            return heapq.heappop(self._ends)[1]
        return self.crossing.next_over()

    def promised(self) -> list[tuple[float, int]]:
        """Return when running jobs should end at the present speeds, in seconds, and how many GPUs each gives
        back.
        """
        ends = [
            (end + self.pausing.get(job, 0.0), self.gpus[job])
            for job, end in self._end_of.items()
        ]
        last = zip(self.crossing.jobs, self.crossing.last_s().tolist(), strict=True)
        return ends + [
            (self.crossing.since + last_s, self.gpus[job]) for job, last_s in last
        ]
