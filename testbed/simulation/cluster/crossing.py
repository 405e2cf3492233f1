"""Jobs on several switches: what each has left to do, and how fast it goes while others share its links."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ringlight.testbed.simulation.arrays import FloatArray, IntArray
from ringlight.testbed.simulation.cluster.rates import Speeds


class Crossing:
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
        #: The same end to end, right for the first ``_right`` jobs: who comes last changes nothing before it.
        self._flat_links, self._flat_weights = np.zeros(256, dtype=np.int64), np.zeros(256)
        self._offsets = np.zeros(65, dtype=np.int64)
        self._right = 0
        self.left, self.speed, self.share, self.gpus = (np.zeros(64) for _ in range(4))
        self.since = 0.0
        self.changed = False
        #: When the first of them is over, and the ideal GPU seconds that all together lose each second.
        self.until, self.loss = math.inf, 0.0
        self.solved = 0

    def __contains__(self, job: int) -> bool:
        return job in self._place

    def _sync(self, now: float) -> None:
        if now != self.since:
            count = len(self.jobs)
            self.left[:count] -= self.speed[:count] * (now - self.since)
            self.since = now

    def soonest(self) -> float:
        """When the first is over at the speeds that held so far."""
        count = len(self.jobs)
        return self.since + float((self.left[:count] / self.speed[:count]).min()) if count else math.inf

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
        self._right = min(self._right, place)
        for kept in (self.jobs, self._links, self._weights):
            kept.pop()
        self.changed = True
        return max(left, 0.0)

    def next_over(self) -> int:
        """The job that is over first at the speeds that held so far."""
        count = len(self.jobs)
        return self.jobs[int((self.left[:count] / self.speed[:count]).argmin())]

    def guess(self, loads: list[tuple[int, float]], share: float) -> float:
        """Speed of one more job."""
        offsets, links, weights = self._flat()
        return float(
            self._solve(
                np.append(offsets, offsets[-1] + len(loads)),
                np.append(links, np.array([link for link, _ in loads], dtype=np.int64)),
                np.append(weights, [weight for _, weight in loads]),
                np.append(self.share[: len(self.jobs)], share),
            )[-1]
        )

    def _flat(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Offsets, links and weights of all jobs end to end."""
        count, first = len(self.jobs), self._right
        if count >= len(self._offsets):
            self._offsets = np.concatenate((self._offsets, np.zeros(2 * count, dtype=np.int64)))
        if first < count:
            links = self._links[first:]
            begin = int(self._offsets[first])
            ends = begin + np.cumsum(list(map(len, links)))
            self._offsets[first + 1 : count + 1] = ends
            end = int(ends[-1])
            if end > len(self._flat_links):
                more = 2 * end - len(self._flat_links)
                self._flat_links = np.concatenate((self._flat_links, np.zeros(more, dtype=np.int64)))
                self._flat_weights = np.concatenate((self._flat_weights, np.zeros(more)))
            np.concatenate(links, out=self._flat_links[begin:end])
            np.concatenate(self._weights[first:], out=self._flat_weights[begin:end])
            self._right = count
        end = int(self._offsets[count])
        return self._offsets[: count + 1], self._flat_links[:end], self._flat_weights[:end]

    def _solve(
        self, offsets: IntArray, links: IntArray, weights: FloatArray, shares: FloatArray
    ) -> FloatArray:
        self.solved += 1
        return self._speeds(offsets, links, weights, self.capacity, shares)

    def settle(self, now: float) -> None:
        """Find the rates that hold from now on."""
        self._sync(now)
        self.changed = False
        self.until, self.loss = math.inf, 0.0
        if count := len(self.jobs):
            speed = self._solve(*self._flat(), self.share[:count])
            self.speed[:count] = speed
            self.until = now + max(float((self.left[:count] / speed).min()), 0.0)
            self.loss = float(self.gpus[:count] @ (1 - speed))
