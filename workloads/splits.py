"""Bytes that ranks send each other in an all-to-all-v of unequal parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringlight.fabric.steps import FloatArray, IntArray
from ringlight.workloads.graph import Split

#: Parts are whole elements of this many bytes: the emulation's payload is FP32.
ELEMENT_BYTES = 4


def shares(skew: float, ranks: int) -> FloatArray:
    """Return the part of each place in the order, [ranks], by Zipf's law with exponent ``skew``.

    The parts sum to 1.
    """
    weights = np.arange(1, ranks + 1, dtype=np.float64) ** -skew
    return np.asarray(weights / weights.sum())


def split_bytes(split: Split, ranks: int, size: int, key: Sequence[int]) -> IntArray:
    """Return the bytes [ranks, ranks] that each group rank (row) sends to each (column), itself included.

    ``size``: bytes that one rank sends in all; rows sum to it, or columns if ``split.back`` is set. ``key``:
    group, operation and iteration, by which orders of receivers differ; ``split.draw`` takes the place of the
    operation. Parts are multiples of 4 bytes, each within 4 of its share. Raises ValueError for a size that
    is no multiple of 4.
    """
    if size % ELEMENT_BYTES or size < 0:
        raise ValueError(
            f"an all-to-all-v of {size} bytes: it must be a multiple of {ELEMENT_BYTES}, 0 or more"
        )
    group, operation, iteration = key
    if split.draw is not None:
        operation = split.draw
    elements = size // ELEMENT_BYTES
    # Bounds are rounded, not parts: so they cannot fail to add up.
    bounds = np.rint(np.cumsum(shares(split.skew, ranks)) * elements).astype(np.int64)
    bounds[-1] = elements
    parts = np.diff(bounds, prepend=0) * ELEMENT_BYTES
    random = np.random.default_rng((split.seed, group, operation, iteration))
    orders = np.tile(np.arange(ranks), (1 if split.same_order else ranks, 1))
    orders = np.broadcast_to(random.permuted(orders, axis=1), (ranks, ranks))
    sent = np.empty((ranks, ranks), dtype=np.int64)
    np.put_along_axis(sent, orders, np.broadcast_to(parts, (ranks, ranks)), axis=1)
    return sent.T.copy() if split.back else sent
