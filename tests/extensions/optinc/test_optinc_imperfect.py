"""Sigma U in place of matrices, and networks on meshes that are not ideal."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.optinc.unit import approximation, mesh, structure
from ringlight.extensions.optinc.unit.averaging import Coding
from ringlight.extensions.optinc.unit.imperfect import (
    Full,
    Imperfections,
    OnMeshes,
    Squares,
    as_network,
    on_meshes,
)
from ringlight.extensions.optinc.unit.network import Network, table_of, wrong_of
from ringlight.extensions.optinc.unit.structure import CASES
from ringlight.extensions.optinc.unit.weights import trained

sides = st.tuples(st.integers(1, 6), st.integers(1, 4), st.booleans())


def drawn(side: int, times: int, upright: bool, seed: int) -> np.ndarray:
    shape = (side * times, side) if upright else (side, side * times)
    return np.random.default_rng(seed).normal(size=shape)


def approximate_layers(network: Network, layers: Collection[int]) -> Network:
    """As training does it now and then and at its end; layers are numbered from 1."""
    approximation.check_layers(network, layers)
    return replace(
        network,
        weights=tuple(
            approximation.approximated(weight) if layer in layers else weight
            for layer, weight in enumerate(network.weights, 1)
        ),
    )


def random_network(
    sizes: tuple[int, ...], seed: int, layers: frozenset[int]
) -> Network:
    random = np.random.default_rng(seed)
    weights = tuple(random.normal(size=(b, a)) / np.sqrt(a) for a, b in pairwise(sizes))
    biases = tuple(random.normal(size=size) for size in sizes[1:])
    return approximate_layers(Network(weights, biases), layers)


@given(sides, st.integers(0, 2**32))
def test_a_matrix_is_its_squares(shape: tuple[int, int, bool], seed: int) -> None:
    weight = drawn(*shape, seed)
    cut = approximation.squares(weight)
    assert cut.shape == (shape[1], shape[0], shape[0])
    first = weight[: shape[0], : shape[0]]
    last = weight[-shape[0] :, -shape[0] :]
    assert (cut[0] == first).all()
    assert (cut[-1] == last).all()
    assert (approximation.joined(cut, weight.shape) == weight).all()


@given(sides, st.integers(0, 2**32))
def test_an_approximation_is_diagonal_times_orthogonal(
    shape: tuple[int, int, bool], seed: int
) -> None:
    """No scale is nearer, no orthogonal matrix nearer to the square, and again changes nothing."""
    cut = approximation.squares(drawn(*shape, seed))
    scales, orthogonal = approximation.factors(cut)
    eye = np.eye(shape[0])
    assert np.abs(orthogonal @ orthogonal.swapaxes(1, 2) - eye).max() < 1e-12
    assert (scales >= -1e-12).all()
    for other in (scales * 0.99, scales + 0.01):
        assert (
            np.square(cut - scales[..., None] * orthogonal).sum()
            <= np.square(cut - other[..., None] * orthogonal).sum() + 1e-12
        )
    random = np.linalg.qr(np.random.default_rng(seed).normal(size=cut.shape))[0]
    for turned in (
        random,
        orthogonal @ np.linalg.qr(eye + 0.05 * random)[0],
        -orthogonal,
    ):
        assert np.square(cut - orthogonal).sum() <= np.square(cut - turned).sum() + 1e-9
    weight = approximation.joined(
        scales[..., None] * orthogonal, drawn(*shape, seed).shape
    )
    assert np.abs(approximation.approximated(weight) - weight).max() < 1e-9


@given(st.integers(2, 6), st.integers(0, 2**32), st.integers(0, 3))
def test_scales_of_any_sign_and_zero_stay(side: int, seed: int, zeros: int) -> None:
    random = np.random.default_rng(seed)
    scale = random.normal(size=side)
    scale[:zeros] = 0
    weight = scale[:, None] * np.linalg.qr(random.normal(size=(side, side)))[0]
    assert np.abs(approximation.approximated(weight) - weight).max() < 1e-9


def test_matrices_that_squares_do_not_fill_are_refused() -> None:
    with pytest.raises(ValueError, match="3 x 8 cannot be cut"):
        approximation.approximated(np.zeros((3, 8)))
    network = Network((np.eye(2), np.eye(2)))
    with pytest.raises(ValueError, match="layer 3: the network has 2"):
        approximate_layers(network, {2, 3})
    with pytest.raises(ValueError, match="layer 0: the network has 2"):
        on_meshes(network, {0})


@settings(deadline=None, max_examples=20)
@given(st.sets(st.integers(1, 3)), st.integers(0, 2**32))
def test_ideal_meshes_are_the_network(layers: set[int], seed: int) -> None:
    network = random_network((4, 12, 6, 3), seed, frozenset(layers))
    again = as_network(on_meshes(network, layers), Imperfections())
    for weight, other in zip(network.weights, again.weights, strict=True):
        assert np.abs(weight - other).max() < 1e-12
    assert again.biases is network.biases


@pytest.mark.parametrize(
    "layers", [frozenset[int](), frozenset({1, 2}), CASES["8bit_4"].approximated]
)
def test_meshes_have_the_interferometers_that_are_counted(
    layers: frozenset[int],
) -> None:
    case = replace(CASES["8bit_4"], approximated=layers)
    found = on_meshes(random_network(case.sizes, 7, layers), layers)

    def count(one: mesh.Mesh) -> int:
        return int(mesh.there(one.modes).sum())

    total = 0
    for layer, (outputs, inputs) in zip(found.layers, case.shapes, strict=True):
        if isinstance(layer, Squares):
            assert layer.scales.shape == (
                max(outputs, inputs) // min(outputs, inputs),
                min(outputs, inputs),
            )
            total += sum(count(one) for one in layer.meshes) + layer.scales.size
        else:
            assert isinstance(layer, Full)
            # (b.2) counts an attenuator for every output, also where Sigma has fewer
            total += count(layer.first) + count(layer.second) + outputs
    assert total + structure.around_mzis(case.coding) == structure.mzis(case)


def worst_weight(network: Network, other: Network) -> float:
    return max(
        float(np.abs(a - b).max())
        for a, b in zip(network.weights, other.weights, strict=True)
    )


def test_better_meshes_are_nearer() -> None:
    layers = frozenset({1, 2})
    network = random_network((4, 16, 16, 4), 8, layers)
    found = on_meshes(network, layers)

    def off(imperfections: Imperfections) -> float:
        return worst_weight(
            network, as_network(found, imperfections, np.random.default_rng(9))
        )

    for rising in (
        [Imperfections(phase_bits=bits) for bits in (16, 12, 8, 4)],
        [Imperfections(phase_sigma=sigma) for sigma in (1e-5, 1e-4, 1e-3, 1e-2)],
        [Imperfections(loss_db=loss) for loss in (1e-4, 1e-3, 1e-2, 1e-1)],
    ):
        found_off = [off(one) for one in rising]
        assert 0 < found_off[0] < found_off[-1] / 100
        assert found_off == sorted(found_off)


def test_loss_of_an_average_path_is_made_good() -> None:
    """Two modes: one interferometer for all light, so nothing is left of its loss. Twelve: edges are."""
    two = Network((np.linalg.qr(np.random.default_rng(2).normal(size=(2, 2)))[0],))
    assert (
        worst_weight(two, as_network(on_meshes(two, {1}), Imperfections(loss_db=3)))
        < 1e-12
    )
    twelve = random_network((12, 12), 3, frozenset({1}))
    lossy = as_network(on_meshes(twelve, {1}), Imperfections(loss_db=0.1))
    # an edge loses 0.5 dB less than the average, and that is 6 % of its amplitude
    assert (
        1e-3 < worst_weight(twelve, lossy) < 0.06 * np.abs(twelve.weights[0]).max() * 2
    )


def test_a_network_is_wrong_more_often_on_worse_meshes() -> None:
    """One PAM4 symbol passed on by four layers of 8 modes: right on good meshes, not on bad ones."""
    coding = Coding(2, 1, 1)
    random = np.random.default_rng(10)
    into = np.abs(np.linalg.qr(random.normal(size=(8, 8)))[0][:, :1])
    network = Network((into, np.eye(8), np.eye(8), into.T.copy()))
    layers = {2, 3}
    found = on_meshes(network, layers)

    def wrong(sigma: float) -> float:
        tables = (
            table_of(
                as_network(
                    found, Imperfections(phase_sigma=sigma), np.random.default_rng(seed)
                ),
                coding,
            )
            for seed in range(20)
        )
        return sum(wrong_of(table).wrong for table in tables)

    assert wrong(1e-3) == 0
    assert 0 < wrong(0.1) < wrong(0.2)


@pytest.fixture(scope="module")
def trained_on_meshes() -> OnMeshes:
    return on_meshes(trained("8bit_4")[0], CASES["8bit_4"].approximated)


@pytest.mark.parametrize("bits", [None, 16, 12, 11, 10])
def test_trained_weights_are_exact_on_phases_of_10_bits(
    trained_on_meshes: OnMeshes, bits: int | None
) -> None:
    """All 28,561 inputs; predicted: nothing of the training knew of phases."""
    found = wrong_of(
        table_of(
            as_network(trained_on_meshes, Imperfections(phase_bits=bits)),
            CASES["8bit_4"].coding,
        )
    )
    assert (found.inputs, found.wrong) == (28_561, 0)


def test_trained_weights_are_wrong_on_phases_of_6_bits(
    trained_on_meshes: OnMeshes,
) -> None:
    coarse = as_network(trained_on_meshes, Imperfections(phase_bits=6))
    assert wrong_of(table_of(coarse, CASES["8bit_4"].coding)).wrong > 2856


def test_type_of_numbers_stays() -> None:
    network = random_network((4, 8, 4), 11, frozenset({1}))
    narrow = Network(
        tuple(weight.astype(np.float32) for weight in network.weights),
        tuple(bias.astype(np.float32) for bias in network.biases or ()),
    )
    again = as_network(on_meshes(approximate_layers(narrow, {1}), {1}), Imperfections())
    assert again.dtype == np.float32
    assert worst_weight(narrow, again) < 1e-6


def test_what_cannot_be_is_refused() -> None:
    network = Network((np.eye(4), np.arange(16.0).reshape(4, 4)))
    with pytest.raises(ValueError, match="layer 2: it is off squares Sigma U by"):
        on_meshes(network, {1, 2})
    found = on_meshes(network, {1})
    with pytest.raises(ValueError, match="phase errors need a generator"):
        as_network(found, Imperfections(phase_sigma=0.1))
    with pytest.raises(ValueError, match="0 bits"):
        as_network(found, Imperfections(phase_bits=0))
