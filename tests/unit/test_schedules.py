from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.fabric.algorithms import STEPS, steps_named
from ringlight.fabric.collectives import all_reduce, apply_schedule, schedule_of
from ringlight.fabric.schedules import (
    coprime_rings,
    hierarchical_ring,
    nearest_group,
    strides,
)
from ringlight.fabric.steps import Step, Steps, check_ranks
from ringlight.fabric.verify import verify
from tests.unit.fabrics import COLLECTIVES

SIZES = [*range(1, 34), 45, 64]
ALL: dict[str, Callable[[int], Steps]] = {
    **STEPS,
    "five coprime rings": lambda n: coprime_rings(n, 5),
}


def sums_once(steps: Steps) -> bool:
    """Whether every rank ends with every rank's every chunk exactly once."""
    try:
        verify("all-reduce", steps)
    except ValueError:
        return False
    return True


def sent(steps: Steps) -> np.ndarray:
    """Vectors that each rank sends."""
    total = np.zeros(steps.world_size)
    for step in steps:
        np.add.at(total, step.sources, step.count / steps.chunks)
    return total


@pytest.mark.parametrize("name", ALL)
def test_every_chunk_is_summed_exactly_once(name: str) -> None:
    check_sums(ALL[name])


def check_sums(make: Callable[[int], Steps]) -> None:
    """Check schedules of many sizes."""
    for n in SIZES:
        steps = make(n)
        assert sums_once(steps), n
        assert sum(1 for _ in steps) == steps.steps, n
        assert all(len(s) for s in steps), n


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("n", [2, 3, 6, 8, "many"])
def test_an_off_by_one_anywhere_is_noticed(name: str, n: int | str, long: bool) -> None:
    """Many, and no power of two, are five; in the long form eleven, with ten times as many places."""
    check_spoilt(name, ALL[name](n if isinstance(n, int) else 11 if long else 5))


def check_spoilt(name: str, right: Steps) -> None:
    """Check that a schedule with one wrong transfer is noticed."""
    made = list(right)

    def spoilt(number: int, step: Step) -> bool:
        wrong = [*made[:number], step, *made[number + 1 :]]
        return not sums_once(replace(right, steps=len(wrong), make=lambda: iter(wrong)))

    for number, step in enumerate(made):
        # A transfer to another rank may be another right schedule, so receivers are not what is spoilt here.
        arrays = (
            "sources",
            "destinations",
            "first",
            "count",
            "wavelengths",
            "clockwise",
        )
        given_ = [a for a in arrays if getattr(step, a) is not None]
        for k in range(len(step)):
            lost = {a: np.delete(getattr(step, a), k) for a in given_}
            # On the way back a relay gets the sum twice, so one of the two may be lost.
            if not ("reach" in name and number >= right.steps // 2):
                assert spoilt(number, replace(step, **lost)), (number, k)
            if right.chunks > 1 and step.count[k] < right.chunks:
                shifted = step.first.copy()
                shifted[k] = (shifted[k] + 1) % (right.chunks - step.count[k] + 1)
                assert spoilt(number, replace(step, first=shifted)), (number, k)


def log2(n: int) -> int:
    return math.ceil(math.log2(n)) if n > 1 else 0


@pytest.mark.parametrize("n", SIZES)
def test_steps_and_bytes_equal_the_closed_forms(n: int) -> None:
    power = n & (n - 1) == 0
    fold = 0 if power else 2
    depth = n.bit_length() - 1
    each = 2 * (n - 1) / n
    assert STEPS["ring"](n).steps == 2 * (n - 1)
    assert sent(STEPS["ring"](n)) == pytest.approx([each] * n)
    assert STEPS["halving-doubling"](n).steps == 2 * depth + fold
    assert STEPS["recursive-doubling"](n).steps == depth + fold
    assert STEPS["binary-tree"](n).steps == 2 * log2(n)
    assert sent(STEPS["binary-tree"](n)).sum() == pytest.approx(2 * (n - 1))
    m = nearest_group(n)
    assert STEPS["hierarchical-ring"](n).steps == 2 * (m * m + n) // m - 4
    assert sent(STEPS["hierarchical-ring"](n)) == pytest.approx([each] * n)
    for name in ("ring", "hierarchical-ring"):
        assert STEPS[f"bidirectional-{name}"](n).steps == STEPS[name](n).steps
        assert sent(STEPS[f"bidirectional-{name}"](n)) == pytest.approx([each] * n)
    for rings in (1, 2, 5):
        assert coprime_rings(n, rings).steps == 2 * (n - 1)
        assert sent(coprime_rings(n, rings)) == pytest.approx([each] * n)
    if power:
        assert sent(STEPS["halving-doubling"](n)) == pytest.approx([each] * n)
        assert sent(STEPS["recursive-doubling"](n)) == pytest.approx([depth] * n)
    else:
        assert sent(STEPS["recursive-doubling"](n)).sum() == pytest.approx(
            (1 << depth) * depth + 2 * (n - (1 << depth))
        )


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("n", range(1, 20))
def test_a_written_out_schedule_has_every_chunk_of_every_step(
    name: str, n: int
) -> None:
    steps = steps_named(name, n)
    written = all_reduce(name, n)
    assert (written.world_size, written.chunks, written.steps) == (
        n,
        steps.chunks,
        steps.steps,
    )
    for number, step in enumerate(steps):
        now = [t for t in written.transfers if t.step == number]
        assert {t.op for t in now} == {step.op}
        rows = zip(
            *(
                a.tolist()
                for a in (step.sources, step.destinations, step.first, step.count)
            ),
            strict=True,
        )
        assert Counter((t.source, t.destination, t.chunk) for t in now) == Counter(
            (a, b, chunk)
            for a, b, first, count in rows
            for chunk in range(first, first + count)
        )


def test_a_collective_goes_by_its_name() -> None:
    assert steps_named("ring", 25).steps == 48
    assert steps_named("hierarchical-ring-group-5", 25).steps == 16
    for wrong in (
        "star",
        "ring-bits-0",
        "ring-",
        "coprime-rings--1",
        "coprime-rings-2-",
        "Ring",
        "",
    ):
        with pytest.raises(
            ValueError, match=f"no collective '{wrong}'; there are ring, "
        ):
            steps_named(wrong, 4)


@given(
    st.sampled_from(sorted(ALL)),
    st.integers(1, 12),
    st.integers(0, 30),
    st.integers(0, 2**31),
)
@settings(max_examples=60)
def test_workers_get_the_sum_and_the_same_bits(
    name: str, n: int, length: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    vectors = [random.standard_normal(length).astype(np.float32) for _ in range(n)]
    results = apply_schedule(schedule_of(ALL[name](n)), vectors)
    for result in results:
        np.testing.assert_allclose(
            result, np.sum(vectors, axis=0, dtype=np.float64), rtol=1e-4, atol=1e-5
        )
    if "exchange" not in name:
        assert len({result.tobytes() for result in results}) == 1


def test_coprime_rings_lead_to_as_many_ranks_as_there_are_rings() -> None:
    for rings in (1, 2, 5):
        for step in itertools.islice(steps_named(f"coprime-rings-{rings}", 64), 3):
            by = Counter(((step.destinations - step.sources) % 64).tolist())
            assert by == dict.fromkeys(strides(64, rings), 64)
            assert (step.count == 1).all()
    assert coprime_rings(64, 4).chunks == 4 * 64
    assert strides(4, 3) == (1, 3)
    assert coprime_rings(1).steps == 0


def test_a_hierarchical_ring_of_uneven_groups_is_refused() -> None:
    assert hierarchical_ring(1024, 32).steps == 2 * 31 + 2 * 31
    assert nearest_group(1024) == 32
    assert nearest_group(7) == 1
    with pytest.raises(ValueError, match="12 ranks cannot have groups of 5"):
        hierarchical_ring(12, 5)


@pytest.mark.parametrize("name", STEPS)
def test_no_ranks_and_the_wrong_number_of_ranks_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="at least one rank, not 0"):
        STEPS[name](0)
    with pytest.raises(ValueError, match=f"{name}: a schedule of 4 ranks for 5 ranks"):
        check_ranks(STEPS[name](4), 5)


def test_alike_steps_share_their_arrays() -> None:
    for name in (
        "ring",
        "hierarchical-ring",
        "bidirectional-ring",
        "bidirectional-hierarchical-ring",
    ):
        made = list(STEPS[name](64))
        assert len({id(s.destinations) for s in made}) <= 2
        assert len({id(s.sources) for s in made}) <= 2
        assert not made[0].sources.flags.writeable


def test_schedules_need_only_numpy() -> None:
    code = (
        "import sys; from ringlight.fabric import collectives, kinds; "
        "from ringlight.fabric.extension import loaders; "
        "[load() for load in loaders('collectives').values()]; "
        "print(*sorted({'networkx', 'highspy', 'pydantic'} & {m.partition('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == ""
