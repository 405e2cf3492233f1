"""Training the network of an OptINC unit, where torch is installed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason="torch is not installed; it is the extra 'onn'"
)

from typer.testing import CliRunner  # noqa: E402

from ringlight.extensions.optinc.onn.command import app  # noqa: E402
from ringlight.extensions.optinc.onn.layers import Exact, OnnLayer, Projected, Retracted  # noqa: E402
from ringlight.extensions.optinc.onn.training import (  # noqa: E402
    Recipe,
    dataset,
    symbol_loss,
    train,
    value_loss,
)
from ringlight.extensions.optinc.unit.approximation import squares  # noqa: E402
from ringlight.extensions.optinc.unit.averaging import Coding  # noqa: E402
from ringlight.extensions.optinc.unit.network import Network, forward, light  # noqa: E402
from ringlight.extensions.optinc.unit.structure import CASES, Structure  # noqa: E402

#: 4 bits of two servers on two inputs: 49 combinations.
SMALL = Structure(Coding(4, 2, inputs=2), (2, 16, 32, 16, 2), frozenset(range(1, 5)))
QUICK = Recipe("exact", 0, epochs=40, first=30, symbol_weights=(1.0, 1.0), batch=8)


def off_form(matrix: np.ndarray) -> float:
    """The largest cosine of two rows of one square of a matrix; 0 where it is Sigma U."""
    cut = squares(matrix.astype(float))
    rows = cut / np.linalg.norm(cut, axis=2, keepdims=True)
    return float(
        np.abs(rows @ rows.transpose(0, 2, 1) - np.eye(min(matrix.shape))).max()
    )


def losses(recipe: Recipe, structure: Structure = SMALL) -> tuple[Network, list[float]]:
    found: list[float] = []
    torch.set_num_threads(1)
    return train(structure, recipe, lambda epoch, loss: found.append(loss)), found


@pytest.mark.parametrize("method", ["exact", "retraction", "projection"])
def test_loss_falls_and_every_layer_keeps_its_form(method: str) -> None:
    network, found = losses(replace(QUICK, method=method, first=40))
    assert len(found) == 40
    assert found[-1] < found[0] / 2
    assert max(map(off_form, network.weights)) < 1e-5
    assert network.sizes == SMALL.sizes


def test_layers_that_are_not_approximated_take_any_form() -> None:
    network, _ = losses(QUICK, replace(SMALL, approximated=frozenset({2})))
    assert off_form(network.weights[1]) < 1e-5
    assert min(off_form(network.weights[other]) for other in (0, 2, 3)) > 1e-2


def test_the_same_seed_gives_the_same_network_and_another_gives_another() -> None:
    first, again, other = (
        losses(replace(QUICK, epochs=2, seed=seed))[0] for seed in (1, 1, 2)
    )
    assert all(
        np.array_equal(one, two)
        for one, two in zip(first.weights, again.weights, strict=True)
    )
    assert not np.array_equal(first.weights[0], other.weights[0])


@pytest.mark.parametrize(("biases", "which"), [("all", [0, 1, 2, 3]), ("first", [0])])
def test_biases_stand_where_they_are_allowed(biases: str, which: list[int]) -> None:
    network, _ = losses(replace(QUICK, epochs=2, biases=biases))
    assert network.biases is not None
    assert [layer for layer, bias in enumerate(network.biases) if np.any(bias)] == which


@pytest.mark.parametrize("shape", [(16, 4), (4, 16), (8, 8)])
def test_a_layer_that_left_its_form_is_brought_back(shape: tuple[int, int]) -> None:
    layer = Projected(*shape, True, torch.Generator().manual_seed(0))
    layer.weight.data += (
        torch.randn(shape, generator=torch.Generator().manual_seed(1)) / 3
    )
    assert off_form(layer.matrix().detach().numpy()) > 1e-2
    final = layer.final()
    layer.project()
    assert off_form(layer.matrix().detach().numpy()) < 1e-5
    assert torch.allclose(layer.matrix().double(), final, atol=1e-5)


@pytest.mark.parametrize("shape", [(16, 4), (4, 16), (8, 8)])
def test_a_retracted_layer_nears_its_form_with_every_step(
    shape: tuple[int, int],
) -> None:
    layer = Retracted(*shape, True, torch.Generator().manual_seed(0))
    layer.turned.data += (
        torch.randn(layer.turned.shape, generator=torch.Generator().manual_seed(1)) / 20
    )
    final, off = layer.final(), []
    for _ in range(4):
        off.append(off_form(layer.matrix().detach().numpy()))
        layer.project()
    assert off[0] > 1e-2
    assert off[3] < 1e-4
    assert all(after < before for before, after in pairwise(off))
    assert off_form(final.numpy()) < 1e-12
    # the next orthogonal matrix is where the steps lead
    assert torch.allclose(layer.matrix().double(), final, atol=1e-5)


def test_units_on_the_grid_see_one_input_each_and_begin_at_its_values() -> None:
    structure = replace(SMALL, approximated=frozenset({2}))
    still = replace(QUICK, rate=1e-12, epochs=1, start="grid")
    network, _ = losses(still, structure)
    # a step of Adam is the rate, however small the gradient
    first = network.weights[0].round(6)
    assert [int(np.count_nonzero(first[:, column])) for column in (0, 1)] == [13, 3]
    assert (np.count_nonzero(first, axis=1) == 1).all()
    assert network.biases is not None
    kinks = -network.biases[0] / first.sum(axis=1)
    values = np.arange(7) / 2
    assert sorted(set(kinks[:13].round(4))) == pytest.approx(values, abs=1e-4)
    assert kinks[13:] == pytest.approx([0, 1.5, 3], abs=1e-4)
    with pytest.raises(ValueError, match="the first layer is approximated"):
        losses(still)


def test_exact_and_projected_layers_start_alike() -> None:
    made = [
        form(16, 4, True, torch.Generator().manual_seed(3))
        for form in (Exact, Retracted, Projected, OnnLayer)
    ]
    for other in made[1:]:
        assert torch.allclose(made[0].matrix(), other.matrix(), atol=1e-6)


def test_a_matrix_that_is_no_squares_is_refused() -> None:
    with pytest.raises(
        ValueError, match="a matrix of 6 x 4 cannot be cut into squares"
    ):
        Exact(6, 4, True, torch.Generator())


def test_the_two_stages_of_the_loss() -> None:
    goal = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    outputs = goal + torch.tensor([[0.5, -0.2], [0.0, 0.7]])
    weights = torch.tensor([3.0, 1.0])
    assert symbol_loss(outputs, goal, weights).item() == pytest.approx(
        (3 * 0.25 + 0.04 + 0.49) / 2
    )
    assert symbol_loss(outputs, goal, weights, 0.3).item() == pytest.approx(
        (3 * 0.04 + 0 + 0.16) / 2
    )
    assert value_loss(outputs, goal, received=False).item() == pytest.approx(
        (1.8**2 + 0.7**2) / 2
    )
    # 1.5 is read as 2, 1.8 as 2; 0.7 as 1.
    assert value_loss(outputs, goal, received=True).item() == pytest.approx(
        (4**2 + 1**2) / 2
    )


def test_inputs_and_goals_are_those_of_the_integer_reference() -> None:
    inputs, goal = dataset(CASES["8bit_4"])
    assert inputs.shape == goal.shape == (28_561, 4)
    values = (
        inputs.double() @ torch.tensor([64.0, 16.0, 4.0, 1.0], dtype=torch.float64)
    ).floor()
    assert torch.equal(
        values,
        goal.double() @ torch.tensor([64.0, 16.0, 4.0, 1.0], dtype=torch.float64),
    )


def test_a_trained_network_takes_the_inputs_as_they_are() -> None:
    """Shift and scale of training are in the first layer: the last loss is the network's own."""
    network, found = losses(replace(QUICK, first=40, rate=1e-12, batch=49))
    inputs, goal = dataset(SMALL)
    outputs = forward(network, inputs.numpy())
    assert ((outputs - goal.numpy()) ** 2).sum(1).mean() == pytest.approx(
        found[-1], rel=1e-3
    )
    assert np.array_equal(
        inputs.numpy()[-1], light(np.array([6, 6]), SMALL.coding).astype(np.float32)
    )


def test_the_command_leaves_weights_that_it_can_check(tmp_path: Path) -> None:
    out = tmp_path / "w.npz"
    short = ["--epochs", "1", "--batch", "4096", "--threads", "1"]
    done = CliRunner().invoke(app, ["train", "--out", str(out), *short])
    assert done.exit_code == 1  # after one epoch most answers are wrong
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.json", "w.npz"]
    checked = CliRunner().invoke(app, ["check", str(out)])
    assert checked.exit_code == 1
    assert checked.output.split(";")[0] == done.stdout.split(";")[0]
