"""What a cluster leaves behind when it is killed, and jobs that run a second time."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringlight.experiments.record.events import JobState
from ringlight.extensions.slurm.emulated_queue import EmulatedSlurm, _Job
from ringlight.extensions.slurm.lab_cluster import LabCluster, LogEvent
from ringlight.extensions.slurm.process import FOLDER
from ringlight.extensions.slurm.steps import end_left_steps, end_steps, steps


def test_the_end_of_a_killed_cluster_ends_its_steps(tmp_path: Path) -> None:
    # A step outlasts its slurmd, and is known by the log that it has open.
    folder = tmp_path / FOLDER
    folder.mkdir()
    shell = shutil.copy("/bin/sh", tmp_path / "slurmstepd")
    lab: Any = SimpleNamespace(state_dir=tmp_path)
    processes: Any = SimpleNamespace(lab=lab, addresses=None)
    cluster = LabCluster(processes, "lead", 1, tmp_path)
    with (
        (folder / "slurmd.g0.log").open("wb") as log,
        subprocess.Popen([shell, "-c", "sleep 60; true"], stdout=log) as step,
    ):
        try:
            while steps(folder) != [step.pid]:
                assert step.poll() is None
            cluster.stop()
            step.wait(5)
            assert steps(folder) == []
        finally:
            step.kill()


def test_a_new_cluster_ends_the_steps_of_labs_that_are_gone(tmp_path: Path) -> None:
    shell = shutil.copy("/bin/sh", tmp_path / "slurmstepd")
    labs = tmp_path / "labs"
    started = {}
    try:
        for name in ("gone", "here"):
            (labs / name).mkdir(parents=True)
            with (labs / name / "slurmd.g0.log").open("wb") as log:
                words = [shell, "-c", "sleep 60; true"]
                started[name] = subprocess.Popen(words, stdout=log)
        deadline = time.monotonic() + 10
        while len(steps(labs)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        shutil.rmtree(labs / "gone")
        end_left_steps(labs)
        started["gone"].wait(5)
        assert started["here"].poll() is None
    finally:
        end_steps(labs)
        for step in started.values():
            step.wait(5)


@pytest.fixture
def queue(tmp_path: Path) -> EmulatedSlurm:
    """A queue with a job of two ranks that has not been allocated yet."""
    queue = EmulatedSlurm(SimpleNamespace())  # type: ignore[arg-type]
    plan: Any = SimpleNamespace(name="a")
    queue._plan, queue._records = SimpleNamespace(name="run"), []  # type: ignore[assignment]
    queue._light = SimpleNamespace(switch_of=lambda: {"g0": "t", "g1": "t"})  # type: ignore[assignment]
    queue._slurm = SimpleNamespace(request=SimpleNamespace(minutes=1))  # type: ignore[assignment]
    folder = tmp_path / "a"
    queue._cluster = SimpleNamespace(folder=lambda _: folder)  # type: ignore[assignment]
    queue._jobs = {"a": _Job(plan, 7, 0.0, {})}
    return queue


def test_what_ranks_did_before_a_requeue_does_not_count(
    queue: EmulatedSlurm, tmp_path: Path
) -> None:
    job = queue._jobs["a"]
    queue._logged(LogEvent(1.0, "main", 7, "g[0-1]"))
    queue._written(job, 0, {"event": "failed", "reason": "rank 1 is lost"})
    job.ready, job.done, job.read = {0: 1.0, 1: 1.0}, {0, 1}, {0: 5, 1: 5}
    queue._logged(LogEvent(2.0, "requeued", 7, ""))
    queue._logged(LogEvent(3.0, "backfill", 7, "g[0-1]"))
    own = tmp_path / "a/1/0"
    own.mkdir(parents=True)
    (own / "events.jsonl").write_text('{"event": "failed", "reason": "no light"}\n')
    queue._logged(LogEvent(4.0, "done", 7, ""))
    (state,) = (r for r in queue._records if isinstance(r, JobState))
    assert (state.state, state.reason) == ("FAILED", "rank 0: no light")
    assert not job.ready
