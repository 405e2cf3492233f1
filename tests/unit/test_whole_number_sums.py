"""Codes added up in words without a gap, as a ring of ranks does, against Python's whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ringlight.fabric.whole_numbers.sums import (
    GROUP,
    add,
    group_count,
    mean,
    pack,
    sum_bits,
    unpack,
)

WIDTHS = st.integers(2, 32)
RANKS = st.integers(1, 16)
SIZES = st.integers(0, 3 * GROUP + 1)


def as_one(words: NDArray[np.uint64]) -> int:
    """All bits of some words as one whole number, the first bit the least."""
    return int.from_bytes(words.astype("<u8").tobytes(), "little")


def drawn(seed: int, width: int, *shape: int) -> NDArray[Any]:
    numbers = np.random.default_rng(seed).integers(0, 2**width, shape, dtype=np.uint64)
    # extremes are where carries are
    numbers[np.random.default_rng(seed + 1).random(shape) < 0.3] = 2**width - 1
    return numbers.astype(np.uint32)


@given(seed=st.integers(0, 2**32 - 1), width=WIDTHS, size=SIZES)
def test_number_j_has_the_bits_from_j_times_the_width_on(
    seed: int, width: int, size: int
) -> None:
    numbers = drawn(seed, width, size)
    words = pack(numbers, width)
    assert words.size == group_count(size) * width
    assert as_one(words) == sum(
        int(number) << (j * width) for j, number in enumerate(numbers)
    )
    assert np.array_equal(unpack(words, width, size), numbers)


@given(seed=st.integers(0, 2**32 - 1), bits=st.integers(2, 16), ranks=RANKS, size=SIZES)
def test_sums_of_any_codes_fit_and_their_mean_is_rounded_down(
    seed: int, bits: int, ranks: int, size: int
) -> None:
    """All words together are one whole number: a carry that is lost or goes too far is seen."""
    codes = drawn(seed, bits, ranks, size)
    width = sum_bits(bits, ranks)
    total = pack(codes[0], width)
    for own in codes[1:]:
        add(total, pack(own, width))
    assert as_one(total) == sum(as_one(pack(own, width)) for own in codes)
    found = mean(unpack(total, width, size), bits, ranks)
    assert np.array_equal(found, codes.sum(axis=0, dtype=np.int64) // ranks)


@pytest.mark.parametrize(
    ("bits", "ranks"), [(8, 4), (8, 8), (8, 16), (16, 4), (9, 3), (16, 16)]
)
def test_all_codes_at_their_largest(bits: int, ranks: int) -> None:
    """Where every number of a group carries over into all of its bits."""
    codes = np.full(5 * GROUP, 2**bits - 1, np.uint16)
    width = sum_bits(bits, ranks)
    total = pack(codes, width)
    for _ in range(ranks - 1):
        add(total, pack(codes, width))
    assert (unpack(total, width, codes.size) == ranks * (2**bits - 1)).all()
    assert (mean(unpack(total, width, codes.size), bits, ranks) == codes).all()


def test_one_bit_less_is_seen() -> None:
    """An off-by-one of the width: four of the largest codes are no more what they were."""
    codes = np.full(GROUP, 255, np.uint8)
    width = sum_bits(8, 4) - 1
    total = pack(codes, width)
    for _ in range(3):
        add(total, pack(codes, width))
    assert not (unpack(total, width, GROUP) == 4 * 255).any()


def test_without_carries_sums_are_wrong() -> None:
    """The first test above would see it: 1 added to a number that begins in one word and ends in the next."""
    numbers = np.zeros(GROUP, np.uint16)
    numbers[6] = 2**4 - 1  # bits 60 to 69
    total = pack(numbers, 10)
    np.add(total, pack((numbers > 0).astype(np.uint16), 10), out=total)
    assert unpack(total, 10, GROUP)[6] == 0
    total = pack(numbers, 10)
    add(total, pack((numbers > 0).astype(np.uint16), 10))
    assert unpack(total, 10, GROUP)[6] == 2**4


@pytest.mark.parametrize(
    ("bits", "ranks", "width"),
    [(8, 4, 10), (8, 8, 11), (8, 16, 12), (16, 4, 18), (8, 5, 11), (8, 1, 8)],
)
def test_a_sum_has_log2_n_bits_more(bits: int, ranks: int, width: int) -> None:
    assert sum_bits(bits, ranks) == width
    assert ranks * (2**bits - 1) < 2**width


def test_what_cannot_be_is_named() -> None:
    with pytest.raises(ValueError, match="number 1 is 1024: 10 bits hold less"):
        pack(np.array([1023, 1024], np.uint16), 10)
    with pytest.raises(ValueError, match="65 numbers of 10 bits are 20 words, not 10"):
        unpack(np.zeros(10, np.uint64), 10, 65)
    with pytest.raises(ValueError, match="a sum of 0 ranks"):
        sum_bits(8, 0)
    with pytest.raises(ValueError, match="17 bits: 2 to 16"):
        sum_bits(17, 4)
    with pytest.raises(ValueError, match="a sum of 70000 codes of 16 bits has 33 bits"):
        sum_bits(16, 70000)
