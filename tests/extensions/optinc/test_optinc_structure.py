"""Interferometers and area beside the paper's printed figures. Predicted: nothing here is fitted to them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.extensions.optinc.unit import structure
from ringlight.extensions.optinc.unit.averaging import Coding
from ringlight.extensions.optinc.unit.structure import CASES, Structure, area_ratio


@pytest.mark.parametrize(
    ("case", "paper", "full", "approximated"),
    [
        ("8bit_4", 39.3, 106_784, 41_936),
        ("8bit_8", 40.9, 435_232, 178_080),
        ("8bit_16", 40.4, 1_749_024, 706_464),
        ("16bit_4", 49.3, 435_280, 214_800),
    ],
)
def test_table_1(case: str, paper: float, full: int, approximated: int) -> None:
    """Ratios are the paper's; counts come from its formulas by hand (it prints none)."""
    assert 100 * area_ratio(CASES[case]) == pytest.approx(paper, abs=0.1)
    assert structure.mzis(CASES[case]) == approximated
    assert structure.mzis(replace(CASES[case], approximated=frozenset())) == full


@pytest.mark.parametrize(
    ("first", "last", "paper"),
    [(4, 6, 49.3), (4, 7, 47.9), (4, 8, 47.4), (3, 6, 43.7), (3, 7, 42.2)],
)
def test_table_2(first: int, last: int, paper: float) -> None:
    layers = frozenset(range(first, last + 1))
    assert 100 * area_ratio(
        replace(CASES["16bit_4"], approximated=layers)
    ) == pytest.approx(paper, abs=0.2)


def test_p_and_t_count() -> None:
    """Without them the first two ratios are missed: that they count is read off the paper's figures."""
    for case, paper in (("8bit_4", 39.3), ("8bit_8", 40.9)):
        around = structure.around_mzis(CASES[case].coding)
        full = structure.mzis(replace(CASES[case], approximated=frozenset()))
        assert (
            100 * (structure.mzis(CASES[case]) - around) / (full - around) < paper - 0.1
        )


def test_a_cascades_units_have_two_more_matrices() -> None:
    """The paper says 10.5 % more; by its own formulas two approximated 64 x 64 are 4,160 of 41,664."""
    assert structure.inserted_mzis(CASES["8bit_4"]) == 4_160
    assert structure.network_mzis(CASES["8bit_4"]) == 41_664


@given(st.integers(1, 100), st.integers(1, 9))
def test_an_approximated_matrix_needs_no_more(side: int, times: int) -> None:
    """One mesh for each square instead of two for the matrix."""
    approximated = structure.approximated_mzis(side, side * times)
    assert approximated == structure.approximated_mzis(side * times, side)
    assert approximated <= structure.full_mzis(side, side * times)
    if times == 1:
        assert structure.full_mzis(side, side) - approximated == structure.mesh_mzis(
            side
        )


def test_a_matrix_that_squares_do_not_fill_is_refused() -> None:
    with pytest.raises(ValueError, match="3 x 8 cannot be cut into squares of 3 x 3"):
        structure.approximated_mzis(3, 8)


def test_structures_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="the first has 4 and the last 8"):
        Structure(Coding(16, 4), (4, 64, 4), frozenset())
    with pytest.raises(ValueError, match="layer 3 of 2"):
        Structure(Coding(8, 4), (4, 64, 4), frozenset({1, 3}))
