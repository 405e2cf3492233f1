"""A job that goes on from a checkpoint ends with the bits of one that was never interrupted."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.containers.worker.checkpoint import BadCheckpoint, Checkpoint
from ringlight.containers.worker.model import (
    PARAMETERS,
    fingerprint,
    initial_parameters,
)
from ringlight.containers.worker.reference import train_in_one_process
from ringlight.containers.worker.spec import WorkerSpec, parse_spec
from tests.unit.test_training import Crew, crew, of_kind

ITERATIONS = 12


def spec(ranks: int, **values: Any) -> WorkerSpec:
    values = {
        "gradient_bytes": 40_004,
        "iterations": ITERATIONS,
        "learning_rate": 0.2,
        "seed": 7,
    } | values
    return WorkerSpec("test", 0, ranks, ("10.0.0.1",) * ranks, **values)


def newest(directory: Path, without: int | None = None) -> tuple[int, Path]:
    """The iteration and the file of the newest state that any rank but one left."""
    states = [
        p
        for p in directory.glob("rank-*.npy")
        if p.name.split(".")[0] != f"rank-{without}"
    ]
    return max((int(path.name.split(".")[1]), path) for path in states)


@settings(max_examples=15)
@given(
    st.sampled_from(["ring", "halving-doubling"]),
    st.lists(st.integers(0, 6), max_size=3).map(sorted),
)
def test_cut_anywhere_the_reference_is_the_same(
    collective: str, cuts: list[int]
) -> None:
    job = spec(4, collective=collective, iterations=6)
    assert train_in_one_process(
        job, [(4, first) for first in [0, *cuts]]
    ) == train_in_one_process(job)


def test_fewer_ranks_end_elsewhere() -> None:
    ends = {
        str(train_in_one_process(spec(3), segments)["parameters_sha256"])
        for segments in ([(3, 0)], [(2, 0)], [(3, 0), (2, 5)], [(3, 0), (2, 6)])
    }
    assert len(ends) == 4
    assert train_in_one_process(spec(3), [(3, 0), (2, 0)]) == train_in_one_process(
        spec(2)
    )


@pytest.mark.parametrize(
    "segments", [[], [(2, 1)], [(2, 0), (2, 4), (2, 3)], [(2, 0), (2, 13)]]
)
def test_segments_that_cannot_be(segments: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="segments begin at"):
        train_in_one_process(spec(2), segments)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("subnet", "after", "ranks"), [(40, 3, 3), (41, 3, 2), (42, 9, 2)]
)
def test_a_job_killed_and_resumed_ends_with_the_same_bits(
    tmp_path: Path, subnet: int, after: int, ranks: int
) -> None:
    """Real workers: rank 1 of 3 is killed, then ``ranks`` go on."""
    states = tmp_path / "states"
    states.mkdir()
    first = tmp_path / "first"
    first.mkdir()
    with crew(
        first, subnet, 3, compute_s=0.05, iterations=ITERATIONS, checkpoint=str(states)
    ) as workers:
        workers.wait_for("ready")
        workers.release()
        while len(of_kind(workers.events(0), "iteration")) < after:
            assert workers.processes[0].poll() is None
            time.sleep(0.01)
        workers.processes[1].send_signal(signal.SIGKILL)
        assert workers.exit_codes() == [3, -signal.SIGKILL, 3]
    resume, path = newest(states, without=1)
    assert after <= resume < ITERATIONS
    path.rename(states / f"resume.{resume}.npy")

    again = tmp_path / "again"
    again.mkdir()
    values = {"iterations": ITERATIONS, "checkpoint": str(states), "resume": resume}
    with crew(again, subnet, ranks, **values) as workers:
        workers.wait_for("ready")
        workers.release()
        assert workers.exit_codes() == [0] * ranks
        reference = parse_spec(workers.specs[0])
        expected = train_in_one_process(reference, [(3, 0), (ranks, resume)])
        for rank in range(ranks):
            events = workers.events(rank)
            done = of_kind(events, "done")[0]
            assert {key: done[key] for key in expected} == expected
            assert [event["i"] for event in of_kind(events, "iteration")] == list(
                range(resume, ITERATIONS)
            )
    if ranks == 3:
        assert expected == train_in_one_process(reference)
    assert newest(states)[0] == ITERATIONS


def test_a_job_lost_after_its_last_iteration_is_done_again_at_once(
    tmp_path: Path,
) -> None:
    parameters = initial_parameters(3)
    np.save(tmp_path / "resume.5.npy", parameters)
    values = {"iterations": 5, "checkpoint": str(tmp_path), "resume": 5}
    (tmp_path / "job").mkdir()
    with crew(tmp_path / "job", 43, 2, **values) as workers:
        workers.wait_for("ready")
        workers.release()
        assert workers.exit_codes() == [0, 0]
        assert of_kind(workers.events(0), "iteration") == []
        assert of_kind(workers.events(0), "done")[0][
            "parameters_sha256"
        ] == fingerprint(parameters)


def test_without_a_checkpoint_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    with crew(tmp_path / "job", 44, 1) as workers:
        workers.wait_for("ready")
        workers.release()
        assert workers.exit_codes() == [0]
    assert {path.name for path in tmp_path.rglob("*.*")} == {
        "spec.json",
        "events.jsonl",
    }


def test_only_the_newest_state_of_a_rank_is_kept(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, 2, every=3)
    parameters = initial_parameters(1)
    for iteration in range(1, 8):
        checkpoint.keep(iteration, parameters * np.float32(iteration))
    assert [path.name for path in tmp_path.iterdir()] == ["rank-2.6.npy"]
    (tmp_path / "rank-2.6.npy").rename(tmp_path / "resume.6.npy")
    assert np.array_equal(checkpoint.read(6), parameters * np.float32(6))
    checkpoint.keep(9, parameters)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "rank-2.9.npy",
        "resume.6.npy",
    ]


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"no array",
        np.zeros(3, dtype=np.float32),
        np.zeros(PARAMETERS),
        np.array([object()]),
    ],
)
def test_a_state_that_cannot_be_used_is_named(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "resume.4.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(BadCheckpoint, match=r"checkpoint resume\.4\.npy: "):
        Checkpoint(tmp_path, 0).read(4)


def test_a_rank_without_its_state_says_so(tmp_path: Path) -> None:
    workers = Crew(tmp_path, 45, 1, checkpoint=str(tmp_path), resume=2)
    workers.start(0)
    assert workers.exit_codes() == [1]
    assert (
        "checkpoint resume.2.npy" in of_kind(workers.events(0), "failed")[0]["reason"]
    )
