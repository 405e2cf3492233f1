"""What keeps devices running, with processes that do nothing."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable

import pytest

from ringlight.testbed import supervision
from ringlight.testbed.supervision import Supervisor


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def _wait(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_who_is_told_of_a_restart_may_fail_and_the_next_death_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.01)

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    kept = Supervisor("sleeper", {"s": _sleeper}, full, full)
    try:
        for restarts in (1, 2):
            os.kill(kept.lives()["s"].pid, 15)
            _wait(lambda restarts=restarts: kept.lives()["s"].restarts == restarts)  # type: ignore[misc]
    finally:
        kept.stop()


def test_what_a_process_said_last_may_not_be_there() -> None:
    def gone(_: str) -> str:
        raise OSError("No such file")

    kept = Supervisor(
        "sleeper", {"s": lambda: subprocess.Popen(["false"])}, lambda *_: None, gone
    )
    try:
        _wait(lambda: kept.lives()["s"].restarts == 1)
        assert kept.lives()["s"].ended == "exit code 1"
    finally:
        kept.stop()


def test_a_process_that_cannot_be_watched_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(_sleeper())
        return started[-1]

    def none_left(pid: int) -> int:
        raise OSError("Too many open files")

    monkeypatch.setattr(os, "pidfd_open", none_left)
    with pytest.raises(OSError, match="open files"):
        Supervisor("sleeper", {"s": start}, lambda *_: None)
    try:
        assert started[0].poll() is not None
    finally:
        started[0].kill()
        started[0].wait(5.0)
