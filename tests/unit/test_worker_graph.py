"""Workers that execute graphs: every result is what it must be, streams overlap, failures are named."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringlight.containers.worker.payload import PERIOD, contribution, first_wrong
from ringlight.fabric.kinds import KINDS
from ringlight.workloads.graph import Collective, Split, Workload
from ringlight.workloads.graph_writer import Book, Writer
from ringlight.workloads.packed import pack
from tests.unit.test_training import Crew, crew, of_kind

RING = Collective("all-reduce", "ring")


@contextmanager
def executing(
    directory: Path, subnet: int, workload: Workload, **values: Any
) -> Iterator[Crew]:
    """Workers of a workload, released."""
    packed = pack(workload)
    for rank in range(workload.ranks):
        (directory / str(rank)).mkdir()
        (directory / str(rank) / "workload").write_bytes(packed)
    with crew(directory, subnet, workload.ranks, workload="graph", **values) as workers:
        workers.wait_for("ready")
        workers.release()
        yield workers


def alike(ranks: int, write: Callable[[Writer], object]) -> Workload:
    """All ranks do the same, with the group of all in slot 0 and those of even and of odd rank in slot 1."""
    book = Book()
    everybody = book.group(range(ranks))
    halves = [book.group(range(first, ranks, 2)) for first in (0, 1)]
    writer = Writer(book)
    write(writer)
    slots = [[everybody, halves[rank % 2]] for rank in range(ranks)]
    return book.workload(
        "alike", [writer.done()], [0] * ranks, slots, [[] for _ in range(ranks)]
    )


def test_what_is_carried_adds_up_in_any_order_and_tells_ranks_apart() -> None:
    key, ranks = (3, 1, 4), list(range(64))
    one_by_one = [contribution([rank], key, 100, 5000) for rank in ranks]
    total = contribution(ranks, key, 100, 5000)
    assert (np.sum(one_by_one[::-1], axis=0, dtype=np.float32) == total).all()
    assert total.max() < 1 << 24
    for a, b in itertools.combinations(one_by_one, 2):
        assert (a != b).any()
    assert first_wrong(total, ranks, key, 100) is None
    for other in ((ranks[:-1], key, 100), (ranks, (3, 1, 5), 100), (ranks, key, 101)):
        assert first_wrong(total, *other) is not None
    # A part is the same wherever it is cut, also beyond the table.
    assert (
        contribution(ranks, key, PERIOD + 150, 50)
        == contribution(ranks, key, 0, 6000)[PERIOD + 150 : PERIOD + 200]
    ).all()


@pytest.mark.parametrize("ranks", [2, 5])
def test_every_kind_and_algorithm_brings_what_it_should(
    tmp_path: Path, ranks: int
) -> None:
    every = [(kind, algorithm) for kind, names in KINDS.items() for algorithm in names]

    def write(writer: Writer) -> None:
        for kind, algorithm in every:
            root = ranks - 1 if kind in ("broadcast", "reduce") else 0
            split = Split(3, 1.5) if kind == "all-to-all-v" else None
            what = Collective(kind, algorithm, root, split)
            writer.collective(f"{kind} {algorithm}", what, 4 * 9973, 0, stream="one")
            writer.collective(
                f"{kind} {algorithm}",
                Collective(kind, algorithm),
                4 * 1009,
                1,
                stream="two",
            )

    with executing(tmp_path, 30 + ranks, alike(ranks, write), iterations=2) as workers:
        assert workers.exit_codes() == [0] * ranks, [
            workers.events(r)[-1] for r in range(ranks)
        ]
        for rank in range(ranks):
            done = of_kind(workers.events(rank), "done")[0]
            assert done["results_checked"] >= 2 * 2 * len(every) - 4 * 2 * 3
            assert done["bytes_sent"] > 0


def test_computation_hides_what_runs_on_another_stream(tmp_path: Path) -> None:
    def write(writer: Writer) -> None:
        first = writer.compute("layer 1", seconds=0.2)
        reduced = writer.collective(
            "bucket 1",
            Collective("all-reduce", "ring"),
            400_000,
            0,
            stream="dp",
            after=[first],
        )
        second = writer.compute("layer 0", seconds=0.2, after=[first])
        last = writer.collective(
            "bucket 0",
            Collective("all-reduce", "ring"),
            4_000,
            0,
            stream="dp",
            after=[second],
        )
        writer.compute("update", seconds=0.05, after=[reduced, last])

    with executing(tmp_path, 40, alike(2, write), iterations=3) as workers:
        assert workers.exit_codes() == [0, 0]
        for rank in range(2):
            events = workers.events(rank)
            iterations, operations = (
                of_kind(events, "iteration"),
                of_kind(events, "operations"),
            )
            assert [event["i"] for event in iterations] == [0, 1, 2]
            for event, timed in zip(iterations, operations, strict=True):
                assert event["compute_end"] - event["compute_start"] == pytest.approx(
                    0.45, abs=1e-3
                )
                times = timed["times_s"]
                assert len(times) == 5
                # The first bucket travels while layer 0 is computed, and the update waits for both.
                assert times[1][0] == pytest.approx(0.2, abs=1e-3)
                assert times[2][0] == pytest.approx(0.2, abs=1e-3)
                assert times[4][0] == max(times[1][1], times[3][1])
                assert event["allreduce_end"] == pytest.approx(
                    timed["begin"] + times[4][1], abs=1e-5
                )
            assert iterations[1]["compute_start"] == pytest.approx(
                iterations[0]["allreduce_end"], abs=1e-6
            )


def pipeline(ranks: int, micro_batches: int, seconds: float, size: int) -> Workload:
    """Forward through all ranks, then back, each micro-batch with tags of its own."""
    book = Book()
    programs = []
    for rank in range(ranks):
        writer = Writer(book)
        for way, (before, after) in enumerate(((0, 1), (1, 0))):
            has_before, has_after = (
                (rank > 0, rank < ranks - 1)
                if not way
                else (rank < ranks - 1, rank > 0)
            )
            for batch in range(micro_batches):
                tag = 2 * batch + way
                came = (
                    writer.receive("in", size, before, tag, stream=f"in {way}")
                    if has_before
                    else None
                )
                done = writer.compute("work", seconds=seconds, after=[came])
                if has_after:
                    writer.send(
                        "out", size, after, tag, stream=f"out {way}", after=[done]
                    )
        programs.append(writer.done())
    # Slot 0 is the rank before, slot 1 the one behind.
    peers = [[rank - 1, rank + 1 if rank + 1 < ranks else -1] for rank in range(ranks)]
    return book.workload(
        "pipeline", programs, range(ranks), [[] for _ in range(ranks)], peers
    )


def test_messages_go_down_a_pipeline_and_back(tmp_path: Path) -> None:
    with executing(
        tmp_path, 41, pipeline(3, 4, 0.05, 200_000), iterations=2
    ) as workers:
        assert workers.exit_codes() == [0, 0, 0], [
            workers.events(r)[-1] for r in range(3)
        ]
        for rank, checked in enumerate((4, 8, 4)):
            events = workers.events(rank)
            assert of_kind(events, "done")[0]["results_checked"] == 2 * checked
            for event in of_kind(events, "iteration"):
                # Twice the pipeline's (micro-batches + stages - 1) slots, for the rank at its beginning.
                took_s = event["allreduce_end"] - event["compute_start"]
                assert took_s >= (0.6 if rank == 0 else 0.4) - 1e-3
                assert took_s < 1.5


def test_a_straggler_computes_longer(tmp_path: Path) -> None:
    workload = alike(2, lambda writer: writer.compute("work", seconds=0.05))
    with executing(tmp_path, 42, workload, iterations=1, slower=3.0) as workers:
        assert workers.exit_codes() == [0, 0]
        (event,) = of_kind(workers.events(0), "iteration")
        assert event["compute_end"] - event["compute_start"] == pytest.approx(
            0.15, abs=1e-3
        )


def test_a_wrong_result_ends_the_job_by_name(tmp_path: Path) -> None:
    """One rank executes another workload, whose collective is called on other chunks."""
    right = alike(
        2,
        lambda w: w.collective(
            "gradients", Collective("all-gather", "ring"), 80_000, 0
        ),
    )
    wrong = alike(
        2,
        lambda w: w.collective(
            "gradients", Collective("reduce-scatter", "ring"), 80_000, 0
        ),
    )
    for rank, workload in enumerate((right, wrong)):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "workload").write_bytes(pack(workload))
    with crew(
        tmp_path, 43, 2, workload="graph", iterations=1, peer_timeout_s=3.0
    ) as workers:
        workers.wait_for("ready")
        workers.release()
        assert set(workers.exit_codes()) <= {1, 3}
        reasons = [
            event["reason"]
            for r in range(2)
            for event in of_kind(workers.events(r), "failed")
        ]
        assert any(
            "iteration 0, operation 0 (gradients): element" in reason
            for reason in reasons
        ), reasons


def test_a_workload_that_cannot_be_read_is_a_bad_spec(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "workload").write_bytes(b"nothing")
    with crew(tmp_path, 44, 1, workload="graph") as workers:
        assert workers.exit_codes() == [2]
        assert (
            of_kind(workers.events(0), "failed")[0]["reason"]
            == "workload: this is no packed workload"
        )


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    def write(writer: Writer) -> None:
        done = writer.compute("work", seconds=0.02)
        writer.collective("gradients", RING, 40_000, 0, stream="dp", after=[done])

    with executing(tmp_path, 45, alike(3, write), iterations=500) as workers:
        workers.wait_for("iteration")
        workers.processes[1].kill()
        assert workers.exit_codes() == [3, -9, 3]
        peers = {of_kind(workers.events(rank), "failed")[0]["peer"] for rank in (0, 2)}
        assert 1 in peers


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda writer: None, "workload: rank 0 has no operations"),
        (
            lambda writer: writer.compute("work", flops=1e9),
            "workload: operation 0 (work) has no seconds",
        ),
        (
            lambda writer: writer.collective("sum", RING, 6, 0),
            "operation 0 (sum) has no multiple of 4 bytes",
        ),
        (
            lambda writer: writer.collective("sum", Collective("sum"), 8, 0),
            "there is no collective 'sum'",
        ),
    ],
)
def test_what_would_be_waited_for_without_end_is_a_bad_spec(
    tmp_path: Path, write: Callable[[Writer], object], reason: str
) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "workload").write_bytes(pack(alike(1, write)))
    with crew(tmp_path, 46, 1, workload="graph") as workers:
        assert workers.exit_codes() == [2]
        assert reason in of_kind(workers.events(0), "failed")[0]["reason"]
