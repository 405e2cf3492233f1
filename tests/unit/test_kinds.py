"""Collectives of every kind: judged by the checker, by what the bits are, and by closed forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.fabric.kinds import (
    KINDS,
    bus_factor,
    collective_steps,
    holds,
    matrix_bounds,
    needs,
    vector_bytes,
)
from ringlight.fabric.steps import Step, Steps
from ringlight.fabric.verify import verify

EVERY = [(kind, name) for kind, names in KINDS.items() for name in names]
ROOTED = ("broadcast", "reduce")


def of(steps: Steps, made: list[Step]) -> Steps:
    return replace(steps, steps=len(made), make=lambda: iter(made))


def right(kind: str, steps: Steps, root: int = 0) -> bool:
    try:
        verify(kind, steps, root)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_every_algorithm_does_what_its_kind_has_to_do(kind: str, name: str) -> None:
    for n in range(1, 17):
        for root in {0, n // 2, n - 1} if kind in ROOTED else {0}:
            steps = verify(kind, collective_steps(kind, name, n, root), root)
            assert all(len(step) for step in steps), n
            if n > 1 and kind in ROOTED:
                assert not right(kind, steps, (root + 1) % n)


@given(st.sampled_from(EVERY), st.integers(1, 40), st.data())
@settings(max_examples=60, deadline=None)
def test_so_it_does_for_any_number_of_ranks(
    every: tuple[str, str], n: int, data: st.DataObject
) -> None:
    kind, name = every
    root = data.draw(st.integers(0, n - 1)) if kind in ROOTED else 0
    verify(kind, collective_steps(kind, name, n, root), root)


@given(
    st.sampled_from(["all-reduce", "all-to-all"]), st.integers(1, 6), st.integers(1, 6)
)
@settings(max_examples=30, deadline=None)
def test_servers_may_be_of_any_size(kind: str, group: int, servers: int) -> None:
    name = (
        f"hierarchical-ring-group-{group}"
        if kind == "all-reduce"
        else f"hierarchical-group-{group}"
    )
    verify(kind, collective_steps(kind, name, group * servers))


@pytest.mark.parametrize(
    ("kind", "name", "of_8"),
    [
        ("all-reduce", "ring", 1.75),
        ("reduce-scatter", "ring", 0.875),
        ("all-gather", "ring", 0.875),
        ("broadcast", "chain", 1.0),
        ("reduce", "chain", 1.0),
        ("all-to-all", "direct", 0.875),
        ("all-to-all-v", "pairwise", 0.875),
    ],
)
def test_the_bus_factor_is_nccl_tests_and_what_the_busiest_rank_of_a_ring_sends(
    kind: str, name: str, of_8: float
) -> None:
    assert bus_factor(kind, 8) == of_8
    for n in (2, 3, 8, 12):
        steps = collective_steps(kind, name, n)
        sent = sum(np.bincount(step.sources, step.count, minlength=n) for step in steps)
        assert np.max(sent) * vector_bytes(kind, n, 1) / steps.chunks == pytest.approx(
            bus_factor(kind, n)
        )


def spoilt(step: Step) -> Iterator[Step]:
    """The step with one mistake, in each of its transfers in turn.

    A transfer to another rank may be another right schedule, so receivers stay as they are.
    """
    arrays = {
        a: getattr(step, a) for a in ("sources", "destinations", "first", "count")
    }
    plain = replace(step, wavelengths=None, clockwise=None)
    for k in range(len(step)):
        yield replace(
            plain, **{a: np.delete(values, k) for a, values in arrays.items()}
        )
        yield replace(
            plain, **{a: np.append(values, values[k]) for a, values in arrays.items()}
        )
        for name, by in (("first", 1), ("first", -1), ("count", -1)):
            wrong = arrays[name].copy()
            wrong[k] += by
            yield replace(plain, **{name: wrong})


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("kind", "name"), EVERY)
@pytest.mark.parametrize("n", [2, 3, 5])
def test_an_off_by_one_in_any_transfer_is_noticed(kind: str, name: str, n: int) -> None:
    steps = collective_steps(kind, name, n)
    made = list(steps)
    for number, step in enumerate(made):
        for wrong in spoilt(step):
            assert not right(
                kind, of(steps, [*made[:number], wrong, *made[number + 1 :]])
            ), (number, wrong)


def test_what_is_wrong_is_said_in_one_line() -> None:
    steps = collective_steps("all-gather", "ring", 4)
    first, *others = list(steps)

    def said(*made: Step, kind: str = "all-gather", **changes: object) -> str:
        with pytest.raises(ValueError) as caught:
            verify(kind, replace(of(steps, list(made)), **changes))
        return str(caught.value)

    ones = np.ones(4, dtype=np.int64)
    assert said(replace(first, first=first.first[::-1])) == (
        "ring, step 0: rank 0 sends chunk 3, which it does not have"
    )
    assert (
        said(replace(first, op="reduce"))
        == "ring, step 0: rank 1 adds to chunk 0, which it does not have"
    )
    assert said(first, *others[:-1]) == "ring: rank 0 ends with nothing in chunk 1"
    assert said(first, *others, steps=4) == "ring: it says 4 steps and has 3"
    assert said(replace(first, sources=first.sources + 1)).endswith(
        "to or from a rank that is none of 4"
    )
    assert said(replace(first, destinations=first.sources)).endswith(
        "a transfer from a rank to itself"
    )
    assert said(replace(first, count=0 * ones)).endswith(
        "a transfer of chunks that are none of 4"
    )
    assert said(replace(first, count=ones[:3])).endswith("its arrays differ in length")
    assert said(
        replace(first, destinations=0 * ones + 1, sources=0 * ones, first=0 * ones)
    ).endswith("rank 1 gets chunk 0 twice at once")
    twice = replace(first, op="reduce")
    assert said(twice, twice, kind="all-reduce") == (
        "ring: rank 0 ends with the value of rank 1 0 times in chunk 0"
    )


@pytest.mark.parametrize("n", [*range(1, 20), 31, 32, 33])
def test_steps_and_bytes_are_the_closed_forms(n: int) -> None:
    def sent(kind: str, name: str = "") -> np.ndarray:
        """Parts of nccl-tests' size that each rank sends."""
        steps = collective_steps(kind, name, n)
        total = np.zeros(n)
        for step in steps:
            np.add.at(total, step.sources, step.count)
        return total * vector_bytes(kind, n, 1) / steps.chunks

    def steps_of(kind: str, name: str) -> int:
        return collective_steps(kind, name, n).steps

    depth, power = (n - 1).bit_length(), n & (n - 1) == 0
    each = pytest.approx([(n - 1) / n] * n)
    for kind, name in (
        ("reduce-scatter", "ring"), ("all-gather", "ring"), ("all-gather", "bruck"), ("all-to-all", "direct"),
        ("all-to-all", "pairwise"),
    ):  # fmt: skip
        assert sent(kind, name) == each
    if power:
        assert sent("reduce-scatter", "halving") == each
        assert sent("all-gather", "doubling") == each
        assert sent("all-to-all", "bruck") == pytest.approx([depth / 2] * n)
    folded = n.bit_length() - 1 + (0 if power else 2)
    assert steps_of("reduce-scatter", "ring") == steps_of("all-gather", "ring") == n - 1
    assert (
        steps_of("reduce-scatter", "halving")
        == steps_of("all-gather", "doubling")
        == folded
    )
    assert steps_of("all-gather", "bruck") == steps_of("all-to-all", "bruck") == depth
    assert (
        steps_of("broadcast", "binomial-tree")
        == steps_of("reduce", "binomial-tree")
        == depth
    )
    assert (
        steps_of("broadcast", "chain")
        == steps_of("reduce", "chain")
        == (5 * n - 2 if n > 1 else 0)
    )
    assert steps_of("broadcast", "scatter-ring") == depth + n - 1
    assert steps_of("all-to-all", "direct") == min(1, n - 1)
    assert steps_of("all-to-all", "pairwise") == n - 1
    for kind in ROOTED:
        for name in ("binomial-tree", "chain"):
            assert sent(kind, name).sum() == pytest.approx(n - 1)


def test_a_hierarchical_all_to_all_sends_as_much_between_servers_in_fewer_messages() -> (
    None
):
    n, m = 32, 8
    within, between = collective_steps("all-to-all", f"hierarchical-group-{m}", n)
    assert (within.sources // m == within.destinations // m).all()
    assert (between.sources % m == between.destinations % m).all()
    assert len(between) == n * (n - m)
    pairs = set(
        zip(between.sources.tolist(), between.destinations.tolist(), strict=True)
    )
    assert len(pairs) == n * (n // m - 1)


def test_what_there_is_not_is_named() -> None:
    for arguments, said in (
        (
            ("gather", "", 4),
            "no collective 'gather'; there are all-reduce, .*all-to-all-v",
        ),
        (
            ("all-gather", "star", 4),
            "all-gather has no algorithm 'star'; there are ring, doubling, bruck",
        ),
        (
            ("all-gather", "hierarchical-group-2", 4),
            "no algorithm 'hierarchical-group-2'",
        ),
        (("all-reduce", "star", 4), "no collective 'star'"),
        (
            ("all-to-all", "hierarchical-group-3", 4),
            "cannot have a hierarchical all-to-all in groups of 3",
        ),
        (("broadcast", "", 0), "broadcast needs at least one rank, not 0"),
        (("broadcast", "", 4, 4), "broadcast of 4 ranks has no rank 4"),
        (("all-gather", "", 4, 1), "all-gather has no root"),
    ):
        with pytest.raises(ValueError, match=said):
            collective_steps(*arguments)  # type: ignore[arg-type]
    for kind, chunks in (("all-gather", 6), ("all-to-all", 20)):
        with pytest.raises(ValueError, match=f"{chunks} chunks do not fit"):
            holds(kind, 4, chunks)
        with pytest.raises(ValueError, match=f"{chunks} chunks do not fit"):
            needs("reduce-scatter" if kind == "all-gather" else kind, 4, chunks)


def test_the_default_is_the_first() -> None:
    for kind, names in KINDS.items():
        assert (
            collective_steps(kind, "", 6).name
            == collective_steps(kind, names[0], 6).name
        )


def test_sizes_are_those_of_nccl_tests() -> None:
    assert (
        vector_bytes("all-to-all", 8, 1000)
        == vector_bytes("all-to-all-v", 8, 1000)
        == 8000
    )
    assert {
        vector_bytes(k, 8, 1000) for k in KINDS if not k.startswith("all-to-all")
    } == {1000}
    assert matrix_bounds([[1, 0], [5, 2]]).tolist() == [0, 1, 1, 6, 8]


def test_thousands_of_ranks_take_no_time() -> None:
    for kind, name in (
        ("all-gather", "ring"),
        ("all-gather", "bruck"),
        ("reduce-scatter", "halving"),
    ):
        assert sum(len(step) for step in collective_steps(kind, name, 2048)) > 0
    assert len(next(iter(collective_steps("all-to-all", "pairwise", 4096)))) == 4096
