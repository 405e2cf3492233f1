"""Double binary trees between servers, as NCCL makes them (``src/graph/trees.cc``; Sanders et al., 2009).

Each tree carries half of the data. A server that is inner in one tree is a leaf in the other, so that no
server sends much more than another. Inside a server the GPUs form a chain, whose head is in the tree.
"""

from __future__ import annotations

from collections.abc import Sequence

#: The parent of each node of a tree, None for the root.
Parents = tuple[int | None, ...]


def binary_tree(nodes: int) -> Parents:
    """Return a tree in which inner nodes and leaves alternate; its root is node 0."""

    def parent(node: int) -> int | None:
        if node == 0:
            return None
        bit = node & -node
        up = (node ^ bit) | (bit << 1)
        return up if up < nodes else node ^ bit

    return tuple(parent(node) for node in range(nodes))


def double_tree(nodes: int) -> tuple[Parents, Parents]:
    """Return two trees: the second is the first mirrored, or shifted by one for an odd number of nodes."""
    first = binary_tree(nodes)
    if nodes % 2:
        return first, _renamed(first, [(node + 1) % nodes for node in range(nodes)])
    return first, _renamed(first, [nodes - 1 - node for node in range(nodes)])


def _renamed(parents: Parents, names: Sequence[int]) -> Parents:
    renamed: list[int | None] = [None] * len(parents)
    for node, up in enumerate(parents):
        renamed[names[node]] = None if up is None else names[up]
    return tuple(renamed)


def depth(parents: Parents) -> int:
    """Return the number of links from the furthest leaf to the root."""

    def climb(node: int) -> int:
        up = parents[node]
        return 0 if up is None else 1 + climb(up)

    return max(climb(node) for node in range(len(parents)))


def most_vectors(nodes: int) -> float:
    """Return the largest number of vectors that a node of a double tree sends in an all-reduce.

    It sends its half up, unless it is the root, and each result down to each child.
    """
    sent = [0.0] * nodes
    for parents in double_tree(nodes):
        for node, up in enumerate(parents):
            if up is not None:
                sent[node] += 0.5
                sent[up] += 0.5
    return max(sent)
