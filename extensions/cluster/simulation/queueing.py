"""Choice of the waiting job that is next: queueing policies by name.

A queue is queried whenever a job has come or gone. It returns the numbers of jobs that may start now, one by
one.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from ringlight.extensions.cluster.job_traces import JobTrace

#: Waiting jobs behind the first that a backfill looks at, as Slurm's ``bf_max_job_test`` (100).
DEPTH = 100
#: Ends of running jobs, as their durations say, and the GPUs that each gives back.
Ends = Callable[[], Iterable[tuple[float, int]]]


class Queue(Protocol):
    """``fits``: whether a job, by its number, has room."""

    def __len__(self) -> int: ...

    def add(self, job: int) -> None:
        """Add a job that has arrived."""
        ...

    def again(self, job: int) -> None:
        """Add a job that ran and is back, before all jobs that have not run."""
        ...

    def next(
        self, now_s: float, free: int, fits: Callable[[int], bool], ends: Ends
    ) -> int | None:
        """Remove the job that starts now from the queue and return it; None if none does."""
        ...


class FirstCome:
    """Strictly in the order of arrival: no job starts before the first has room."""

    def __init__(self, trace: JobTrace) -> None:
        self._waiting: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: int) -> None:
        self._waiting.append(job)

    def again(self, job: int) -> None:
        self._waiting.appendleft(job)

    def next(
        self, now_s: float, free: int, fits: Callable[[int], bool], ends: Ends
    ) -> int | None:
        if self._waiting and fits(self._waiting[0]):
            return self._waiting.popleft()
        return None


class ShortestFirst:
    """The shortest first, by the trace's durations; no job starts before the shortest has room (SJF)."""

    def __init__(self, trace: JobTrace) -> None:
        self._duration_s: Sequence[float] = trace.duration_s.tolist()
        self._waiting: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: int) -> None:
        heapq.heappush(self._waiting, (self._duration_s[job], job))

    def again(self, job: int) -> None:
        heapq.heappush(self._waiting, (-1.0, job))

    def next(
        self, now_s: float, free: int, fits: Callable[[int], bool], ends: Ends
    ) -> int | None:
        if self._waiting and fits(self._waiting[0][1]):
            return heapq.heappop(self._waiting)[1]
        return None


class Backfill:
    """In the order of arrival, but who fits and is over before the first can start goes ahead of it (EASY:
    Lifka, The ANL/IBM SP scheduling system, 1995).

    When the first can start follows from the trace's durations, as users' estimates would say it, and is
    found again when it is another job or that moment has passed; contention may delay it.
    """

    def __init__(self, trace: JobTrace) -> None:
        self._gpus: Sequence[int] = trace.gpus.tolist()
        self._duration_s: Sequence[float] = trace.duration_s.tolist()
        self._waiting: list[int] = []
        self._promise: tuple[int, float, int] = (-1, 0.0, 0)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: int) -> None:
        self._waiting.append(job)

    def again(self, job: int) -> None:
        self._waiting.insert(0, job)

    def next(
        self, now_s: float, free: int, fits: Callable[[int], bool], ends: Ends
    ) -> int | None:
        if not self._waiting:
            return None
        first = self._waiting[0]
        if fits(first):
            self._promise = (-1, 0.0, 0)
            return self._waiting.pop(0)
        if not free:
            return None
        head, start_s, spare = self._promise
        if head != first or start_s < now_s:
            start_s, spare = self._start(now_s, self._gpus[first], free, ends)
            self._promise = (first, start_s, spare)
        for place, job in enumerate(self._waiting[1 : DEPTH + 1], 1):
            gpus = self._gpus[job]
            if gpus > free or not fits(job):
                continue
            late = now_s + self._duration_s[job] > start_s
            if not late or gpus <= spare:
                if late:
                    self._promise = (first, start_s, spare - gpus)
                return self._waiting.pop(place)
        return None

    @staticmethod
    def _start(
        now_s: float, requested: int, free: int, ends: Ends
    ) -> tuple[float, int]:
        """Return when ``requested`` GPUs will be free, in seconds, and how many more then; infinity and 0 if
        they never are.
        """
        for end_s, gpus in sorted(ends()):
            free += gpus
            if free >= requested:
                return max(end_s, now_s), free - requested
        return float("inf"), 0


QUEUES: Mapping[str, Callable[[JobTrace], Queue]] = {
    "first-come": FirstCome,
    "backfill": Backfill,
    "shortest-first": ShortestFirst,
}
