"""What a comparison could have shown: against simulated draws, and lines whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from ringlight.experiments.analysis.comparison_statistics import (
    set_up_line,
    smallest_slowdown,
)


def test_the_interval_covers_the_true_ratio_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(1000):
        over, under = random.normal(1.05, 0.04, 12), random.normal(1.0, 0.02, 30)
        covered += abs(over.mean() / under.mean() - 1.05) <= smallest_slowdown(
            over.tolist(), under.tolist()
        )
    assert 930 <= covered <= 968


def test_a_known_interval() -> None:
    # Means 2 and 1, no spread below: 2 ± t(2; 97.5 %) · s / sqrt(3), s = 0.1.
    found = smallest_slowdown([1.9, 2.0, 2.1], [1.0, 1.0, 1.0, 1.0])
    assert found == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)
    assert smallest_slowdown([2.0, 2.0], [1.0, 1.0]) == 0.0


def test_four_times_the_iterations_show_half_the_slowdown() -> None:
    random = np.random.default_rng(2)
    few, many = (
        smallest_slowdown(*(random.normal(1, 0.01, n).tolist() for _ in "ab"))
        for n in (100, 400)
    )
    assert few / many == pytest.approx(2, rel=0.2)


def test_the_line_through_set_ups() -> None:
    line = set_up_line([(0.001, 0.054), (0.002, 0.058), (0.005, 0.070)])
    assert line.free_s == pytest.approx(0.05)
    assert line.waits == pytest.approx(4)
    assert line.break_even_s(1.04 * 0.05) == pytest.approx(0.0005)
    assert line.break_even_s(0.04) < 0
