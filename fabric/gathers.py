"""Reduce-scatter, all-gather, broadcast and reduce as steps of arrays, of any number of ranks.

A reduction is a distribution backwards: who gave a chunk now takes it and adds it. So the tree, the chain and
halving are written once, as broadcast and all-gather, and :func:`backwards` turns them round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ringlight.fabric.steps import IntArray, Step, Steps, frozen


def backwards(steps: Steps, name: str) -> Steps:
    """Return the reduction that sends along ``steps``, a distribution, the other way in the opposite order.

    If each rank in the end has a chunk of one rank in the distribution, that rank has the sum of all of it
    here.
    """

    def make() -> Iterator[Step]:
        for step in reversed(list(steps)):
            yield replace(
                step, sources=step.destinations, destinations=step.sources, op="reduce"
            )

    return replace(steps, name=name, make=make)


def rooted(steps: Steps, root: int) -> Steps:
    """Return ``steps`` with rank ``root`` in the place of rank 0, root + 1 in that of rank 1, and so on."""
    n = steps.world_size

    def make() -> Iterator[Step]:
        for step in steps:
            sources, destinations = (
                frozen((ranks + root) % n)
                for ranks in (step.sources, step.destinations)
            )
            yield Step(sources, destinations, step.first, step.count, step.op)

    return replace(steps, make=make) if root else steps


def ring_reduce_scatter(n: int) -> Steps:
    """Return n - 1 steps to rank + 1 of 1/n of the vector: (n-1)/n of the vector per rank."""
    ranks = frozen(np.arange(n))
    to, ones = frozen((ranks + 1) % n), frozen(np.ones(n))

    def make() -> Iterator[Step]:
        for step in range(n - 1):
            yield Step(ranks, to, (ranks - 1 - step) % n, ones, "reduce")

    return Steps("ring", n, n, n - 1, make)


def ring_all_gather(n: int) -> Steps:
    """Return n - 1 steps to rank + 1 of 1/n of the vector: (n-1)/n of the vector per rank."""
    ranks = frozen(np.arange(n))
    to, ones = frozen((ranks + 1) % n), frozen(np.ones(n))

    def make() -> Iterator[Step]:
        for step in range(n - 1):
            yield Step(ranks, to, (ranks - step) % n, ones, "replace")

    return Steps("ring", n, n, n - 1, make)


def doubling(n: int) -> Steps:
    """Return an all-gather by recursive doubling: log2 n steps, (n-1)/n of the vector per rank.

    In step k rank i exchanges all that it has with i XOR 2^k (Thakur, Rabenseifner and Gropp, 2005). With n
    not a power of two, of the first 2(n - P) ranks, P = 2^floor(log2 n), the odd ones first give their chunk
    to the even ones below them and at the end get all others from there: two more steps.
    """
    depth = n.bit_length() - 1
    power = 1 << depth
    extra = n - power
    #: Rank and first chunk of each that takes part throughout; it has the chunks up to the next one's.
    places = np.arange(power + 1)
    start = places + np.minimum(places, extra)
    odd = frozen(2 * np.arange(extra) + 1)
    even = frozen(odd - 1)

    def make() -> Iterator[Step]:
        if extra:
            yield Step(odd, even, odd, frozen(np.ones(extra)), "replace")
        for k in range(depth):
            low = places[:-1] >> k << k
            first = start[low]
            partner = start[places[:-1] ^ (1 << k)]
            count = start[low + (1 << k)] - first
            yield Step(
                frozen(start[:-1]),
                frozen(partner),
                frozen(first),
                frozen(count),
                "replace",
            )
        if extra:
            yield _around(even, odd, n)

    return Steps("doubling", n, n, depth + (2 if extra else 0), make, step_by_step=True)


def _around(sources: IntArray, destinations: IntArray, n: int) -> Step:
    """Return a step that sends every chunk but the receiver's own."""
    first = np.stack((np.zeros_like(destinations), destinations + 1), axis=1)
    count = np.stack((destinations, n - 1 - destinations), axis=1)
    return _in_two_runs(sources, destinations, first, count)


def _in_two_runs(
    sources: IntArray, destinations: IntArray, first: IntArray, count: IntArray
) -> Step:
    """Return a step of transfers of two runs of chunks each, [transfers, 2], of which one may be empty."""
    some = count > 0
    ends = (
        frozen(np.repeat(ranks, 2)[some.ravel()]) for ranks in (sources, destinations)
    )
    return Step(
        next(ends), next(ends), frozen(first[some]), frozen(count[some]), "replace"
    )


def bruck_all_gather(n: int) -> Steps:
    """Return an all-gather in ceil(log2 n) steps for any n (Bruck et al., 1997).

    It sends (n-1)/n of the vector per rank. In step k rank i sends all that it has, the 2^k chunks from its
    own on, to rank i - 2^k; in the last step only the chunks that are missing there.
    """
    depth = (n - 1).bit_length()
    ranks = np.arange(n)

    def make() -> Iterator[Step]:
        for k in range(depth):
            length = min(1 << k, n - (1 << k))
            # A run past the last chunk goes on at the first.
            count = np.stack(
                (np.minimum(length, n - ranks), np.maximum(0, ranks + length - n)),
                axis=1,
            )
            first = np.stack((ranks, np.zeros_like(ranks)), axis=1)
            yield _in_two_runs(ranks, (ranks - (1 << k)) % n, first, count)

    return Steps("bruck", n, n, depth, make, step_by_step=True)


def tree(n: int) -> Steps:
    """Return a broadcast from rank 0 along a binomial tree: ceil(log2 n) steps of the whole vector.

    In step k the ranks that have the vector, multiples of 2^(d-k) with d = ceil(log2 n), send it half as far.
    """
    depth = (n - 1).bit_length()

    def make() -> Iterator[Step]:
        for k in reversed(range(depth)):
            child = frozen(np.arange(1 << k, n, 2 << k))
            ones = frozen(np.ones(len(child)))
            yield Step(
                frozen(child - (1 << k)),
                child,
                frozen(np.zeros(len(child))),
                ones,
                "replace",
            )

    return Steps("binomial-tree", n, 1, depth, make)


#: Pieces per rank of a chain: it takes 5n - 2 steps of 1/4n, at most 1.25 times as long as the vector alone.
PIECES_PER_RANK = 4


def chain(n: int) -> Steps:
    """Return a broadcast from rank 0 to rank + 1 and on, in 4n pieces one behind the other: 5n - 2 steps."""
    pieces = PIECES_PER_RANK * n
    steps = n - 2 + pieces if n > 1 else 0

    def make() -> Iterator[Step]:
        for step in range(steps):
            sources = frozen(np.arange(max(0, step - pieces + 1), min(step, n - 2) + 1))
            yield Step(
                sources,
                frozen(sources + 1),
                step - sources,
                frozen(np.ones(len(sources))),
                "replace",
            )

    return Steps("chain", n, pieces, steps, make)


def scatter_ring(n: int) -> Steps:
    """Return a broadcast from rank 0: scatter along a binomial tree, then all-gather round a ring.

    ceil(log2 n) + n - 1 steps; the root sends 2 (n-1)/n of the vector. No rank receives chunks again that the
    scatter left there (van de Geijn, 1994, does not leave these out).
    """
    depth = (n - 1).bit_length()
    gather = ring_all_gather(n)
    ranks = np.arange(n)
    #: Chunks from its own on that the scatter leaves at each rank.
    left = np.where(ranks > 0, np.minimum(ranks & -ranks, n - ranks), n)

    def make() -> Iterator[Step]:
        for k in reversed(range(depth)):
            child = frozen(np.arange(1 << k, n, 2 << k))
            count = frozen(np.minimum(1 << k, n - child))
            yield Step(frozen(child - (1 << k)), child, child, count, "replace")
        for step in gather:
            new = (step.first - step.destinations) % n >= left[step.destinations]
            ends = frozen(step.sources[new]), frozen(step.destinations[new])
            yield Step(
                *ends, frozen(step.first[new]), frozen(step.count[new]), "replace"
            )

    return Steps("scatter-ring", n, n, depth + gather.steps, make)
