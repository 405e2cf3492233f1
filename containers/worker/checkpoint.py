"""A rank's state between iterations, from which its job can continue when a GPU is lost.

The parameters are all: everything else follows from the spec and the number of the iteration. They are the
same bits on every rank, so the newest file of any rank serves all. A file is one numpy array and has the
iteration that it leads to in its name: ``rank-2.17.npy`` has the state of rank 2 before iteration 17.
``resume.17.npy`` is the file from which the server agent chose to continue.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ringlight.containers.worker.model import PARAMETERS, Array


class BadCheckpoint(OSError):
    """A state cannot be read; the message names the file."""


class Checkpoint:
    """Keeps the newest state of one rank in ``directory``, and reads the state from which the job
    continues.
    """

    def __init__(self, directory: Path, rank: int, every: int = 1) -> None:
        self._directory = directory
        self._rank = rank
        self._every = every
        self._newest: Path | None = None

    def keep(self, iteration: int, parameters: Array) -> None:
        """Write the state before ``iteration``, if it is its turn; the one before it goes. Raises OSError.

        Not forced to the disk: the file outlives its process as it is, and a lost machine loses it anyway.
        """
        if iteration % self._every:
            return
        name = f"rank-{self._rank}.{iteration}.npy"
        temporary = self._directory / f".{name}"
        with temporary.open("wb") as file:
            np.save(file, parameters.astype("<f4", copy=False), allow_pickle=False)
        path = self._directory / name
        os.rename(temporary, path)
        if self._newest is not None:
            self._newest.unlink(missing_ok=True)
        self._newest = path

    def read(self, iteration: int) -> Array:
        """Return the parameters, [PARAMETERS] float32, before ``iteration``. Raises BadCheckpoint."""
        path = self._directory / f"resume.{iteration}.npy"
        try:
            parameters = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise BadCheckpoint(f"checkpoint {path.name}: {error}") from error
        if parameters.dtype != np.dtype("<f4") or parameters.shape != (PARAMETERS,):
            actual = f"{parameters.dtype}{parameters.shape}"
            raise BadCheckpoint(
                f"checkpoint {path.name}: expected {PARAMETERS} float32, got {actual}"
            )
        state: Array = parameters.astype(np.float32)
        return state
