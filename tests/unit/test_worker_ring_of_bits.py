"""A worker's ring of whole numbers: the mean is that of one place, and the bytes are the simulator's."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.containers.worker import ring_of_bits
from ringlight.containers.worker.peer import PeerLost
from ringlight.containers.worker.reference import train_in_one_process
from ringlight.containers.worker.ring_of_bits import RingOfBits
from ringlight.containers.worker.spec import BadSpec, parse_spec
from ringlight.containers.worker.transport import RunReport
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.collectives import all_reduce
from ringlight.fabric.whole_numbers import sums
from ringlight.fabric.whole_numbers.means import mean_by
from tests.unit.test_training import crew, of_kind
from tests.unit.test_transport import connected

Vectors = list[npt.NDArray[np.float32]]


def gradients(seed: int, ranks: int, size: int) -> Vectors:
    """Values of scales far apart, blocks of zeros among them."""
    random = np.random.default_rng(seed)
    scales = np.repeat(2.0 ** random.integers(-30, 10, -(-size // 300)), 300)[:size]
    scales *= np.repeat(random.random(-(-size // 1024)) < 0.8, 1024)[:size]
    return [
        (random.normal(size=size) * scales).astype(np.float32) for _ in range(ranks)
    ]


def run(
    bits: int, vectors: Vectors, buffer_bytes: int = 0, rounds: int = 1
) -> tuple[Vectors, list[RunReport]]:
    """One thread per rank. What each holds after so many rounds, and the reports of the last."""
    ranks = len(vectors)
    held = [vector.copy() for vector in vectors]
    reports: list[RunReport | None] = [None] * ranks
    errors: dict[int, BaseException] = {}

    def work(rank: int, own: dict[int, socket.socket]) -> None:
        try:
            with closing(
                RingOfBits(bits, rank, ranks, own, len(held[rank]), 5.0)
            ) as ring:
                for _ in range(rounds):
                    reports[rank] = ring.run(held[rank])
        except BaseException as error:  # noqa: BLE001
            errors[rank] = error
            for connection in own.values():
                connection.close()

    with connected(all_reduce("ring", ranks), buffer_bytes) as connections:
        threads = [
            threading.Thread(target=work, args=pair) for pair in enumerate(connections)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
    if errors:
        # who failed for a reason of his own, not by another
        raise next(
            (e for e in errors.values() if not isinstance(e, PeerLost)),
            errors[min(errors)],
        )
    return held, [report for report in reports if report is not None]


def mean_of(
    vectors: Sequence[npt.NDArray[np.float32]], bits: int
) -> npt.NDArray[np.float32]:
    return mean_by(
        lambda codes: codes.sum(axis=0, dtype=np.int64) // len(codes), vectors, bits
    )


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1), bits=st.sampled_from([8, 16]), ranks=st.integers(2, 5),
    size=st.integers(1, 3000), rounds=st.integers(1, 2), buffer_bytes=st.sampled_from([0, 700]),
)  # fmt: skip
def test_all_ranks_have_the_mean_of_one_place(
    seed: int, bits: int, ranks: int, size: int, rounds: int, buffer_bytes: int
) -> None:
    vectors = gradients(seed, ranks, size)
    held, _ = run(bits, vectors, buffer_bytes, rounds)
    for _ in range(rounds):
        vectors = [mean_of(vectors, bits) * np.float32(ranks)] * ranks
    for found in held:
        assert found.tobytes() == vectors[0].tobytes()


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_many_ranks_and_values(ranks: int) -> None:
    """Vectors of several segments, whose numbers are on their way before all of a chunk is there."""
    vectors = gradients(ranks, ranks, 150_001)
    held, reports = run(8, vectors)
    expected = mean_of(vectors, 8) * np.float32(ranks)
    assert {found.tobytes() for found in held} == {expected.tobytes()}
    payload = 150_001
    for report in reports:
        raw = (ranks - 1) / ranks * (2 * 8 + (ranks - 1).bit_length()) / 8
        assert report.bytes_sent / payload == pytest.approx(
            raw + 2 * (ranks - 1) / ranks / 512, rel=0.01
        )


@pytest.mark.parametrize(
    ("bits", "ranks"), [(8, 2), (8, 3), (8, 4), (11, 4), (16, 4), (8, 8)]
)
def test_the_bytes_are_the_simulators(bits: int, ranks: int) -> None:
    """Exactly so, where the vector is whole blocks for each rank."""
    size = 1024 * ranks * 3
    vectors = gradients(1, ranks, size)
    _, reports = run(bits, vectors)
    steps = steps_named(f"ring-bits-{bits}", ranks)
    simulated = sum(4 * size * int(step.count[0]) / steps.chunks for step in steps)
    assert [report.bytes_sent for report in reports] == [simulated] * ranks
    assert [report.bytes_received for report in reports] == [simulated] * ranks


def test_a_sum_that_is_off_by_one_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: each sum one too large, which changes a quarter of the means."""
    plain = sums.mean
    monkeypatch.setattr(
        ring_of_bits.sums,
        "mean",
        lambda own, *more: plain(own + own.dtype.type(1), *more),
    )
    vectors = gradients(3, 4, 4096)
    held, _ = run(8, vectors)
    assert (
        held[0].tobytes()
        == held[3].tobytes()
        != (mean_of(vectors, 8) * np.float32(4)).tobytes()
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_ends_it_with_its_rank(bad: float) -> None:
    vectors = gradients(4, 3, 2000)
    vectors[1][1500] = bad
    with pytest.raises(
        ArithmeticError, match=f"rank 1: value 1500 is {bad}: only finite"
    ):
        run(8, vectors)


def test_workers_train_with_it(tmp_path: Path) -> None:
    """Processes end as one does; each counts the bytes it must."""
    size, iterations = 4 * 4 * 1024 * 3, 6
    values = {
        "collective": "ring-bits-8",
        "gradient_bytes": size,
        "iterations": iterations,
    }
    with crew(tmp_path, 60, 4, **values) as workers:
        workers.wait_for("ready")
        workers.release()
        assert workers.exit_codes() == [0] * 4
        done = [of_kind(workers.events(rank), "done")[0] for rank in range(4)]
    expected = train_in_one_process(parse_spec(workers.specs[0]))
    for its in done:
        assert {key: its[key] for key in expected} == expected
        # sums of 10 bits and means of 8, and a scale of 16 bits for 1,024 values both ways
        assert its["bytes_sent"] == iterations * size / 4 * 0.75 * (10 + 8 + 2 / 64) / 8
    assert expected["loss_last"] < expected["loss_first"]


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    with crew(
        tmp_path, 61, 3, collective="ring-bits-8", compute_s=0.05, iterations=400
    ) as workers:
        workers.wait_for("ready")
        workers.release()
        workers.wait_for("iteration")
        workers.processes[2].kill()
        assert workers.exit_codes()[:2] == [3, 3]
        failures = [of_kind(workers.events(rank), "failed")[0] for rank in (0, 1)]
        assert min(failures, key=lambda event: event["t"])["peer"] == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"onic": "/run/onic"},
            "collective: ring-bits-8 cannot ask an O-NIC for light",
        ),
        (
            {"world_size": 1, "peers": ["10.0.0.1"]},
            "collective: ring-bits-8 of 1 rank: at least 2",
        ),
        ({"collective": "ring-bits-1"}, "1 bits: 2 to 16 are possible"),
        ({"collective": "halving-doubling-bits-8"}, "halving-doubling has no bits"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(change: dict[str, object], said: str) -> None:
    raw = {
        "job": "a",
        "rank": 0,
        "world_size": 2,
        "peers": ["10.0.0.1", "10.0.0.2"],
        "collective": "ring-bits-8",
    }
    with pytest.raises(BadSpec, match=said):
        parse_spec(raw | change)
