"""Workers that stay: what they are told, by the agent's end of the socket, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ringlight.containers.worker.reference import train_in_one_process
from ringlight.containers.worker.resident import FIRST, LOST_PEER
from ringlight.containers.worker.spec import parse_spec
from ringlight.testbed.emulation.residents import Orders

ROOT = Path(__file__).resolve().parents[2]


def spec(rank: int = 0, ranks: int = 1, **more: Any) -> dict[str, Any]:
    peers = [f"127.77.199.{each + 1}" for each in range(ranks)]
    job = {
        "job": "test",
        "rank": rank,
        "world_size": ranks,
        "peers": peers,
        "port": 29500,
        "seed": 7,
    }
    return job | {"gradient_bytes": 40_004, "compute_s": 0.01, "iterations": 4} | more


def put(directory: Path, what: dict[str, Any]) -> Path:
    directory.mkdir()
    (directory / "spec.json").write_text(json.dumps(what))
    return directory


def started(directory: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ringlight.containers.worker", str(directory)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)


@contextmanager
def resident(
    home: Path, first: dict[str, Any] | None = None
) -> Iterator[tuple[Orders, Any]]:
    home.mkdir()
    if first is not None:
        put(home / FIRST, first)
    orders = Orders(home)
    process = started(home)
    try:
        yield orders, process
    finally:
        orders.close()
        process.kill()
        process.wait(10)


def said(directory: Path, event: str) -> list[dict[str, Any]]:
    path = directory / "events.jsonl"
    told = (
        [json.loads(line) for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )
    return [one for one in told if one["event"] == event]


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def attempts(process: subprocess.Popen[bytes]) -> list[int]:
    """Processes that a resident has forked."""
    return [
        int(pid)
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children")
        .read_text()
        .split()
    ]


def test_one_that_waits_runs_what_it_is_told_in_the_place_of_what_ran(
    tmp_path: Path,
) -> None:
    with resident(tmp_path / "home") as (orders, process):
        one, two = (put(tmp_path / "home" / name, spec()) for name in ("r1", "r2"))
        orders.stop()
        orders.run("r1")
        until(lambda: said(one, "ready"))
        (before,) = attempts(process)
        orders.run("r2")
        # Both want the same port.
        until(lambda: said(two, "ready"))
        (after,) = attempts(process)
        assert after != before
        (two / "go").write_text(json.dumps({"at": time.monotonic()}))
        assert process.wait(30) == 0
    (done,) = said(two, "done")
    expected = train_in_one_process(parse_spec(spec()))
    assert {key: done[key] for key in expected} == expected
    assert not said(one, "done")


def test_one_that_lost_a_peer_stays_for_another_attempt(tmp_path: Path) -> None:
    other = started(put(tmp_path / "other", spec(1, 2)))
    with resident(tmp_path / "home", spec(0, 2)) as (orders, process):
        first = tmp_path / "home" / FIRST
        until(lambda: said(first, "ready"))
        other.kill()
        other.wait(10)
        until(lambda: said(first, "failed") and not attempts(process))
        assert process.poll() is None
        again = put(tmp_path / "home" / "r1", spec(0, 1))
        orders.run("r1")
        until(lambda: said(again, "ready"))
        orders.stop()
        assert not attempts(process)
        orders.close()
        assert process.wait(10) == 0


def test_who_gave_orders_is_gone(tmp_path: Path) -> None:
    other = started(put(tmp_path / "other", spec(1, 2)))
    with resident(tmp_path / "home", spec(0, 2)) as (orders, process):
        until(lambda: said(tmp_path / "home" / FIRST, "ready"))
        other.kill()
        other.wait(10)
        until(lambda: not attempts(process))
        orders.close()
        assert process.wait(10) == LOST_PEER


@pytest.mark.parametrize(
    ("first", "kills", "code"),
    [(spec(collective="star"), False, 2), (spec(), True, -signal.SIGKILL)],
)
def test_it_ends_as_its_attempt_ended(
    tmp_path: Path, first: dict[str, Any], kills: bool, code: int
) -> None:
    with resident(tmp_path / "home", first) as (_orders, process):
        if kills:
            until(lambda: said(tmp_path / "home" / FIRST, "ready"))
            os.kill(attempts(process)[0], signal.SIGKILL)
        assert process.wait(30) == code
