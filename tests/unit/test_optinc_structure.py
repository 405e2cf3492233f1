"""Interferometers and area beside the paper's printed figures. Predicted: nothing here is fitted to them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.optinc import structure
from fabric.optinc.averaging import Coding
from fabric.optinc.structure import CASES, Structure, area_ratio


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
    ("first", "last", "paper"), [(4, 6, 49.3), (4, 7, 47.9), (4, 8, 47.4), (3, 6, 43.7), (3, 7, 42.2)]
)
def test_table_2(first: int, last: int, paper: float) -> None:
    layers = frozenset(range(first, last + 1))
    assert 100 * area_ratio(replace(CASES["16bit_4"], approximated=layers)) == pytest.approx(paper, abs=0.2)


def test_p_and_t_count() -> None:
    """Without them the first two ratios are missed: that they count is read off the paper's figures."""
    for case, paper in (("8bit_4", 39.3), ("8bit_8", 40.9)):
        around = structure.around_mzis(CASES[case].coding)
        full = structure.mzis(replace(CASES[case], approximated=frozenset()))
        assert 100 * (structure.mzis(CASES[case]) - around) / (full - around) < paper - 0.1


@given(st.integers(1, 300), st.integers(1, 300))
def test_an_approximated_matrix_needs_no_more(outputs: int, inputs: int) -> None:
    """As long as the squares fill it; one mesh instead of two for a square."""
    full, approximated = structure.full_mzis(outputs, inputs), structure.approximated_mzis(outputs, inputs)
    assert approximated == structure.approximated_mzis(inputs, outputs)
    if outputs % inputs == 0 or inputs % outputs == 0:
        assert approximated <= full
    if outputs == inputs:
        assert full - approximated == structure.mesh_mzis(outputs)


def test_structures_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="the first has 4 and the last 8"):
        Structure(Coding(16, 4), (4, 64, 4), frozenset())
    with pytest.raises(ValueError, match="layer 3 of 2"):
        Structure(Coding(8, 4), (4, 64, 4), frozenset({1, 3}))
