"""Worker processes on loopback addresses: they learn, agree bit for bit, and fail as they should."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ringlight.containers.worker import __main__ as program
from ringlight.containers.worker import model
from ringlight.containers.worker.peer import PeerLost
from ringlight.containers.worker.reference import train_in_one_process
from ringlight.containers.worker.spec import BadSpec, parse_spec
from ringlight.testbed.process_start import SOCKET, Process, start_process
from tests.forks import place

ROOT = Path(__file__).resolve().parents[2]
Events = list[dict[str, Any]]


class Crew:
    """The worker processes of one job, each in a directory of its own."""

    def __init__(
        self, directory: Path, subnet: int, world_size: int, **values: Any
    ) -> None:
        self.specs = [
            {
                "job": "test", "rank": rank, "world_size": world_size, "port": 29500, "seed": 7,
                "peers": [f"127.77.{subnet}.{each + 1}" for each in range(world_size)],
                "gradient_bytes": 40_004, "iterations": 12, "learning_rate": 0.2,
            } | values
            for rank in range(world_size)
        ]  # fmt: skip
        self.directories = [directory / str(rank) for rank in range(world_size)]
        self.processes: list[Process] = []

    def start(self, rank: int) -> None:
        directory = self.directories[rank]
        directory.mkdir(exist_ok=True)
        (directory / "spec.json").write_text(json.dumps(self.specs[rank]))
        command = [sys.executable, "-m", "ringlight.containers.worker", str(directory)]
        with (directory / "said").open("wb") as said:
            environment = {**os.environ, SOCKET: place()}
            self.processes.append(
                start_process(command, environment, said, directory=ROOT)
            )

    def release(self) -> float:
        at = time.monotonic() + 0.1
        for directory in self.directories:
            (directory / "go.new").write_text(json.dumps({"at": at}))
            (directory / "go.new").rename(directory / "go")
        return at

    def events(self, rank: int) -> Events:
        path = self.directories[rank] / "events.jsonl"
        return (
            [json.loads(line) for line in path.read_text().splitlines()]
            if path.exists()
            else []
        )

    def wait_for(self, event: str, timeout_s: float = 30) -> None:
        """Until every rank has written ``event``."""
        deadline = time.monotonic() + timeout_s
        while not all(
            any(e["event"] == event for e in self.events(r))
            for r in range(len(self.specs))
        ):
            assert time.monotonic() < deadline, f"no {event!r} from every rank"
            time.sleep(0.02)

    def exit_codes(self) -> list[int]:
        return [process.wait(timeout=30) for process in self.processes]


@contextmanager
def crew(
    directory: Path, subnet: int, world_size: int, **values: Any
) -> Iterator[Crew]:
    """All ranks started; whatever is left of them is killed at the end."""
    workers = Crew(directory, subnet, world_size, **values)
    with ended(workers):
        for rank in range(world_size):
            workers.start(rank)
        yield workers


@contextmanager
def ended(workers: Crew) -> Iterator[None]:
    try:
        yield
    finally:
        for process in workers.processes:
            process.kill()
            process.wait(timeout=10)


def of_kind(events: Events, kind: str) -> Events:
    return [event for event in events if event["event"] == kind]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_agree_with_the_reference_and_learn(
    tmp_path: Path, world_size: int
) -> None:
    with crew(
        tmp_path, world_size, world_size, compute_s=0.01, beacon_interval_s=0.005
    ) as workers:
        workers.wait_for("ready")
        at = workers.release()
        assert workers.exit_codes() == [0] * world_size
        expected = train_in_one_process(parse_spec(workers.specs[0]))
        for rank in range(world_size):
            events = workers.events(rank)
            done = of_kind(events, "done")[0]
            assert {key: done[key] for key in expected} == expected
            assert done["loss_last"] < 0.8 * done["loss_first"]
            assert done["connections"] == of_kind(events, "ready")[0]["connections"]
            iterations = of_kind(events, "iteration")
            assert [event["i"] for event in iterations] == list(range(12))
            assert abs(iterations[0]["compute_start"] - at) < 1.0
            for event, following in zip(
                iterations, [*iterations[1:], None], strict=True
            ):
                assert event["compute_end"] - event["compute_start"] >= 0.01
                assert event["allreduce_end"] >= event["compute_end"]
                assert (
                    following is None
                    or following["compute_start"] == event["allreduce_end"]
                )
            # 2 (n-1)/n of the vector per rank and iteration, to within the chunks' uneven lengths.
            share = 2 * (world_size - 1) / world_size * 40_004 * 12
            assert done["bytes_sent"] == pytest.approx(
                share, abs=12 * 2 * 4 * world_size
            )


def test_a_killed_rank_is_named_by_its_neighbours(tmp_path: Path) -> None:
    with crew(tmp_path, 10, 4, compute_s=0.05, iterations=400) as workers:
        workers.wait_for("ready")
        workers.release()
        workers.wait_for("iteration")
        workers.processes[2].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        codes = workers.exit_codes()
        assert time.monotonic() - killed < 5.0
        assert codes[2] == -signal.SIGKILL
        assert codes[:2] + codes[3:] == [3, 3, 3]
        failures = {
            rank: of_kind(workers.events(rank), "failed")[0] for rank in (0, 1, 3)
        }
        first = min(failures.values(), key=lambda event: event["t"])
        assert first["peer"] == 2
        assert "rank 2 lost" in first["reason"]


def test_a_lost_peer_is_told_as_of_when_it_was_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbour that sees the connections of this rank close says so later than this rank."""
    closing = []

    def loses_a_peer(*_: object) -> None:
        try:
            raise PeerLost(2, "it closed the connection")
        finally:
            closing.append(time.monotonic())
            time.sleep(0.01)

    monkeypatch.setattr(
        program, "read_spec", lambda path: SimpleNamespace(workload="linktest")
    )
    monkeypatch.setattr("ringlight.containers.worker.linktest.linktest", loses_a_peer)
    assert program.main(tmp_path) == program.EXIT_PEER_LOST
    (failed,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert (failed["event"], failed["peer"]) == ("failed", 2)
    assert failed["t"] <= closing[0]


def test_a_stopped_rank_is_given_up_after_the_peer_timeout(tmp_path: Path) -> None:
    with crew(
        tmp_path, 11, 2, compute_s=0.02, iterations=400, peer_timeout_s=0.6
    ) as workers:
        workers.wait_for("ready")
        workers.release()
        workers.wait_for("iteration")
        workers.processes[1].send_signal(signal.SIGSTOP)
        assert workers.processes[0].wait(timeout=10) == 3
        failed = of_kind(workers.events(0), "failed")[0]
        assert failed["peer"] == 1
        assert "0.6 s" in failed["reason"]


def test_a_silence_shorter_than_the_timeout_is_survived(tmp_path: Path) -> None:
    with crew(tmp_path, 9, 3, compute_s=0.05, iterations=20) as workers:
        workers.wait_for("ready")
        workers.release()
        workers.wait_for("iteration")
        workers.processes[1].send_signal(signal.SIGSTOP)
        time.sleep(0.7)
        workers.processes[1].send_signal(signal.SIGCONT)
        assert workers.exit_codes() == [0, 0, 0]
        assert (
            len(
                {
                    of_kind(workers.events(r), "done")[0]["parameters_sha256"]
                    for r in range(3)
                }
            )
            == 1
        )
        assert (
            max(
                event["max_stall_s"]
                for event in of_kind(workers.events(0), "iteration")
            )
            > 0.4
        )


def test_a_rank_that_never_comes_is_named(tmp_path: Path) -> None:
    workers = Crew(tmp_path, 12, 3, connect_timeout_s=0.5)
    with ended(workers):
        workers.start(0)
        workers.start(1)
        assert workers.exit_codes() == [3, 3]
        assert of_kind(workers.events(1), "failed")[0]["peer"] == 2


def test_terminated_while_it_waits_for_release(tmp_path: Path) -> None:
    with crew(tmp_path, 13, 1) as workers:
        workers.wait_for("ready")
        started = time.monotonic()
        workers.processes[0].terminate()
        assert workers.processes[0].wait(timeout=10) == 143
        assert time.monotonic() - started < 3.0


def test_bad_spec_exits_with_2_and_names_the_key(tmp_path: Path) -> None:
    with crew(tmp_path, 14, 1, collective="star") as workers:
        assert workers.exit_codes() == [2]
        assert (
            "spec.json: collective: there is no"
            in of_kind(workers.events(0), "failed")[0]["reason"]
        )


def test_linktest_reports_each_stream(tmp_path: Path) -> None:
    chain = Crew(tmp_path, 15, 3, workload="linktest")
    for rank, to in enumerate([1, 2, None]):
        chain.specs[rank]["linktest"] = {"seconds": 0.4, "to": to}
    with ended(chain):
        for rank in range(3):
            chain.start(rank)
        chain.wait_for("ready")
        chain.release()
        assert chain.exit_codes() == [0, 0, 0]
        streams = [of_kind(chain.events(rank), "linktest") for rank in range(3)]
        assert [[stream["peer"] for stream in each] for each in streams] == [
            [],
            [0],
            [1],
        ]
        for stream in (streams[1][0], streams[2][0]):
            assert stream["rate_bps"] == pytest.approx(
                stream["bytes"] * 8 / stream["seconds"]
            )
            assert 0.1 < stream["seconds"] < 1.2
        done = [of_kind(chain.events(rank), "done")[0] for rank in range(3)]
        assert [end["bytes_sent"] for end in done] == [
            done[1]["bytes_received"],
            done[2]["bytes_received"],
            0,
        ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"collective": "star"},
            "collective: there is no collective 'star'; there are ring, ",
        ),
        ({"rate": 1}, "unknown key rate"),
        ({"linktest": {"for": 1}}, "unknown key linktest.for"),
    ],
)
def test_specs_that_are_refused(change: dict[str, Any], message: str) -> None:
    good = {"job": "x", "rank": 0, "world_size": 2, "peers": ["10.0.0.1", "10.0.0.2"]}
    assert parse_spec(good).address == "10.0.0.1"
    with pytest.raises(BadSpec) as caught:
        parse_spec(good | change)
    assert message in str(caught.value)


def test_missing_key_is_named() -> None:
    with pytest.raises(BadSpec, match="key rank is missing"):
        parse_spec({"job": "x", "world_size": 1, "peers": ["10.0.0.1"]})


def test_gradient_is_the_slope_of_the_loss() -> None:
    images, labels = (part[:20] for part in model.training_set())
    parameters = model.initial_parameters(3)
    slope = np.zeros(model.PARAMETERS, dtype=np.float32)
    model.gradient(parameters, images, labels, slope)
    random = np.random.RandomState(0)
    for _ in range(5):
        direction = random.standard_normal(model.PARAMETERS).astype(np.float32)
        step = 1e-2 * direction / np.linalg.norm(direction)
        rise = model.loss_of(parameters + step, images, labels) - model.loss_of(
            parameters - step, images, labels
        )
        assert rise == pytest.approx(2 * float(slope @ step), rel=0.05, abs=1e-5)


def test_no_image_is_in_two_batches_of_an_iteration() -> None:
    replicas = [model.Replica(rank, 4, 40_000, 28, 7, 0.1) for rank in range(4)]
    for iteration in (0, 5, 12, 13, 40):
        chosen = np.concatenate([replica._batch(iteration) for replica in replicas])
        assert len(set(chosen.tolist())) == 4 * 28


def test_a_wrong_sum_is_found() -> None:
    replica = model.Replica(0, 1, 40_000, 28, 7, 0.1)
    replica.compute(0)
    replica.buffer[-1] += 1
    with pytest.raises(ArithmeticError, match="iteration 0: all-reduce gave"):
        replica.update(0)


def test_the_data_set_is_whole() -> None:
    images, labels = model.digits()
    assert images.shape == (1797, 64)
    assert np.bincount(labels).tolist() == [
        178,
        182,
        177,
        183,
        181,
        182,
        181,
        179,
        174,
        180,
    ]
    assert os.stat(model.DATA).st_size == 57523
