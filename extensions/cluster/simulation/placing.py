"""Places of a job's GPUs: placement policies by name, each one function of the free GPUs.

A policy gets the free GPUs of each switch (a leaf of the tree) and the number that a job wants, and returns
how many it takes from which switch. There are always enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ringlight.extensions.cluster.clusters import Cluster, best_fit_parts
from ringlight.fabric.gpu_choice import fewest_parts

#: GPUs by leaf.
Placed = dict[int, int]
Placement = Callable[["Free", int], Placed]


class Free:
    """Free GPUs of a cluster by leaf, and in all. ``rng``: for policies that draw."""

    def __init__(self, cluster: Cluster, rng: np.random.Generator) -> None:
        self.cluster, self.rng = cluster, rng
        self.counts = list(cluster.gpus)
        self.total = cluster.size

    def take(self, placed: Mapping[int, int]) -> None:
        for leaf, count in placed.items():
            self.counts[leaf] -= count
            self.total -= count

    def give(self, placed: Mapping[int, int]) -> None:
        for leaf, count in placed.items():
            self.counts[leaf] += count
            self.total += count

    def set(self, counts: Sequence[int]) -> None:
        self.counts, self.total = list(counts), sum(counts)


def _filled(counts: Sequence[int], order: Sequence[int], requested: int) -> Placed:
    """Return up to ``requested`` free GPUs, filling the leaves in ``order``."""
    placed: Placed = {}
    for leaf in order:
        if taken := min(counts[leaf], requested):
            placed[leaf] = taken
            requested -= taken
            if not requested:
                break
    return placed


def at_random(free: Free, requested: int) -> Placed:
    """Return free GPUs drawn at random, each as likely: the state of a cluster without a placement policy."""
    if requested == 1:
        chosen = int(free.rng.integers(free.total))
        for leaf, count in enumerate(free.counts):
            chosen -= count
            if chosen < 0:
                return {leaf: 1}
    drawn = free.rng.multivariate_hypergeometric(free.counts, requested)
    return {int(leaf): int(drawn[leaf]) for leaf in np.flatnonzero(drawn)}


def first_fit(free: Free, requested: int) -> Placed:
    """Return free GPUs in the order of their numbers, like a scheduler that lists nodes (Slurm's linear
    selection).
    """
    return _filled(free.counts, range(len(free.counts)), requested)


def pack(free: Free, requested: int) -> Placed:
    """Return GPUs of as few switches as possible: the fullest one that has room, else those with the most
    free GPUs.

    This is the controller's policy.
    """
    return _together(free, requested, fewest_parts)


def best_fit(free: Free, requested: int) -> Placed:
    """Return GPUs of as few switches as possible, with the rest of a job that needs several where it fits
    most tightly.
    """
    return _together(free, requested, best_fit_parts)


def _together(
    free: Free,
    requested: int,
    divided: Callable[[Mapping[int, int], int], list[tuple[int, int]]],
) -> Placed:
    counts, fitting, best = free.counts, -1, 1 << 60
    for leaf, left in enumerate(counts):
        # The same as below for a job that fits a switch, which most do; this is most of the time of a replay.
        if requested <= left < best:
            fitting, best = leaf, left
            if left == requested:
                break
    if fitting >= 0:
        return {fitting: requested}
    for parts in free.cluster.parts[1:]:
        inside: dict[int, int] = {}
        for leaf, part in enumerate(parts):
            inside[part] = inside.get(part, 0) + counts[leaf]
        (part, taken), *more = fewest_parts(inside, requested)
        if not more and taken == requested:
            own = {
                leaf: counts[leaf] for leaf, group in enumerate(parts) if group == part
            }
            return dict(divided(own, requested))
    return dict(divided(dict(enumerate(counts)), requested))


def spread(free: Free, requested: int) -> Placed:
    """Return GPUs taken one by one from the switch with the most free ones, like a scheduler that evens out
    load.
    """
    counts, placed = list(free.counts), Placed()
    while requested:
        most = max(counts)
        level = [leaf for leaf, left in enumerate(counts) if left == most]
        for leaf in level[:requested]:
            placed[leaf] = placed.get(leaf, 0) + 1
            counts[leaf] -= 1
        requested -= min(requested, len(level))
    return placed


def hilbert(free: Free, requested: int) -> Placed:
    """Return the free GPUs that lie closest together along a line through all switches: the fewest switches
    in a row.

    The first such row wins (Slurm's Hilbert curve over a torus, shuoshuc/RFold's ``slurm_hilbert``). A tree's
    line is its leaves.
    """
    counts = free.counts
    first, have, best = 0, 0, (len(counts) + 1, 0)
    for last, left in enumerate(counts):
        have += left
        while have - counts[first] >= requested:
            have -= counts[first]
            first += 1
        if have >= requested:
            best = min(best, (last - first, first))
    return _filled(counts, range(best[1], len(counts)), requested)


def rings_aligned(free: Free, requested: int) -> Placed:
    """Return whole switches for a job that fills some, and the rest where it fits most tightly.

    So rings begin and end at switches (the alignment of TopoOpt's and RFold's blocks). Without whole switches
    this is ``pack``.
    """
    counts, sizes = free.counts, free.cluster.gpus
    placed: Placed = {}
    left = requested
    for leaf, own in enumerate(sizes):
        if counts[leaf] == own <= left:
            placed[leaf] = own
            left -= own
    if not placed or not left:
        return placed if not left else pack(free, requested)
    rest = {leaf: n for leaf, n in enumerate(counts) if leaf not in placed and n}
    for leaf, taken in fewest_parts(rest, left):
        placed[leaf] = taken
    return placed


PLACEMENTS: Mapping[str, Placement] = {
    "random": at_random,
    "first-fit": first_fit,
    "pack": pack,
    "best-fit": best_fit,
    "spread": spread,
    "hilbert": hilbert,
    "rings-aligned": rings_aligned,
    # GPU by GPU: which those are, ``by_gpu.Gpus`` says.
    "controller": pack,
    # On a torus, where a job's block is found before it starts (``blocks.Torus``): there all GPUs are one
    # leaf's.
    "blocks": first_fit,
    # Of cubes that light joins, which are whole a job's: ``holding.InSlices`` chooses them.
    "slices": first_fit,
}
