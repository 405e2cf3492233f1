"""Unequal all-to-alls: who sends how much to whom."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.workloads.graph import Split
from ringlight.workloads.splits import shares, split_bytes

SKEWS = st.sampled_from([0.0, 0.3, 1.0, 2.5])
KEYS = st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))


@given(
    skew=SKEWS, same=st.booleans(), ranks=st.integers(1, 40), elements=st.integers(0, 10**7), key=KEYS,
    seed=st.integers(0, 2**40), back=st.booleans(),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_all_that_is_sent_is_divided_by_zipfs_law(
    skew: float,
    same: bool,
    ranks: int,
    elements: int,
    key: tuple[int, int, int],
    seed: int,
    back: bool,
) -> None:
    split = Split(seed, skew, same_order=same, back=back)
    sent = split_bytes(split, ranks, 4 * elements, key)
    rows = sent.T if back else sent
    assert rows.shape == (ranks, ranks)
    assert (rows.sum(axis=1) == 4 * elements).all()
    assert (rows >= 0).all()
    assert not (rows % 4).any()
    expected = np.sort(4 * elements * shares(skew, ranks))
    assert np.abs(np.sort(rows, axis=1) - expected).max() <= 4
    if same:
        assert (rows == rows[0]).all()


def test_orders_differ_by_seed_group_operation_iteration_and_sender() -> None:
    first = split_bytes(Split(1, 1.0), 16, 1 << 20, (3, 4, 5))
    assert len(np.unique(first, axis=0)) == 16
    for seed, key in ((2, (3, 4, 5)), (1, (2, 4, 5)), (1, (3, 3, 5)), (1, (3, 4, 4))):
        assert (split_bytes(Split(seed, 1.0), 16, 1 << 20, key) != first).any()
    assert (split_bytes(Split(1, 1.0), 16, 1 << 20, (3, 4, 5)) == first).all()


def test_what_goes_back_is_what_came() -> None:
    """A draw splits the same in both directions within an iteration, whichever operations use it."""
    there = split_bytes(Split(1, 1.0, draw=9), 8, 4096, (0, 10, 2))
    again = split_bytes(Split(1, 1.0, draw=9, back=True), 8, 4096, (0, 11, 2))
    assert (again == there.T).all()
    assert (split_bytes(Split(1, 1.0, draw=9), 8, 4096, (0, 10, 3)) != there).any()


def test_a_size_of_no_whole_elements_is_refused() -> None:
    with pytest.raises(
        ValueError, match="an all-to-all-v of 10 bytes: it must be a multiple of 4"
    ):
        split_bytes(Split(), 2, 10, (0, 0, 0))


def test_the_second_gets_half_of_the_first_by_a_skew_of_1() -> None:
    assert shares(1.0, 3) == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert shares(0.0, 4).tolist() == [0.25] * 4
    sent = split_bytes(Split(0, 1.0), 3, 4400, (0, 0, 0))
    assert [sorted(row) for row in sent.tolist()] == [[800, 1200, 2400]] * 3
