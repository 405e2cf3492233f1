"""Max-min fair rates of flows over directed links, and when flows that share them end.

Flows are given as ``offsets`` [flows + 1] and ``links``: flow k passes ``links[offsets[k]:offsets[k + 1]]``.
Rates and capacities are in any one unit per second, sizes in that unit.

This is progressive filling (Bertsekas and Gallager, Data Networks, 6.5.2) with two short cuts. Each round
fills all links at once that are the tightest of all links that their flows pass: nothing undercuts such a
link later, because the share that a link has for each flow never falls while others get no more than it.
And when a flow comes or goes, flows with a lower rate than it has keep theirs, because it plays no part in
how they were found.

Both come as numpy, and as loops that numba compiles if it is installed (without it they are slow but right,
so that the tests run both everywhere).
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ringlight.testbed.simulation.arrays import LEFT, SAME, FloatArray, IntArray

#: Events after which the compiled loops take over, where there are any.
FEW_EVENTS = 50


class Limits(NamedTuple):
    """Limits of flows in addition to links: flow k has at most the rate ``most[k]``, and at most what flow
    ``after[k]`` has, if that is not -1; ``after`` is empty if no flow has such a limit."""

    most: Sequence[float] | FloatArray
    after: Sequence[int] = ()


def has_numba() -> bool:
    """Return whether the loops can be compiled."""
    return importlib.util.find_spec("numba") is not None


def check_flows(offsets: IntArray, links: IntArray, capacity: FloatArray) -> None:
    """Check flows. Raises ValueError naming a flow without links, or a link that is unknown or has no
    capacity.
    """
    lengths = np.diff(offsets)
    if len(lengths) and lengths.min() < 1:
        raise ValueError(f"flow {int(lengths.argmin())} passes no link")
    if len(links) == 0:
        return
    if links.min() < 0 or links.max() >= len(capacity):
        raise ValueError(f"link {int(links.max())} is not one of {len(capacity)}")
    weak = links[~(capacity[links] > 0)]
    if len(weak):
        raise ValueError(
            f"link {int(weak[0])}: its capacity is {capacity[weak[0]]:g}; it must be above 0"
        )


def rates(offsets: IntArray, links: IntArray, capacity: FloatArray) -> FloatArray:
    """Return the max-min fair rate of every flow, in the unit of ``capacity``.

    Raises ValueError naming a flow without links, or a link that is unknown or has no capacity.
    """
    check_flows(offsets, links, capacity)
    if len(links) and np.bincount(links).max() == 1:
        # No link is shared: each flow has what its narrowest link gives.
        return np.minimum.reduceat(capacity[links].astype(np.float64), offsets[:-1])
    return _rates(offsets, links, capacity)


def rates_of_few(
    ways: Sequence[Sequence[int]], capacity: Mapping[int, float], limits: Limits
) -> list[float]:
    """Return max-min fair rates of flows by the links that each passes; ``capacity`` by link.

    The same arithmetic in the same order as :func:`rates_of_many`, to the same bits. For a few flows plain
    loops are three times as fast as calls of numpy.

    A flow that has at most the rate of another counts as having its bound, too. The ``root`` of a flow is the
    one whose own bound that is: when the root has its rate, so has the flow.
    """
    most, after = [*limits.most], [*limits.after]
    flow_rates = [0.0] * len(ways)
    left = {link: capacity[link] for way in ways for link in way}
    active = list(range(len(ways)))
    while active:
        count = dict.fromkeys(left, 0)
        for k in active:
            for link in ways[k]:
                count[link] += 1
        share = {link: left[link] / number for link, number in count.items() if number}
        tightest = {
            k: min([most[k], *[share[link] for link in ways[k]]]) for k in active
        }
        root = _lower_along_chains(tightest, after) if after else {}
        least = dict.fromkeys(share, math.inf)
        for k in active:
            level = tightest[k]
            for link in ways[k]:
                if level < least[link]:
                    least[link] = level
        full = {
            link for link, level in share.items() if level <= least[link] * (1 + SAME)
        }
        over = {
            k
            for k in active
            if most[k] <= tightest[k] * (1 + SAME) or not full.isdisjoint(ways[k])
        }
        over |= {k for k, other in root.items() if other in over}
        taken = dict.fromkeys(left, 0.0)
        staying = []
        for k in active:
            if k not in over:
                staying.append(k)
                continue
            flow_rates[k] = tightest[k]
            for link in ways[k]:
                taken[link] += flow_rates[k]
        left = {
            link: max(left[link] - bytes_per_s, 0.0)
            for link, bytes_per_s in taken.items()
        }
        active = staying
        for k in active if after else ():
            if after[k] in over:
                most[k] = min(most[k], flow_rates[after[k]])
                after[k] = -1
    return flow_rates


def _lower_along_chains(
    tightest: dict[int, float], after: Sequence[int]
) -> dict[int, int]:
    """Lower the bound of each flow to those of all that it comes after. Return the flows whose bound is not
    their own, and whose it is."""
    root: dict[int, int] = {}
    lowered = True
    while lowered:
        lowered = False
        for k in tightest:
            ahead = after[k]
            if ahead >= 0 and tightest[ahead] < tightest[k]:
                tightest[k], root[k] = tightest[ahead], root.get(ahead, ahead)
                lowered = True
    return root


def _rates(offsets: IntArray, links: IntArray, capacity: FloatArray) -> FloatArray:
    used, links = np.unique(links, return_inverse=True)
    return rates_of_many(
        offsets, links, capacity[used], Limits(np.full(len(offsets) - 1, np.inf))
    )


def rates_of_many(
    offsets: IntArray, links: IntArray, capacity: FloatArray, limits: Limits
) -> FloatArray:
    """Return max-min fair rates of flows in the unit of ``capacity``, without checking the flows.

    The method is described in :func:`rates_of_few`.
    """
    flows = len(offsets) - 1
    flow_rates = np.zeros(flows)
    if flows == 0:
        return flow_rates
    left, size = capacity.astype(np.float64), len(capacity)
    flow_of = np.repeat(np.arange(flows), np.diff(offsets))
    by_link = np.argsort(links, kind="stable")
    link_major, flow_major = links[by_link], flow_of[by_link]
    most, after = (
        np.array(limits.most, dtype=np.float64),
        np.array(limits.after, dtype=np.int64),
    )
    active = np.ones(flows, dtype=np.bool_)
    while active.any():
        count = np.bincount(links, minlength=size)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(count > 0, left / count, np.inf)
        tightest = np.where(active, most, np.inf)
        if len(links):
            starts = np.flatnonzero(np.diff(flow_of, prepend=-1))
            bound = np.minimum.reduceat(share[links], starts)
            tightest[flow_of[starts]] = np.minimum(tightest[flow_of[starts]], bound)
        root = _lower_along(tightest, after) if len(after) else None
        least = np.full(size, np.inf)
        if len(links):
            starts = np.flatnonzero(np.diff(link_major, prepend=-1))
            least[link_major[starts]] = np.minimum.reduceat(
                tightest[flow_major], starts
            )
        full = (count > 0) & (share <= least * (1 + SAME))
        over = active & (most <= tightest * (1 + SAME))
        over[flow_of[full[links]]] = True
        if root is not None:
            over |= active & over[root]
        flow_rates[over] = tightest[over]
        gone = over[flow_of]
        left = np.maximum(
            left - np.bincount(links[gone], flow_rates[flow_of[gone]], minlength=size),
            0.0,
        )
        links, flow_of = links[~gone], flow_of[~gone]
        stay = ~over[flow_major]
        link_major, flow_major = link_major[stay], flow_major[stay]
        active &= ~over
        if root is not None:
            known = active & (after >= 0) & over[after]
            most[known] = np.minimum(most[known], flow_rates[after[known]])
            after[known] = -1
    return flow_rates


def _lower_along(tightest: FloatArray, after: IntArray) -> IntArray:
    """Lower the bound of each flow [flows], in place, to those of all that it comes after. Return by flow
    whose bound that is."""
    root = np.arange(len(after))
    followers = np.flatnonzero(after >= 0)
    ahead = np.where(after >= 0, after, root)
    for _ in range(len(followers).bit_length()):
        # Each knows the least of twice as many as before.
        theirs = ahead[followers]
        lower = tightest[theirs] < tightest[followers]
        lowered, by = followers[lower], theirs[lower]
        root[lowered], tightest[lowered] = root[by], tightest[by]
        further = ahead[theirs]
        if np.array_equal(further, theirs):
            break
        ahead[followers] = further
    return root


def drain(
    offsets: IntArray,
    links: IntArray,
    capacity: FloatArray,
    sizes: FloatArray,
    starts: FloatArray | None = None,
    *,
    compiled: bool | None = None,
) -> FloatArray:
    """Return when each flow ends, if it starts at ``starts`` (default 0) and all flows share max-min all the
    time, in seconds.

    ``compiled`` chooses between the loops and numpy; the default is the fastest here. Raises ValueError
    naming a flow without links, a link that is unknown or has no capacity, and a size or start that is
    negative or not finite.
    """
    check_flows(offsets, links, capacity)
    begin = (
        np.zeros(len(sizes)) if starts is None else np.asarray(starts, dtype=np.float64)
    )
    for what, values in (("size", sizes), ("start", begin)):
        wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if len(wrong):
            raise ValueError(
                f"flow {wrong[0]}: its {what} is {values[wrong[0]]}; it must be 0 or more"
            )
    if len(sizes) == 0:
        return np.zeros(0)
    capacity, sizes = capacity.astype(np.float64), sizes.astype(np.float64)
    if compiled is None and np.bincount(links).max() == 1:
        # No link is shared, as on lightpaths of their own: each flow has what its narrowest link gives.
        return begin + sizes / np.minimum.reduceat(capacity[links], offsets[:-1])
    ends = None
    if not compiled:
        # Most phases are over after a few events; for those it would take longer to load the loops.
        limit = FEW_EVENTS if compiled is None and has_numba() else None
        ends = _drain_numpy(offsets, links, capacity, sizes, begin, limit)
    if ends is None:
        from ringlight.testbed.simulation.loops import drain_loops

        order = np.argsort(begin, kind="stable")
        ends = drain_loops(
            offsets.astype(np.int64),
            links.astype(np.int64),
            capacity,
            sizes,
            begin,
            order,
        )
    return ends


def _drain_numpy(
    offsets: IntArray,
    links: IntArray,
    capacity: FloatArray,
    sizes: FloatArray,
    begin: FloatArray,
    limit: int | None,
) -> FloatArray | None:
    """Return when flows end, like :func:`drain`; None if that takes more than ``limit`` events."""
    ends = np.where(sizes > 0, np.nan, begin)
    lengths = np.diff(offsets)
    waiting = np.flatnonzero(sizes > 0)
    waiting = waiting[np.argsort(begin[waiting], kind="stable")]
    active = np.zeros(0, dtype=np.int64)
    left = sizes.copy()
    rate = np.full(len(sizes), np.inf)
    lowest = np.inf
    now = 0.0
    events = 0
    while len(active) or len(waiting):
        if events == limit:
            return None
        events += 1
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
        taken = np.bincount(
            mine[keep], rate[active[owner[keep]]], minlength=len(capacity)
        )
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
    """Return the links of some flows, concatenated, and for each link the position of its flow in
    ``flows``.
    """
    own = lengths[flows]
    owner = np.repeat(np.arange(len(flows)), own)
    first = np.cumsum(own) - own
    return links[np.arange(len(owner)) + np.repeat(offsets[flows] - first, own)], owner
