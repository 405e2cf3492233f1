"""Shares of wrong answers against one thing that is not ideal, and meshes as they are drawn."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from benchmarks.optinc import QUANTITIES, percent, with_values
from ringlight.extensions.optinc.interferometers import draw, interferometers, is_pi
from ringlight.extensions.optinc.unit.averaging import combination, goals, to_outputs
from ringlight.extensions.optinc.unit.designed import designed
from ringlight.extensions.optinc.unit.imperfect import (
    Imperfections,
    OnMeshes,
    on_meshes,
)
from ringlight.extensions.optinc.unit.mesh import decompose, rebuild
from ringlight.extensions.optinc.unit.network import Signals, _parts_of_servers
from ringlight.extensions.optinc.unit.structure import CASES, area_ratio, bias_mzis
from ringlight.extensions.optinc.unit.sweeps import (
    Physics,
    Spread,
    harmless,
    spread,
    wrong_shares,
)
from ringlight.extensions.optinc.unit.weights import trained

CASE = CASES["8bit_4"]
CODING = CASE.coding
ALL = np.arange(CODING.combinations)


@pytest.fixture(scope="module")
def shipped() -> OnMeshes:
    return on_meshes(trained("8bit_4")[0], CASE.approximated)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_a_spread_is_in_order_and_of_the_values(values: list[float]) -> None:
    found = spread(values)
    assert min(values) == found.minimum <= found.median <= found.maximum == max(values)
    assert found.seeds == len(values)
    assert sum(value < found.median for value in values) <= len(values) / 2
    assert sum(value > found.median for value in values) <= len(values) / 2


@pytest.mark.parametrize(
    ("largest", "expected"),
    [
        ([0, 0, 0.1], 2.0),
        ([0.1, 0, 0], None),
        ([0, 0.1, 0], 1.0),
        ([0, 0], 2.0),
        ([], None),
    ],
)
def test_harmless_is_up_to_the_first_harm(
    largest: list[float], expected: float | None
) -> None:
    """Also where a harder value happens to do none, and whatever the other seeds do."""
    found = [
        (float(at), Spread(0.0, 0.0, share, 3)) for at, share in enumerate(largest, 1)
    ]
    assert harmless(found) == expected


@pytest.mark.parametrize(
    ("quantity", "values"),
    [
        ("phase_bits", (10, 8, 6)),
        ("loss_db", (0.01, 0.3, 1)),
        ("phase_sigma", (0, 0.01, 0.03)),
    ],
)
def test_what_is_harder_does_more_harm(
    shipped: OnMeshes, quantity: str, values: tuple[float, ...]
) -> None:
    found = [
        wrong_shares(shipped, CODING, ALL, QUANTITIES[quantity].physics(v), (0, 1))
        for v in values
    ]
    assert found[0].maximum == 0
    assert all(milder.maximum < harder.minimum for milder, harder in pairwise(found))
    assert [of.seeds for of in found] == (
        [1, 2, 2] if quantity == "phase_sigma" else [1, 1, 1]
    )


def test_a_seed_draws_the_same_again_and_another_seed_something_else(
    shipped: OnMeshes,
) -> None:
    off = Physics(Imperfections(phase_sigma=0.02))
    first, again, other = (
        wrong_shares(shipped, CODING, ALL, off, (seed,)).median for seed in (3, 3, 4)
    )
    assert first == again != other


def test_noise_does_the_harm_that_gaussians_do() -> None:
    """A designed network's outputs are on their levels: an answer is right if no output's noise goes further
    than half a level, of an end level in one direction only."""
    on = on_meshes(designed(CASE), CASE.approximated)
    sigma = 0.2
    tail = math.erfc(0.5 / sigma / math.sqrt(2)) / 2
    levels = to_outputs(goals(CODING), CODING)
    expected = (
        1
        - np.prod(
            1 - tail * np.where((levels == 0) | (levels == 3), 1, 2), axis=1
        ).mean()
    )
    found = wrong_shares(
        on, CODING, ALL, Physics(signals=Signals(noise=sigma)), range(3)
    )
    assert found.seeds == 3
    assert found.median == pytest.approx(
        expected, abs=4 * math.sqrt(expected / ALL.size)
    )


def test_biases_and_inputs_that_are_too_bright_together_only_scale_the_outputs(
    shipped: OnMeshes,
) -> None:
    """Layers of ReLU without other constants scale with their light."""
    both = Physics(Imperfections(bias=0.01), Signals(scale=0.01))
    one, other = Physics(Imperfections(bias=0.01)), Physics(signals=Signals(scale=0.01))
    found, alone, entering = (
        wrong_shares(shipped, CODING, ALL, each, (0,)).median
        for each in (both, one, other)
    )
    assert found == 0
    assert alone > 0.02
    assert entering > 0.02


@pytest.mark.parametrize("name", ["noise", "transmitters", "mismatch", "scale", "bias"])
def test_each_source_of_light_harms_alone_and_none_where_it_is_small(
    shipped: OnMeshes, name: str
) -> None:
    def shares(value: float) -> Spread:
        if name == "bias":
            return wrong_shares(
                shipped, CODING, ALL, Physics(Imperfections(bias=value)), range(3)
            )
        return wrong_shares(
            shipped, CODING, ALL, Physics(signals=Signals(**{name: value})), range(3)
        )

    assert shares(1e-4).maximum == 0
    assert shares(0.5).minimum > 0.1


def test_what_servers_add_is_drawn_so_that_it_gives_the_input() -> None:
    """With all transmitters off by the same part, mismatch is a common scale, whoever adds what."""
    whole = combination(ALL[::97], CODING)
    parts = _parts_of_servers(whole, CODING, np.random.default_rng(0))
    assert (parts.sum(axis=-1) == whole).all()
    assert parts.min() >= 0
    assert parts.max() <= 3
    assert parts.std(axis=0).min() > 0


def test_the_light_of_biases_counts_on_both_sides() -> None:
    """An attenuator for each output and a tree that divides: 2 m - 1 for each layer of m outputs."""
    outputs = (64, 128, 256, 128, 64, 4)
    assert bias_mzis(CASE) == 2 * sum(outputs) - len(outputs)
    assert 100 * area_ratio(CASE, biases=True) == pytest.approx(39.99, abs=0.005)


def test_a_cell_says_the_seeds_only_where_they_differ() -> None:
    assert percent(Spread(0.0, 0.0, 0.0, 5)) == "0"
    assert percent(Spread(0.25, 0.25, 0.25, 1)) == "25"
    assert percent(Spread(0.0, 1 / 28_561, 0.5, 5)) == "0.0035 (0 to 50)"


@pytest.mark.parametrize("modes", [2, 3, 4, 9])
def test_a_drawn_mesh_has_each_interferometer_once_and_in_order(modes: int) -> None:
    """Light that passes them one after the other comes out as the mesh's matrix says."""
    mesh = decompose(
        np.linalg.qr(np.random.default_rng(modes).normal(size=(modes, modes)))[0]
    )
    light = np.eye(modes, dtype=complex)
    for _, mode, theta, phi in interferometers(mesh):
        cos, sin, turn = math.cos(theta / 2), math.sin(theta / 2), np.exp(1j * phi)
        light[mode : mode + 2] = (
            np.array([[turn * cos, -sin], [turn * sin, cos]]) @ light[mode : mode + 2]
        )
    assert (
        np.abs(np.exp(1j * mesh.output)[:, None] * light - rebuild(mesh)).max() < 1e-12
    )

    axis = Figure().subplots()
    draw(axis, mesh)
    # The first path are the waveguides, then one for each shade of theta; two spots a line.
    waveguides, *shades = [patch.get_path() for patch in axis.patches]
    crossing = [
        tuple(map(tuple, line))
        for path in shades
        for line in path.vertices.reshape(-1, 2, 2)
    ]
    assert len(crossing) == len(set(crossing)) == modes * (modes - 1)
    assert all(abs(above - below) == 1 for (_, above), (_, below) in crossing)
    straight = waveguides.vertices.reshape(-1, 2, 2)
    assert (straight[:, 0, 1] == straight[:, 1, 1]).all()
    assert len(axis.texts) == (modes * (modes - 1) // 2 if modes <= 8 else 0)


@pytest.mark.parametrize(
    ("phase", "expected"),
    [(math.pi, True), (-math.pi, True), (3 * math.pi, True), (0.0, False)],
)
def test_pi_is_pi_in_every_turn(phase: float, expected: bool) -> None:
    assert is_pi(phase) is expected


def test_a_quantity_with_other_values_and_what_is_none() -> None:
    name, quantity = with_values("phase_bits=30,28")
    assert (name, quantity.values) == ("phase_bits", [30, 28])
    assert quantity.physics(28) == Physics(Imperfections(phase_bits=28))
    for text, cause in (
        ("phase_bits", "numbers with commas"),
        ("crosstalk=1", "not one of phase_bits"),
    ):
        with pytest.raises(ValueError, match=f"{text}: {cause}"):
            with_values(text)
