"""Collectives of every kind over real connections, bit for bit as computed in one process; unequal chunks."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.containers.worker.assignment import LEND_BYTES
from ringlight.fabric.collectives import (
    apply_schedule,
    chunk_bounds,
    local_bounds,
    schedule_of,
)
from ringlight.fabric.kinds import KINDS, collective_steps, holds, matrix_bounds, needs
from tests.unit.test_transport import Vectors, random_vectors, run, same_bits

OTHERS = [
    (kind, name)
    for kind, names in KINDS.items()
    for name in names
    if kind != "all-reduce"
]
EXCHANGES = KINDS["all-to-all-v"]


@pytest.mark.parametrize(("kind", "name"), OTHERS)
@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("length", [5, 40_003])
def test_every_kind_is_bit_identical(kind: str, name: str, n: int, length: int) -> None:
    schedule = schedule_of(collective_steps(kind, name, n))
    vectors = random_vectors(n, length)
    expected = apply_schedule(schedule, vectors)
    assert same_bits(run(schedule, vectors), expected)
    assert_does(kind, n, vectors, expected, chunk_bounds(length, schedule.chunks))


def assert_does(
    kind: str, n: int, vectors: Vectors, results: Vectors, spans: list[tuple[int, int]]
) -> None:
    """What the kind is for, said with numbers."""
    before, after = holds(kind, n, len(spans)), needs(kind, n, len(spans))
    for chunk, (start, end) in enumerate(spans):
        owners = np.flatnonzero(before[:, chunk])
        total = np.sum(
            [vectors[rank][start:end] for rank in owners], axis=0, dtype=np.float64
        )
        scale = np.max([np.abs(vector[start:end]).max(initial=0) for vector in vectors])
        for rank in np.flatnonzero(after[:, chunk]):
            got = results[rank][start:end]
            if len(owners) == 1:
                assert got.tobytes() == vectors[owners[0]][start:end].tobytes(), (
                    rank,
                    chunk,
                )
            else:
                np.testing.assert_allclose(
                    got, total, rtol=1e-4, atol=1e-5 * float(scale)
                )


@st.composite
def matrices(draw: st.DrawFn) -> npt.NDArray[np.int64]:
    """Elements that each rank sends to each other, of up to 6 ranks; many are 0."""
    n = draw(st.integers(1, 6))
    sizes = st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 3000))
    return np.array(
        draw(st.lists(sizes, min_size=n * n, max_size=n * n)), dtype=np.int64
    ).reshape(n, n)


@pytest.mark.parametrize("name", EXCHANGES)
@settings(max_examples=25, deadline=None)
@given(matrix=matrices(), seed=st.integers(0, 1000))
def test_all_to_all_v_of_any_sizes(
    name: str, matrix: npt.NDArray[np.int64], seed: int
) -> None:
    exchange(name, matrix, seed, 2048)


def test_all_to_all_v_of_chunks_that_are_lent() -> None:
    long = LEND_BYTES // 4
    for name in ("direct", "bruck"):
        exchange(
            name,
            np.array([[0, 2 * long, 5], [long + 1, 3, 0], [long, 2 * long, 0]]),
            1,
            0,
        )


def exchange(
    name: str, matrix: npt.NDArray[np.int64], seed: int, buffer_bytes: int
) -> None:
    """Over connections, in the vector of all ranks and in each rank's own, as in one process."""
    n = len(matrix)
    schedule = schedule_of(collective_steps("all-to-all-v", name, n))
    bounds = matrix_bounds(matrix.tolist()).tolist()
    vectors = random_vectors(n, bounds[-1], seed)
    expected = apply_schedule(schedule, vectors, bounds)
    assert same_bits(run(schedule, vectors, 1, buffer_bytes, [bounds] * n), expected)
    assert_does("all-to-all-v", n, vectors, expected, list(itertools.pairwise(bounds)))

    theirs = holds("all-to-all-v", n, n * n) | needs("all-to-all-v", n, n * n)
    own = [local_bounds(schedule, rank, bounds, theirs[rank]) for rank in range(n)]

    def cut(rank: int, vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return vector[np.repeat(np.diff(own[rank]) > 0, np.diff(bounds))]

    got = run(
        schedule, [cut(rank, v) for rank, v in enumerate(vectors)], 1, buffer_bytes, own
    )
    assert same_bits(got, [cut(rank, v) for rank, v in enumerate(expected)])


def test_a_vector_of_its_own_has_a_row_and_a_column() -> None:
    schedule = schedule_of(collective_steps("all-to-all", "direct", 16))
    theirs = holds("all-to-all", 16, 256) | needs("all-to-all", 16, 256)
    bounds = list(range(0, 2561, 10))
    assert {
        local_bounds(schedule, rank, bounds, theirs[rank])[-1] for rank in range(16)
    } == {310}


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([e for e in OTHERS if not e[0].startswith("all-to-all")]), st.data()
)
def test_other_kinds_take_unequal_chunks_too(
    every: tuple[str, str], data: st.DataObject
) -> None:
    kind, name = every
    schedule = schedule_of(collective_steps(kind, name, data.draw(st.integers(1, 5))))
    sizes = data.draw(
        st.lists(st.integers(0, 50), min_size=schedule.chunks, max_size=schedule.chunks)
    )
    bounds = [0, *itertools.accumulate(sizes)]
    vectors = random_vectors(schedule.world_size, bounds[-1])
    expected = apply_schedule(schedule, vectors, bounds)
    assert same_bits(
        run(schedule, vectors, bounds=[bounds] * schedule.world_size), expected
    )
    assert_does(
        kind, schedule.world_size, vectors, expected, list(itertools.pairwise(bounds))
    )
