"""Workers begin when they are told to, and keep no processor busy until then."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ringlight.containers.worker import release
from ringlight.containers.worker.peer import PeerLost
from ringlight.containers.worker.release import wait_for_release


def released(
    go: Path, after_s: float, delay_s: float
) -> tuple[threading.Thread, list[float]]:
    """Somebody writes the file as the server agent does, whole or not at all."""
    starts: list[float] = []

    def write() -> None:
        time.sleep(after_s)
        starts.append(time.monotonic() + delay_s)
        draft = go.with_name("draft")
        draft.write_text(json.dumps({"at": starts[0]}))
        draft.rename(go)

    thread = threading.Thread(target=write)
    thread.start()
    return thread, starts


@pytest.mark.parametrize("told", [True, False])
def test_a_worker_begins_at_the_time_that_it_is_told(
    told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []
    read = release._read
    monkeypatch.setattr(release, "_read", lambda go: looked.append(go) or read(go))
    if not told:
        monkeypatch.setattr(release.ctypes, "CDLL", lambda *_, **__: NoChanges())
    thread, starts = released(tmp_path / "go", after_s=0.6, delay_s=0.1)
    began = wait_for_release(tmp_path / "go", [], 10.0)
    now = time.monotonic()
    thread.join()
    # Generous, since the suite keeps the machine busy.
    assert began == pytest.approx(starts[0], abs=0.3)
    assert starts[0] <= now < starts[0] + 1.0
    # The kernel tells it; else it has to look all the time.
    assert len(looked) < 15 if told else len(looked) > 30


class NoChanges:
    def inotify_init1(self, _: int) -> int:
        return -1


def test_a_time_that_is_past_is_now(tmp_path: Path) -> None:
    (tmp_path / "go").write_text(json.dumps({"at": time.monotonic() - 5.0}))
    before = time.monotonic()
    assert before <= wait_for_release(tmp_path / "go", [], 1.0) <= time.monotonic()


def test_a_peer_that_leaves_and_a_release_that_never_comes_end_the_wait(
    tmp_path: Path,
) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        with pytest.raises(PeerLost):
            wait_for_release(tmp_path / "go", [(3, ours)], 5.0)
    with pytest.raises(TimeoutError, match=r"not released in 0\.1 s"):
        wait_for_release(tmp_path / "go", [], 0.1)


def test_nothing_stays_open(tmp_path: Path) -> None:
    def open_now() -> set[Any]:
        return {path.name for path in Path("/proc/self/fd").iterdir()}

    before = open_now()
    with pytest.raises(TimeoutError):
        wait_for_release(tmp_path / "go", [], 0.05)
    assert open_now() <= before
