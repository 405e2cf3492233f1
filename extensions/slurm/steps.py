"""The steps of a cluster's jobs: each is a slurmstepd, which outlasts slurmd, with the tasks that it started.

A slurmstepd writes its title over its environment, and with it the label of the lab. But it keeps the log of its
slurmd open, which is in the lab's state. So does slurmscriptd, which runs prologs and epilogs for slurmctld.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ringlight.testbed.freezes import families
from ringlight.testbed.lab import STATE_ROOT

_STEP = "slurmstepd"
#: Programs without the label, by the names that the kernel has for them.
_UNLABELLED = {_STEP, "slurmscriptd"}
#: So long a step has to report the end of its tasks, seconds.
REPORT_S = 0.5


def steps(directory: Path) -> list[int]:
    """Return the process ids of the steps of a cluster, by the folder of its files."""
    return [
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if _name(process) == _STEP and _opened(process, directory) is not None
    ]


def lab_of(pid: int, labs: Path = STATE_ROOT) -> str | None:
    """Return the lab of an unlabelled process of Slurm, or of any process below it; None for others.

    ``labs``: folder of all labs' states, which need not exist any more.
    """
    while pid > 1:
        process = Path("/proc", str(pid))
        if _name(process) in _UNLABELLED:
            file = _opened(process, labs)
            return None if file is None else file.parts[0]
        pid = _parent(process)
    return None


def _name(process: Path) -> str:
    """Return the kernel's name of a process, "" if it has ended."""
    with suppress(OSError):
        return (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _parent(process: Path) -> int:
    """Return the id of a process's parent, 0 if the process has ended."""
    with suppress(OSError):
        stat = (process / "stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[1])
    return 0


def _opened(process: Path, directory: Path) -> Path | None:
    """Return a file below a directory that a process has open, relative to the directory; None if it has none."""
    # The process, or a file of it, may go meanwhile.
    for descriptor in process.glob("fd/*"):
        with suppress(OSError, ValueError):
            return Path(os.readlink(descriptor)).relative_to(directory)
    return None


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
