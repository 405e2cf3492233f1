"""OptINC in whole numbers: symbols, P, the exact mean, tables over all inputs, two levels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.optinc.unit import averaging, pam4
from ringlight.extensions.optinc.unit.averaging import Coding


@st.composite
def codings(draw: st.DrawFn) -> Coding:
    bits = draw(st.sampled_from([2, 3, 4, 7, 8, 16]))
    symbols = pam4.symbol_count(bits)
    inputs = draw(st.sampled_from([k for k in (1, 2, 4) if symbols % k == 0]))
    parts = st.sampled_from([1, 2, 3, 4])
    return Coding(bits, draw(st.integers(1, 9)), inputs, draw(parts), draw(parts))


@st.composite
def sent(draw: st.DrawFn) -> tuple[Coding, np.ndarray]:
    """A unit, and numbers of its signals."""
    coding = draw(codings())
    numbers = st.integers(0, coding.arriving * 2**coding.bits - 1)
    row = st.lists(numbers, min_size=3, max_size=3)
    return coding, np.array(
        draw(st.lists(row, min_size=coding.servers, max_size=coding.servers))
    )


@given(st.integers(2, 16), st.data())
def test_symbols_are_equation_2(bits: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, 2**bits - 1))
    count = pam4.symbol_count(bits)
    symbols = pam4.to_symbols(np.array([number], np.uint16), count)[0]
    assert symbols.tolist() == [
        number // 2 ** (2 * (count - i)) % 4 for i in range(1, count + 1)
    ]
    assert int(pam4.to_codes(symbols)) == number


def test_symbols_that_cannot_hold_a_number_are_refused() -> None:
    with pytest.raises(ValueError, match="2 PAM4 symbols hold 0 to 15"):
        pam4.to_symbols(np.array([3, 16]), 2)


def test_a_receiver_reads_the_nearest_level() -> None:
    outputs = np.array([-0.7, 0.49, 0.5, 1.5, 2.49, 3.4, 99.0])
    assert pam4.nearest(outputs).tolist() == [0, 0, 1, 2, 2, 3, 3]
    assert pam4.nearest(outputs, 16).tolist() == [0, 0, 1, 2, 2, 3, 15]
    with pytest.raises(ValueError, match="not a number"):
        pam4.nearest(np.array([0.0, np.nan]))


@given(sent())
def test_p_averages_groups_of_neighbouring_symbols(
    case: tuple[Coding, np.ndarray],
) -> None:
    """From the paper's words, symbol by symbol; of divided last symbols the parts ride on the last one."""
    coding, numbers = case
    symbols = pam4.to_symbols(numbers // coding.arriving, coding.symbols).astype(float)
    symbols[..., -1] += numbers % coding.arriving / coding.arriving
    grouped = symbols.reshape(*numbers.shape, coding.inputs, coding.group)
    weighted = (grouped * 4.0 ** np.arange(coding.group - 1, -1, -1)).sum(axis=-1)
    kept = averaging.averages(numbers, coding)
    assert np.allclose(
        kept / np.array(coding.input_steps), weighted.mean(axis=0), rtol=0, atol=1e-9
    )
    assert (kept.min(axis=0) >= 0).all()
    assert (kept.max(axis=0) < coding.input_values).all()


@given(sent())
def test_the_inputs_decide_the_exact_mean(case: tuple[Coding, np.ndarray]) -> None:
    """The index of a row of signals leads to its inputs and to its goal, and has a row in a table."""
    coding, numbers = case
    index = averaging.index_of(numbers, coding)
    assert (
        averaging.combination(index, coding) == averaging.averages(numbers, coding)
    ).all()
    assert averaging.goals(
        coding, int(index[0]), int(index[0]) + 1
    ) == averaging.goals_of(index[:1], coding)
    exact = [
        sum(column) * coding.leaving // (coding.servers * coding.arriving)
        for column in numbers.T.tolist()
    ]
    assert (
        averaging.goals_of(index, coding).tolist()
        == averaging.goal(numbers, coding).tolist()
        == exact
    )


@given(codings())
def test_indices_are_dense(coding: Coding) -> None:
    top = np.full((coding.servers, 1), coding.arriving * 4**coding.symbols - 1)
    full = replace(coding, bits=2 * coding.symbols)
    assert averaging.index_of(top, full)[0] == coding.combinations - 1
    assert averaging.index_of(np.zeros_like(top), full)[0] == 0


@given(codings(), st.data())
def test_outputs_say_an_answer(coding: Coding, data: st.DataObject) -> None:
    answer = data.draw(st.integers(0, coding.leaving * 2**coding.bits - 1))
    outputs = averaging.to_outputs(np.array([answer]), coding)
    assert averaging.to_answers(outputs, coding).tolist() == [answer]
    assert (outputs[0] < coding.output_levels).all()


@pytest.mark.parametrize(
    ("bits", "servers", "combinations"),
    [(8, 4, 28_561), (8, 8, 390_625), (8, 16, 5_764_801), (16, 4, 13_845_841)],
)
def test_combinations_are_the_papers(
    bits: int, servers: int, combinations: int
) -> None:
    assert Coding(bits, servers).combinations == combinations


def test_a_last_symbol_with_decimals_has_16_levels_for_4_servers() -> None:
    first, second = Coding(8, 4, leaving=4), Coding(8, 4, arriving=4)
    assert first.output_levels == (4, 4, 4, 16)
    assert second.input_values == (13, 13, 13, 61)
    assert first.combinations == Coding(8, 4).combinations


def mean_of_all(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Eq. 8: floor of the mean of all, numbers (N units, N servers, ...)."""
    units, servers = numbers.shape[:2]
    whole = Coding(bits, units * servers)
    return averaging.goal(numbers.reshape(units * servers, *numbers.shape[2:]), whole)


def mean_with_decimals(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Eq. 10: each first level leaves its decimal on its last symbol; numbers (N units, N servers, ...)."""
    units = numbers.shape[0]
    first, second = (
        Coding(bits, units, leaving=units),
        Coding(bits, units, arriving=units),
    )
    level_1 = [
        averaging.to_outputs(averaging.goal(own, first), first) for own in numbers
    ]
    return averaging.goal(
        np.stack([averaging.to_answers(own, first) for own in level_1]), second
    )


@settings(max_examples=60)
@given(st.integers(2, 5), st.sampled_from([8, 16]), st.integers(0, 2**32))
def test_decimals_carried_are_the_mean_of_all(
    servers: int, bits: int, seed: int
) -> None:
    numbers = np.random.default_rng(seed).integers(0, 2**bits, (servers, servers, 200))
    exact = mean_of_all(numbers, bits)
    assert (mean_with_decimals(numbers, bits) == exact).all()
    assert set((exact - averaging.mean_of_means(numbers, bits)).tolist()) <= {0, 1}


def test_dropped_decimals_are_wrong_in_28_percent() -> None:
    """Eq. 9 beside Eq. 8, four units of four servers; 0.1 % is three standard deviations."""
    numbers = np.random.default_rng(13).integers(
        0, 256, (4, 4, 1_000_000), dtype=np.uint8
    )
    short = mean_of_all(numbers, 8) - averaging.mean_of_means(numbers, 8)
    assert set(np.unique(short)) == {0, 1}
    assert 0.27 <= short.mean() <= 0.29


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"bits": 17}, "17 bits"),
        ({"servers": 0}, "servers is 0"),
        ({"inputs": 3}, "make no groups for 3 inputs"),
        ({"leaving": 65}, "at most 64"),
    ],
)
def test_a_coding_that_cannot_be_is_refused(wrong: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Coding(**{"bits": 8, "servers": 4, **wrong})


def test_other_signals_than_the_units_are_refused() -> None:
    coding = Coding(8, 4)
    with pytest.raises(ValueError, match="3 signals, but the unit has 4"):
        averaging.goal(np.zeros((3, 5), np.uint8), coding)
    with pytest.raises(ValueError, match="8 bits are 0 to 255"):
        averaging.averages(np.full((4, 1), 256), coding)
