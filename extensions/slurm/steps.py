"""The steps of a cluster's jobs: each is a slurmstepd, which outlasts slurmd, with the tasks that it started.

A slurmstepd writes its title over its environment, and with it the label of the lab. But it keeps the log of its
slurmd open, which is in the lab's state.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ringlight.testbed.freezes import families

_NAME = "slurmstepd"
#: So long a step has to report the end of its tasks, seconds.
REPORT_S = 0.5


def steps(directory: Path) -> list[int]:
    """Return the process ids of the steps of a cluster, by the folder of its files."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        # It may end meanwhile.
        with suppress(OSError):
            comm = (process / "comm").read_text(encoding="utf-8").strip()
            if comm == _NAME and any(
                file.startswith(f"{directory}/") for file in _open(process)
            ):
                pids.append(int(process.name))
    return pids


def _open(process: Path) -> list[str]:
    """Return the files that a process has open."""
    files = []
    for file in process.glob("fd/*"):
        # It may be closed meanwhile, and the others still tell whose process it is.
        with suppress(OSError):
            files.append(os.readlink(file))
    return files


def end_left_steps(labs: Path) -> None:
    """End the steps of labs that are gone, whose clusters were killed. ``labs``: folder of all labs' states.

    Without slurmctld they would try for hours to report their ends.
    """
    names = set()
    for pid in steps(labs):
        for file in _open(Path("/proc", str(pid))):
            if file.startswith(f"{labs}/"):
                names.add(Path(file).relative_to(labs).parts[0])
    for name in sorted(names):
        if not (labs / name).exists():
            end_steps(labs / name)


def end_tasks(directory: Path) -> None:
    """Kill the tasks of all steps, and give the steps a moment to report it."""
    running = steps(directory)
    children = families()
    tasks, left = [], [*running]
    while left:
        started = children.get(left.pop(), [])
        left += started
        tasks += started
    _kill(pid for pid in tasks if pid not in running)
    deadline = time.monotonic() + REPORT_S
    while steps(directory) and time.monotonic() < deadline:
        time.sleep(0.02)


def end_steps(directory: Path) -> None:
    """Kill the steps of a cluster with their tasks."""
    if running := steps(directory):
        end_tasks(directory)
        _kill(running)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
