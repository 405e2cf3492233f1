"""Kinds of collectives by name: algorithms, sizes, and what each rank has before and after.

Sizes are those of nccl-tests. A schedule moves chunks of one vector that is laid out alike at every rank:
chunk r of a reduce-scatter or an all-gather is rank r's, and chunk i * n + j of an all-to-all is what rank i
has for rank j. Chunks are equal parts unless the caller hands in bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ringlight.fabric import alltoall, gathers
from ringlight.fabric.algorithms import STEPS, parse_collective, steps_named
from ringlight.fabric.steps import BoolArray, IntArray, Steps, frozen

Make = Callable[[int], Steps]

_ROOTED: dict[str, dict[str, Make]] = {
    "broadcast": {
        "binomial-tree": gathers.tree,
        "chain": gathers.chain,
        "scatter-ring": gathers.scatter_ring,
    },
    "reduce": {
        "binomial-tree": lambda n: gathers.backwards(gathers.tree(n), "binomial-tree"),
        "chain": lambda n: gathers.backwards(gathers.chain(n), "chain"),
    },
}
_EXCHANGING = ("all-to-all", "all-to-all-v")
_EXCHANGES: dict[str, Make] = {
    "direct": alltoall.direct,
    "pairwise": alltoall.pairwise,
    "bruck": alltoall.bruck,
    "hierarchical": alltoall.hierarchical,
}
_ALGORITHMS: dict[str, dict[str, Make]] = {
    "reduce-scatter": {
        "ring": gathers.ring_reduce_scatter,
        "halving": lambda n: gathers.backwards(gathers.doubling(n), "halving"),
    },
    "all-gather": {
        "ring": gathers.ring_all_gather,
        "doubling": gathers.doubling,
        "bruck": gathers.bruck_all_gather,
    },
    **_ROOTED,
    **dict.fromkeys(_EXCHANGING, _EXCHANGES),
}
#: Kind -> names of its algorithms; the first is the default. ``hierarchical`` may say ``-group-M``, and the
#: all-reduces have the options of :class:`fabric.algorithms.Collective` except bits, and extensions add some.
KINDS: dict[str, tuple[str, ...]] = {
    "all-reduce": tuple(STEPS),
    **{kind: tuple(algorithms) for kind, algorithms in _ALGORITHMS.items()},
}
_GROUPED = re.compile(r"hierarchical-group-([1-9][0-9]{0,4})")


def collective_steps(kind: str, algorithm: str, ranks: int, root: int = 0) -> Steps:
    """Return a collective as its schedule; an empty ``algorithm`` is the kind's default.

    ``root``: rank that a broadcast begins at or a reduce ends at. Raises ValueError, listing the known names,
    for another kind or algorithm; also for no ranks, and for a root that is none of them.
    """
    if kind not in KINDS:
        raise ValueError(
            f"there is no collective {kind!r}; there are {', '.join(KINDS)}"
        )
    if ranks < 1:
        raise ValueError(f"{kind} needs at least one rank, not {ranks}")
    if not 0 <= root < ranks:
        raise ValueError(f"{kind} of {ranks} ranks has no rank {root} for its root")
    if root and kind not in _ROOTED:
        raise ValueError(f"{kind} has no root")
    name = algorithm or KINDS[kind][0]
    if kind == "all-reduce":
        if parse_collective(name).bits is not None:
            raise ValueError(
                f"{kind} {name}: only gradients of a training are made whole numbers"
            )
        return steps_named(name, ranks)
    algorithms = _ALGORITHMS[kind]
    if kind in _EXCHANGING and (match := _GROUPED.fullmatch(name)):
        return alltoall.hierarchical(ranks, int(match[1]))
    if name not in algorithms:
        raise ValueError(
            f"{kind} has no algorithm {name!r}; there are {', '.join(algorithms)}"
        )
    return gathers.rooted(algorithms[name](ranks), root)


def vector_bytes(kind: str, ranks: int, size: int) -> int:
    """Return the bytes of the schedule's vector for nccl-tests' ``size``.

    That is the vector of an all-reduce, a broadcast or a reduce, all that an all-gather leaves at a rank or a
    reduce-scatter takes from it, and all that one rank sends in an all-to-all, its own part included.
    """
    return ranks * size if kind in _EXCHANGING else size


def bus_factor(kind: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth.

    That is the least that the busiest rank must send, over the size, as in nccl-tests, doc/PERFORMANCE.md.
    Algorithm bandwidth is the size of :func:`vector_bytes` over time.
    """
    if kind == "all-reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if kind in _ROOTED else (ranks - 1) / ranks


def matrix_bounds(sizes: npt.ArrayLike) -> IntArray:
    """Return the bounds of an all-to-all-v's chunks, [n * n + 1].

    ``sizes``: what rank i (row) sends to rank j (column).
    """
    return frozen(
        np.concatenate(([0], np.cumsum(np.asarray(sizes, dtype=np.int64).ravel())))
    )


def holds(kind: str, ranks: int, chunks: int, root: int = 0) -> BoolArray:
    """Return which chunks each rank has values of its own in before a collective, [ranks, chunks].

    Of all other chunks the rank has nothing. Raises ValueError when the kind cannot divide so many chunks.
    """
    if kind == "broadcast":
        return _rows(ranks, np.full(chunks, root))
    if kind in ("all-reduce", "reduce-scatter", "reduce"):
        return np.ones((ranks, chunks), dtype=bool)
    return _rows(
        ranks, _parts(kind, ranks, chunks) // (ranks if kind in _EXCHANGING else 1)
    )


def needs(kind: str, ranks: int, chunks: int, root: int = 0) -> BoolArray:
    """Return which chunks each rank must have after a collective, [ranks, chunks].

    In each of them it must have the values of all ranks for which :func:`holds` is true, each added exactly
    once; in other chunks it may have anything. Raises ValueError when the kind cannot divide so many chunks.
    """
    if kind == "reduce":
        return _rows(ranks, np.full(chunks, root))
    if kind in ("all-reduce", "all-gather", "broadcast"):
        return np.ones((ranks, chunks), dtype=bool)
    return _rows(ranks, _parts(kind, ranks, chunks) % ranks)


def _rows(ranks: int, owner: IntArray) -> BoolArray:
    """Return rows of bits that place each chunk at its owner only."""
    owned: BoolArray = np.arange(ranks)[:, None] == owner
    return owned


def _parts(kind: str, ranks: int, chunks: int) -> IntArray:
    """Return the number of the vector's equal part to which each chunk belongs."""
    parts = ranks * ranks if kind in _EXCHANGING else ranks
    if chunks % parts:
        raise ValueError(
            f"{kind} of {ranks} ranks has a vector of {parts} parts; {chunks} chunks do not fit"
        )
    return np.arange(chunks) // (chunks // parts)
