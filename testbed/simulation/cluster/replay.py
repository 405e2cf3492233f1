"""Replays a trace on a cluster in virtual time: rates hold between events and are found anew where something
changed.

Jobs on one switch share no link and go at ideal speed, so only those on several are looked at when rates
change. Everything follows from the arguments; what is drawn is drawn from the seed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ringlight.fabric.clusters import Cluster, Policies, Sharing
from ringlight.testbed.simulation.arrays import FloatArray, IntArray
from ringlight.testbed.simulation.cluster.making_room import Room, pays, room_for
from ringlight.testbed.simulation.cluster.placing import PLACEMENTS, Free, Placed
from ringlight.testbed.simulation.cluster.queueing import QUEUES
from ringlight.testbed.simulation.cluster.rates import SHARING, Speeds
from ringlight.testbed.simulation.maxmin import has_numba
from ringlight.workloads.job_traces import JobTrace

#: So many jobs, and above, are worth compiled loops, where numba is installed.
FEW_JOBS = 300


@dataclass(frozen=True)
class Replay:
    """What happened. By job: ``start_s``, ``end_s`` (NaN: not before the end of the replay), ``dark_s`` in
    which it waited for its light, and ``switches``, the most it was on.

    Sums since the beginning at each of ``steps_s``, GPU seconds all: ``held`` by jobs, of that ``scattered``,
    by jobs that were on more switches than they need, and ``done`` at ideal speed. ``waiting`` jobs at these
    moments. ``in_system``: integral of the jobs in the system over time. ``seen``: at some moments, the GPUs
    that each job has on each switch.
    """

    start_s: FloatArray
    end_s: FloatArray
    dark_s: FloatArray
    switches: IntArray
    steps_s: FloatArray
    held: FloatArray
    scattered: FloatArray
    done: FloatArray
    waiting: IntArray
    in_system: float
    fibres: int
    regroupings: int
    solved: int
    events: int
    seen: tuple[tuple[float, tuple[tuple[int, int, int], ...]], ...] = ()


class _Crossing:
    """Jobs that share links: what is left of each at ideal speed at the moment ``since``, and its speed from
    then on.

    Their figures are arrays, since all are looked at whenever rates change.
    """

    def __init__(self, capacity: FloatArray, speeds: Speeds) -> None:
        self.capacity, self._speeds = capacity, speeds
        self.jobs: list[int] = []
        self._place: dict[int, int] = {}
        self._links: list[IntArray] = []
        self._weights: list[FloatArray] = []
        self.left, self.speed, self.share, self.gpus = (np.zeros(64) for _ in range(4))
        self.since = 0.0
        self.changed = False
        #: When the first of them is over, which, and the ideal GPU seconds that all together lose each
        #: second.
        self.until, self.first, self.loss = math.inf, -1, 0.0
        self.solved = 0

    def __contains__(self, job: int) -> bool:
        return job in self._place

    def _sync(self, now: float) -> None:
        if now != self.since:
            count = len(self.jobs)
            self.left[:count] -= self.speed[:count] * (now - self.since)
            self.since = now

    def left_of(self, job: int, now: float) -> float:
        self._sync(now)
        return float(self.left[self._place[job]])

    def add(
        self, job: int, now: float, loads: list[tuple[int, float]], left: float, share: float, gpus: int
    ) -> None:
        self._sync(now)
        place = len(self.jobs)
        if place == len(self.left):
            more = np.zeros(place)
            self.left, self.speed, self.share, self.gpus = (
                np.concatenate((one, more)) for one in (self.left, self.speed, self.share, self.gpus)
            )
        self.jobs.append(job)
        self._place[job] = place
        self._links.append(np.array([link for link, _ in loads], dtype=np.int64))
        self._weights.append(np.array([weight for _, weight in loads]))
        self.left[place], self.speed[place], self.share[place], self.gpus[place] = left, 1.0, share, gpus
        self.changed = True

    def remove(self, job: int, now: float) -> float:
        """Take a job out; what is left of it."""
        self._sync(now)
        place, last = self._place.pop(job), len(self.jobs) - 1
        left = float(self.left[place])
        if place != last:
            self._place[self.jobs[last]] = place
            lists: tuple[list[Any], ...] = (self.jobs, self._links, self._weights)
            for kept in lists:
                kept[place] = kept[last]
            for figures in (self.left, self.speed, self.share, self.gpus):
                figures[place] = figures[last]
        for kept in (self.jobs, self._links, self._weights):
            kept.pop()
        self.changed = True
        return max(left, 0.0)

    def guess(self, loads: list[tuple[int, float]], share: float) -> float:
        """Speed of one more job."""
        links = np.array([link for link, _ in loads], dtype=np.int64)
        weights = np.array([weight for _, weight in loads])
        shares = np.append(self.share[: len(self.jobs)], share)
        return float(self._solve([*self._links, links], [*self._weights, weights], shares)[-1])

    def _solve(self, links: list[IntArray], weights: list[FloatArray], shares: FloatArray) -> FloatArray:
        self.solved += 1
        offsets = np.zeros(len(links) + 1, dtype=np.int64)
        np.cumsum([len(one) for one in links], out=offsets[1:])
        return self._speeds(offsets, np.concatenate(links), np.concatenate(weights), self.capacity, shares)

    def settle(self, now: float) -> None:
        """Find the rates that hold from now on."""
        self._sync(now)
        self.changed = False
        self.until, self.first, self.loss = math.inf, -1, 0.0
        if count := len(self.jobs):
            speed = self._solve(self._links, self._weights, self.share[:count])
            self.speed[:count] = speed
            ends = self.left[:count] / speed
            place = int(ends.argmin())
            self.until, self.first = now + max(float(ends[place]), 0.0), self.jobs[place]
            self.loss = float(self.gpus[:count] @ (1 - speed))


class _Run:
    """State of one replay."""

    def __init__(
        self, cluster: Cluster, trace: JobTrace, shares: FloatArray, rings: npt.NDArray[np.bool_],
        policies: Policies, seed: int,
    ) -> None:  # fmt: skip
        self.cluster, self.policies = cluster, policies
        self.gpus: list[int] = trace.gpus.tolist()
        self.work_s: list[float] = trace.duration_s.tolist()
        self.share: list[float] = shares.tolist()
        self.ring: list[bool] = rings.tolist()
        self.free = Free(cluster, np.random.default_rng([seed, 3]))
        self.queue = QUEUES[policies.queueing](trace)
        self.place = PLACEMENTS[policies.placement]
        self.crossing = _Crossing(cluster.links, _speeds(policies.sharing, len(trace)))
        self.now = 0.0
        self.placed: dict[int, Placed] = {}
        #: Ends of jobs that share no link; a job that moved meanwhile has another end by now.
        self.ends: list[tuple[float, int]] = []
        self.end_of: dict[int, float] = {}
        self.whole_on: dict[int, dict[int, int]] = {leaf: {} for leaf in range(len(cluster.gpus))}
        self.spare = [int(own * policies.spare_ports) for own in cluster.gpus]
        self.moves_light = policies.light not in ("none", "ideal")
        count = len(trace)
        self.start = np.full(count, np.nan)
        self.end = np.full(count, np.nan)
        self.dark = np.zeros(count)
        self.switches = np.ones(count, dtype=np.int64)
        self.fibres = self.regroupings = 0
        #: Most switches that so many GPUs need, where all are alike, and GPUs of jobs that are on more.
        self.each = max(cluster.gpus)
        self.scattered = 0

    def is_scattered(self, job: int, placed: Placed) -> bool:
        """Whether a job is on more switches than its GPUs need."""
        return len(placed) > -(-self.gpus[job] // self.each)

    # Starting and ending.

    def begin(self, job: int) -> None:
        wanted = self.gpus[job]
        placed = self.place(self.free, wanted)
        if self.moves_light and len(placed) > 1:
            placed = self.regrouped(job, placed)
        self.start[job] = self.now
        self.put(job, placed, self.work_s[job])

    def put(self, job: int, placed: Placed, left_s: float) -> None:
        self.free.take(placed)
        self.placed[job] = placed
        if len(placed) > 1:
            self.switches[job] = max(int(self.switches[job]), len(placed))
            self.scattered += self.gpus[job] * self.is_scattered(job, placed)
        loads = self.cluster.loads(placed, self.ring[job]) if len(placed) > 1 and self.share[job] else []
        if loads and self.policies.light != "ideal":
            self.crossing.add(job, self.now, loads, left_s, self.share[job], self.gpus[job])
        else:
            end = self.now + left_s
            self.end_of[job] = end
            heapq.heappush(self.ends, (end, job))
        if len(placed) == 1:
            (leaf,) = placed
            self.whole_on[leaf][job] = self.gpus[job]

    def remove(self, job: int) -> float:
        """Take a job off its GPUs; what is left of it at ideal speed."""
        placed = self.placed.pop(job)
        self.free.give(placed)
        if len(placed) == 1:
            (leaf,) = placed
            del self.whole_on[leaf][job]
        else:
            self.scattered -= self.gpus[job] * self.is_scattered(job, placed)
        if job in self.crossing:
            return self.crossing.remove(job, self.now)
        return self.end_of.pop(job) - self.now

    def finish(self, job: int) -> None:
        self.remove(job)
        self.end[job] = self.now

    # Light.

    def regrouped(self, job: int, placed: Placed) -> Placed:
        """Where a job is put that would be on several switches, once fibres have been moved for it."""
        if self.policies.light == "at-intervals":
            return placed
        room = self.room(job, placed)
        return placed if room is None else self.move(job, room)

    def room(self, job: int, placed: Placed, left_s: float | None = None) -> Room | None:
        """Fewer switches for a job than it has, where that is worth it."""
        sizes = self.cluster.gpus
        room = room_for(
            self.gpus[job], self.free.counts, sizes, self.spare,
            self.whole_on, running=self.policies.running,
        )  # fmt: skip
        if room is None or len(room.placed) >= len(placed) or not room.fibres:
            return room if room is not None and len(room.placed) < len(placed) else None
        if self.policies.light == "when-it-pays":
            before, after = self.guess(job, placed), self.guess(job, room.placed)
            work_s = self.work_s[job] if left_s is None else left_s
            if not pays(
                room, work_s, self.gpus[job], before, after, self.policies.dark_s, self.gpus.__getitem__
            ):
                return None
        return room

    def guess(self, job: int, placed: Placed) -> float:
        """Speed of a job beside those that share links now."""
        loads = self.cluster.loads(placed, self.ring[job]) if len(placed) > 1 else []
        if not loads or not self.share[job]:
            return 1.0
        return self.crossing.guess(loads, self.share[job])

    def move(self, job: int, room: Room) -> Placed:
        """Move other jobs' fibres and lend idle ones, so that a job that has no GPUs gets its place."""
        for other, _, to, _ in room.move:
            left_s = self.remove(other)
            self.dark[other] += self.policies.dark_s
            self.put(other, {to: self.gpus[other]}, left_s + self.policies.dark_s)
        for a, b, count in room.lent:
            self.free.counts[a] -= count
            self.free.counts[b] += count
            self.spare[a] += count
            self.spare[b] -= count
        self.fibres += room.fibres
        self.regroupings += 1
        return room.placed

    def defragment(self) -> None:
        """Bring jobs onto fewer switches that are on more than they need, the largest first."""
        for job in sorted(self.crossing.jobs, key=lambda job: (-self.gpus[job], job)):
            placed = self.placed[job]
            left_s = self.remove(job)
            room = self.room(job, placed, left_s)
            if room is not None:
                new = self.move(job, room)
                # A GPU of its own that stays on its switch keeps its fibre.
                self.fibres += self.gpus[job] - sum(min(n, placed.get(leaf, 0)) for leaf, n in new.items())
                self.dark[job] += self.policies.dark_s
                left_s += self.policies.dark_s
                placed = new
            self.put(job, placed, left_s)

    def when_over(self) -> float:
        """When the next job is over."""
        while self.ends and self.end_of.get(self.ends[0][1]) != self.ends[0][0]:
            heapq.heappop(self.ends)
        return min(self.ends[0][0] if self.ends else math.inf, self.crossing.until)

    def over(self) -> int:
        """The job that is over now."""
        if self.ends and self.ends[0][0] <= self.crossing.until:
            return heapq.heappop(self.ends)[1]
        return self.crossing.first

    def promised(self) -> list[tuple[float, int]]:
        """When running jobs should end, and what they give back."""
        found = [(end, self.gpus[job]) for job, end in self.end_of.items()]
        left = zip(self.crossing.jobs, self.crossing.left.tolist(), strict=False)
        return found + [(self.crossing.since + left_s, self.gpus[job]) for job, left_s in left]


def _speeds(sharing: Sharing, jobs: int) -> Speeds:
    if jobs >= FEW_JOBS and has_numba():
        from ringlight.testbed.simulation.cluster.rate_loops import LOOPS

        return LOOPS[sharing]
    return SHARING[sharing]


def replay(
    cluster: Cluster, trace: JobTrace, shares: FloatArray, rings: npt.NDArray[np.bool_], policies: Policies,
    seed: int = 0, *, until_s: float = math.inf, see_s: Sequence[float] = (),
) -> Replay:  # fmt: skip
    """Replay a trace; jobs that have not ended at ``until_s`` are left as they are.

    ``shares`` and ``rings``: what each job sends (``workloads.job_traces.shares_of``). ``see_s``: moments at
    which who is where is kept. Raises ValueError for a job that is larger than the cluster.
    """
    if len(trace) and int(trace.gpus.max()) > cluster.size:
        raise ValueError(f"a job wants {int(trace.gpus.max())} GPUs; the cluster has {cluster.size}")
    run = _Run(cluster, trace, shares, rings, policies, seed)
    arrivals: list[float] = [*trace.arrival_s.tolist(), math.inf]
    gpus, queue, crossing = run.gpus, run.queue, run.crossing
    come = events = held = inside = 0
    sum_held = sum_scattered = sum_done = in_system = 0.0
    sums: list[tuple[float, float, float, float, int]] = [(0.0, 0.0, 0.0, 0.0, 0)]
    every = policies.every_s if policies.light == "at-intervals" else math.inf
    regroup_at = every
    to_see = [*sorted(see_s), math.inf]
    seen: list[tuple[float, tuple[tuple[int, int, int], ...]]] = []

    def fits(wanted: int) -> bool:
        return wanted <= run.free.total

    while True:
        if crossing.changed:
            crossing.settle(run.now)
        arrives, over = arrivals[come], run.when_over()
        then = min(arrives, over)
        while to_see[len(seen)] < then < math.inf:
            where = tuple((job, leaf, n) for job, at in run.placed.items() for leaf, n in at.items())
            seen.append((to_see[len(seen)], where))
        if then == math.inf or then > until_s:
            break
        then = min(then, regroup_at)
        took = then - run.now
        if took:
            sum_held += held * took
            sum_scattered += run.scattered * took
            sum_done += (held - crossing.loss) * took
            in_system += inside * took
            run.now = then
        events += 1
        if then == regroup_at:
            run.defragment()
            regroup_at += every
            continue
        if over <= arrives:
            job = run.over()
            run.finish(job)
            held -= gpus[job]
            inside -= 1
        else:
            queue.add(come)
            come += 1
            inside += 1
        while (starts := queue.next(run.now, run.free.total, fits, run.promised)) is not None:
            run.begin(starts)
            held += gpus[starts]
        sums.append((run.now, sum_held, sum_scattered, sum_done, len(queue)))
    steps, *integrals, waiting = np.array(sums).T
    return Replay(
        start_s=run.start,
        end_s=run.end,
        dark_s=run.dark,
        switches=run.switches,
        steps_s=steps,
        held=integrals[0],
        scattered=integrals[1],
        done=integrals[2],
        waiting=waiting.astype(np.int64),
        in_system=in_system,
        fibres=run.fibres,
        regroupings=run.regroupings,
        solved=crossing.solved,
        events=events,
        seen=tuple(seen),
    )
