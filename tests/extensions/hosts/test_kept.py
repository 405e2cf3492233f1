"""Processes that tasks of Dask look after, and that outlive them; with workers of our own in Dask's place."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ringlight.extensions.hosts import kept
from ringlight.extensions.hosts.kept import (
    end_forsaken,
    log_of,
    looked_after,
    take_left,
)
from ringlight.testbed.lab import Lab, LabError


class Again(Exception):
    """In place of Dask's Reschedule."""


class Worker:
    """Ends, or loses interest, after some looks."""

    def __init__(self, ends: int = 1 << 30, unwanted: int = 1 << 30) -> None:
        self._ends, self._unwanted, self._looks = ends, unwanted, 0

    def unwanted(self) -> bool:
        self._looks += 1
        return self._looks >= self._unwanted

    def ends(self) -> bool:
        return self._looks >= self._ends

    def reschedule(self) -> Exception:
        return Again()


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for module in ("testbed.lab", "extensions.hosts.kept"):
        monkeypatch.setattr(f"ringlight.{module}.STATE_ROOT", tmp_path)
    monkeypatch.setattr(kept, "remove", lambda lab: shutil.rmtree(lab.state_dir))
    monkeypatch.setattr(kept, "_EVERY_S", 0.01)
    yield tmp_path
    for path in tmp_path.glob("*/testbed.pid"):
        os.kill(int(path.read_text()), signal.SIGKILL)


def look(key: str, worker: Any, line: str = "echo begun; sleep 20") -> bytes:
    """What a process said, once it has ended."""

    def start(lab: Lab) -> Sequence[str] | None:
        return ["sh", "-c", line] if line else None

    with looked_after(key, start, worker) as lab:
        return log_of(lab)


def left(root: Path) -> int:
    """Number of the process whose worker has ended, which forgets it as another process would."""
    (path,) = root.glob("*/testbed.pid")
    kept._PROCESSES.clear()
    return int(path.read_text())


def test_the_next_task_goes_on_with_the_process(root: Path) -> None:
    with pytest.raises(Again):
        look("part 1", Worker(ends=3))
    pid = left(root)
    os.kill(pid, 0)
    assert take_left("part 1") == b""
    # It starts no other: nothing says "other". Nobody wants it then, and so it ends.
    assert look("part 1", Worker(unwanted=2), "echo other") == b"begun\n"
    assert not list(root.iterdir())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, os.WNOHANG)[1]) == -signal.SIGTERM


def test_what_a_process_left_that_ended_alone_is_found(root: Path) -> None:
    with pytest.raises(Again):
        look("run 1", Worker(ends=1), "sleep 0.1; echo made")
    os.waitpid(left(root), 0)
    assert look("run 1", Worker()) == b"made\n"
    assert not list(root.iterdir())


def test_one_that_is_too_late_is_not_started(root: Path) -> None:
    with pytest.raises(LabError, match="has ended"):
        look("part 1", Worker(), "")
    assert not list(root.iterdir())


def test_only_what_no_task_looks_after_is_ended(root: Path) -> None:
    for key in ("run 1", "run 2", "run 3", "part 1"):
        with pytest.raises(Again):
            look(key, Worker(ends=1))
    # Run 3 has a task.
    (taken,) = (
        path.parent for path in root.glob("*/key") if path.read_text() == "run 3"
    )
    with (taken / "taken.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        end_forsaken("run ", but="run 2")
    assert sorted(path.read_text() for path in root.glob("*/key")) == [
        "part 1",
        "run 2",
        "run 3",
    ]
    assert take_left("run 1") is None


def test_a_process_whose_start_was_cut_off_is_started_anew(root: Path) -> None:
    with pytest.raises(Again):
        look("part 1", Worker(ends=1))
    os.kill(left(root), signal.SIGKILL)
    (path,) = root.glob("*/testbed.pid")
    path.unlink()
    assert look("part 1", Worker(), "echo anew") == b"anew\n"
