from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.fabric.collectives import (
    Schedule,
    Transfer,
    all_reduce,
    apply_schedule,
    chunk_bounds,
)
from ringlight.fabric.cost import ring_edge_bytes
from tests.unit.fabrics import COLLECTIVES


def vectors_sent(schedule: Schedule) -> list[float]:
    """Vectors that each rank sends, taking chunks as equal."""
    sent = Counter(t.source for t in schedule.transfers)
    return [sent[rank] / schedule.chunks for rank in range(schedule.world_size)]


@pytest.mark.parametrize("n", range(1, 18))
def test_a_ring_sends_once_a_step_to_the_next_rank(n: int) -> None:
    schedule = all_reduce("ring", n)
    assert schedule.steps == 2 * (n - 1)
    assert [t.step for t in schedule.transfers] == sorted(
        t.step for t in schedule.transfers
    )
    for step in range(schedule.steps):
        now = [t for t in schedule.transfers if t.step == step]
        assert sorted(t.source for t in now) == list(range(n))
        assert all(t.destination == (t.source + 1) % n for t in now)
    assert vectors_sent(schedule) == pytest.approx([ring_edge_bytes(n, 1.0)] * n)


@pytest.mark.parametrize("rounds", range(8))
def test_halving_doubling_of_a_power_of_two_is_its_closed_form(rounds: int) -> None:
    """2 log2(P) steps, in each one partner that differs in one bit; 2 (P-1)/P of the vector (ODDL)."""
    n = 1 << rounds
    schedule = all_reduce("halving-doubling", n)
    assert schedule.steps == 2 * rounds
    assert vectors_sent(schedule) == pytest.approx([2 * (n - 1) / n] * n)
    for step in range(schedule.steps):
        bit = 1 << min(step, schedule.steps - 1 - step)
        now = [t for t in schedule.transfers if t.step == step]
        assert {t.source for t in now} == set(range(n))
        assert all(t.destination == t.source ^ bit for t in now)
        # Halving: the farther the partner, the less goes to it.
        assert len(now) == n * (n // (2 * bit))


@pytest.mark.parametrize("n", [3, 5, 6, 7, 9, 12, 20, 33, 63])
def test_halving_doubling_folds_the_other_ranks_in_and_out(n: int) -> None:
    core = 1 << (n.bit_length() - 1)
    schedule = all_reduce("halving-doubling", n)
    assert schedule.steps == 2 * (core.bit_length() - 1) + 2
    exchange = 2 * (core - 1) / core
    for rank, sent in enumerate(vectors_sent(schedule)):
        folded, partner = rank >= core, rank < n - core
        assert sent == pytest.approx(
            1.0 if folded else exchange + 1.0 if partner else exchange
        )
    outside = [t for t in schedule.transfers if max(t.source, t.destination) >= core]
    assert {t.step for t in outside} == {0, schedule.steps - 1}
    assert all(abs(t.source - t.destination) == core for t in outside)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_transfers_are_in_order_of_step(name: str) -> None:
    for n in range(1, 18):
        steps = [t.step for t in all_reduce(name, n).transfers]
        assert steps == sorted(steps)
        assert set(steps) == set(range(all_reduce(name, n).steps))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_an_all_reduce_without_ranks_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="at least one rank, not 0"):
        all_reduce(name, 0)


@given(
    st.sampled_from(COLLECTIVES),
    st.integers(1, 9),
    st.integers(0, 40),
    st.integers(0, 2**31),
)
def test_all_ranks_end_with_the_sum_and_the_same_bits(
    name: str, n: int, length: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    vectors = [random.standard_normal(length).astype(np.float32) for _ in range(n)]
    copies = [vector.copy() for vector in vectors]
    results = apply_schedule(all_reduce(name, n), vectors)
    assert all(np.array_equal(a, b) for a, b in zip(vectors, copies, strict=True))
    # In an exchange each adds in another order.
    if "exchange" not in name:
        assert len({result.tobytes() for result in results}) == 1
    assert results[0].dtype == np.float32
    for result in results:
        np.testing.assert_allclose(
            result, np.sum(vectors, axis=0, dtype=np.float64), rtol=1e-4, atol=1e-5
        )


def test_a_sender_sends_what_it_had_before_the_step() -> None:
    exchange = Schedule(
        2, 1, (Transfer(0, 0, 1, 0, "reduce"), Transfer(0, 1, 0, 0, "reduce"))
    )
    results = apply_schedule(
        exchange, [np.array([1], np.float32), np.array([2], np.float32)]
    )
    assert [result.tolist() for result in results] == [[3], [3]]


def test_the_wrong_vectors_are_refused() -> None:
    ones = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="2 vectors for a schedule of 3 ranks"):
        apply_schedule(all_reduce("ring", 3), [ones, ones])
    with pytest.raises(ValueError, match="vectors of 3 and of 4 elements"):
        apply_schedule(all_reduce("ring", 2), [ones, ones[:3]])


@given(st.integers(0, 1000), st.integers(1, 40))
def test_chunks_cut_without_gap_and_evenly(length: int, chunks: int) -> None:
    bounds = chunk_bounds(length, chunks)
    assert len(bounds) == chunks
    assert [i for low, high in bounds for i in range(low, high)] == list(range(length))
    sizes = [high - low for low, high in bounds]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_a_worker_needs_only_numpy() -> None:
    code = (
        "import sys, ringlight.fabric.collectives; "
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
