"""Designed weights: exact for every input, inside the paper's layers, approximated ones Sigma U."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ringlight.extensions.optinc.unit.approximation import squares
from ringlight.extensions.optinc.unit.averaging import (
    Coding,
    combination,
    goals,
    to_answers,
    to_outputs,
)
from ringlight.extensions.optinc.unit.designed import designed
from ringlight.extensions.optinc.unit.imperfect import (
    Imperfections,
    as_network,
    on_meshes,
)
from ringlight.extensions.optinc.unit.network import (
    Network,
    compressed,
    forward,
    light,
    read,
    table_of,
    wrong_of,
)
from ringlight.extensions.optinc.unit.structure import CASES, Structure


def off_diagonal(network: Network, structure: Structure) -> float:
    """The largest |cosine| between two rows of a square of an approximated layer."""
    worst = 0.0
    for layer in structure.approximated:
        for square in squares(network.weights[layer - 1]):
            rows = square[square.any(axis=1)]
            rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
            worst = max(
                worst, float(np.abs(rows @ rows.T - np.eye(len(rows))).max(initial=0))
            )
    return worst


def wrong_among(
    network: Network, coding: Coding, index: NDArray[np.int64]
) -> tuple[int, float]:
    """How many of these combinations are wrong, and the largest distance of an output from its goal."""
    outputs = forward(network, light(combination(index, coding), coding))
    exact = np.concatenate([goals(coding, i, i + 1) for i in index.tolist()])
    distance = np.abs(
        outputs * ([1] * (coding.symbols - 1) + [coding.leaving])
        - to_outputs(exact, coding)
    )
    return int((to_answers(read(outputs, coding), coding) != exact).sum()), float(
        distance.max()
    )


def sample_of(coding: Coding, count: int) -> NDArray[np.int64]:
    """Every corner, and as many others in random order."""
    corners = np.array(
        list(product(*((0, values - 1) for values in coding.input_values)))
    )
    places = np.cumprod((1, *coding.input_values[:0:-1]))[::-1]
    random = np.random.default_rng(13).integers(0, coding.combinations, count)
    return np.concatenate([corners @ places, random])


@pytest.mark.parametrize("case", CASES)
def test_the_whole_network_on_a_sample(case: str) -> None:
    structure = CASES[case]
    network = designed(structure)
    assert network.sizes == structure.sizes
    assert off_diagonal(network, structure) < 1e-9
    wrong, worst = wrong_among(
        network, structure.coding, sample_of(structure.coding, 1000)
    )
    assert (wrong, worst < 1e-9) == (0, True)


@pytest.mark.parametrize("case", ["8bit_4", "8bit_8"])
def test_every_input(case: str) -> None:
    """The compressed network; that it is the same function the next test says."""
    coding = CASES[case].coding
    found = wrong_of(table_of(compressed(designed(CASES[case])), coding))
    assert (found.inputs, found.wrong) == (coding.combinations, 0)
    assert found.worst < 1e-9


@pytest.mark.parametrize("case", CASES)
def test_compressed_is_the_same_function(case: str) -> None:
    """Also between the inputs' grid, where the steps are."""
    structure = CASES[case]
    network = designed(structure)
    small = compressed(network)
    assert max(small.sizes) <= 58
    most = [
        (values - 1) / steps
        for values, steps in zip(
            structure.coding.input_values, structure.coding.input_steps, strict=True
        )
    ]
    inputs = np.random.default_rng(13).uniform(0, most, (1000, 4))
    assert np.abs(forward(network, inputs) - forward(small, inputs)).max() < 1e-8


def test_every_input_through_the_meshes() -> None:
    structure = CASES["8bit_4"]
    meshes = on_meshes(designed(structure), structure.approximated)
    found = wrong_of(table_of(as_network(meshes, Imperfections()), structure.coding))
    assert (found.inputs, found.wrong) == (28_561, 0)
    assert found.worst < 1e-6


def test_light_that_leaks_to_dark_units_has_no_effect() -> None:
    structure = CASES["8bit_4"]
    network = designed(structure)
    random = np.random.default_rng(13)
    leaking = []
    for weight in network.weights:
        dark = ~weight.any(axis=1, keepdims=True)
        leaking.append(weight + dark * random.uniform(-1, 1, weight.shape))
    inputs = random.uniform(0, 3, (1000, 4))
    outputs = forward(Network(tuple(leaking), network.biases), inputs)
    assert np.abs(outputs - forward(network, inputs)).max() < 1e-9


@pytest.mark.parametrize(("first", "last"), [(4, 7), (4, 8), (3, 6), (3, 7)])
def test_table_2(first: int, last: int) -> None:
    """The approximations with which the paper's training leaves errors: weights without any exist."""
    structure = replace(
        CASES["16bit_4"], approximated=frozenset(range(first, last + 1))
    )
    network = designed(structure)
    assert off_diagonal(network, structure) < 1e-9
    assert (
        wrong_among(network, structure.coding, sample_of(structure.coding, 1000))[0]
        == 0
    )


@pytest.mark.parametrize("level", [0, 1])
def test_both_levels_of_a_cascade(level: int) -> None:
    """Scenario 1 with the two layers of 64 x 64 that the paper adds for Eq. 10."""
    coding = (Coding(8, 4, leaving=4), Coding(8, 4, arriving=4))[level]
    structure = Structure(
        coding, (4, 64, 64, 128, 256, 128, 64, 64, 4), frozenset(range(1, 9))
    )
    network = designed(structure)
    assert off_diagonal(network, structure) < 1e-9
    found = wrong_of(table_of(compressed(network), coding))
    assert (found.inputs, found.wrong) == (coding.combinations, 0)
    assert wrong_among(network, coding, sample_of(coding, 1000))[0] == 0


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(2, 1), (4, 2), (4, 1), (6, 3), (6, 1), (8, 4), (8, 2), (10, 5)]),
    st.integers(1, 9),
    st.integers(1, 9),
    st.booleans(),
    st.integers(0, 3),
    st.data(),
)
def test_any_coding(
    shape: tuple[int, int],
    servers: int,
    arriving: int,
    decimals: bool,
    spare: int,
    data: st.DataObject,
) -> None:
    bits, inputs = shape
    leaving = servers * arriving if decimals else 1
    assume(leaving <= 64)
    coding = Coding(bits, servers, inputs, arriving=arriving, leaving=leaving)
    hidden = inputs + (inputs > 2) + (coding.group > 1) + spare
    approximated = (
        data.draw(st.sets(st.sampled_from(range(2, hidden + 1)))) if hidden > 1 else ()
    )
    structure = Structure(
        coding, (inputs, *[512] * hidden, coding.symbols), frozenset(approximated)
    )
    network = designed(structure)
    assert off_diagonal(network, structure) < 1e-9
    index = sample_of(coding, 300)
    wrong, worst = wrong_among(compressed(network), coding, index)
    assert (wrong, worst < 1e-6) == (0, True)
    assert wrong_among(network, coding, index[:50])[0] == 0


@given(
    st.integers(0, 2**32),
    st.booleans(),
    st.lists(st.integers(1, 6), min_size=2, max_size=6),
)
def test_any_network_compressed(seed: int, with_biases: bool, sizes: list[int]) -> None:
    """Rows and columns of zeros at random: fewer units at most, the same outputs."""
    random = np.random.default_rng(seed)
    weights = []
    for before, after in pairwise(sizes):
        weight = random.normal(size=(after, before))
        weight[random.random(after) < 0.3] = 0
        weight[:, random.random(before) < 0.3] = 0
        weights.append(weight)
    biases = (
        tuple(random.normal(size=size) for size in sizes[1:]) if with_biases else None
    )
    network = Network(tuple(weights), biases)
    small = compressed(network)
    for weight in small.weights[:-1]:
        assert weight.any(axis=1).all()
    for weight in small.weights[1:]:
        assert weight.any(axis=0).all()
    inputs = random.normal(size=(20, sizes[0]))
    np.testing.assert_allclose(
        forward(small, inputs), forward(network, inputs), atol=1e-11
    )


def test_what_cannot_be_designed() -> None:
    plain = Coding(8, 4)
    with pytest.raises(ValueError, match="4 hidden layers, 5 are needed"):
        designed(Structure(plain, (4, 64, 64, 64, 64, 4), frozenset()))
    with pytest.raises(ValueError, match="layer 2 has 15 units, 16 are needed"):
        designed(Structure(plain, (4, 64, 15, 64, 64, 64, 4), frozenset()))
    with pytest.raises(
        ValueError,
        match="layer 3: 15 dark units are needed in a square of 30, 14 are there",
    ):
        designed(Structure(plain, (4, 64, 30, 30, 64, 64, 4), frozenset({3})))
    with pytest.raises(
        ValueError, match="leaves in 2 parts: a designed network has 1 or 4"
    ):
        designed(
            Structure(Coding(8, 4, leaving=2), (4, 64, 64, 64, 64, 64, 4), frozenset())
        )
