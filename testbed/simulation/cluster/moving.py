"""Who moves light while jobs come and go: nobody, a policy that makes room, or the controller."""

from __future__ import annotations

import math

from ringlight.fabric.clusters import Policies
from ringlight.testbed.simulation.cluster.holding import ByName
from ringlight.testbed.simulation.cluster.making_room import Room, pays, room_for
from ringlight.testbed.simulation.cluster.placing import Placed
from ringlight.testbed.simulation.cluster.running import Running


class Still:
    """Light stays as it is. ``every_s``: how often :meth:`at_interval` is called."""

    every_s = math.inf

    def arranged(self, job: int, placed: Placed) -> Placed:
        """Where a job is put in the end that is about to start, once fibres have been moved for it."""
        return placed

    def began(self) -> None:
        """A job has started."""

    def at_interval(self) -> None:
        """So much time has passed."""


class Moving(Still):
    """Fibres are moved so that jobs are on few switches."""

    def __init__(self, run: Running, policies: Policies) -> None:
        self._run, self._policies = run, policies
        self._free = run.holding.free
        self._spare = [int(own * policies.spare_ports) for own in run.cluster.gpus]
        if policies.light == "at-intervals":
            self.every_s = policies.every_s

    def arranged(self, job: int, placed: Placed) -> Placed:
        if len(placed) < 2 or self._policies.light == "at-intervals":
            return placed
        room = self._room(job, placed, self._run.work_s[job])
        return placed if room is None else self._move(room)

    def _room(self, job: int, placed: Placed, left_s: float) -> Room | None:
        """Fewer switches for a job than it has, where that is worth it."""
        run, policies = self._run, self._policies
        room = room_for(
            run.gpus[job], self._free.counts, run.cluster.gpus, self._spare,
            run.whole_on, running=policies.running,
        )  # fmt: skip
        if room is None or len(room.placed) >= len(placed):
            return None
        if room.fibres and policies.light == "when-it-pays":
            before, after = self._guess(job, placed), self._guess(job, room.placed)
            if not pays(room, left_s, run.gpus[job], before, after, policies.dark_s, run.gpus.__getitem__):
                return None
        return room

    def _guess(self, job: int, placed: Placed) -> float:
        """Speed of a job beside those that share links now."""
        run = self._run
        loads = run.cluster.loads(placed, run.once_round[job])
        return run.crossing.guess(loads, run.share[job]) if loads and run.share[job] else 1.0

    def _move(self, room: Room) -> Placed:
        """Move other jobs' fibres and lend idle ones, so that a job that has no GPUs gets its place."""
        run, dark_s = self._run, self._policies.dark_s
        for other, _, to, _ in room.move:
            left_s = run.remove(other) + run.wait_s(other, dark_s)
            run.dark[other] += dark_s
            run.put(other, {to: run.gpus[other]}, left_s)
        for a, b, count in room.lent:
            self._free.counts[a] -= count
            self._free.counts[b] += count
            self._spare[a] += count
            self._spare[b] -= count
        run.fibres += room.fibres
        run.regroupings += 1
        return room.placed

    def at_interval(self) -> None:
        """Bring jobs onto fewer switches that are on more than they need, the largest first."""
        run, dark_s = self._run, self._policies.dark_s
        for job in sorted(run.crossing.jobs, key=lambda job: (-run.gpus[job], job)):
            if job in run.borrowing:
                continue
            placed = run.placed[job]
            left_s = run.remove(job)
            room = self._room(job, placed, left_s)
            if room is not None:
                new = self._move(room)
                # A GPU of its own that stays on its switch keeps its fibre.
                run.fibres += run.gpus[job] - sum(min(n, placed.get(leaf, 0)) for leaf, n in new.items())
                run.dark[job] += dark_s
                left_s += run.wait_s(job, dark_s)
                placed = new
            run.put(job, placed, left_s)


class Controlled(Still):
    """The controller regroups all jobs' GPUs whenever one has started, by its own functions."""

    def __init__(self, run: Running, holding: ByName, dark_s: float) -> None:
        self._run, self._holding, self._dark_s = run, holding, dark_s

    def began(self) -> None:
        run = self._run
        touched, fibres = self._holding.gpus.regroup()
        for job, placed in touched.items():
            if job in run.pausing:
                run.go(job, placed, run.halt(job))
            elif job in run.placed:
                run.dark[job] += self._dark_s
                run.pause(job, placed, self._dark_s, run.halt(job))
        self._holding.count()
        run.fibres += fibres
        run.regroupings += bool(fibres)
