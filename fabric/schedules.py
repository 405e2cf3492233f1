"""Collectives as steps of arrays: who sends which chunks to whom, for thousands of ranks.

``fabric.steps`` says what a schedule is; ``fabric.collectives`` writes one out for workers. A collective
whose steps have the same senders, receivers and sizes yields the very same (read-only) arrays each time, so
that who reads them can see by identity that nothing changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ringlight.fabric.steps import IntArray, Op, Step, Steps, frozen
from ringlight.fabric.whole_numbers.blocks import BLOCK
from ringlight.fabric.whole_numbers.sums import sum_bits


def _at_least_one(name: str, ranks: int) -> None:
    if ranks < 1:
        raise ValueError(f"{name} needs at least one rank, not {ranks}")


def ring(world_size: int) -> Steps:
    """Return reduce-scatter, then all-gather, to rank + 1: 2(n-1) steps of 1/n of the vector each.

    Every rank sends 2 (n-1)/n of the vector (Patarasuk and Yuan, 2009).
    """
    n = world_size
    _at_least_one("a ring", n)
    sources = frozen(np.arange(n))
    destinations = frozen((sources + 1) % n)
    counts = frozen(np.ones(n))

    def make() -> Iterator[Step]:
        for step in range(n - 1):
            yield Step(sources, destinations, (sources - step) % n, counts, "reduce")
        for step in range(n - 1):
            yield Step(
                sources, destinations, (sources + 1 - step) % n, counts, "replace"
            )

    return Steps("ring", n, n, 2 * (n - 1), make)


#: Bits of a gradient's value, and of the exponent that a block of values shares.
_VALUE_BITS, _SCALE_BITS = 32, 16


def ring_of_bits(world_size: int, bits: int) -> Steps:
    """Return a :func:`ring` of whole numbers in place of float32 values.

    Sizes are parts of the float32 vector. First the scales of the blocks (``whole_numbers.blocks``), of which
    the largest count: 2(n-1) steps. Then the codes' sums in B + ceil(log2 n) bits each, n-1 steps, and their
    means in B bits, n-1 steps. Good for times and bytes; the values that each rank computes are in
    ``fabric.whole_numbers``. Raises ValueError if ``sum_bits`` does.
    """
    n = world_size
    _at_least_one("a ring", n)
    width = sum_bits(bits, n)
    sources = frozen(np.arange(n))
    destinations = frozen((sources + 1) % n)
    # a chunk is what a block's scale has of each of its values, in one of n parts
    unit = BLOCK // _SCALE_BITS
    part = unit * _VALUE_BITS
    scale, total, code = (
        frozen(np.full(n, count)) for count in (1, unit * width, unit * bits)
    )

    def make() -> Iterator[Step]:
        for reducing, replacing in ((scale, scale), (total, code)):
            for step in range(n - 1):
                yield Step(
                    sources,
                    destinations,
                    (sources - step) % n * part,
                    reducing,
                    "reduce",
                )
            for step in range(n - 1):
                yield Step(
                    sources,
                    destinations,
                    (sources + 1 - step) % n * part,
                    replacing,
                    "replace",
                )

    return Steps(f"ring-bits-{bits}", n, n * part, 4 * (n - 1), make)


def strides(size: int, count: int) -> tuple[int, ...]:
    """Return at most ``count`` steps of rings through all of ``size`` ranks.

    The first step is 1, and they grow about geometrically. A ring of step p leads from rank i to i + p, and
    through all ranks when p and ``size`` have no common divisor. Because the steps grow so, few hops lead
    from any rank to any other.
    """
    left = [p for p in range(1, size) if math.gcd(p, size) == 1]
    chosen: list[int] = []
    for k in range(min(count, len(left))):
        target = k / count * math.log(size)
        chosen.append(min(left, key=lambda p: abs(math.log(p) - target)))
        left.remove(chosen[-1])
    return tuple(chosen)


def coprime_rings(world_size: int, rings: int = 2) -> Steps:
    """Return ``rings`` rings at once (:func:`strides`), each with its part of the vector: 2(n-1) steps.

    For fabrics that join a rank to several others, as TopoOpt's graphs (Wang et al., NSDI 2023). There are
    fewer rings if not so many steps have no common divisor with n.
    """
    n = world_size
    _at_least_one("coprime rings", n)
    by = np.array(strides(n, rings) or (1,))
    ring_of, place = np.divmod(np.arange(len(by) * n), n)
    sources = frozen(place * by[ring_of] % n)
    destinations = frozen((place + 1) * by[ring_of] % n)
    part, counts = ring_of * n, frozen(np.ones(len(place)))

    def make() -> Iterator[Step]:
        for step in range(n - 1):
            yield Step(
                sources, destinations, part + (place - step) % n, counts, "reduce"
            )
        for step in range(n - 1):
            yield Step(
                sources, destinations, part + (place + 1 - step) % n, counts, "replace"
            )

    return Steps("coprime-rings", n, len(by) * n, 2 * (n - 1), make)


def halving_doubling(world_size: int) -> Steps:
    """Return recursive halving, then doubling: 2 log2 n steps, 2 (n-1)/n of the vector per rank.

    In step k rank i exchanges half of what it still adds up with i XOR 2^k; then the same way back (Thakur,
    Rabenseifner and Gropp, 2005). With n not a power of two, the ranks from P = 2^floor(log2 n) on first add
    their whole vector to rank - P and at the end get the sum from there: two more steps.
    """
    n = world_size
    _at_least_one("halving-doubling", n)
    depth = n.bit_length() - 1
    power = 1 << depth
    ranks = frozen(np.arange(power))
    extra = frozen(np.arange(power, n))
    whole = (frozen(np.zeros(n - power)), frozen(np.full(n - power, power)))

    def halves() -> list[tuple[IntArray, IntArray, IntArray, IntArray]]:
        """Return (partner, first chunk kept, first chunk given, chunks of each) of the halving steps."""
        low = np.zeros(power, dtype=np.int64)
        steps = []
        for k in range(depth):
            half = power >> (k + 1)
            upper = ranks >> k & 1
            kept, given = low + upper * half, low + (1 - upper) * half
            steps.append(
                (
                    frozen(ranks ^ (1 << k)),
                    frozen(kept),
                    frozen(given),
                    frozen([half] * power),
                )
            )
            low = kept
        return steps

    def make() -> Iterator[Step]:
        if len(extra):
            yield Step(extra, frozen(extra - power), *whole, "reduce")
        for partner, _, given, half in halves():
            yield Step(ranks, partner, given, half, "reduce")
        for partner, kept, _, half in reversed(halves()):
            yield Step(ranks, partner, kept, half, "replace")
        if len(extra):
            yield Step(frozen(extra - power), extra, *whole, "replace")

    return Steps(
        "halving-doubling",
        n,
        power,
        2 * depth + (2 if n > power else 0),
        make,
        step_by_step=True,
    )


def recursive_doubling(world_size: int) -> Steps:
    """Return log2 n steps of the whole vector, in step k between rank i and rank i XOR 2^k.

    With n not a power of two the extra ranks are folded in and out as in :func:`halving_doubling`: two more
    steps. (Thakur, Rabenseifner, Gropp, 2005.)
    """
    n = world_size
    _at_least_one("recursive doubling", n)
    depth = n.bit_length() - 1
    power = 1 << depth
    ranks, extra = frozen(np.arange(power)), frozen(np.arange(power, n))

    def make() -> Iterator[Step]:
        if len(extra):
            yield _whole(extra, extra - power, "reduce")
        for k in range(depth):
            yield _whole(ranks, ranks ^ (1 << k), "reduce")
        if len(extra):
            yield _whole(extra - power, extra, "replace")

    return Steps(
        "recursive-doubling",
        n,
        1,
        depth + (2 if n > power else 0),
        make,
        step_by_step=True,
    )


def binary_tree(world_size: int) -> Steps:
    """Return reduce to rank 0 along a binomial tree, then broadcast.

    These are 2 ceil(log2 n) steps of the whole vector. In step k the ranks that are odd multiples of 2^k send
    to the even multiple below.
    """
    n = world_size
    _at_least_one("a binary tree", n)
    depth = (n - 1).bit_length()

    def make() -> Iterator[Step]:
        pairs = [
            (low := np.arange(1 << k, n, 2 << k), low - (1 << k)) for k in range(depth)
        ]
        for child, parent in pairs:
            yield _whole(child, parent, "reduce")
        for child, parent in reversed(pairs):
            yield _whole(parent, child, "replace")

    return Steps("binary-tree", n, 1, 2 * depth, make)


def nearest_group(world_size: int) -> int:
    """Return the divisor m of n = ``world_size`` with the least m + n/m.

    It gives the fewest steps of a hierarchical ring.
    """
    return min(
        (m for m in range(1, world_size + 1) if world_size % m == 0),
        key=lambda m: (m + world_size // m, m),
    )


def hierarchical_ring(world_size: int, group: int | None = None) -> Steps:
    """Return rings inside groups of ``group`` neighbours, and rings across the groups.

    Reduce-scatter inside each group (m - 1 steps of 1/m), ring all-reduce across the G = n/m groups among the
    ranks of equal place (2(G - 1) steps of 1/n), all-gather inside each group: 2(m + n/m) - 4 steps, 2
    (n-1)/n of the vector per rank. The default of ``group`` is the divisor with the fewest steps; for a prime
    world size that is the plain ring. Raises ValueError when ``group`` does not divide ``world_size``.
    """
    n = world_size
    _at_least_one("a hierarchical ring", n)
    m = nearest_group(n) if group is None else group
    if m < 1 or n % m:
        raise ValueError(
            f"a hierarchical ring of {n} ranks cannot have groups of {m}; it must divide {n}"
        )
    groups = n // m
    ranks = frozen(np.arange(n))
    place, team = ranks % m, ranks // m
    beside = frozen(team * m + (place + 1) % m)
    across = frozen((ranks + m) % n)
    part, counts = frozen(np.full(n, groups)), frozen(np.ones(n))

    def make() -> Iterator[Step]:
        for step in range(m - 1):
            yield Step(ranks, beside, (place - step) % m * groups, part, "reduce")
        # A rank now has the sum of its group in part place + 1; so have those of its place elsewhere.
        base = (place + 1) % m * groups
        for step in range(groups - 1):
            yield Step(ranks, across, base + (team - step) % groups, counts, "reduce")
        for step in range(groups - 1):
            yield Step(
                ranks, across, base + (team + 1 - step) % groups, counts, "replace"
            )
        for step in range(m - 1):
            yield Step(ranks, beside, (place + 1 - step) % m * groups, part, "replace")

    return Steps("hierarchical-ring", n, n, 2 * (m - 1) + 2 * (groups - 1), make)


def both_ways(steps: Steps, name: str) -> Steps:
    """Return a collective called ``name``: ``steps`` on half of the vector, mirrored on the other half.

    Both run at once. In the mirror rank i does what rank n - 1 - i does in ``steps``. On a ring of two fibres
    every step then uses both fibres instead of one, and carries half as much on each. Ranks with only one
    neighbour send it both halves. The steps have no wavelengths yet.
    """
    n, chunks = steps.world_size, steps.chunks

    def make() -> Iterator[Step]:
        known: dict[tuple[int, int, int], tuple[Step, Step]] = {}
        for step in steps:
            # Steps that are alike share their arrays, so theirs are made once; the step keeps its identity.
            key = (id(step.sources), id(step.destinations), id(step.count))
            if key not in known:
                sources, destinations = (
                    frozen(np.concatenate((ranks, n - 1 - ranks)))
                    for ranks in (step.sources, step.destinations)
                )
                count = frozen(np.tile(step.count, 2))
                known[key] = (step, Step(sources, destinations, count, count, step.op))
            twin = known[key][1]
            first = np.concatenate((step.first, chunks + step.first))
            yield Step(twin.sources, twin.destinations, first, twin.count, step.op)

    return Steps(name, n, 2 * chunks, steps.steps, make)


def bidirectional_ring(world_size: int) -> Steps:
    """Return half of the vector along :func:`ring`, the other half the other way round, at once.

    2(n-1) steps, in each of which every rank sends 1/(2n) of the vector to either neighbour.
    """
    _at_least_one("a bidirectional ring", world_size)
    return both_ways(ring(world_size), "bidirectional-ring")


def bidirectional_hierarchical_ring(world_size: int, group: int | None = None) -> Steps:
    """Return a hierarchical ring with half of the vector each way round, inside the groups and across.

    Raises ValueError when ``group`` does not divide ``world_size``.
    """
    _at_least_one("a bidirectional hierarchical ring", world_size)
    return both_ways(
        hierarchical_ring(world_size, group), "bidirectional-hierarchical-ring"
    )


def _whole(sources: npt.ArrayLike, destinations: npt.ArrayLike, op: Op) -> Step:
    """Return a step in which every transfer carries the vector's only chunk."""
    to = frozen(destinations)
    return Step(
        frozen(sources), to, frozen(np.zeros(len(to))), frozen(np.ones(len(to))), op
    )
