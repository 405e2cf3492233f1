"""The models of OptINC's training study: their gradients beside finite differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.optinc_models import (
    Adam,
    Convolutional,
    Model,
    Momentum,
    Transformer,
    loss_and_accuracy,
    parts_of,
    size_of,
    trained_on,
)

RANDOM = np.random.default_rng(0)
SMALL = Transformer(7, places=5, width=8, heads=2)
CASES: list[tuple[Model, Any, Any]] = [
    (Convolutional(), RANDOM.random((6, 64)), RANDOM.integers(0, 10, 6)),
    (SMALL, RANDOM.integers(0, 7, (3, 5)), RANDOM.integers(0, 7, (3, 5))),
]
NAMES = ["convolutional", "transformer"]


def shaken(model: Model) -> np.ndarray:
    """Parameters of which none is at a special value: biases not zero, norms not one."""
    random = np.random.default_rng(1)
    return model.start(1).astype(np.float64) + 0.1 * random.standard_normal(
        size_of(model)
    )


@pytest.mark.parametrize(("model", "inputs", "answers"), CASES, ids=NAMES)
def test_gradient_of_every_part_is_that_of_finite_differences(
    model: Model, inputs: Any, answers: Any
) -> None:
    parameters, width = shaken(model), 1e-6
    gradient = model.gradient(parameters, inputs, answers)
    parts = parts_of(gradient, model.shapes)
    for name, part in parts_of(
        np.arange(size_of(model), dtype=float), model.shapes
    ).items():
        assert np.abs(parts[name]).max() > 1e-6, name
        for _ in range(3):
            way = np.zeros(parameters.shape)
            places = part.reshape(-1).astype(int)
            way[places] = np.random.default_rng(places[0]).standard_normal(places.size)
            above, below = (
                loss_and_accuracy(
                    model, parameters + sign * width * way, inputs, answers
                )[0]
                for sign in (1, -1)
            )
            expected = (above - below) / (2 * width)
            assert gradient @ way == pytest.approx(expected, rel=1e-5, abs=1e-8), name


@pytest.mark.parametrize(("model", "inputs", "answers"), CASES, ids=NAMES)
def test_probabilities_add_up_and_float32_stays(
    model: Model, inputs: Any, answers: Any
) -> None:
    parameters = model.start(3)
    found = model.log_probability(parameters, inputs)
    assert found.dtype == np.float32
    assert found.shape[0] == answers.size
    assert np.exp(found).sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert model.gradient(parameters, inputs, answers).dtype == np.float32
    assert np.array_equal(parameters, model.start(3))
    assert not np.array_equal(parameters, model.start(4))


@pytest.mark.parametrize(("model", "inputs", "answers"), CASES, ids=NAMES)
def test_a_few_steps_downhill_lower_the_loss(
    model: Model, inputs: Any, answers: Any
) -> None:
    parameters = model.start(0)
    before, _ = loss_and_accuracy(model, parameters, inputs, answers)
    for _ in range(60):
        parameters -= np.float32(0.1) * model.gradient(parameters, inputs, answers)
    after, accuracy = loss_and_accuracy(model, parameters, inputs, answers)
    assert after < before / 2
    assert accuracy > 0.6


def test_the_transformer_does_not_see_what_comes_later() -> None:
    parameters = shaken(SMALL)
    text = np.array([[1, 2, 3, 4, 5]])
    other = np.array([[1, 2, 3, 6, 0]])
    one, two = (SMALL.log_probability(parameters, tokens) for tokens in (text, other))
    assert np.allclose(one[:3], two[:3], atol=1e-12)
    assert np.abs(one[3:] - two[3:]).min(axis=1).max() > 1e-6


def test_parts_are_views_of_a_vector_of_the_right_size() -> None:
    vector = np.zeros(size_of(SMALL))
    for part in parts_of(vector, SMALL.shapes).values():
        part += 1
    assert (
        vector.sum()
        == size_of(SMALL)
        == sum(math.prod(shape) for shape in SMALL.shapes.values())
    )
    with pytest.raises(ValueError, match=f"there are {size_of(SMALL)} parameters"):
        parts_of(np.zeros(3), SMALL.shapes)


def test_a_training_on_four_ranks_is_descent_by_the_whole_batchs_gradient() -> None:
    model, inputs, answers = (
        CASES[0][0],
        RANDOM.random((8, 64)).astype(np.float32),
        np.arange(8),
    )
    start, rate = model.start(0), np.float32(0.1)
    found = trained_on(
        model, start, 4, 3, lambda _: (inputs, answers), lambda mean, _: -rate * mean
    )
    expected = start
    for _ in range(3):
        expected = expected - rate * model.gradient(expected, inputs, answers)
    assert found is not None
    assert np.abs(found - expected).max() < 1e-6
    assert np.abs(expected - start).max() > 1e-3


def test_a_training_that_diverges_says_so() -> None:
    model, inputs, answers = (
        CASES[0][0],
        RANDOM.random((4, 64)).astype(np.float32),
        np.arange(4),
    )
    with np.errstate(all="ignore"):
        found = trained_on(
            model,
            model.start(0),
            2,
            20,
            lambda _: (inputs, answers),
            lambda mean, _: mean * np.float32(1e30),
        )
    assert found is None


def test_momentum_and_adam_on_a_constant_gradient() -> None:
    gradient = np.array([2.0, -3.0, 0.0], np.float32)
    momentum = Momentum(0.1, 0.5)
    moved = [momentum(gradient, 0.0) for _ in range(3)]
    assert moved[2] == pytest.approx(-0.1 * (1 + 0.5 + 0.25) * gradient)
    adam = Adam(0.1)
    for done in (0.0, 0.5):
        # its moments are those of a constant: every step is the rate, whatever the gradient's size
        assert adam(gradient, done) == pytest.approx(
            [-0.1 * (1 - done), 0.1 * (1 - done), 0], rel=1e-5
        )
