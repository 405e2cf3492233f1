"""Gradients to B-bit whole numbers in blocks that share a scale, and the mean of such numbers back.

The paper quantises "globally in blocks" (section IV) and leaves open block size, scale and the code of the
sign. Here the values v of a block are numbers of a step s = 2^(e - B + 1), where e is the smallest exponent
with \\|v\\| < 2^e for the values of all ranks, and travel in offset binary: ``c = min(round(v / s) +
2^(B-1), 2^B - 2)``. A tie goes to the even number. The highest code stays free for a step more, see below:
values above 2^e - 1.5 s are held at 2^e - 2 s, with an error below 2 s; it is at most s/2 elsewhere.

Ranks that share e have to agree on it first: each tells its own :func:`exponents`, and :func:`merge` of all
of them is what each :func:`quantise` takes.

The network answers floor(sum of c / N). So that this is the nearest to the mean, half of the ranks send one
step more (:func:`raised`): floor((sum of c + N / 2) / N), whatever the codes. A tie goes up in every other
place of a block, and down between, so that no bias is left in the gradients; a value that is the same on all
ranks comes back as it was. The error of the mean is at most s, and 1.5 s / N more for each rank whose value
was held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Values that share a scale. With an exponent of 2 bytes the scales are 0.2 % of 8-bit values.
BLOCK = 1024
#: Exponent of a block of zeros: lower than that of any float32.
ZERO = -(2**15)
#: Values worked on at once, to stay in a processor's cache.
_AT_ONCE = 2**16


def code_type(bits: int) -> np.dtype[Any]:
    """Return the type of B-bit codes: uint8 up to 8 bits, uint16 up to 16.

    Raises ValueError for others than 2 to 16.
    """
    if not 2 <= bits <= 16:
        raise ValueError(f"{bits} bits: 2 to 16 are possible")
    return np.dtype(np.uint8 if bits <= 8 else np.uint16)


def block_count(size: int, block: int = BLOCK) -> int:
    """Return how many blocks ``size`` values have.

    The last may be shorter. Raises ValueError for blocks of none.
    """
    if block < 1:
        raise ValueError(f"a block of {block} values: at least 1")
    return -(-size // block)


def exponents(values: NDArray[np.float32], block: int = BLOCK) -> NDArray[np.int16]:
    """Return the smallest e of each block with \\|v\\| < 2^e for all of its values; ZERO if all are zero.

    ``values``: one dimension, float32. Raises ValueError naming the first index that is NaN or infinite.
    """
    _check_values(values)
    starts = np.arange(block_count(values.size, block)) * block
    if not starts.size:
        return np.empty(0, np.int16)
    largest = np.maximum(
        np.maximum.reduceat(values, starts), -np.minimum.reduceat(values, starts)
    )
    bad = np.flatnonzero(~np.isfinite(largest))
    if bad.size:
        start = int(bad[0]) * block
        index = start + int(
            np.flatnonzero(~np.isfinite(values[start : start + block]))[0]
        )
        raise ValueError(
            f"value {index} is {values[index]}: only finite values can be averaged"
        )
    return np.where(largest == 0, ZERO, np.frexp(largest)[1]).astype(np.int16)


def merge(of_ranks: Sequence[NDArray[np.int16]]) -> NDArray[np.int16]:
    """Return the shared exponents: for each block the largest of all ranks, in any order of ranks.

    Raises ValueError for no rank, and naming the rank whose number of blocks is not that of rank 0.
    """
    if not of_ranks:
        raise ValueError("no exponents to merge")
    for rank, own in enumerate(of_ranks):
        if own.shape != of_ranks[0].shape:
            raise ValueError(
                f"rank {rank} has {own.size} blocks, rank 0 has {of_ranks[0].size}"
            )
    shared: NDArray[np.int16] = np.maximum.reduce(list(of_ranks))
    return shared


def raised(rank: int, ranks: int) -> tuple[int, int]:
    """Return by how many steps a rank raises its codes in even and in odd places of a block.

    The floor of the mean is then the nearest: N / 2 ranks raise their codes in even places, and in odd places
    one rank less if N is even.
    """
    return int(rank < ranks // 2), int(rank < (ranks - 1) // 2)


def quantise(
    values: NDArray[np.float32],
    shared: NDArray[np.int16],
    bits: int,
    block: int = BLOCK,
    more: tuple[int, int] = (0, 0),
) -> NDArray[Any]:
    """Return the codes of ``values`` at the shared exponents; shape as ``values``, type :func:`code_type`.

    ``more``: steps that are added in even and in odd places of a block, see :func:`raised`. Raises ValueError
    naming the index of a value that is not finite or not below its block's 2^e, and for another number of
    exponents than blocks.
    """
    _check_values(values)
    _check_blocks(values.size, shared, block)
    half = 2 ** (bits - 1)
    codes = np.empty(values.size, code_type(bits))
    # 2^(B-1-e). Below the least float32 there is only 0, so float64 holds every scale that is needed.
    scales = np.ldexp(1.0, bits - 1 - np.maximum(shared.astype(np.int32), -149))
    places = np.arange(min(values.size, max(block, _AT_ONCE))) % block % 2
    added = np.where(places, *more[::-1]) if any(more) else None
    for start, end in _pieces(values.size, block):
        steps = values[start:end] * _spread(scales, start, end, block)
        fits = np.abs(steps) < half
        if not fits.all():
            index = start + int(np.argmin(fits))
            raise ValueError(
                f"value {index} is {values[index]}: not below 2^{shared[index // block]}, its block's scale"
            )
        np.rint(steps, out=steps)
        np.minimum(steps, half - 2, out=steps)
        steps += half
        if added is not None:
            steps += added[: end - start]
        codes[start:end] = steps
    return codes


def dequantise(
    means: NDArray[Any], shared: NDArray[np.int16], bits: int, block: int = BLOCK
) -> NDArray[np.float32]:
    """Return the gradients' mean from the mean of the codes: (c - 2^(B-1)) s, float32.

    A block with exponent ZERO is zeros. Raises ValueError for codes of another type than :func:`code_type`'s,
    and for another number of exponents than blocks.
    """
    if means.dtype != code_type(bits):
        raise ValueError(
            f"codes of {bits} bits are {code_type(bits)}, not {means.dtype}"
        )
    _check_blocks(means.size, shared, block)
    scales = np.ldexp(1.0, shared.astype(np.int32) - bits + 1)
    values = np.empty(means.size, np.float32)
    for start, end in _pieces(means.size, block):
        steps = means[start:end].astype(np.float64)
        steps -= 2 ** (bits - 1)
        values[start:end] = np.multiply(
            steps, _spread(scales, start, end, block), out=steps
        )
    return values


def _pieces(size: int, block: int) -> Iterator[tuple[int, int]]:
    step = max(1, _AT_ONCE // block) * block
    for start in range(0, size, step):
        yield start, min(start + step, size)


def _spread(
    of_blocks: NDArray[np.float64], start: int, end: int, block: int
) -> NDArray[np.float64]:
    """Return each block's value for every value of the block, from ``start``, where a block begins."""
    return np.repeat(of_blocks[start // block : block_count(end, block)], block)[
        : end - start
    ]


def _check_values(values: NDArray[Any]) -> None:
    if values.ndim != 1 or values.dtype != np.float32:
        raise ValueError(
            f"values are float32 in one dimension, not {values.dtype} in {values.ndim}"
        )


def _check_blocks(size: int, shared: NDArray[Any], block: int) -> None:
    if shared.shape != (block_count(size, block),):
        raise ValueError(
            f"{size} values have {block_count(size, block)} blocks, but {shared.size} exponents came"
        )
