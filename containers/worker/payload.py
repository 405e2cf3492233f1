"""Payload of a workload's collectives: numbers whose sums are exact in any order.

Each rank contributes small whole numbers, drawn from a table at a place that rank, operation and iteration
decide. Sums of up to 4,096 ranks stay below 2^24, so float32 holds them exactly whatever the order, and the
result of an operation can be computed by any rank alone: that is what every result is compared with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
#: Length of the table. A prime, so that a chunk in another's place is noticed unless it is that far away.
PERIOD = 4093
_TABLE = np.random.default_rng(20261122).integers(1, 4096, PERIOD).astype(np.float32)


def contribution(ranks: Iterable[int], key: tuple[int, ...], first: int, count: int) -> Array:
    """The sum of what ``ranks`` contribute to ``count`` elements of operation ``key`` from ``first`` on."""
    period = np.zeros(PERIOD, dtype=np.float32)
    for rank in ranks:
        period += np.roll(_TABLE, -_place(rank, key))
    found: Array = np.resize(np.roll(period, -(first % PERIOD)), count)
    return found


def first_wrong(part: Array, ranks: Iterable[int], key: tuple[int, ...], first: int) -> int | None:
    """The first element of ``part``, which begins at ``first``, that is not the sum; None when all are."""
    wrong: npt.NDArray[Any] = np.flatnonzero(part != contribution(ranks, key, first, len(part)))
    return first + int(wrong[0]) if len(wrong) else None


def _place(rank: int, key: tuple[int, ...]) -> int:
    # Neighbouring keys and ranks must not meet in one place; for one key no two ranks do.
    place = 0
    for part in key:
        place = (place * 2741 + part + 1) % PERIOD
    return (place + rank * 1291) % PERIOD
