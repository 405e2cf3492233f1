"""The states that jobs go on from, on this host and for others."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ringlight.testbed.emulation.agent.checkpoints import (
    checkpoint_directory,
    choose_state,
    chosen_state,
    remove_directory,
    take_state,
)
from ringlight.testbed.emulation.agent.files import read_from
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.worker_hosts import WORKER_UID

#: A job's state that goes to another host, bytes at most.
STATE_BYTES = 96 << 20


class JobStates:
    """States of jobs, next to the directories of workers in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def choose(self, job: str, without: Collection[int]) -> int:
        """Choose the state from which a job resumes, without the states of the ranks in ``without``. Return
        its iteration, 0 if there is none. Raises AgentError."""
        try:
            return choose_state(checkpoint_directory(self._directory, job), without)
        except OSError as error:
            raise AgentError(
                500, f"job {job}: its checkpoint: {error.strerror or error}"
            ) from None

    def content(self, job: str, iteration: int) -> bytes:
        """Return the content of the state from which a job resumes, for another host. Raises AgentError."""
        try:
            return read_from(
                chosen_state(checkpoint_directory(self._directory, job), iteration),
                0,
                STATE_BYTES,
            )
        except OSError as error:
            raise AgentError(
                404, f"job {job}: its state: {error.strerror or error}"
            ) from None

    def take(self, job: str, iteration: int, data: bytes) -> None:
        """The same, from another host. Raises AgentError."""
        try:
            take_state(
                checkpoint_directory(self._directory, job), iteration, data, WORKER_UID
            )
        except OSError as error:
            raise AgentError(
                500, f"job {job}: its state: {error.strerror or error}"
            ) from None

    def remove(self, job: str) -> None:
        """A job needs its states no more. Raises AgentError."""
        try:
            remove_directory(checkpoint_directory(self._directory, job))
        except OSError as error:
            raise AgentError(
                500, f"job {job}: its checkpoint: {error.strerror or error}"
            ) from None
