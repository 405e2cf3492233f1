"""Pairs that send on a ring, and bounds of what any division of its lightpaths can reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ringlight.fabric.steps import FloatArray, IntArray

#: Rounding of sums of demand: a ratio this close to a whole number is that number.
ROUND = 1e-9
#: Arcs of nodes that the bound looks at in whole lightpaths.
_ARCS = 64


class Pairs(NamedTuple):
    """Pairs that send on ``nodes`` nodes, maybe a part of ``around``: arrays of shape [pairs], by source.

    ``hops``: clockwise, in all of the ring. ``demand``: as a share of the greatest.
    """

    nodes: int
    around: int
    sources: IntArray
    hops: IntArray
    demand: FloatArray

    def ways(self, clockwise: bool) -> tuple[IntArray, IntArray]:
        """Return (first segment, segments passed) of each pair's way in a direction.

        In either direction the way is a run of ascending segments.
        """
        if clockwise:
            return self.sources, self.hops
        return (self.sources + self.hops) % self.nodes, self.around - self.hops


def pairs_of(matrix: FloatArray) -> Pairs:
    nodes = len(matrix)
    shares = matrix / max(float(matrix.max()), np.finfo(np.float64).tiny)
    sources, destinations = np.nonzero(shares)
    hops = (destinations - sources) % nodes
    order = np.lexsort((hops, sources))
    sources, hops = sources[order], hops[order]
    return Pairs(nodes, nodes, sources, hops, shares[sources, (sources + hops) % nodes])


def lightpaths_for(level: float, demand: FloatArray) -> IntArray:
    """Return the lightpaths that each pair needs to have at least ``level`` lightpaths / demand."""
    return np.ceil(level * demand * (1 - ROUND)).astype(np.int64)


def cut_bound(pairs: Pairs, matrix: FloatArray, wavelengths: int) -> float:
    """Return an upper bound of the z of every plan, a number of lightpaths.

    All that leaves an arc of nodes does so over one of its two ends, hence on at most 2 * ``wavelengths``
    lightpaths, each a whole one. Only the arcs that are narrowest for parts of lightpaths are checked for
    whole lightpaths.
    """
    nodes = len(matrix)
    total = np.zeros((nodes + 1, nodes + 1))
    matrix.cumsum(axis=0, out=total[1:, 1:])
    total.cumsum(axis=1, out=total)
    rows, columns, own = total[:, -1].copy(), total[-1].copy(), total.diagonal().copy()
    a, b = np.triu_indices(nodes + 1, 1)
    # What leaves nodes a … b - 1, and what leaves all the others.
    inside = own[b] + own[a] - total[a, b] - total[b, a]
    leave = np.concatenate(
        [rows[b] - rows[a] - inside, columns[b] - columns[a] - inside]
    )
    narrow = (
        np.argpartition(leave, -_ARCS)[-_ARCS:]
        if len(leave) > _ARCS
        else np.arange(len(leave))
    )
    outside, arc = np.divmod(narrow, len(a))
    start, behind = a[arc, None], b[arc, None]
    destinations = (pairs.sources + pairs.hops) % nodes
    within = (pairs.sources >= start) & (pairs.sources < behind)
    reached = (destinations >= start) & (destinations < behind)
    leaving = np.where(outside[:, None] == 0, within & ~reached, reached & ~within)
    concerned = leaving.any(axis=0)
    demand, leaving = pairs.demand[concerned], leaving[:, concerned].astype(np.float64)

    def fits(numbers: IntArray) -> bool:
        return bool((leaving @ numbers).max() <= 2 * wavelengths)

    return _greatest(fits, demand, 2 * wavelengths / float((leaving @ demand).max()))


def shorter_way_level(pairs: Pairs, wavelengths: int) -> float:
    """Return the greatest z, a number of lightpaths, that the load of the segments allows.

    All pairs go the shorter way (clockwise at a tie).
    """
    nodes, clockwise = pairs.nodes, 2 * pairs.hops <= pairs.around
    (cw, cw_length), (ccw, ccw_length) = pairs.ways(True), pairs.ways(False)
    # Either fibre is two turns and a place behind them long.
    first = np.where(clockwise, cw, ccw + 2 * nodes + 1)
    behind = first + np.where(clockwise, cw_length, ccw_length)
    size = 2 * (2 * nodes + 1)

    def load(weight: FloatArray) -> float:
        """Return the greatest weight on a segment."""
        change = np.bincount(first, weight, size) - np.bincount(behind, weight, size)
        along = change.reshape(2, -1).cumsum(axis=1)
        return float((along[:, :nodes] + along[:, nodes : 2 * nodes]).max())

    def fits(numbers: IntArray) -> bool:
        return load(numbers.astype(np.float64)) <= wavelengths

    return _greatest(fits, pairs.demand, wavelengths / load(pairs.demand))


def _greatest(
    fits: Callable[[IntArray], bool], demand: FloatArray, high: float
) -> float:
    """Return the greatest z up to ``high`` whose numbers of lightpaths fit."""
    # The greatest demand is 1, so the least z but 0 is 1: a lightpath for each.
    if not fits(np.ones(len(demand), dtype=np.int64)):
        return 0.0
    low, high = 1.0, max(1.0, high) * (1 + ROUND)
    while high - low > ROUND * high:
        middle = (low + high) / 2
        if fits(lightpaths_for(middle, demand)):
            low = middle
        else:
            high = middle
    # The numbers reach a little more than what they were asked for.
    return float((lightpaths_for(low, demand) / demand).min())
