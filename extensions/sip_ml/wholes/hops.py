"""Ways with the fewest hops over directed circuits between GPUs that forward.

``counts`` [n, n] is how many circuits lead from each GPU (row) to each other; light goes one way.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ringlight.fabric.steps import IntArray

HopArray = npt.NDArray[np.int32]


def hops_between(counts: IntArray) -> HopArray:
    """Return the fewest circuits from each GPU to each other, [n, n], -1 if there is no way."""
    # Here, as most processes make no such graph.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    joined = csr_array((counts > 0).astype(np.float64))
    far = shortest_path(joined, method="D", unweighted=True)
    return np.where(np.isfinite(far), far, -1).astype(np.int32)


def neighbours(counts: IntArray) -> HopArray:
    """Return the GPUs to which each GPU has circuits, in order, then -1: [n, most]."""
    n = len(counts)
    source, destination = np.nonzero(counts)
    degree = np.bincount(source, minlength=n)
    place = np.arange(len(source)) - np.repeat(np.cumsum(degree) - degree, degree)
    table = np.full((n, int(degree.max(initial=0))), -1, dtype=np.int32)
    table[source, place] = destination
    return table


def ways(
    hops: HopArray, next_to: HopArray, sources: IntArray, destinations: IntArray
) -> HopArray:
    """Return the GPUs that each pair's way passes, both ends included, then -1: [hops + 1, pairs].

    ``hops`` as of :func:`hops_between`, ``next_to`` as of :func:`neighbours`; every pair has a way. If m next
    GPUs are as near, the way to GPU d takes number d mod m, then (d // m) mod the next number and so on:
    dealt out, as in ``fabric.paths``.
    """
    place, number = sources.astype(np.int32), destinations.copy()
    moving = np.arange(len(place))
    way = [place]
    for _ in range(int(hops[sources, destinations].max(initial=0))):
        moving = moving[place[moving] != destinations[moving]]
        here, to = place[moving], destinations[moving]
        options = next_to[here]
        nearer = (options >= 0) & (
            hops[options, to[:, None]] == hops[here, to][:, None] - 1
        )
        number[moving], choice = np.divmod(number[moving], nearer.sum(axis=1))
        column = (np.cumsum(nearer, axis=1) > choice[:, None]).argmax(axis=1)
        place = np.full(len(sources), -1, dtype=np.int32)
        place[moving] = options[np.arange(len(moving)), column]
        way.append(place)
    return np.stack(way)
