"""Schedules of clusters: rings of channels, and double binary trees with chains inside servers.

Ranks are numbered server by server. Only numpy and the core's steps are imported, as workers import this.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from ringlight.extensions.servers.trees import Parents, double_tree
from ringlight.fabric.steps import Op, Row, Step, Steps, frozen

#: Parts in which a tree passes its part of the vector on.
PIECES = 16


def _servers(ranks: int, group: int) -> int:
    """Return the number of servers. Raises ValueError for a part of one."""
    if group < 1 or ranks % group:
        raise ValueError(f"{ranks} ranks are not whole servers of {group}")
    return ranks // group


def channel_rings(ranks: int, channels: int, group: int = 1) -> Steps:
    """Return a ring for each channel, with its part of the vector: 2(n - 1) steps.

    The ring of channel c enters each server of ``group`` ranks at rank c of the server, so that rings enter
    and leave at different ranks, and by different NICs. Raises ValueError.
    """
    if channels < 1:
        raise ValueError("rings need a channel")
    _servers(ranks, group)
    inside = np.arange(ranks) % group
    server = np.arange(ranks) // group
    order = [server * group + (inside + channel) % group for channel in range(channels)]
    sources = frozen(np.concatenate(order))
    destinations = frozen(np.concatenate([np.roll(ring, -1) for ring in order]))
    place = np.tile(np.arange(ranks), channels)
    base = np.repeat(np.arange(channels) * ranks, ranks)
    counts = frozen(np.ones(len(sources)))

    def make() -> Iterator[Step]:
        for op, shift in (("reduce", 0), ("replace", 1)):
            for step in range(ranks - 1):
                first = frozen(base + (place + shift - step) % ranks)
                yield Step(sources, destinations, first, counts, op)  # type: ignore[arg-type]

    name = f"channel-rings-{channels}-group-{group}"
    return Steps(name, ranks, channels * ranks, 2 * (ranks - 1), make)


def parents_of_ranks(
    ranks: int, group: int, channel: int = 0
) -> tuple[Parents, Parents]:
    """Return the two trees of a channel: chains inside servers, whose heads are in the trees of servers.

    Trees of a channel and channels have different heads, so that they leave servers by different NICs.
    """
    servers = _servers(ranks, group)

    def ranked(parents: Parents, head: int) -> Parents:
        ups: list[int | None] = [None] * ranks
        for server, up in enumerate(parents):
            chain = [server * group + (head + place) % group for place in range(group)]
            ups[chain[0]] = None if up is None else up * group + head % group
            for below, above in itertools.pairwise(reversed(chain)):
                ups[below] = above
        return tuple(ups)

    first, second = double_tree(servers)
    return ranked(first, channel), ranked(second, channel + group // 2)


def double_binary_tree(ranks: int, channels: int = 1, group: int = 1) -> Steps:
    """Return two trees for each channel, each of which sums and sends back its part in :data:`PIECES`.

    A rank passes a piece on in the step after it has it from all below. Raises ValueError.
    """
    rows: dict[tuple[int, Op], list[Row]] = defaultdict(list)
    chunks = 0
    for channel in range(channels):
        for parents in parents_of_ranks(ranks, group, channel):
            _pass(rows, parents, chunks)
            chunks += PIECES
    written = [(op, rows[step, op]) for step, op in sorted(rows)]

    def make() -> Iterator[Step]:
        for op, transfers in written:
            sources, destinations, first, count = map(frozen, np.array(transfers).T)
            yield Step(sources, destinations, first, count, op)

    name = f"double-binary-tree-{channels}-group-{group}"
    return Steps(name, ranks, chunks, len(written), make)


def _pass(rows: dict[tuple[int, Op], list[Row]], parents: Parents, chunk: int) -> None:
    """Add the transfers of one tree from a first chunk on, by step and operation."""
    depths = [_depth(parents, rank) for rank in range(len(parents))]
    deepest = max(depths)
    for rank, up in enumerate(parents):
        if up is None:
            continue
        for piece in range(PIECES):
            sent = deepest - depths[rank] + piece
            rows[sent, "reduce"].append((rank, up, chunk + piece, 1))
            back = deepest + piece + depths[rank] - 1
            rows[back, "replace"].append((up, rank, chunk + piece, 1))


def _depth(parents: Parents, rank: int) -> int:
    up = parents[rank]
    return 0 if up is None else 1 + _depth(parents, up)
