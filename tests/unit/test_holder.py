"""Holders of NICs: they wait for the end of a command that runs beside them, and for no more."""

from __future__ import annotations

import json
import time
from pathlib import Path

from ringlight.containers.worker.holder import ENDED
from tests.unit.test_training import crew, of_kind


def release(directory: Path) -> None:
    (directory / "go.new").write_text(json.dumps({"at": time.monotonic()}))
    (directory / "go.new").rename(directory / "go")


def test_a_rank_may_end_before_another_hears_of_the_start(tmp_path: Path) -> None:
    with crew(tmp_path, 91, 3, workload="hold", beacon_interval_s=0.005) as holders:
        holders.wait_for("ready")
        first, *others = holders.directories
        release(first)
        (first / ENDED).touch()
        assert holders.processes[0].wait(timeout=30) == 0
        for directory in others:
            release(directory)
        time.sleep(0.1)
        assert [process.poll() for process in holders.processes[1:]] == [None, None]
        for directory in others:
            (directory / ENDED).touch()
        assert holders.exit_codes() == [0, 0, 0]
        assert [len(of_kind(holders.events(rank), "done")) for rank in range(3)] == [
            1,
            1,
            1,
        ]


def test_a_command_that_outlives_its_deadline_is_given_up(tmp_path: Path) -> None:
    with crew(tmp_path, 92, 1, workload="hold", deadline_s=0.3) as holders:
        holders.wait_for("ready")
        release(holders.directories[0])
        assert holders.exit_codes() == [1]
        (failed,) = of_kind(holders.events(0), "failed")
        assert failed["reason"] == "its command had not ended 0.3 s after the start"
