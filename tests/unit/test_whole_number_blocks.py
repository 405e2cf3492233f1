"""Gradients as whole numbers in blocks: how far off, which ties, what is refused."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.fabric.whole_numbers import blocks

#: To half of the largest: the sum of two ranks, which is what an all-reduce has, ends there.
floats = st.floats(-(2.0**127), 2.0**127, width=32)


@st.composite
def gradients(draw: st.DrawFn) -> tuple[int, int, np.ndarray]:
    """Bits, a block's size, and float32 of some ranks (ranks, values)."""
    size = draw(st.integers(1, 12))
    row = st.lists(floats, min_size=size, max_size=size)
    ranks = draw(st.lists(row, min_size=2, max_size=5))
    return (
        draw(st.sampled_from([8, 16])),
        draw(st.integers(1, 5)),
        np.array(ranks, np.float32),
    )


def shared_of(ranks: np.ndarray, block: int) -> np.ndarray:
    return blocks.merge([blocks.exponents(values, block) for values in ranks])


def codes_of(
    ranks: np.ndarray, shared: np.ndarray, bits: int, block: int = blocks.BLOCK
) -> np.ndarray:
    """What all ranks send."""
    return np.stack(
        [
            blocks.quantise(
                values, shared, bits, block, blocks.raised(rank, len(ranks))
            )
            for rank, values in enumerate(ranks)
        ]
    )


@given(gradients())
def test_a_code_is_the_nearest_step_ties_to_even(
    case: tuple[int, int, np.ndarray],
) -> None:
    """Against fractions: nothing is rounded but the value itself."""
    bits, block, ranks = case
    shared = shared_of(ranks, block)
    for values in ranks:
        codes = blocks.quantise(values, shared, bits, block)
        for i, value in enumerate(values.tolist()):
            if shared[i // block] == blocks.ZERO:
                assert codes[i] == 2 ** (bits - 1)
                continue
            step = Fraction(2) ** (int(shared[i // block]) - bits + 1)
            # Python rounds fractions half to even
            assert codes[i] == min(
                round(Fraction(value) / step) + 2 ** (bits - 1), 2**bits - 2
            )


@given(gradients())
def test_the_scale_is_the_smallest_that_holds_all_ranks(
    case: tuple[int, int, np.ndarray],
) -> None:
    _, block, ranks = case
    shared = shared_of(ranks, block)
    for number, exponent in enumerate(shared.tolist()):
        largest = Fraction(
            float(np.abs(ranks[:, number * block : (number + 1) * block]).max())
        )
        if exponent == blocks.ZERO:
            assert largest == 0
        else:
            assert Fraction(2) ** (exponent - 1) <= largest < Fraction(2) ** exponent


@given(gradients())
def test_the_mean_comes_back_within_a_step(case: tuple[int, int, np.ndarray]) -> None:
    """Codes are off by half a step, those that are held by 1.5 more, the mean of codes by half a step; and
    then float32's own.
    """
    bits, block, ranks = case
    servers = len(ranks)
    shared = shared_of(ranks, block)
    codes = codes_of(ranks, shared, bits, block)
    plain = [blocks.quantise(own, shared, bits, block) for own in ranks]
    means = (np.sum(codes, axis=0, dtype=np.int64) // servers).astype(
        blocks.code_type(bits)
    )
    values = blocks.dequantise(means, shared, bits, block)
    for i, value in enumerate(values.tolist()):
        exact = sum(Fraction(rank) for rank in ranks[:, i].tolist()) / servers
        exponent = int(shared[i // block])
        if exponent == blocks.ZERO:
            assert value == 0
            continue
        step = Fraction(2) ** (exponent - bits + 1)
        held = sum(int(own[i] == 2**bits - 2) for own in plain)
        most = 1 + Fraction(3 * held, 2 * servers)
        assert (
            abs(Fraction(value) - exact)
            <= step * most * (1 + Fraction(1, 2**20)) + Fraction(2) ** -149
        )


@given(gradients())
def test_the_floor_of_raised_codes_is_the_nearest_to_their_mean(
    case: tuple[int, int, np.ndarray],
) -> None:
    bits, block, ranks = case
    servers = len(ranks)
    shared = shared_of(ranks, block)
    plain = np.array(
        [blocks.quantise(values, shared, bits, block) for values in ranks], np.int64
    )
    floors = (
        np.sum(codes_of(ranks, shared, bits, block), axis=0, dtype=np.int64) // servers
    )
    for i, (floor, total) in enumerate(
        zip(floors.tolist(), plain.sum(axis=0).tolist(), strict=True)
    ):
        off = floor - Fraction(total, servers)
        assert abs(off) <= Fraction(1, 2)
        if abs(off) == Fraction(1, 2):
            assert (off > 0) == (i % block % 2 == 0)


@pytest.mark.parametrize(("bits", "servers"), [(4, 4), (3, 5), (2, 8)])
def test_the_answer_to_every_combination_of_codes_is_the_nearest_to_their_mean(
    bits: int, servers: int
) -> None:
    """Nearest in Python's fractions, a tie up in even places and down in odd ones; all values that a code can
    stand for, the highest and the lowest of a block too, on all ranks.
    """
    step = 2.0 ** (1 - bits)
    values = np.arange(-(2 ** (bits - 1)), 2 ** (bits - 1)) * step
    every = np.stack(np.meshgrid(*[values] * servers)).reshape(servers, -1)
    every = np.repeat(every, 2, axis=1).astype(np.float32)
    shared = np.zeros(blocks.block_count(every.shape[1]), np.int16)
    # 1 is not below 2^0, which holds the other end
    every[every == -1] = np.nextafter(np.float32(-1), np.float32(0))
    plain = np.stack([blocks.quantise(own, shared, bits) for own in every]).sum(
        axis=0, dtype=int
    )
    floors = codes_of(every, shared, bits).sum(axis=0, dtype=int) // servers
    assert len(np.unique(plain)) == servers * (2**bits - 2) + 1
    nearest = {
        (total, place): math.ceil(mean - half) if place else math.floor(mean + half)
        for half in [Fraction(1, 2)]
        for total in range(servers * 2**bits)
        for mean in [Fraction(total, servers)]
        for place in (0, 1)
    }
    assert floors.tolist() == [
        nearest[total, i % 2] for i, total in enumerate(plain.tolist())
    ]


@pytest.mark.parametrize("servers", [4, 8, 16, 64, 256])
@pytest.mark.parametrize("bits", [8, 16])
def test_the_answer_to_every_sum_of_codes_is_the_nearest_to_their_mean(
    bits: int, servers: int
) -> None:
    """The unit sees no more of the codes than their sum, and no rank's code is in the way of a step more."""
    for place in (0, 1):
        more = sum(blocks.raised(rank, servers)[place] for rank in range(servers))
        total = np.arange(servers * (2**bits - 2) + 1)
        floors = (total + more) // servers
        twice = 2 * (servers * floors - total)
        assert (np.abs(twice) <= servers).all()
        ties = np.abs(twice) == servers
        assert ties.any()
        assert ((twice[ties] > 0) == (place == 0)).all()


def test_ties_and_the_upper_end() -> None:
    """e = 1, so a step of 2^-6 for 8 bits."""
    steps = [0.5, 1.5, 2.5, -0.5, -1.5, 127.4, 127.5, -127.5, -127.75]
    values = np.array(steps, np.float32) * np.float32(2.0**-6)
    shared = blocks.exponents(values)
    assert shared.tolist() == [1]
    codes = blocks.quantise(values, shared, 8).astype(int) - 128
    assert codes.tolist() == [0, 2, 2, 0, -2, 126, 126, -128, -128]


@pytest.mark.parametrize("servers", [2, 3, 4, 16])
def test_no_bias_is_left(servers: int) -> None:
    """The floor alone would be (N - 1) / 2N of a step low, rounding half up 1 / 2N high."""
    ranks = (
        np.random.default_rng(5)
        .uniform(-0.99, 0.99, (servers, 2**20))
        .astype(np.float32)
    )
    shared = shared_of(ranks, blocks.BLOCK)
    assert set(shared.tolist()) == {0}
    means = (codes_of(ranks, shared, 8).sum(axis=0, dtype=np.int64) // servers).astype(
        np.uint8
    )
    step = 2.0**-7
    off = blocks.dequantise(means, shared, 8).astype(float) - ranks.mean(
        axis=0, dtype=float
    )
    # each of 2^20 means is off by about 0.4 of a step: 0.01 is 25 deviations
    assert abs(off.mean() / step) < 0.01


def test_what_is_the_same_on_all_ranks_comes_back_as_it_was() -> None:
    values = np.random.default_rng(7).normal(size=5000).astype(np.float32)
    values[::3] = 0
    shared = blocks.exponents(values)
    means = (
        codes_of(np.stack([values] * 16), shared, 8).sum(axis=0, dtype=np.int64) // 16
    ).astype(np.uint8)
    alone = blocks.quantise(values, shared, 8)
    assert (means == alone).all()
    assert (blocks.dequantise(means, shared, 8)[::3] == 0).all()


def test_pieces_do_not_show() -> None:
    """More values than are worked on at once, a last block that is short, a block larger than a piece."""
    values = np.random.default_rng(6).normal(size=200_001).astype(np.float32)
    for block in (1024, 1000, 70_000, 300_000):
        shared = blocks.exponents(values, block)
        codes = blocks.quantise(values, shared, 16, block, (1, 0))
        for number, exponent in enumerate(shared):
            own = slice(number * block, (number + 1) * block)
            alone = np.array([exponent], np.int16)
            assert (
                blocks.quantise(values[own], alone, 16, block, (1, 0)) == codes[own]
            ).all()
            again = blocks.dequantise(codes, shared, 16, block)[own]
            assert (blocks.dequantise(codes[own], alone, 16, block) == again).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 1030, 2999])
def test_values_that_are_not_finite_are_named(bad: float, index: int) -> None:
    values = np.ones(3000, np.float32)
    shared = blocks.exponents(values)
    values[index] = bad
    with pytest.raises(ValueError, match=f"value {index} is {bad}"):
        blocks.exponents(values)
    with pytest.raises(ValueError, match=f"value {index} is {bad}"):
        blocks.quantise(values, shared, 8)


def test_a_scale_that_does_not_hold_a_value_is_refused() -> None:
    values = np.array([0.5, 3.0], np.float32)
    with pytest.raises(ValueError, match=r"value 1 is 3.0: not below 2\^1"):
        blocks.quantise(values, np.array([1], np.int16), 8)
    with pytest.raises(ValueError, match="value 0"):
        blocks.quantise(values, np.array([blocks.ZERO], np.int16), 8)


def test_what_does_not_fit_together_is_refused() -> None:
    values = np.zeros(2000, np.float32)
    with pytest.raises(ValueError, match="float32 in one dimension, not float64"):
        blocks.exponents(values.astype(np.float64))
    with pytest.raises(ValueError, match="2000 values have 2 blocks, but 1 exponents"):
        blocks.quantise(values, np.zeros(1, np.int16), 8)
    with pytest.raises(ValueError, match="rank 1 has 2 blocks, rank 0 has 3"):
        blocks.merge([np.zeros(3, np.int16), np.zeros(2, np.int16)])
    with pytest.raises(ValueError, match="codes of 8 bits are uint8, not uint16"):
        blocks.dequantise(np.zeros(2000, np.uint16), np.zeros(2, np.int16), 8)


def test_no_values_have_no_blocks() -> None:
    none = np.empty(0, np.float32)
    assert blocks.quantise(none, blocks.exponents(none), 8).shape == (0,)
