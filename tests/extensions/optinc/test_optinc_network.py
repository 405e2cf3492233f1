"""A unit's table over all inputs, from networks that are right, nearly right and wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.optinc.unit import averaging
from ringlight.extensions.optinc.unit.averaging import Coding
from ringlight.extensions.optinc.unit.network import (
    Network,
    Signals,
    Table,
    forward,
    light,
    read,
    table_of,
    wrong_among,
    wrong_of,
)


def stairs(servers: int, *, parts: int = 1, shift: float = 0.0) -> Network:
    """A right network for 2 bits (one symbol, one input): before each threshold a step, 1 / parts high.

    ``shift`` moves all outputs, in levels.
    """
    # the answer in parts is floor(S parts / N), S = 0 .. 3N; a step up between S - 1 and S is two ReLUs
    ups = [
        s
        for s in range(1, 3 * servers + 1)
        for _ in range(s * parts // servers - (s - 1) * parts // servers)
    ]
    knees = np.array([[s - 1, s] for s in ups], float).reshape(-1) / servers
    weights = (
        np.ones((len(knees), 1)),
        np.tile([servers / parts, -servers / parts], len(ups))[None],
    )
    return Network(weights, (-knees, np.array([shift])))


@given(st.integers(1, 9), st.integers(1, 4), st.floats(-0.49, 0.49))
def test_a_right_network_is_right_for_every_input(
    servers: int, parts: int, shift: float
) -> None:
    coding = Coding(2, servers, 1, leaving=parts)
    table = table_of(stairs(servers, parts=parts, shift=shift / parts), coding, chunk=5)
    found = wrong_of(table, chunk=7)
    assert (found.inputs, found.wrong, dict(found.by)) == (3 * servers + 1, 0, {})
    assert found.worst == pytest.approx(abs(shift), abs=1e-9)
    numbers = np.arange(4 * servers).reshape(servers, 4) % 4
    assert (
        table.answers[averaging.index_of(numbers, coding)]
        == averaging.goal(numbers, coding)
    ).all()


def test_what_is_wrong_is_counted_by_how_much() -> None:
    coding = Coding(2, 4, 1)
    found = wrong_of(table_of(stairs(4, shift=0.75), coding))
    # every answer is one too high but the 3, which has no level above
    assert (found.inputs, found.wrong, dict(found.by), found.worst) == (
        13,
        12,
        {1: 12},
        0.75,
    )
    found = wrong_of(table_of(stairs(4, shift=-9.0), coding))
    assert dict(found.by) == {-3: 1, -2: 4, -1: 4}


def test_combinations_may_be_chosen() -> None:
    """All answers of the 13 are one too high but the last."""
    coding = Coding(2, 4, 1)
    found = wrong_among(stairs(4, shift=0.75), coding, np.array([12, 0, 0, 5]), chunk=3)
    assert (found.inputs, found.wrong, dict(found.by), found.worst) == (
        4,
        3,
        {1: 3},
        0.75,
    )
    none = wrong_among(stairs(4, shift=0.75), coding, np.array([], int))
    assert (none.inputs, none.wrong, dict(none.by), none.worst) == (0, 0, {}, 0.0)


@settings(max_examples=20)
@given(
    st.integers(1, 3),
    st.sampled_from([(4, 2), (8, 4), (6, 1)]),
    st.integers(1, 500),
    st.integers(0, 2**32),
)
def test_a_table_is_the_network_read_by_receivers(
    servers: int, shape: tuple[int, int], chunk: int, seed: int
) -> None:
    """Random networks, chunked in any way: what signals look up is what the network answers to their mean."""
    bits, inputs = shape
    coding = Coding(bits, servers, inputs, leaving=2)
    random = np.random.default_rng(seed)
    network = Network(
        (random.normal(size=(5, inputs)), random.normal(size=(coding.symbols, 5)))
    )
    table = table_of(network, coding, chunk=chunk)
    numbers = random.integers(0, 2**bits, (servers, 50))
    outputs = forward(network, light(averaging.averages(numbers, coding), coding))
    looked_up = table.answers[averaging.index_of(numbers, coding)]
    assert (looked_up == averaging.to_answers(read(outputs, coding), coding)).all()
    found = wrong_of(table)
    assert found.wrong == (table.answers != averaging.goals(coding)).sum()
    assert (
        wrong_among(network, coding, np.arange(coding.combinations), chunk=chunk)
        == found
    )
    exact = averaging.to_outputs(averaging.goal(numbers, coding), coding)
    assert found.worst >= np.abs(outputs - exact)[:, :-1].max(initial=0) - 1e-9


def test_a_table_of_16_bits_holds_its_answers() -> None:
    coding = Coding(4, 2, 2, leaving=32)
    network = Network((np.full((2, 2), 100.0, np.float32),))
    assert table_of(network, coding).answers[-1] == 3 * 128 + 127


@pytest.mark.parametrize(
    ("weights", "biases", "words"),
    [
        ([], None, "at least one layer"),
        (
            [np.zeros((3, 2)), np.zeros((1, 2))],
            None,
            r"layer 2: weights of shape \(1, 2\), but 3 values",
        ),
        (
            [np.zeros((3, 2)), np.full((1, 3), np.inf)],
            None,
            "layer 2: weights are not all finite",
        ),
        (
            [np.zeros((3, 2)), np.zeros((1, 3), np.float32)],
            None,
            "layer 2: weights are float32",
        ),
        ([np.zeros((3, 2), int)], None, "layer 1: weights are int64"),
        ([np.zeros((3, 2))], [], "0 biases for 1 layers"),
        (
            [np.zeros((3, 2))],
            [np.zeros(2)],
            r"layer 1: biases of shape \(2,\), but 3 values",
        ),
        (
            [np.zeros((3, 2))],
            [np.array([0, 0, np.nan])],
            "layer 1: biases are not all finite",
        ),
    ],
)
def test_weights_of_no_network_are_refused(
    weights: list[np.ndarray], biases: list[np.ndarray] | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Network(tuple(weights), None if biases is None else tuple(biases))


def test_what_does_not_fit_a_coding_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"2 inputs and 4 outputs; \(4, 4\) are needed"
    ):
        table_of(Network((np.zeros((4, 2)),)), Coding(8, 4))
    with pytest.raises(
        ValueError, match=r"4 inputs and 3 outputs; \(4, 4\) are needed"
    ):
        wrong_among(Network((np.zeros((3, 4)),)), Coding(8, 4), np.zeros(1, int))
    with pytest.raises(ValueError, match="a table of 3 answers, but there are 28561"):
        wrong_of(Table(Coding(8, 4), np.zeros(3, np.uint8), 0.0))


def test_noise_of_detectors() -> None:
    """0.2 of a level: 1.2 % are off by 2.5 deviations, and half of them where one side has no level."""
    coding = Coding(2, 9, 1)
    network = stairs(9)
    draws = [
        table_of(
            network,
            coding,
            signals=Signals(noise=0.2),
            random=np.random.default_rng(seed),
        )
        for seed in range(400)
    ]
    part = sum(wrong_of(table).wrong for table in draws) / (400 * coding.combinations)
    assert 0.008 < part < 0.013
    assert (
        table_of(
            network, coding, signals=Signals(noise=0.2), random=np.random.default_rng(3)
        ).answers
        == draws[3].answers
    ).all()
    with pytest.raises(ValueError, match="noise and mismatch need a generator"):
        table_of(network, coding, signals=Signals(noise=0.2))
