"""Sums of codes as a ring of ranks adds them: whole numbers of a few bits more than a code.

The sum of the B-bit codes of N ranks has B + ceil(log2 N) bits, its ``width``. A group of 64 numbers of that
width is ``width`` words of 64 bits, little endian: number j has the bits from j * width on, and may begin in
one word and end in the next. Rings divide a vector into whole groups, so that each chunk can be added by
itself; the last group is filled up with zeros.

:func:`add` never takes numbers out of their words. No sum needs more than its width, so what a word carries
over belongs to the number that ends in the next word, and goes no further.

At the end floor(sum / N) are codes again, of B bits: the mean as ``averaging.goal`` has it (Eq. 3).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlight.fabric.whole_numbers.blocks import code_type

Words = NDArray[np.uint64]
#: Numbers of a group.
GROUP = 64
_WORD, _WORD_BITS = np.dtype("<u8"), 64
#: Groups worked on at once, to stay in a processor's cache.
_AT_ONCE = 1024


def sum_bits(bits: int, ranks: int) -> int:
    """Return the bits of a sum of ``ranks`` codes of ``bits``: B + ceil(log2 N).

    Raises ValueError for a number of bits that ``blocks.code_type`` rejects, no ranks, and sums of more than
    32 bits.
    """
    code_type(bits)
    if ranks < 1:
        raise ValueError(f"a sum of {ranks} ranks: at least 1")
    width = bits + (ranks - 1).bit_length()
    if width > 32:
        raise ValueError(
            f"a sum of {ranks} codes of {bits} bits has {width} bits: at most 32 are possible"
        )
    return width


def group_count(size: int) -> int:
    """Return the number of groups of ``size`` numbers. The last group may not be full."""
    return -(-size // GROUP)


def pack(numbers: NDArray[Any], width: int) -> Words:
    """Return ``numbers`` (one dimension, unsigned, below 2^width) as words, [groups * width].

    Raises ValueError for a number that does not fit.
    """
    if numbers.size and int(numbers.max()) >> width:
        raise ValueError(
            f"number {int(numbers.argmax())} is {numbers.max()}: {width} bits hold less"
        )
    lane = _lane(width)
    in_word = _WORD_BITS // lane
    groups = group_count(numbers.size)
    words = np.empty((groups, width), _WORD)
    for start in range(0, groups, _AT_ONCE):
        part = words[start : start + _AT_ONCE]
        own = numbers[start * GROUP : (start + len(part)) * GROUP]
        folded = np.zeros(len(part) * GROUP, f"<u{lane // 8}")
        folded[: own.size] = own
        _put(_fold(folded, width).reshape(len(part), -1).T, in_word * width, part)
    return words.ravel()


def unpack(words: Words, width: int, size: int) -> NDArray[Any]:
    """Return the first ``size`` numbers in ``words``, of the smallest type that has ``width`` bits.

    Raises ValueError for another number of words than :func:`pack` makes of so many numbers.
    """
    groups = group_count(size)
    if words.shape != (groups * width,):
        raise ValueError(
            f"{size} numbers of {width} bits are {groups * width} words, not {words.size}"
        )
    lane = _lane(width)
    in_word = _WORD_BITS // lane
    numbers = np.empty((groups, GROUP), f"u{lane // 8}")
    for start in range(0, groups, _AT_ONCE):
        part = numbers[start : start + _AT_ONCE]
        folded = _get(
            words[start * width : (start + len(part)) * width].reshape(len(part), -1),
            in_word * width,
        )
        part[:] = _unfold(folded, width).reshape(part.shape)
    return numbers.ravel()[:size]


def _lane(width: int) -> int:
    """Return the bits of the smallest type that has ``width``."""
    return next(lane for lane in (8, 16, 32) if width <= lane)


def _fold(numbers: NDArray[Any], width: int) -> Words:
    """Pack the low ``width`` bits of neighbouring numbers together, pair by pair, and return the words.

    Each word then holds as many numbers as it had lanes.
    """
    lane = 8 * numbers.itemsize
    while lane < _WORD_BITS:
        pairs = numbers.view(f"<u{lane // 4}")
        kind = pairs.dtype.type
        if lane > width:
            high = pairs >> kind(lane) << kind(width)
            pairs = np.bitwise_or(pairs & kind(2**width - 1), high, out=high)
        numbers, lane, width = pairs, 2 * lane, 2 * width
    return numbers


def _unfold(words: Words, width: int) -> NDArray[Any]:
    """Undo :func:`_fold`."""
    steps = (_WORD_BITS // _lane(width)).bit_length() - 1
    numbers: NDArray[Any] = words
    for step in reversed(range(steps)):
        lane, its = _lane(width) << step, width << step
        kind = numbers.dtype.type
        if lane > its:
            high = numbers >> kind(its) << kind(lane)
            numbers = np.bitwise_or(numbers & kind(2**its - 1), high, out=high)
        numbers = numbers.view(f"<u{lane // 8}")
    return numbers


def _put(columns: Words, width: int, into: Words) -> None:
    """Pack pieces of ``width`` bits, [pieces of a group, groups], one behind the other: [groups, words]."""
    if width == _WORD_BITS:
        into[:] = columns.T
        return
    words = np.zeros((into.shape[1], into.shape[0]), np.uint64)
    for number, column in enumerate(np.ascontiguousarray(columns)):
        word, shift = divmod(number * width, _WORD_BITS)
        words[word] |= column << np.uint64(shift)
        if shift + width > _WORD_BITS:
            words[word + 1] |= column >> np.uint64(_WORD_BITS - shift)
    into[:] = words.T


def _get(groups: Words, width: int) -> Words:
    """Return the pieces that :func:`_put` put together, group by group."""
    if width == _WORD_BITS:
        return groups.ravel()
    rows = np.ascontiguousarray(groups.T)
    pieces = groups.shape[1] * _WORD_BITS // width
    columns = np.empty((pieces, len(groups)), _WORD)
    mask = np.uint64(2**width - 1)
    for number, column in enumerate(columns):
        word, shift = divmod(number * width, _WORD_BITS)
        np.right_shift(rows[word], np.uint64(shift), out=column)
        if shift + width > _WORD_BITS:
            column |= rows[word + 1] << np.uint64(_WORD_BITS - shift)
        column &= mask
    return np.ascontiguousarray(columns.T).ravel()


def add(into: Words, what: Words) -> None:
    """Add the numbers in ``what`` to those in ``into``: whole groups of one width, no sum wider than that."""
    np.add(into, what, out=into)
    # a word that is smaller than what was added to it has run over
    into[1:] += into[:-1] < what[:-1]


def mean(sums: NDArray[Any], bits: int, ranks: int) -> NDArray[Any]:
    """Return floor(sum / ranks) as codes of ``bits``."""
    means: NDArray[Any] = (sums // sums.dtype.type(ranks)).astype(code_type(bits))
    return means
