"""Join iterations of whole jobs from the events of single ranks. No I/O, no clock."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: Iterations of a job that some rank has not told the end of yet.
_MOST_PENDING = 64


@dataclass(frozen=True)
class Lap:
    """Iteration of a job over all ranks: ``begin`` of the first, ``end`` of the last.

    ``compute_s`` and ``allreduce_s``: means over the ranks, seconds.
    """

    job: str
    i: int
    begin: float
    end: float
    compute_s: float
    allreduce_s: float


class Laps:
    """Joins what single ranks say of an iteration to one :class:`Lap` of a job with ``size`` ranks."""

    def __init__(self, job: str, size: int) -> None:
        self._job, self._size = job, size
        self._pending: dict[int, dict[int, Mapping[str, Any]]] = {}

    def of(self, events: Iterable[Mapping[str, Any]]) -> Iterator[Lap]:
        """Yield the iterations that become complete with these ``iteration`` events of the job's workers."""
        for event in events:
            ranks = self._pending.setdefault(event["i"], {})
            ranks[event["rank"]] = event
            if len(ranks) == self._size:
                del self._pending[event["i"]]
                yield self._lap(event["i"], list(ranks.values()))
            elif len(self._pending) > _MOST_PENDING:
                del self._pending[min(self._pending)]

    def _lap(self, i: int, ranks: list[Mapping[str, Any]]) -> Lap:
        return Lap(
            self._job,
            i,
            min(event["compute_start"] for event in ranks),
            max(event["allreduce_end"] for event in ranks),
            statistics.fmean(
                event["compute_end"] - event["compute_start"] for event in ranks
            ),
            statistics.fmean(
                event["allreduce_end"] - event["compute_end"] for event in ranks
            ),
        )
