"""The inner loops of ``testbed.simulation.maxmin``, compiled by numba if it is installed.

Importing this costs a second and the first call several, once per machine (numba keeps what it compiled), so
it is done only when there is enough to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ringlight.testbed.simulation.arrays import LEFT, SAME, FloatArray, IntArray

F = TypeVar("F", bound=Callable[..., Any])

try:
    import numba
except ImportError:
    numba = None


def compiled(function: F) -> F:
    return function if numba is None else numba.njit(cache=True)(function)


@compiled
def settle(
    offsets: IntArray,
    links: IntArray,
    rate: FloatArray,
    room: FloatArray,
    seek: IntArray,
    least: FloatArray,
    tightest: FloatArray,
    sought: IntArray,
    pending: int,
) -> None:
    """Set the rate of every flow in ``sought[:pending]``. ``seek`` of them share ``room`` on each link."""
    while pending > 0:
        for i in range(pending):
            k = sought[i]
            for j in range(offsets[k], offsets[k + 1]):
                least[links[j]] = np.inf
        for i in range(pending):
            k = sought[i]
            share = np.inf
            for j in range(offsets[k], offsets[k + 1]):
                share = min(share, max(room[links[j]], 0.0) / seek[links[j]])
            tightest[k] = share
            for j in range(offsets[k], offsets[k + 1]):
                least[links[j]] = min(least[links[j]], share)
        for i in range(pending):
            k = sought[i]
            full = False
            for j in range(offsets[k], offsets[k + 1]):
                link = links[j]
                if max(room[link], 0.0) / seek[link] <= least[link] * (1.0 + SAME):
                    full = True
                    break
            # Marked now, settled when all of this round are known.
            rate[k] = -1.0 if full else 0.0
        kept = 0
        for i in range(pending):
            k = sought[i]
            if rate[k] < 0.0:
                rate[k] = tightest[k]
                for j in range(offsets[k], offsets[k + 1]):
                    room[links[j]] -= rate[k]
                    seek[links[j]] -= 1
            else:
                sought[kept] = k
                kept += 1
        pending = kept


@compiled
def drain_loops(
    offsets: IntArray,
    links: IntArray,
    capacity: FloatArray,
    sizes: FloatArray,
    begin: FloatArray,
    order: IntArray,
) -> FloatArray:
    """Return when each flow ends, in seconds, as the compiled form of ``_drain_numpy``. ``order``: flows by
    start.
    """
    flows, size = len(sizes), len(capacity)
    ends = begin.copy()
    left = sizes.copy()
    rate = np.zeros(flows)
    users = np.zeros(size, dtype=np.int64)
    # What the flows whose rate is settled leave of each link.
    room = capacity.copy()
    seek = np.zeros(size, dtype=np.int64)
    least = np.empty(size)
    tightest = np.empty(flows)
    sought = np.empty(flows, dtype=np.int64)
    active = np.empty(flows, dtype=np.int64)
    count = 0
    coming = 0
    now = 0.0
    lowest = np.inf
    while count > 0 or coming < flows:
        if count == 0:
            now = max(now, begin[order[coming]])
        known = count
        while coming < flows and begin[order[coming]] <= now:
            k = order[coming]
            coming += 1
            if sizes[k] > 0.0:
                active[count] = k
                count += 1
                for j in range(offsets[k], offsets[k + 1]):
                    users[links[j]] += 1
        for i in range(known, count):
            # A flow gets at least an equal part of each of its links.
            k = active[i]
            for j in range(offsets[k], offsets[k + 1]):
                lowest = min(lowest, capacity[links[j]] / users[links[j]])
        if lowest < np.inf:
            settled = lowest * (1.0 - 1e-9)
            pending = 0
            for i in range(count):
                k = active[i]
                if i >= known or rate[k] >= settled:
                    sought[pending] = k
                    pending += 1
                    for j in range(offsets[k], offsets[k + 1]):
                        link = links[j]
                        room[link] += rate[k]
                        seek[link] += 1
                        if seek[link] == users[link]:
                            # No settled flow is left on it: rounding errors end here.
                            room[link] = capacity[link]
            settle(offsets, links, rate, room, seek, least, tightest, sought, pending)
            lowest = np.inf
        then = np.inf
        for i in range(count):
            k = active[i]
            then = min(then, now + left[k] / rate[k])
        if coming < flows:
            then = min(then, begin[order[coming]])
        kept = 0
        for i in range(count):
            k = active[i]
            over = now + left[k] / rate[k] <= then
            left[k] -= rate[k] * (then - now)
            if over or left[k] <= LEFT * sizes[k]:
                ends[k] = then
                lowest = min(lowest, rate[k])
                for j in range(offsets[k], offsets[k + 1]):
                    users[links[j]] -= 1
                    room[links[j]] += rate[k]
            else:
                active[kept] = k
                kept += 1
        count = kept
        now = then
    return ends
