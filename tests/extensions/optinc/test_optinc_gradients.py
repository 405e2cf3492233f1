"""Gradients averaged by way of a unit, and a training that is averaged so beside a ring's."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.containers.worker.model import PARAMETERS
from ringlight.containers.worker.reference import Exchange, train_in_one_process
from ringlight.containers.worker.spec import WorkerSpec
from ringlight.extensions.optinc.unit.averaging import Coding, goals
from ringlight.extensions.optinc.unit.gradients import by_table, exact, steps
from ringlight.extensions.optinc.unit.network import Table
from ringlight.extensions.optinc.unit.wrong_answers import Errors, inject
from ringlight.fabric.collectives import all_reduce, apply_schedule
from ringlight.fabric.whole_numbers import blocks
from ringlight.fabric.whole_numbers.means import Unit, mean_by

#: Values around 1 and far below it, like gradients; steps of 16 bits stay above float32's least.
floats = st.floats(-100, 100, width=32).map(
    lambda value: value if abs(value) > 1e-20 else 0.0
)


@st.composite
def gradients(draw: st.DrawFn) -> list[np.ndarray]:
    size = draw(st.integers(1, 9))
    row = st.lists(floats, min_size=size, max_size=size)
    count = draw(st.sampled_from([4, 8, 16]))
    return [np.array(draw(row), np.float32) for _ in range(count)]


@given(gradients(), st.sampled_from([8, 16]), st.integers(1, 4))
def test_identical_ranks_get_their_gradient_back_within_two_steps(
    ranks: list[np.ndarray], bits: int, block: int
) -> None:
    """The highest code stays free, so values at the upper end of a block are off by up to two steps."""
    same = [ranks[0]] * len(ranks)
    mean = mean_by(exact(Coding(bits, len(same))), same, bits, block=block)
    step = steps(blocks.exponents(ranks[0], block), bits, ranks[0].size, block)
    assert (np.abs(mean.astype(float) - ranks[0]) <= 2 * step * (1 + 1e-6)).all()


@given(gradients())
def test_a_table_of_the_exact_answers_is_the_exact_unit(
    ranks: list[np.ndarray],
) -> None:
    four = Coding(8, 4)
    unit = by_table(Table(four, goals(four).astype(np.uint8), 0.0))
    assert np.array_equal(
        mean_by(unit, ranks[:4], 8), mean_by(exact(four), ranks[:4], 8)
    )


def test_a_table_answers_also_what_is_wrong() -> None:
    four = Coding(8, 4)
    answers = goals(four).astype(np.uint8)
    answers[-1] = 7
    most = np.full((4, 3), 255, np.uint8)
    assert by_table(Table(four, answers, 0.0))(most).tolist() == [7, 7, 7]


def test_a_table_in_parts_of_a_level_is_refused() -> None:
    first = Coding(8, 4, leaving=4)
    with pytest.raises(ValueError, match="parts of a level"):
        by_table(Table(first, goals(first), 0.0))


# -- trainings ---------------------------------------------------------------------------------------------


def trained(ranks: int, exchange: Exchange | None = None) -> dict[str, object]:
    spec = WorkerSpec(
        "x", 0, ranks, ("10.0.0.1",) * ranks, gradient_bytes=4 * PARAMETERS,
        iterations=25, batch=64 // ranks, seed=3, learning_rate=0.5,
    )  # fmt: skip
    return train_in_one_process(spec, exchange=exchange)


def averaged(unit: Unit, bits: int, ranks: int) -> dict[str, object]:
    return trained(
        ranks,
        lambda gradients: (
            [mean_by(unit, gradients, bits) * np.float32(ranks)] * len(gradients)
        ),
    )


def loss(outcome: dict[str, object]) -> float:
    found = outcome["loss_last"]
    assert isinstance(found, float)
    return found


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_16_bits_train_as_the_ring_does(ranks: int) -> None:
    """Gradients are below 1 here, so a step is at most 2^-15 and each mean off by less than 1.5 of them: in
    25 iterations at a rate of 0.5 that moves no parameter by more than 6e-4. Many such errors, of random
    sign, do far less to the loss, 0.7: within 1e-4. Steps of 8 bits are 256 times as large.
    """
    ring, exactly = trained(ranks), averaged(exact(Coding(16, ranks)), 16, ranks)
    assert ring["parameters_sha256"] != exactly["parameters_sha256"]
    assert abs(loss(exactly) - loss(ring)) < 1e-4
    eight = averaged(exact(Coding(8, ranks)), 8, ranks)
    assert 1e-6 < abs(loss(eight) - loss(ring)) < 0.02


def test_errors_move_a_training() -> None:
    """A training sees answers that are 1,024 too high, as in layers 4-8 of Table II."""
    right = exact(Coding(16, 4))
    random = np.random.default_rng(1)
    wrong = averaged(
        lambda codes: inject(right(codes), Errors(1.0, {1024: 1.0}), 16, random), 16, 4
    )
    assert abs(loss(wrong) - loss(trained(4))) > 1e-3


def test_an_exchange_that_is_handed_in_takes_the_collectives_place() -> None:
    ring = trained(4)
    assert trained(4, partial(apply_schedule, all_reduce("ring", 4))) == ring
    assert (
        trained(4, partial(apply_schedule, all_reduce("halving-doubling", 4))) != ring
    )


def test_ranks_that_an_exchange_leaves_apart_are_found() -> None:
    def apart(gradients: object) -> list[np.ndarray]:
        return [np.full(PARAMETERS, rank, np.float32) for rank in range(4)]

    with pytest.raises(ArithmeticError, match="different parameters"):
        trained(4, apart)
