"""The collectives of clusters by the names that a scenario uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ringlight.extensions.servers.schedules import channel_rings, double_binary_tree
from ringlight.fabric.algorithms import Algorithm, Collective
from ringlight.fabric.steps import Steps


def _rings(collective: Collective, ranks: int) -> Steps:
    return channel_rings(ranks, collective.wavelengths or 1, collective.group or 1)


def _trees(collective: Collective, ranks: int) -> Steps:
    return double_binary_tree(ranks, collective.wavelengths or 1, collective.group or 1)


def _plane(algorithm: str) -> Callable[[Any, Sequence[str]], Any]:
    """Return the function that finds the servers that can do an algorithm."""

    def plane(fabric: Any, ranks: Sequence[str]) -> Any:
        # Workers know the collective, and no plane.
        from ringlight.extensions.servers.servers_plane import servers_plane

        return servers_plane(fabric, ranks, algorithm)

    return plane


CHANNEL_RINGS = Algorithm(_rings, frozenset({"wavelengths", "group"}))
DOUBLE_BINARY_TREE = Algorithm(_trees, frozenset({"wavelengths", "group"}))
NCCL, NCCL_RING, NCCL_TREE, NVLS, NVLS_TREE, SHARP = (
    Algorithm(None, frozenset(), _plane(name))
    for name in ("", "ring", "tree", "nvls", "nvls-tree", "sharp")
)
