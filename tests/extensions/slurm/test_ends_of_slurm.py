"""What a cluster leaves behind when it is killed, and jobs that run a second time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringlight.experiments.record.events import JobState
from ringlight.extensions.slurm.emulated_queue import EmulatedSlurm, _Job
from ringlight.extensions.slurm.lab_cluster import LabCluster, LogEvent
from ringlight.extensions.slurm.process import FOLDER
from ringlight.extensions.slurm.steps import lab_of, steps


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


@pytest.mark.parametrize("name", ["slurmstepd", "slurmscriptd"])
def test_what_slurm_started_is_known_by_the_state_of_its_lab_and_no_other_process_is(
    tmp_path: Path, name: str
) -> None:
    labs, programs = tmp_path / "labs", []
    (labs / "gone").mkdir(parents=True)
    for program in (name, "tail"):
        (tmp_path / program).mkdir()
        shell = shutil.copy("/bin/sh", tmp_path / program / program)
        with (labs / "gone/slurmd.g0.log").open("wb") as log:
            # A task may clear its environment, and close all files.
            words = [shell, "-c", "env -i sleep 60 >/dev/null & echo $!; read line"]
            programs.append(
                subprocess.Popen(
                    words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
                )
            )
    shutil.rmtree(labs)
    tasks = []
    try:
        for process in programs:
            assert process.stdout is not None
            tasks.append(int(process.stdout.readline()))
        ours, other = programs
        assert {lab_of(ours.pid, labs), lab_of(tasks[0], labs)} == {"gone"}
        assert {lab_of(other.pid, labs), lab_of(tasks[1], labs)} == {None}
        assert lab_of(os.getpid(), labs) is None
        assert lab_of(ours.pid, tmp_path / "lab") is None
    finally:
        for pid in tasks:
            os.kill(pid, signal.SIGKILL)
        for process in programs:
            process.communicate()


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
