"""Replays a trace on a cluster in virtual time: rates hold between events and are found anew where something
changed.

Jobs on one switch share no link and go at ideal speed, so only those on several are looked at when rates
change. Everything follows from the arguments; what is drawn is drawn from the seed.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringlight.fabric.clusters import Cluster, FaultPolicies, Policies, Sharing
from ringlight.testbed.simulation.arrays import FloatArray, IntArray
from ringlight.testbed.simulation.cluster.blocks import Cells, Torus
from ringlight.testbed.simulation.cluster.by_gpu import Gpus
from ringlight.testbed.simulation.cluster.crossing import Crossing
from ringlight.testbed.simulation.cluster.failing import Unit, Units
from ringlight.testbed.simulation.cluster.making_room import Room, pays, room_for
from ringlight.testbed.simulation.cluster.placing import PLACEMENTS, Free, Placed
from ringlight.testbed.simulation.cluster.queueing import QUEUES
from ringlight.testbed.simulation.cluster.rates import SHARING, Speeds
from ringlight.testbed.simulation.maxmin import has_numba
from ringlight.workloads.fault_traces import FaultTrace
from ringlight.workloads.job_traces import JobTrace

#: Below it are the numbers of what is no job: spares of a switch.
SPARE = -1
#: So many jobs, and above, are worth compiled loops, where numba is installed.
FEW_JOBS = 300


@dataclass(frozen=True)
class Replay:
    """What happened. By job: ``start_s``, ``end_s`` (NaN: not before the end of the replay), ``dark_s`` in
    which it waited for its light, and ``switches``, the most it was on.

    Sums since the beginning at each of ``steps_s``, GPU seconds all: ``held`` by jobs, of that ``scattered``,
    by jobs that were on more switches than they need, and ``done`` at ideal speed. ``waiting`` jobs at these
    moments; ``stalled``: GPU seconds of jobs that stood still for a fault. ``hit``: how often a fault met a
    job; ``swapped``: GPUs that spares replaced; ``fibres``: those moved, in ``regroupings`` changes.
    ``in_system``: integral of the jobs in the system over time, job seconds. ``solved``: how often rates were
    found, at ``events`` moments. ``seen``: at some moments, the GPUs that each job has on each switch.
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
    stalled: FloatArray
    hit: int
    swapped: int
    in_system: float
    fibres: int
    regroupings: int
    solved: int
    events: int
    seen: tuple[tuple[float, tuple[tuple[int, int, int], ...]], ...] = ()


@dataclass(frozen=True)
class Faults:
    """Servers that fail, numbered switch by switch, and what becomes of their jobs."""

    trace: FaultTrace
    policies: FaultPolicies

    def events(self, units: Units | None) -> list[tuple[float, Unit, bool]]:
        """When which unit goes down (True) or comes up; a unit is down while any of its servers is."""
        assert units is not None
        per = self.policies.unit_gpus // self.policies.server_gpus
        found = []
        columns = (self.trace.server, self.trace.begin_s, self.trace.end_s)
        for server, begin, end in zip(*(column.tolist() for column in columns), strict=True):
            # An outage of no length takes nothing down.
            if end > begin and server // per < len(units.all):
                unit = units.all[server // per]
                found += [(begin, unit, True), (end, unit, False)]
        # Of one moment the repairs first.
        return sorted(found, key=lambda event: (event[0], event[2], event[1]))


@dataclass(frozen=True)
class Losses:
    """GPUs that are lost for good, when and by name. A job goes on from the last of its checkpoints, one
    after every ``checkpoint_s`` of work, and needs ``restart_s`` for it."""

    gpus: tuple[tuple[float, str], ...] = ()
    checkpoint_s: float = 1.0
    restart_s: float = 0.0


class _Run:
    """State of one replay."""

    def __init__(
        self, cluster: Cluster, trace: JobTrace, shares: FloatArray, rings: npt.NDArray[np.bool_],
        policies: Policies, seed: int, faults: Faults | None, start_up_s: float, by_gpu: Gpus | None,
        losses: Losses,
    ) -> None:  # fmt: skip
        self.start_up_s, self.by_gpu, self.losses = start_up_s, by_gpu, losses
        self.cluster, self.policies, self.faults = cluster, policies, faults
        self.gpus: list[int] = trace.gpus.tolist()
        self.work_s: list[float] = trace.duration_s.tolist()
        self.share: list[float] = shares.tolist()
        self.ring: list[bool] = rings.tolist()
        self.free = Free(cluster, np.random.default_rng([seed, 3]))
        self.queue = QUEUES[policies.queueing](trace)
        self.place = PLACEMENTS[policies.placement]
        self.crossing = Crossing(cluster.links, _speeds(policies.sharing, len(trace)))
        self.now = 0.0
        self.placed: dict[int, Placed] = {}
        #: Ends of jobs that share no link; a job that moved meanwhile has another end by now.
        self.ends: list[tuple[float, int]] = []
        self.end_of: dict[int, float] = {}
        self.whole_on: dict[int, dict[int, int]] = {leaf: {} for leaf in range(len(cluster.gpus))}
        self.spare = [int(own * policies.spare_ports) for own in cluster.gpus]
        self.moves_light = policies.light not in ("none", "controller", "ideal")
        count = len(trace)
        self.start = np.full(count, np.nan)
        self.end = np.full(count, np.nan)
        self.dark = np.zeros(count)
        self.switches = np.ones(count, dtype=np.int64)
        self.fibres = self.regroupings = 0
        #: Most switches that so many GPUs need, where all are alike, and GPUs of jobs that are on more.
        self.each = max(cluster.gpus)
        self.scattered = self.held = 0
        #: What is left of jobs that wait again, and ideal GPU seconds that were done in vain or only waited
        #: for.
        self.kept: dict[int, float] = {}
        self.repeated = 0.0
        self.torus = Torus(cluster.torus) if policies.placement == "blocks" else None
        self.shapes = trace.shapes
        self.cells: dict[int, Cells] = {}
        self.found: tuple[int, Cells | None] = (-1, None)
        #: Jobs that stand still, with their places and what is left of them.
        self.stalled: dict[int, tuple[Placed, float]] = {}
        #: What is left of jobs that have their GPUs and pause, once that is over.
        self.pausing: dict[int, float] = {}
        self.stalled_gpus = self.hit = self.swapped = 0
        self.units: Units | None = None
        self.pool = [0] * len(cluster.gpus)
        if faults is not None:
            self.units = Units(cluster, faults.policies.unit_gpus)
            self._keep_spares(faults.policies)

    def _keep_spares(self, policies: FaultPolicies) -> None:
        assert self.units is not None
        for leaf, own in enumerate(self.cluster.gpus):
            kept = round(own * policies.spares / policies.unit_gpus) * policies.unit_gpus
            if policies.spares and kept:
                self.pool[leaf] = kept
                self.units.take(SPARE - leaf, {leaf: kept})
                self.free.take({leaf: kept})

    def is_scattered(self, job: int, placed: Placed) -> bool:
        """Whether a job is on more switches than its GPUs need."""
        return len(placed) > -(-self.gpus[job] // self.each)

    # Starting and ending.

    def fits(self, job: int) -> bool:
        """Whether a job has room."""
        if self.gpus[job] > self.free.total:
            return False
        if self.torus is None:
            return True
        self.found = (job, self.torus.find(self.shapes[job]))
        return self.found[1] is not None

    def begin(self, job: int) -> None:
        wanted = self.gpus[job]
        if self.torus is not None and self.found[1] is not None:
            self.cells[job] = self.found[1]
            self.torus.free[self.cells[job]] = False
        placed = self.place(self.free, wanted) if self.by_gpu is None else self.by_gpu.take(job, wanted)
        if self.moves_light and len(placed) > 1:
            placed = self.regrouped(job, placed)
        if np.isnan(self.start[job]):
            self.start[job] = self.now
        left_s = self.kept.pop(job, self.work_s[job])
        if self.start_up_s and job not in self.pausing and left_s == self.work_s[job]:
            self.pausing[job] = left_s
            left_s = self.wait_s(job, self.start_up_s)
        self.put(job, placed, left_s)
        if self.by_gpu is not None and self.policies.light == "controller":
            self.regroup(self.by_gpu)

    def put(self, job: int, placed: Placed, left_s: float) -> None:
        """Give a job its GPUs and let it go on."""
        self.free.take(placed)
        if self.units is not None:
            self.units.take(job, placed)
        self.held += self.gpus[job]
        self.go(job, placed, left_s)

    def go(self, job: int, placed: Placed, left_s: float) -> None:
        self.placed[job] = placed
        if len(placed) > 1:
            self.switches[job] = max(int(self.switches[job]), len(placed))
            self.scattered += self.gpus[job] * self.is_scattered(job, placed)
        sends = len(placed) > 1 and self.share[job] and job not in self.pausing
        loads = self.loads(job, placed) if sends else []
        if loads and self.policies.light != "ideal":
            self.crossing.add(job, self.now, loads, left_s, self.share[job], self.gpus[job])
        else:
            end = self.now + left_s
            self.end_of[job] = end
            heapq.heappush(self.ends, (end, job))
        if len(placed) == 1:
            (leaf,) = placed
            self.whole_on[leaf][job] = self.gpus[job]

    def loads(self, job: int, placed: Placed) -> list[tuple[int, float]]:
        """The links that a job shares, and what it puts on each while it sends."""
        if self.by_gpu is None:
            return self.cluster.loads(placed, self.ring[job])
        return self.by_gpu.loads(job, self.ring[job])

    def remove(self, job: int) -> float:
        """Take a job off its GPUs; what is left of it at ideal speed."""
        placed = self.placed[job]
        left = self.halt(job)
        self.give(job, placed)
        return left

    def give(self, job: int, placed: Placed) -> None:
        self.held -= self.gpus[job]
        self.free.give(placed if self.units is None else self.units.give(job))
        if self.by_gpu is not None:
            self.by_gpu.give(job)
        if self.torus is not None:
            self.torus.free[self.cells.pop(job)] = True

    def halt(self, job: int) -> float:
        """Let a job stand still where it is; what is left of it at ideal speed."""
        placed = self.placed.pop(job)
        if len(placed) == 1:
            (leaf,) = placed
            del self.whole_on[leaf][job]
        else:
            self.scattered -= self.gpus[job] * self.is_scattered(job, placed)
        if job in self.crossing:
            return self.crossing.remove(job, self.now)
        return self.end_of.pop(job) - self.now

    def finish(self, job: int) -> bool:
        """Whether a job is over; one that only paused goes on."""
        if (left_s := self.pausing.pop(job, None)) is not None:
            placed = self.placed[job]
            self.halt(job)
            self.go(job, placed, left_s)
            return False
        self.remove(job)
        self.end[job] = self.now
        return True

    def pause(self, job: int, placed: Placed, seconds: float, left_s: float) -> None:
        """Let a job that stands still send nothing for a while, and then go on."""
        self.pausing[job] = left_s
        self.go(job, placed, self.wait_s(job, seconds))

    def lost_s(self, job: int, left_s: float, policies: FaultPolicies | Losses) -> float:
        """What a fault costs a job that has so much left: the work since its last checkpoint, and its
        restart."""
        done = 0.0 if job in self.pausing else self.work_s[job] - left_s
        return (done % policies.checkpoint_s if done > 0 else 0.0) + policies.restart_s

    def wait_s(self, job: int, seconds: float) -> float:
        """Seconds at ideal speed that a job has to do once more, or only waits for."""
        self.repeated += self.gpus[job] * seconds
        return seconds

    # Faults.

    def lose(self, gpu: str) -> None:
        """A GPU is lost for good; its job goes on once there are spares for all that it lost."""
        assert self.by_gpu is not None
        job = self.by_gpu.lose(gpu)
        if job is not None:
            self.hit += 1
            if job not in self.stalled:
                placed, left = self.placed[job], self.halt(job)
                again_s = self.lost_s(job, left, self.losses) - self.losses.restart_s
                left = self.pausing.pop(job, left) + self.wait_s(job, again_s)
                self.stalled[job] = (placed, left)
                self.stalled_gpus += self.gpus[job]
            self.replace(self.by_gpu)
        else:
            self.free.set(self.by_gpu.free())

    def replace(self, gpus: Gpus) -> None:
        """Jobs that stand still go on where spares are free for all that they lost."""
        for job in list(self.stalled):
            if count := gpus.replace(job):
                self.swapped += count
                _, left = self.stalled.pop(job)
                self.stalled_gpus -= self.gpus[job]
                self.pause(job, gpus.placed(job), self.losses.restart_s, left)
        self.free.set(gpus.free())

    def fail(self, unit: Unit) -> None:
        """A unit goes down."""
        assert self.units is not None
        assert self.faults is not None
        idle, jobs = self.units.fail(unit)
        self.free.take({unit[0]: idle})
        for job in jobs:
            if job <= SPARE:
                # A spare of the pool: nobody had it.
                continue
            self.hit += 1
            if job in self.stalled:
                continue
            placed, left = self.placed[job], self.halt(job)
            left += self.wait_s(job, self.lost_s(job, left, self.faults.policies))
            if self.faults.policies.policy == "restart":
                self.give(job, placed)
                self.kept[job] = left
                self.queue.again(job)
            else:
                self.stalled[job] = (placed, left)
                self.stalled_gpus += self.gpus[job]
        self.revive()

    def mend(self, unit: Unit) -> None:
        """A unit is repaired."""
        assert self.units is not None
        if (idle := self.units.mend(unit)) >= 0:
            self.free.give({unit[0]: idle})
            self.revive()

    def revive(self) -> None:
        """Jobs that stand still go on where all their GPUs are up, or spares are there for them."""
        assert self.units is not None
        assert self.faults is not None
        for job in list(self.stalled):
            for unit, count in self.units.broken(job).items():
                if self.faults.policies.policy != "spare" or not self._swap(job, unit, count):
                    break
            else:
                placed, left = self.stalled.pop(job)
                self.stalled_gpus -= self.gpus[job]
                self.go(job, placed, left)

    def _swap(self, job: int, unit: Unit, count: int) -> bool:
        """Light puts spares in the place of a job's GPUs; its switch, and so what it shares, stays."""
        assert self.units is not None
        assert self.faults is not None
        own = unit[0]
        within: Sequence[int] = range(len(self.pool))
        if self.faults.policies.pool == "switch":
            within = [own]
        elif self.faults.policies.pool == "pod" and len(self.cluster.parts) > 1:
            pods = self.cluster.parts[1]
            within = [leaf for leaf in within if pods[leaf] == pods[own]]
        for leaf in sorted(within, key=lambda leaf: (leaf != own, leaf)):
            keeper = SPARE - leaf
            kept = self.pool[leaf] - sum(self.units.broken(keeper).values()) if self.pool[leaf] else 0
            if kept >= count:
                self.free.give(self.units.give(keeper))
                self.units.replace(job, unit, leaf)
                self.free.take({leaf: count})
                self.pool[leaf] -= count
                self._hold(leaf)
                break
            if self.free.counts[leaf] >= count:
                self.units.replace(job, unit, leaf)
                self.free.take({leaf: count})
                break
        else:
            return False
        self.swapped += count
        self.fibres += count
        return True

    def _hold(self, leaf: int) -> None:
        """What is left of a switch's spares is kept, as far as it is up."""
        assert self.units is not None
        kept = min(self.pool[leaf], self.free.counts[leaf])
        if kept:
            self.units.take(SPARE - leaf, {leaf: kept})
            self.free.take({leaf: kept})

    # Light.

    def regroup(self, gpus: Gpus) -> None:
        """Move fibres as the controller does for all jobs, which are dark meanwhile."""
        touched, fibres = gpus.regroup()
        for job, placed in touched.items():
            if job in self.pausing:
                self.go(job, placed, self.halt(job))
            elif job in self.placed:
                self.dark[job] += self.policies.dark_s
                self.pause(job, placed, self.policies.dark_s, self.halt(job))
        self.free.set(gpus.free())
        self.fibres += fibres
        self.regroupings += bool(fibres)

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
        if room is None or len(room.placed) >= len(placed):
            return None
        if room.fibres and self.policies.light == "when-it-pays":
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
            left_s = self.remove(other) + self.wait_s(other, self.policies.dark_s)
            self.dark[other] += self.policies.dark_s
            self.put(other, {to: self.gpus[other]}, left_s)
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
                left_s += self.wait_s(job, self.policies.dark_s)
                placed = new
            self.put(job, placed, left_s)

    def when_over(self, crossing: float) -> float:
        """When the next job is over; ``crossing``: the next of those that share links."""
        while self.ends and self.end_of.get(self.ends[0][1]) != self.ends[0][0]:
            heapq.heappop(self.ends)
        return min(self.ends[0][0] if self.ends else math.inf, crossing)

    def over(self, crossing: float) -> int:
        """The job that is over now."""
        if self.ends and self.ends[0][0] <= crossing:
            return heapq.heappop(self.ends)[1]
        return self.crossing.next_over()

    def promised(self) -> list[tuple[float, int]]:
        """When running jobs should end, and what they give back."""
        found = [(end + self.pausing.get(job, 0.0), self.gpus[job]) for job, end in self.end_of.items()]
        left = zip(self.crossing.jobs, self.crossing.left.tolist(), strict=False)
        return found + [(self.crossing.since + left_s, self.gpus[job]) for job, left_s in left]


def _speeds(sharing: Sharing, jobs: int) -> Speeds:
    if jobs >= FEW_JOBS and has_numba():
        from ringlight.testbed.simulation.cluster.rate_loops import LOOPS

        return LOOPS[sharing]
    return SHARING[sharing]


def replay(
    cluster: Cluster, trace: JobTrace, shares: FloatArray, rings: npt.NDArray[np.bool_], policies: Policies,
    seed: int = 0, *, until_s: float = math.inf, see_s: Sequence[float] = (), faults: Faults | None = None,
    start_up_s: float = 0.0, by_gpu: Gpus | None = None, losses: Losses = Losses(),
) -> Replay:  # fmt: skip
    """Replay a trace; jobs that have not ended at ``until_s`` are left as they are.

    ``shares`` and ``rings``: what each job sends (``workloads.job_traces.shares_of``). ``see_s``: moments at
    which who is where is kept. ``start_up_s``: for which a job has its GPUs before it begins. ``by_gpu``:
    who has which GPU where the controller's own functions decide, without which none is lost by name. Raises
    ValueError for a job that is larger than the cluster.
    """
    if len(trace) and int(trace.gpus.max()) > cluster.size:
        raise ValueError(f"a job wants {int(trace.gpus.max())} GPUs; the cluster has {cluster.size}")
    if policies.placement == "blocks" and not (cluster.torus and trace.shapes):
        raise ValueError("placement: blocks need a torus, and a trace that has their sides")
    if ("controller" in (policies.placement, policies.light)) != (by_gpu is not None):
        raise ValueError("placement and light: the controller decides about both, GPU by GPU")
    run = _Run(cluster, trace, shares, rings, policies, seed, faults, start_up_s, by_gpu, losses)
    arrivals: list[float] = [*trace.arrival_s.tolist(), math.inf]
    queue, crossing = run.queue, run.crossing
    come = events = inside = 0
    sum_held = sum_scattered = sum_done = sum_stalled = in_system = 0.0
    sums: list[tuple[float, ...]] = [(0.0, 0.0, 0.0, 0.0, 0, 0.0)]
    every = policies.every_s if policies.light == "at-intervals" else math.inf
    regroup_at = every
    breaks: deque[tuple[float, Unit | str, bool]] = deque((at, gpu, True) for at, gpu in sorted(losses.gpus))
    if faults is not None:
        breaks.extend(faults.events(run.units))
    to_see = [*sorted(see_s), math.inf]
    seen: list[tuple[float, tuple[tuple[int, int, int], ...]]] = []
    waits = False
    while come < len(trace) or inside:
        broken_at = breaks[0][0] if breaks else math.inf
        soonest = crossing.soonest() if crossing.changed else crossing.until
        arrives, over = arrivals[come], run.when_over(soonest)
        then = min(arrives, over, broken_at)
        if waits and then > run.now:
            # All that happens at this moment has happened.
            waits = False
            while (starts := queue.next(run.now, run.free.total, run.fits, run.promised)) is not None:
                run.begin(starts)
            sums.append((run.now, sum_held, sum_scattered, sum_done - run.repeated, len(queue), sum_stalled))
        if not waits:
            if crossing.changed:
                crossing.settle(run.now)
            soonest = crossing.until
            over = run.when_over(soonest)
            then = min(arrives, over, broken_at)
        while to_see[len(seen)] < then < math.inf:
            where = tuple((job, leaf, n) for job, at in run.placed.items() for leaf, n in at.items())
            seen.append((to_see[len(seen)], where))
        if then == math.inf or then > until_s:
            break
        then = min(then, regroup_at)
        if took := then - run.now:
            sum_held += run.held * took
            sum_scattered += run.scattered * took
            sum_done += (run.held - run.stalled_gpus - crossing.loss) * took
            sum_stalled += run.stalled_gpus * took
            in_system += inside * took
            run.now = then
        events += 1
        if then == regroup_at:
            run.defragment()
            regroup_at += every
            continue
        waits = True
        if broken_at <= then:
            _, broken, begins = breaks.popleft()
            if isinstance(broken, str):
                run.lose(broken)
            else:
                (run.fail if begins else run.mend)(broken)
        elif over <= arrives:
            inside -= run.finish(run.over(soonest))
            if run.stalled and run.by_gpu is not None:
                run.replace(run.by_gpu)
            elif run.stalled:
                run.revive()
        else:
            queue.add(come)
            come += 1
            inside += 1
    sums.append((run.now, sum_held, sum_scattered, sum_done - run.repeated, len(queue), sum_stalled))
    steps, *integrals, stalled = np.array(sums).T
    return Replay(
        start_s=run.start,
        end_s=run.end,
        dark_s=run.dark,
        switches=run.switches,
        steps_s=steps,
        held=integrals[0],
        scattered=integrals[1],
        done=integrals[2],
        waiting=integrals[3].astype(np.int64),
        stalled=stalled,
        hit=run.hit,
        swapped=run.swapped,
        in_system=in_system,
        fibres=run.fibres,
        regroupings=run.regroupings,
        solved=crossing.solved,
        events=events,
        seen=tuple(seen),
    )
