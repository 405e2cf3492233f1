"""The states that a job's workers leave for its next ones (see ``containers.worker.checkpoint``).

A job's directory belongs to its workers, so only names count here: no file is opened, no link followed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

_STATE = re.compile(r"(?:rank-(\d{1,9})|resume)\.(\d{1,9})\.npy")


def checkpoint_directory(workers: Path, job: str) -> Path:
    """Return the directory for the states of a job. It is next to the workers' own directories, so that a
    worker in a network namespace may enter it."""
    return workers / f"{job}.checkpoint"


def make_directory(directory: Path, uid: int) -> None:
    """The directory of one job for workers of user ``uid``; one that is there stays. Raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chown(directory, uid, uid)


def choose_state(directory: Path, without: Collection[int]) -> int:
    """Choose the state from which a job resumes. Return its iteration, or 0 if there is no state other than
    those of the ranks in ``without``.

    The newest state is renamed to the name that a worker looks for, and all others are removed. A second call
    therefore returns the same. Call it when no worker of the job runs. Raises OSError.
    """
    states: list[tuple[int, bool, Path]] = []
    obsolete: list[Path] = []
    for path in directory.iterdir() if directory.exists() else ():
        named = _STATE.fullmatch(path.name)
        if named is None or (named[1] is not None and int(named[1]) in without):
            obsolete.append(path)
        else:
            states.append((int(named[2]), named[1] is None, path))
    states.sort()
    iteration = 0
    if states:
        iteration, _, newest = states.pop()
        newest.rename(chosen_state(directory, iteration))
    for path in [*obsolete, *(path for _, _, path in states)]:
        path.unlink()
    return iteration


def chosen_state(directory: Path, iteration: int) -> Path:
    """Return the path of the state that was chosen after so many iterations."""
    return directory / f"resume.{iteration}.npy"


def take_state(directory: Path, iteration: int, data: bytes, uid: int) -> None:
    """Have a state that was chosen on another machine be the only one here. Raises OSError."""
    make_directory(directory, uid)
    part = directory / ".resume"
    with open(
        os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb"
    ) as file:
        file.write(data)
    os.chown(part, uid, uid, follow_symlinks=False)
    for path in directory.iterdir():
        if path != part:
            path.unlink()
    part.rename(chosen_state(directory, iteration))


def remove_directory(directory: Path) -> None:
    """Remove the directory of an ended job, if it exists. Raises OSError."""
    if directory.exists():
        shutil.rmtree(directory)
