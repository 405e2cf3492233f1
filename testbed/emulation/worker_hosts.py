"""A worker as a host of a lab: its place, its life and its end, whatever runs it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringlight.testbed.emulation.guests import Guest, GuestPlan
from ringlight.testbed.emulation.nodes import ShellLess
from ringlight.testbed.emulation.residents import Orders
from ringlight.testbed.lab import Lab
from ringlight.testbed.priority import favour
from ringlight.testbed.supervision import ended

#: Neither a user of the machine nor of the image: a worker owns its own directory and nothing else.
WORKER_UID = 61000
STDERR_TAIL_BYTES = 4096


class WorkerError(RuntimeError):
    """A worker could not be started; one line that says why."""


@dataclass(frozen=True)
class Outcome:
    """Result of a worker that has ended. ``exit_code``: None if a signal ended the worker."""

    exit_code: int | None
    signal: int | None
    oom: bool
    error: str | None
    stderr_tail: str


@dataclass(frozen=True)
class WorkerPlace:
    """Names, directory on this machine, and command of a worker process.

    In ``command`` the word ``{job}`` stands for the worker's directory as the worker sees it. ``onic``: the
    directory with the flow socket of its GPU's O-NIC, which a container sees as ``/onic``. ``checkpoint``:
    the directory for the states of its job, next to ``directory``. ``guest``: plan of the program that runs
    next to the worker, in the same network. ``residence``: home of a worker that stays, whose attempts use
    ``directory`` in turn.
    """

    id: str
    job: str
    rank: int
    gpu: str
    directory: Path
    command: tuple[str, ...]
    image: str | None = None
    onic: Path | None = None
    checkpoint: Path | None = None
    guest: GuestPlan | None = None
    residence: Path | None = None

    @property
    def home(self) -> Path:
        """The directory that its process sees as its own; the host is called as it is."""
        return self.residence or self.directory


class WorkerHost(ShellLess):
    """A host that is one worker. Start it, then plug its NIC; ``pidfd`` becomes readable when it dies.

    ``uid``: the user that it runs as and that owns its directory.
    """

    uid = WORKER_UID

    def __init__(
        self, name: str, *, lab: Lab, place: WorkerPlace, **params: Any
    ) -> None:
        self.lab = lab
        self.place = place
        self.pidfd: int | None = None
        self.guest: Guest | None = None
        #: Where it stays, who tells it what to run.
        self.orders: Orders | None = None
        super().__init__(name, **params)

    @property
    def gpu(self) -> str:
        """Name of the GPU whose NIC it is."""
        return self.place.gpu

    @property
    def checkpoint(self) -> str:
        """The directory for its job's states as the worker sees it."""
        raise NotImplementedError

    def launch(self) -> None:
        """Create and start it. Raises WorkerError."""
        raise NotImplementedError

    def outcome(self) -> Outcome:
        """Return how the worker ended. Call it once ``pidfd`` is readable."""
        raise NotImplementedError

    def remove(self) -> None:
        """End it if it runs, and remove all but its directory."""
        raise NotImplementedError

    def _adopt(self, pid: int) -> None:
        self.pid = pid
        favour()

    def kill(self) -> None:
        """SIGKILL to the worker's first process, and its guest's; no harm when it is gone."""
        if self.guest is not None:
            self.guest.kill()
        pidfd = self.pidfd
        if pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the descriptors; the namespace ends with the last of them."""
        if self.orders is not None:
            self.orders.close()
        for descriptor in (self.namespace, self.pidfd):
            if descriptor is not None:
                os.close(descriptor)
        self.namespace = self.pidfd = None


def worker_environment() -> dict[str, str]:
    """Return the environment of a worker: one thread for numerics, and no attempt to write compiled files."""
    return {
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def describe(outcome: Outcome | Mapping[str, Any]) -> str:
    """Return how a worker ended, in a few words, with the last line that it wrote."""
    came = outcome if isinstance(outcome, Outcome) else Outcome(**outcome)
    if came.error:
        how = came.error
    elif came.oom:
        how = "it ran out of memory"
    elif came.signal is not None:
        how = ended(-came.signal)
    else:
        how = f"exit code {came.exit_code}"
    lines = came.stderr_tail.strip().splitlines()
    return f"{how}; it said: {lines[-1]}" if lines else how
