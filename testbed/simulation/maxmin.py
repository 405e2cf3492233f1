"""Max-min fair rates of flows over directed links, and when flows that share them end.

Flows are given as ``offsets`` [flows + 1] and ``links``: flow k passes ``links[offsets[k]:offsets[k + 1]]``.
Rates and capacities are in any one unit per second, sizes in that unit.

This is progressive filling (Bertsekas and Gallager, Data Networks, 6.5.2) with two short cuts. Each round
fills all links at once that are the tightest of all links that their flows pass: nothing undercuts such a
link later, because the share that a link has for each flow never falls while others get no more than it.
And when a flow comes or goes, flows with a lower rate than it has keep theirs, because it plays no part in
how they were found.

Both come as numpy, and as loops that numba compiles where it is installed (without it they are slow but
right, so that the tests run both everywhere).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
F = TypeVar("F", bound=Callable[..., Any])

try:
    import numba
except ImportError:
    numba = None

#: Shares that differ by no more are the same but for rounding.
SAME = 1e-12
#: What is left of a flow, as a share of its size, below which it has ended.
LEFT = 1e-13


def has_numba() -> bool:
    """Whether the compiled loops can be used."""
    return numba is not None


def _compiled(function: F) -> F:
    return function if numba is None else numba.njit(cache=True)(function)


def check_flows(offsets: IntArray, links: IntArray, capacity: FloatArray) -> None:
    """Raises ValueError naming a flow without links, or a link that is unknown or has no capacity."""
    lengths = np.diff(offsets)
    if len(lengths) and lengths.min() < 1:
        raise ValueError(f"flow {int(lengths.argmin())} passes no link")
    if len(links) == 0:
        return
    if links.min() < 0 or links.max() >= len(capacity):
        raise ValueError(f"link {int(links.max())} is not one of {len(capacity)}")
    weak = links[~(capacity[links] > 0)]
    if len(weak):
        raise ValueError(f"link {int(weak[0])}: its capacity is {capacity[weak[0]]:g}; it must be above 0")


def rates(offsets: IntArray, links: IntArray, capacity: FloatArray) -> FloatArray:
    """Max-min fair rate of every flow. Raises ValueError as :func:`check_flows`."""
    check_flows(offsets, links, capacity)
    return _rates(offsets, links, capacity)


def _rates(offsets: IntArray, links: IntArray, capacity: FloatArray) -> FloatArray:
    flows = len(offsets) - 1
    found = np.zeros(flows)
    if flows == 0:
        return found
    used, links = np.unique(links, return_inverse=True)
    left = capacity[used].astype(np.float64)
    size = len(used)
    flow_of = np.repeat(np.arange(flows), np.diff(offsets))
    by_link = np.argsort(links, kind="stable")
    link_major, flow_major = links[by_link], flow_of[by_link]
    while len(links):
        count = np.bincount(links, minlength=size)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(count > 0, left / count, np.inf)
        starts = np.flatnonzero(np.diff(flow_of, prepend=-1))
        tightest = np.full(flows, np.inf)
        tightest[flow_of[starts]] = np.minimum.reduceat(share[links], starts)
        starts = np.flatnonzero(np.diff(link_major, prepend=-1))
        least = np.full(size, np.inf)
        least[link_major[starts]] = np.minimum.reduceat(tightest[flow_major], starts)
        full = (count > 0) & (share <= least * (1 + SAME))
        frozen = np.zeros(flows, dtype=np.bool_)
        frozen[flow_of[full[links]]] = True
        found[frozen] = tightest[frozen]
        gone = frozen[flow_of]
        left = np.maximum(left - np.bincount(links[gone], found[flow_of[gone]], minlength=size), 0.0)
        stay = ~gone
        links, flow_of = links[stay], flow_of[stay]
        stay = ~frozen[flow_major]
        link_major, flow_major = link_major[stay], flow_major[stay]
    return found


def drain(
    offsets: IntArray,
    links: IntArray,
    capacity: FloatArray,
    sizes: FloatArray,
    starts: FloatArray | None = None,
    *,
    compiled: bool | None = None,
) -> FloatArray:
    """When each flow ends, if it starts at ``starts`` (default 0) and all share max-min all the time.

    ``compiled`` chooses between loops and numpy; by default whatever is fast here. Raises ValueError as
    :func:`check_flows`, and for a size or start that is negative or not finite.
    """
    check_flows(offsets, links, capacity)
    begin = np.zeros(len(sizes)) if starts is None else np.asarray(starts, dtype=np.float64)
    for what, values in (("size", sizes), ("start", begin)):
        wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if len(wrong):
            raise ValueError(f"flow {wrong[0]}: its {what} is {values[wrong[0]]}; it must be 0 or more")
    if len(sizes) == 0:
        return np.zeros(0)
    use = has_numba() if compiled is None else compiled
    if use:
        return _drain_loops(
            offsets.astype(np.int64), links.astype(np.int64), capacity.astype(np.float64),
            sizes.astype(np.float64), begin, np.argsort(begin, kind="stable"),
        )  # fmt: skip
    return _drain_numpy(offsets, links, capacity.astype(np.float64), sizes.astype(np.float64), begin)


def _drain_numpy(
    offsets: IntArray, links: IntArray, capacity: FloatArray, sizes: FloatArray, begin: FloatArray
) -> FloatArray:
    ends = np.where(sizes > 0, np.nan, begin)
    lengths = np.diff(offsets)
    waiting = np.flatnonzero(sizes > 0)
    waiting = waiting[np.argsort(begin[waiting], kind="stable")]
    active = np.zeros(0, dtype=np.int64)
    left = sizes.copy()
    rate = np.full(len(sizes), np.inf)
    lowest = np.inf
    now = 0.0
    while len(active) or len(waiting):
        if len(active) == 0:
            now = max(now, float(begin[waiting[0]]))
        come = int(np.searchsorted(begin[waiting], now, side="right"))
        active = np.concatenate((active, waiting[:come]))
        mine, owner = _links_of(active, offsets, links, lengths)
        if come:
            # A flow gets at least an equal part of each of its links.
            users = np.bincount(mine, minlength=len(capacity))
            new, _ = _links_of(waiting[:come], offsets, links, lengths)
            lowest = min(lowest, float((capacity[new] / users[new]).min()))
            waiting = waiting[come:]
        settled = rate[active] < lowest * (1 - 1e-9)
        keep = settled[owner]
        taken = np.bincount(mine[keep], rate[active[owner[keep]]], minlength=len(capacity))
        sought = active[~settled]
        first = np.concatenate(([0], np.cumsum(lengths[sought])))
        rate[sought] = _rates(first, mine[~keep], np.maximum(capacity - taken, 0.0))
        until = now + left[active] / rate[active]
        then = float(until.min()) if len(active) else np.inf
        if len(waiting):
            then = min(then, float(begin[waiting[0]]))
        left[active] -= rate[active] * (then - now)
        over = (until <= then) | (left[active] <= LEFT * sizes[active])
        ends[active[over]] = then
        lowest = float(rate[active[over]].min(initial=np.inf))
        active = active[~over]
        now = then
    return ends


def _links_of(
    flows: IntArray, offsets: IntArray, links: IntArray, lengths: IntArray
) -> tuple[IntArray, IntArray]:
    """The links of some flows, flow after flow, and the place in ``flows`` that each belongs to."""
    own = lengths[flows]
    owner = np.repeat(np.arange(len(flows)), own)
    first = np.cumsum(own) - own
    return links[np.arange(len(owner)) + np.repeat(offsets[flows] - first, own)], owner


@_compiled
def _drain_loops(
    offsets: IntArray,
    links: IntArray,
    capacity: FloatArray,
    sizes: FloatArray,
    begin: FloatArray,
    order: IntArray,
) -> FloatArray:
    """As ``_drain_numpy``; ``order``: flows by start."""
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
            wanted = 0
            for i in range(count):
                k = active[i]
                if i >= known or rate[k] >= settled:
                    sought[wanted] = k
                    wanted += 1
                    for j in range(offsets[k], offsets[k + 1]):
                        link = links[j]
                        room[link] += rate[k]
                        seek[link] += 1
                        if seek[link] == users[link]:
                            # No settled flow is left on it: rounding errors end here.
                            room[link] = capacity[link]
            _settle(offsets, links, rate, room, seek, least, tightest, sought, wanted)
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


@_compiled
def _settle(
    offsets: IntArray, links: IntArray, rate: FloatArray, room: FloatArray, seek: IntArray,
    least: FloatArray, tightest: FloatArray, sought: IntArray, wanted: int,
) -> None:  # fmt: skip
    """Sets the rate of every flow in ``sought[:wanted]``; ``seek`` of them share ``room`` on each link."""
    while wanted > 0:
        for i in range(wanted):
            k = sought[i]
            for j in range(offsets[k], offsets[k + 1]):
                least[links[j]] = np.inf
        for i in range(wanted):
            k = sought[i]
            share = np.inf
            for j in range(offsets[k], offsets[k + 1]):
                share = min(share, max(room[links[j]], 0.0) / seek[links[j]])
            tightest[k] = share
            for j in range(offsets[k], offsets[k + 1]):
                least[links[j]] = min(least[links[j]], share)
        for i in range(wanted):
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
        for i in range(wanted):
            k = sought[i]
            if rate[k] < 0.0:
                rate[k] = tightest[k]
                for j in range(offsets[k], offsets[k + 1]):
                    room[links[j]] -= rate[k]
                    seek[links[j]] -= 1
            else:
                sought[kept] = k
                kept += 1
        wanted = kept
