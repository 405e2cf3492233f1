"""Meshes: taken apart and rebuilt, of the paper's size, and what errors of their phases do."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.optinc.unit import mesh, structure
from ringlight.extensions.optinc.unit.mesh import Mesh, decompose, rebuild


def unitary(modes: int, seed: int, *, real: bool = False) -> np.ndarray:
    random = np.random.default_rng(seed)
    drawn = random.normal(size=(modes, modes)) + (
        0 if real else 1j * random.normal(size=(modes, modes))
    )
    return np.linalg.qr(drawn)[0]


@settings(deadline=None)
@given(st.integers(1, 24), st.integers(0, 2**32), st.booleans())
def test_a_mesh_is_its_matrix(modes: int, seed: int, real: bool) -> None:
    matrix = unitary(modes, seed, real=real)
    found = decompose(matrix)
    assert np.abs(rebuild(found) - matrix).max() < 1e-13
    assert found.theta.shape == found.phi.shape == (modes, modes // 2)
    exist = mesh.there(modes)
    assert exist.sum() == structure.mesh_mzis(modes)
    assert not found.theta[~exist].any()
    assert not found.phi[~exist].any()
    assert ((found.theta >= 0) & (found.theta <= np.pi)).all()
    if real:
        for phases in (found.phi, found.output):
            assert set(np.abs(phases).ravel().tolist()) <= {0.0, np.pi}


@settings(deadline=None)
@given(
    st.permutations(range(9)),
    st.lists(st.sampled_from([-1.0, 1.0]), min_size=9, max_size=9),
)
def test_matrices_with_zeros(order: list[int], signs: list[float]) -> None:
    matrix = np.eye(9)[order] * signs
    assert np.abs(rebuild(decompose(matrix)) - matrix).max() < 1e-13


def test_a_large_mesh() -> None:
    matrix = unitary(512, 1, real=True)
    assert np.abs(rebuild(decompose(matrix)) - matrix).max() <= 1e-12


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**32))
def test_any_phases_are_a_unitary_matrix(modes: int, seed: int) -> None:
    """And taken apart it is the same matrix: a rectangle lacks no interferometer."""
    random = np.random.default_rng(seed)
    exist = mesh.there(modes)
    drawn = Mesh(
        random.uniform(0, np.pi, exist.shape) * exist,
        random.uniform(-np.pi, np.pi, exist.shape) * exist,
        random.uniform(-np.pi, np.pi, modes),
    )
    matrix = rebuild(drawn)
    assert np.abs(matrix @ matrix.conj().T - np.eye(modes)).max() < 1e-13
    assert np.abs(rebuild(decompose(matrix)) - matrix).max() < 1e-13


def test_one_interferometer() -> None:
    """Two modes by hand: phi on the upper arm, then a rotation by theta / 2, then the output phases."""
    found = rebuild(
        Mesh(np.array([[1.0], [0.0]]), np.array([[0.3], [0.0]]), np.array([0.5, -0.2]))
    )
    cos, sin = np.cos(0.5), np.sin(0.5)
    turned = np.array([[np.exp(0.3j) * cos, -sin], [np.exp(0.3j) * sin, cos]])
    assert np.abs(found - np.exp([[0.5j], [-0.2j]]) * turned).max() < 1e-15


@given(st.integers(1, 12))
def test_phases_of_few_bits(bits: int) -> None:
    exact = decompose(unitary(8, 3))
    found = mesh.quantised(exact, bits)
    step = 2 * np.pi / 2**bits
    for coarse, fine in (
        (found.theta, exact.theta),
        (found.phi, exact.phi),
        (found.output, exact.output),
    ):
        assert np.abs(coarse - fine).max() <= step / 2 * (1 + 1e-12)
        assert np.abs(coarse / step - np.rint(coarse / step)).max() < 1e-9


def test_finer_phases_are_nearer() -> None:
    matrix = unitary(16, 4)
    exact = decompose(matrix)
    off = [
        np.abs(rebuild(mesh.quantised(exact, bits)) - matrix).max()
        for bits in (4, 8, 12, 16)
    ]
    assert all(finer < coarse / 4 for coarse, finer in pairwise(off))


def test_phase_errors_are_as_large_as_told() -> None:
    exact = decompose(unitary(40, 5))
    found = mesh.disturbed(exact, 0.01, np.random.default_rng(6))
    exist = mesh.there(40)
    # 780 draws: their deviation is known to 2.5 %, four times that are allowed
    assert (found.theta - exact.theta)[exist].std() == pytest.approx(0.01, rel=0.1)
    assert (found.phi - exact.phi)[exist].std() == pytest.approx(0.01, rel=0.1)
    assert not (found.theta - exact.theta)[~exist].any()
    again = mesh.disturbed(exact, 0.01, np.random.default_rng(6))
    assert (again.theta == found.theta).all()
    assert np.abs(rebuild(found) @ rebuild(found).conj().T - np.eye(40)).max() < 1e-12


def test_loss_adds_up_along_a_path() -> None:
    """Light straight through: the first and last mode pass half as many interferometers."""
    exist = mesh.there(6)
    straight = Mesh(np.zeros(exist.shape), np.zeros(exist.shape), np.zeros(6))
    lost = -20 * np.log10(np.abs(np.diag(rebuild(straight, loss_db=0.5))))
    assert lost == pytest.approx([1.5, 3, 3, 3, 3, 1.5])


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (np.ones((2, 3)), r"shape \(2, 3\)"),
        (np.empty((0, 0)), r"shape \(0, 0\)"),
        (np.diag([1.0, 1.001]), "off unitary by 0.002"),
        (np.diag([1.0, np.nan]), "off unitary by nan"),
    ],
)
def test_other_matrices_have_no_mesh(matrix: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decompose(matrix)


def test_phases_of_no_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="0 bits"):
        mesh.quantised(decompose(np.eye(2)), 0)
