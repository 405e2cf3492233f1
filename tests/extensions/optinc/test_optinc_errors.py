"""Errors injected into OptINC's answers: as many, as large and as frequent as the distribution says."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.optinc.unit.wrong_answers import TABLE_II, Errors, inject

COUNT = 2**17


@st.composite
def distributions(draw: st.DrawFn) -> Errors:
    sizes = st.integers(-300, 300).filter(bool)
    errors = draw(st.lists(sizes, min_size=1, max_size=4, unique=True))
    weights = [draw(st.integers(1, 20)) for _ in errors]
    shares = {
        error: weight / sum(weights)
        for error, weight in zip(errors, weights, strict=True)
    }
    return Errors(draw(st.sampled_from([0.0, 1e-4, 0.01, 0.3, 1.0])), shares)


@settings(max_examples=30, deadline=None)
@given(
    st.one_of(distributions(), st.sampled_from(list(TABLE_II.values()))),
    st.integers(0, 2**32 - 1),
)
def test_each_error_comes_as_often_as_the_distribution_says(
    errors: Errors, seed: int
) -> None:
    codes = np.random.default_rng(seed).integers(2000, 60000, COUNT).astype(np.uint16)
    found = inject(codes, errors, 16, np.random.default_rng(seed + 1))
    off = found.astype(int) - codes
    assert set(np.unique(off).tolist()) <= {0, *errors.shares}
    for error, share in errors.shares.items():
        probability = errors.wrong * share
        # six standard deviations of a binomial, and a few where hardly any is expected
        within = 6 * math.sqrt(COUNT * probability * (1 - probability)) + 6 * bool(
            probability
        )
        assert abs(int((off == error).sum()) - COUNT * probability) <= within


@given(distributions(), st.sampled_from([8, 16]), st.integers(0, 2**32 - 1))
def test_what_is_off_is_still_a_number_of_these_bits(
    errors: Errors, bits: int, seed: int
) -> None:
    kind = np.uint8 if bits == 8 else np.uint16
    codes = np.array([[0, 1, 2], [2**bits - 2, 2**bits - 1, 2 ** (bits - 1)]], kind)
    kept = codes.copy()
    found = inject(codes, errors, bits, np.random.default_rng(seed))
    assert np.array_equal(codes, kept)
    assert (found.dtype, found.shape) == (codes.dtype, codes.shape)
    possible = np.clip(
        codes.astype(int)[..., None] + [0, *errors.shares], 0, 2**bits - 1
    )
    assert (possible == found[..., None]).any(axis=-1).all()


def test_all_wrong_leaves_none_right_and_none_wrong_leaves_all() -> None:
    codes = np.full(100, 1000, np.uint16)
    errors = Errors(1.0, {5: 1.0})
    assert (inject(codes, errors, 16, np.random.default_rng(1)) == 1005).all()
    assert (
        inject(codes, replace(errors, wrong=0.0), 16, np.random.default_rng(1)) == 1000
    ).all()


def test_the_same_generator_gives_the_same_errors() -> None:
    codes = np.arange(3000, 9000, dtype=np.uint16)
    first, again, other = (
        inject(codes, Errors(0.2, {1: 1}), 16, np.random.default_rng(s))
        for s in (3, 3, 4)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_table_ii_are_whole_numbers_of_wrong_inputs() -> None:
    """The paper has accuracy to five decimals of a percent; its data set has (4 * 15 + 1)^4 inputs."""
    inputs = 61**4
    for layers, errors in TABLE_II.items():
        wrong = round(errors.wrong * inputs)
        assert wrong >= 1, layers
        assert abs(wrong / inputs - errors.wrong) <= 0.5e-7 + 1e-12, layers
