"""Policies that move light while jobs come and go: none, one that makes room, or the controller's."""

from __future__ import annotations

import math

import numpy as np

from ringlight.extensions.cluster.clusters import LitCluster, Policies
from ringlight.extensions.cluster.simulation.holding import ByName
from ringlight.extensions.cluster.simulation.making_room import Room, pays, room_for
from ringlight.extensions.cluster.simulation.placing import Placed
from ringlight.extensions.cluster.simulation.running import Running
from ringlight.extensions.sip_ml.allocation.circuits import single_shot


class Still:
    """Light stays as it is. ``every_s``: how often :meth:`at_interval` is called."""

    every_s = math.inf

    def arranged(self, job: int, placed: Placed) -> Placed:
        """Return where a job that is about to start is placed, once fibres have been moved for it."""
        return placed

    def began(self, job: int) -> None:
        """Called when a job has started, or continues after it stood still."""

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
        """Return room on fewer switches than a job has, if there is any that is worth the move; else None."""
        run, policies = self._run, self._policies
        room = room_for(
            run.gpus[job],
            self._free.counts,
            run.cluster.gpus,
            self._spare,
            run.whole_on,
            running=policies.running,
        )
        if room is None or len(room.placed) >= len(placed):
            return None
        if room.fibres and policies.light == "when-it-pays":
            before, after = self._guess(job, placed), self._guess(job, room.placed)
            if not pays(
                room,
                left_s,
                run.gpus[job],
                before,
                after,
                policies.dark_s,
                run.gpus.__getitem__,
            ):
                return None
        return room

    def _guess(self, job: int, placed: Placed) -> float:
        """Return the speed of a job next to those that share links now."""
        run = self._run
        loads = run.cluster.loads(placed, run.once_round[job])
        return (
            run.crossing.guess(loads, run.share[job])
            if loads and run.share[job]
            else 1.0
        )

    def _move(self, room: Room) -> Placed:
        """Move other jobs' fibres and lend idle ones for a job that has no GPUs. Return the job's place."""
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
                run.fibres += run.gpus[job] - sum(
                    min(n, placed.get(leaf, 0)) for leaf, n in new.items()
                )
                run.dark[job] += dark_s
                left_s += run.wait_s(job, dark_s)
                placed = new
            run.put(job, placed, left_s)


class Dividing(Still):
    """Divides circuits between parts again by the jobs' traffic, when one starts or from time to time.

    A job whose light was moved is dark for a while: one that has a pair of parts without a circuit that
    stays.
    """

    def __init__(self, run: Running, cluster: LitCluster, policies: Policies) -> None:
        self._run, self._cluster, self._dark_s = run, cluster, policies.dark_s
        self._lit = np.array(cluster.lit_circuits, dtype=np.int64)
        self._divides = policies.light == "at-arrival"
        if policies.light == "at-intervals":
            self.every_s = policies.every_s

    def began(self, job: int) -> None:
        pairs = self._pairs(job)
        if pairs and (self._divides or any(not self._lit[pair] for pair, _ in pairs)):
            self.at_interval()

    def _pairs(self, job: int) -> list[tuple[int, float]]:
        """Return the pairs of parts between which a job sends, with the mean load of each in GPUs' rates."""
        run, first = self._run, self._cluster.first_pair
        placed = run.placed[job]
        if len(placed) < 2 or not run.share[job]:
            return []
        loads = self._cluster.loads(placed, run.once_round[job])
        return [
            (link - first, weight * run.share[job])
            for link, weight in loads
            if link >= first
        ]

    def at_interval(self) -> None:
        run, cluster = self._run, self._cluster
        jobs = {job: pairs for job in run.placed if (pairs := self._pairs(job))}
        demand = np.zeros((max(cluster.joined) + 1,) * 2)
        for pairs in jobs.values():
            for pair, sent in pairs:
                a, b = cluster.pairs[pair]
                demand[a, b] += sent
                demand[b, a] += sent
        if not jobs:
            return
        counts = single_shot(demand, cluster.ports).counts
        circuits = np.minimum(counts, counts.T)[tuple(np.array(cluster.pairs).T)]
        # If no job sends, what is lit stays as far as there are ports for it.
        free = np.full(len(demand), cluster.ports)
        for (a, b), count in zip(cluster.pairs, circuits.tolist(), strict=True):
            free[[a, b]] -= count
        for pair in np.flatnonzero((circuits == 0) & (self._lit > 0)).tolist():
            ends = list(cluster.pairs[pair])
            circuits[pair] = min(int(self._lit[pair]), int(free[ends].min()))
            free[ends] -= circuits[pair]
        changed = int(np.maximum(circuits - self._lit, 0).sum())
        if not changed:
            return
        stays = np.minimum(circuits, self._lit)
        self._lit = circuits
        first = cluster.first_pair
        run.crossing.capacity[first:] = circuits * cluster.circuit
        run.crossing.changed = True
        run.fibres += changed
        run.regroupings += 1
        for job, pairs in jobs.items():
            if any(not stays[pair] for pair, _ in pairs) and job not in run.pausing:
                placed = run.placed[job]
                run.dark[job] += self._dark_s
                run.pause(job, placed, self._dark_s, run.halt(job))


class Controlled(Still):
    """The controller regroups all jobs' GPUs whenever one has started, by its own functions."""

    def __init__(self, run: Running, holding: ByName, dark_s: float) -> None:
        self._run, self._holding, self._dark_s = run, holding, dark_s

    def began(self, job: int) -> None:
        run = self._run
        touched, fibres = self._holding.gpus.regroup()
        for other, placed in touched.items():
            if other in run.pausing:
                run.go(other, placed, run.halt(other))
            elif other in run.placed:
                run.dark[other] += self._dark_s
                run.pause(other, placed, self._dark_s, run.halt(other))
        self._holding.count()
        run.fibres += fibres
        run.regroupings += bool(fibres)
