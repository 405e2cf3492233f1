from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.experiments.analysis.statistics import percentile


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [
        (100, 0.99, 99),
        (100, 0.5, 50),
        (10, 0.5, 5),
        (3, 0.5, 2),
        (1, 0.99, 1),
        (100, 1.0, 100),
        (100, 0.07, 7),
    ],
)
def test_a_percentile_is_the_smallest_that_its_share_does_not_exceed(
    count: int, share: float, expected: float
) -> None:
    assert percentile([float(n) for n in range(count, 0, -1)], share) == expected


def test_of_nothing_it_is_nothing() -> None:
    assert percentile([], 0.99) == 0.0


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(0, 100))
def test_it_is_what_the_definition_says(values: list[int], percent: int) -> None:
    reached = [
        value
        for value in sorted(values)
        if 100 * sum(v <= value for v in values) >= percent * len(values)
    ]
    assert percentile([float(value) for value in values], percent / 100) == reached[0]
