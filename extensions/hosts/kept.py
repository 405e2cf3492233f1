"""A process of a host that a task of Dask looks after, and that does not end with the task's worker.

A worker may die, and all workers end with their scheduler. The process keeps running, in a lab's state
directory of its own; the next task with the same key finds it there and looks after it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ringlight.extensions.hosts.cluster import OwnWorker
from ringlight.extensions.hosts.parts.plan import LOG, tail
from ringlight.testbed.lab import STATE_ROOT, Lab, LabError, new_lab
from ringlight.testbed.process_start import Process, start_process
from ringlight.testbed.standing_labs import belongs_to, remove

#: Longest orderly end, and longest wait for another task that looks after it, seconds.
END_S, TAKEN_S = 30.0, 40.0
_KEY, _PID, _TAKEN = "key", "testbed.pid", "taken.lock"
_EVERY_S = 0.1
#: Those of this worker's own, which it has to wait for once they have ended, by lab.
_PROCESSES: dict[str, Process] = {}


@contextmanager
def looked_after(
    key: str, start: Callable[[Lab], Sequence[str] | None], worker: OwnWorker
) -> Iterator[Lab]:
    """Find the process with this key, or start it, and stay until it has ended. Yield its lab, of which
    nothing runs then.

    ``start`` makes the files of a new lab and returns the command, None if the process must not be started
    any more. The lab's files are removed at the end of the context. The process is ended if its task's result
    is no longer needed. Raises LabError, and distributed.Reschedule if the worker ends: the process keeps
    running then.
    """
    lab = _found(key) or new_lab()
    # Held until nothing is left: a lab that comes up meanwhile would take it for a dead one's.
    with lab.hold(), _taken(lab):
        if _pid(lab) is None:
            _start(lab, key, start)
        while not worker.unwanted() and _runs(lab):
            if worker.ends():
                raise worker.reschedule()
            time.sleep(_EVERY_S)
        try:
            _end(lab)
            yield lab
        finally:
            _PROCESSES.pop(lab.id, None)
            remove(lab)


def _found(key: str) -> Lab | None:
    """Return the lab with this key whose process lives, or has ended without a task that looked after it.

    Returns None if there is no such lab.
    """
    for lab, other in _all():
        if other == key:
            if _pid(lab) is not None or _is_taken(lab):
                return lab
            # Its worker died while it started it.
            remove(lab)
    return None


def _all() -> Iterator[tuple[Lab, str]]:
    for path in STATE_ROOT.glob(f"*/{_KEY}"):
        # It may be going.
        with suppress(OSError, LabError):
            yield Lab(path.parent.name), path.read_text(encoding="utf-8")


@contextmanager
def _taken(lab: Lab) -> Iterator[None]:
    """Hold a lab for the length of the block. Raises LabError if another task keeps it."""
    with (lab.state_dir / _TAKEN).open("a", encoding="ascii") as file:
        deadline = time.monotonic() + TAKEN_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LabError(
                        f"lab {lab.id} of this host is another task's"
                    ) from None
                time.sleep(_EVERY_S)
        yield


def _start(lab: Lab, key: str, start: Callable[[Lab], Sequence[str] | None]) -> None:
    try:
        if (command := start(lab)) is None:
            raise LabError("its part has ended")
        state = lab.state_dir
        # Not told of a server that forks for the worker's labs: that ends with the worker.
        (state / _KEY).write_text(key, encoding="utf-8")
        with (state / LOG).open("ab") as output:
            process = _PROCESSES[lab.id] = start_process(
                command, lab.environment(), output, as_client=False
            )
        (state / _PID).write_text(str(process.pid), encoding="ascii")
    except BaseException:
        remove(lab)
        raise


def end_forsaken(kind: str, but: str) -> None:
    """End processes that no task looks after any more: their places are taken again.

    ``kind``: what their keys begin with; ``but``: the key of one that keeps running.
    """
    for lab, key in _all():
        if key.startswith(kind) and key != but and not _is_taken(lab):
            _end(lab)
            remove(lab)


def end_all(kind: str, selects: Callable[[Lab], bool]) -> list[Lab]:
    """End the processes for whose labs ``selects`` is true, and wait until nothing is left of them. Return
    their labs.

    ``kind``: beginning of their keys. The wait ends after END_S + TAKEN_S seconds in any case.
    """
    labs = [lab for lab, key in _all() if key.startswith(kind) and selects(lab)]
    for lab in labs:
        if not _is_taken(lab):
            _end(lab)
            remove(lab)
        elif (pid := _pid(lab)) is not None and belongs_to(lab, pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + END_S + TAKEN_S
    while any(lab.state_dir.exists() for lab in labs) and time.monotonic() < deadline:
        time.sleep(_EVERY_S)
    return labs


def kept(kind: str) -> Iterator[Lab]:
    """Yield the labs of processes whose keys begin with ``kind``."""
    for lab, key in _all():
        if key.startswith(kind):
            yield lab


def take_left(key: str) -> bytes | None:
    """Return the log of a process that has ended without a task that looked after it, and remove its lab.

    Returns nothing (``b""``) while the process runs or has a task, and None if there is no such process any
    more.
    """
    for lab, other in _all():
        if other == key:
            if _is_taken(lab) or _runs(lab):
                return b""
            output = log_of(lab)
            remove(lab)
            return output
    return None


def _is_taken(lab: Lab) -> bool:
    with (lab.state_dir / _TAKEN).open("a", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _runs(lab: Lab) -> bool:
    own = _PROCESSES.get(lab.id)
    if own is not None:
        return own.poll() is None
    pid = _pid(lab)
    return pid is not None and belongs_to(lab, pid)


def _pid(lab: Lab) -> int | None:
    try:
        return int((lab.state_dir / _PID).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def log_of(lab: Lab) -> bytes:
    """Return the end of the output of a lab's process."""
    return tail(lab.state_dir / LOG)


def _end(lab: Lab) -> None:
    pid, deadline = _pid(lab), time.monotonic() + END_S
    for number in (signal.SIGTERM, signal.SIGKILL):
        if pid is None or not _runs(lab):
            break
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        while _runs(lab) and time.monotonic() < deadline:
            time.sleep(_EVERY_S)
        deadline += 5.0
