"""Jobs on several switches: what each has left to do, and how fast it goes while others share its links."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ringlight.extensions.cluster.simulation.rates import Last, Speeds, shared
from ringlight.testbed.simulation.arrays import FloatArray, IntArray


class Crossing:
    """Jobs that share links: what is left of each at ideal speed at the moment ``since``, and its speed from
    then on.

    Their figures are arrays in the order in which they came, their links end to end, since all are looked at
    whenever rates change: what is behind a job that goes is moved up.
    """

    def __init__(self, capacity: FloatArray, speeds: Speeds) -> None:
        #: May be changed where light moves; rates are then found again once ``changed`` is set.
        self.capacity, self._speeds = capacity.copy(), speeds
        self.jobs: list[int] = []
        self._here: set[int] = set()
        self._offsets, self._links, self._weights = (
            np.zeros(65, dtype=np.int64),
            _ints(256),
            np.zeros(256),
        )
        #: How fast a job could go on each of its links, as ``rates.Last`` has it.
        self._level = np.ones(256)
        self._left, self._speed, self._share, self._gpus = (
            np.zeros(64) for _ in range(4)
        )
        self.since = 0.0
        self.changed = False
        #: When the first of them is over, and the ideal GPU seconds that all together lose each second.
        self.until, self.loss = math.inf, 0.0
        self.solved = 0

    def __contains__(self, job: int) -> bool:
        return job in self._here

    @property
    def left(self) -> FloatArray:
        """Return the remaining work of each of ``jobs`` at the moment ``since``, in seconds at ideal
        speed.
        """
        return self._left[: len(self.jobs)]

    def _sync(self, now: float) -> None:
        if now != self.since:
            count = len(self.jobs)
            self._left[:count] -= self._speed[:count] * (now - self.since)
            self.since = now

    def soonest(self) -> float:
        """Return the time in seconds at which the first job reaches its next moment at the present speeds;
        infinity without jobs.
        """
        count = len(self.jobs)
        return (
            self.since + float((self._to_go() / self._speed[:count]).min())
            if count
            else math.inf
        )

    def add(
        self,
        job: int,
        now: float,
        loads: list[tuple[int, float]],
        left: float,
        share: float,
        gpus: int,
    ) -> None:
        self._sync(now)
        place = len(self.jobs)
        if place == len(self._left):
            self._left, self._speed, self._share, self._gpus = (
                _longer(figures)
                for figures in (self._left, self._speed, self._share, self._gpus)
            )
            self._offsets = _longer(self._offsets)
        begin = int(self._offsets[place])
        end = begin + len(loads)
        while end > len(self._links):
            self._links, self._weights, self._level = (
                _longer(figures)
                for figures in (self._links, self._weights, self._level)
            )
        self._links[begin:end], self._weights[begin:end] = zip(*loads, strict=True)
        self._level[begin:end] = 1.0
        self._offsets[place + 1] = end
        self.jobs.append(job)
        self._here.add(job)
        self._left[place], self._speed[place], self._share[place], self._gpus[place] = (
            left,
            1.0,
            share,
            gpus,
        )
        self.changed = True

    def remove(self, job: int, now: float) -> float:
        """Remove a job. Return its remaining work in seconds at ideal speed."""
        self._sync(now)
        place, count = self.jobs.index(job), len(self.jobs)
        left = float(self._left[place])
        for figures in (self._left, self._speed, self._share, self._gpus):
            figures[place : count - 1] = figures[place + 1 : count]
        begin, end, last = (
            int(self._offsets[index]) for index in (place, place + 1, count)
        )
        for of_links in (self._links, self._weights, self._level):
            of_links[begin : begin + last - end] = of_links[end:last]
        self._offsets[place + 1 : count] = self._offsets[place + 2 : count + 1] - (
            end - begin
        )
        del self.jobs[place]
        self._here.remove(job)
        self.changed = True
        return max(left, 0.0)

    def next_over(self) -> int:
        """Return the job that is first to reach its next moment at the present speeds."""
        count = len(self.jobs)
        return self.jobs[int((self._to_go() / self._speed[:count]).argmin())]

    def last_s(self) -> FloatArray:
        """Return how many seconds from ``since`` on each job lasts at the present speeds."""
        return self.left / self._speed[: len(self.jobs)]

    def turn(self, job: int, now: float) -> bool:
        """Return whether a job that has reached its next moment has ended, or only does something else from
        now on.
        """
        return True

    def guess(self, loads: list[tuple[int, float]], share: float) -> float:
        """Return the speed that one more job would have, as a share of ideal speed."""
        offsets, links, weights = self._flat()
        return float(
            self._solve(
                np.append(offsets, offsets[-1] + len(loads)),
                np.append(links, np.array([link for link, _ in loads], dtype=np.int64)),
                np.append(weights, [weight for _, weight in loads]),
                np.append(self._share[: len(self.jobs)], share),
                (
                    np.append(self._speed[: len(self.jobs)], 1.0),
                    np.append(self._level[: len(links)], np.ones(len(loads))),
                ),
            )[-1]
        )

    def _flat(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Return offsets, links and weights of all jobs, concatenated."""
        count = len(self.jobs)
        end = int(self._offsets[count])
        return self._offsets[: count + 1], self._links[:end], self._weights[:end]

    def _solve(
        self,
        offsets: IntArray,
        links: IntArray,
        weights: FloatArray,
        shares: FloatArray,
        last: Last | None = None,
    ) -> FloatArray:
        self.solved += 1
        return self._speeds(offsets, links, weights, self.capacity, shares, last)

    def _speeds_now(self) -> FloatArray:
        """Return the speeds of all jobs from now on."""
        offsets, links, weights = self._flat()
        count = len(self.jobs)
        last = self._speed[:count], self._level[: len(links)]
        return self._solve(offsets, links, weights, self._share[:count], last)

    def _to_go(self) -> FloatArray:
        """Return the work of each job until its next moment, in seconds at ideal speed."""
        return self.left

    def settle(self, now: float) -> None:
        """Find the rates that hold from now on."""
        self._sync(now)
        self.changed = False
        self.until, self.loss = math.inf, 0.0
        if count := len(self.jobs):
            speed = self._speeds_now()
            self._speed[:count] = speed
            self.until = now + max(float((self._to_go() / speed).min()), 0.0)
            self.loss = float(self._gpus[:count] @ (1 - speed))


class Alternating(Crossing):
    """Jobs that compute and send in turn, iteration by iteration, and share links with those that send at the
    same moment: what the models of ``rates`` stand for, exactly. Where a job is in its iteration follows from
    what is left of it, as all last ``iteration_s`` at ideal speed and jobs a whole number of them."""

    def __init__(self, capacity: FloatArray, iteration_s: float) -> None:
        super().__init__(
            capacity,
            lambda offsets, links, weights, room, shares, _=None: shared(
                offsets, links, weights, room, np.ones(len(shares))
            ),
        )
        self._iteration_s = iteration_s
        #: Of each job, the iterations that are left of it after this one, and whether it sends.
        self._turns: dict[int, tuple[int, bool]] = {}

    def add(
        self,
        job: int,
        now: float,
        loads: list[tuple[int, float]],
        left: float,
        share: float,
        gpus: int,
    ) -> None:
        super().add(job, now, loads, left, share, gpus)
        iterations = left / self._iteration_s
        # What rounding left of an iteration, or took, is none.
        whole = math.ceil(iterations - 1e-9) - 1
        self._turns[job] = (whole, iterations - whole <= share + 1e-9)

    def remove(self, job: int, now: float) -> float:
        """Remove a job and its turns. Return its remaining work in seconds at ideal speed."""
        del self._turns[job]
        return super().remove(job, now)

    def last_s(self) -> FloatArray:
        """Return how many seconds from ``since`` on each job lasts, with the present rate for all of its
        sending.

        A job that computes has no rate, and is taken to send at full rate.
        """
        share = self._share[: len(self.jobs)]
        return self.left * (1 - share + share / self._speed[: len(self.jobs)])

    def turn(self, job: int, now: float) -> bool:
        self._sync(now)
        whole, sent = self._turns[job]
        if sent and not whole:
            return True
        place = self.jobs.index(job)
        self._left[place] = self._left_then()[place]
        self._turns[job] = (whole - sent, not sent)
        self.changed = True
        return False

    def _speeds_now(self) -> FloatArray:
        offsets, links, weights = self._flat()
        lengths, speed = np.diff(offsets), np.ones(len(self.jobs))
        sends = np.array([self._turns[job][1] for job in self.jobs])
        if sends.any():
            mine = np.repeat(sends, lengths)
            ends = np.append(0, np.cumsum(lengths[sends]))
            speed[sends] = self._solve(
                ends, links[mine], weights[mine], self._share[: len(sends)][sends]
            )
        return speed

    def _to_go(self) -> FloatArray:
        return self.left - self._left_then()

    def _left_then(self) -> FloatArray:
        """Return the work that remains of each job when its turn ends, in seconds at ideal speed."""
        turns = (self._turns[job] for job in self.jobs)
        share = self._share[: len(self.jobs)]
        return self._iteration_s * np.array(
            [
                whole + (0.0 if sends else own)
                for (whole, sends), own in zip(turns, share.tolist(), strict=True)
            ]
        )


def _ints(count: int) -> IntArray:
    return np.zeros(count, dtype=np.int64)


def _longer(figures: Any) -> Any:
    """Return the array with twice as much room."""
    return np.concatenate((figures, np.zeros_like(figures)))
