"""Whole numbers as PAM4 symbols, four levels of light each (Eq. 2).

A B-bit number G is M = ceil(B / 2) symbols, the most significant first: I^(i) = floor(G / 4^(M - i)) mod 4,
i = 1..M.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Levels of a symbol.
LEVELS = 4


def symbol_count(bits: int) -> int:
    """Return M, the number of symbols that B bits need."""
    return -(-bits // 2)


def to_symbols(codes: NDArray[Any], count: int) -> NDArray[np.uint8]:
    """Return the symbols of each number, along a last axis of ``count``: shape (..., count).

    Raises ValueError for a number that ``count`` symbols cannot hold.
    """
    if codes.size and (int(codes.max()) >= LEVELS**count or int(codes.min()) < 0):
        raise ValueError(
            f"numbers from {codes.min()} to {codes.max()}: {count} PAM4 symbols hold 0 to {LEVELS**count - 1}"
        )
    shifts = 2 * np.arange(count - 1, -1, -1, dtype=np.uint32)
    symbols: NDArray[np.uint8] = (
        codes[..., None].astype(np.uint32) >> shifts & 3
    ).astype(np.uint8)
    return symbols


def to_codes(symbols: NDArray[Any]) -> NDArray[np.uint32]:
    """Return the number that the symbols along the last axis encode, at most 16 of them.

    Levels above 3 count as they are.
    """
    weights = (LEVELS ** np.arange(symbols.shape[-1] - 1, -1, -1)).astype(np.uint32)
    codes: NDArray[np.uint32] = (symbols.astype(np.uint32) * weights).sum(
        axis=-1, dtype=np.uint32
    )
    return codes


def nearest(
    outputs: NDArray[np.floating[Any]], levels: int | NDArray[Any] = LEVELS
) -> NDArray[np.uint8]:
    """Return the level that a receiver reads: the nearest of 0 .. levels - 1.

    Half way between two levels it is the upper one. ``levels``: at most 256, for all outputs or for each of
    the last axis. Raises ValueError for an output that is not a number.
    """
    if np.isnan(outputs).any():
        raise ValueError("an output is not a number")
    read: NDArray[np.uint8] = np.clip(np.floor(outputs + 0.5), 0, levels - 1).astype(
        np.uint8
    )
    return read
