"""Workers as processes in network namespaces, as hosts of a lab without Docker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from mininet.node import Host

from ringlight import IMPORT_PATH
from ringlight.testbed.emulation.kernel import namespaces, network_errors
from ringlight.testbed.emulation.worker_hosts import (
    STDERR_TAIL_BYTES,
    WORKER_UID,
    Outcome,
    WorkerError,
    WorkerHost,
    worker_environment,
)
from ringlight.testbed.process_start import Process, pidfd_of, start_process


class NamespaceHost(WorkerHost, Host):  # type: ignore[misc]
    """A worker as a process in a network namespace of its own, for machines without Docker.

    It has no capabilities and cannot gain any, and runs as an unprivileged user where that user can read
    the program, else as root without the powers of root (it may then still write to files of root). Unlike
    a container it sees the machine's file system and processes.
    """

    def __init__(
        self, name: str, *, environment: Mapping[str, str], **params: Any
    ) -> None:
        self.environment = environment
        self.process: Process | None = None
        self._reap = threading.Lock()
        self.netns: str | None = None
        self.uid = WORKER_UID if program_is_readable() else 0
        super().__init__(name, **params)

    @property
    def checkpoint(self) -> str:
        """Path of its checkpoint from its own directory: the worker may not pass through the lab's."""
        return (
            f"../{self.place.checkpoint.name}"
            if self.place.checkpoint is not None
            else ""
        )

    def launch(self) -> None:
        place = self.place
        self.netns = self.lab.namespace(place.home.name)
        try:
            namespaces.delete_namespace(self.netns)
            descriptor = namespaces.create_namespace(self.netns)
        except network_errors.NetworkError as error:
            raise WorkerError(f"worker {place.id}: {error}") from None
        command = [word.replace("{job}", ".") for word in place.command]
        environment = {**self.environment, **worker_environment()}

        def start() -> Process:
            # Its namespace is that of the thread that starts it.
            with (
                (place.home / "stderr.txt").open("wb") as errors,
                open(os.devnull, "wb") as nowhere,
            ):
                return start_process(
                    command,
                    environment,
                    nowhere,
                    errors=errors,
                    directory=place.home,
                    user=self.uid,
                )

        try:
            self.process = namespaces.in_namespace(descriptor, start)
            # Not asked for by its number: it may have ended, or not be there yet.
            self.pidfd, self.namespace = pidfd_of(self.process), os.dup(descriptor)
            self._adopt(self.process.pid)
        except (OSError, network_errors.NetworkError) as error:
            raise WorkerError(f"worker {place.id}: {error}") from None
        finally:
            os.close(descriptor)

    def outcome(self) -> Outcome:
        assert self.process is not None
        with self._reap:
            try:
                code = self.process.wait(5)
            except subprocess.TimeoutExpired:
                return Outcome(None, None, False, "the process does not end", "")
        try:
            tail = (self.place.home / "stderr.txt").read_text(errors="replace")[
                -STDERR_TAIL_BYTES:
            ]
        except OSError as error:
            tail = f"(no stderr: {error.strerror})"
        return Outcome(
            None if code < 0 else code, -code if code < 0 else None, False, None, tail
        )

    def remove(self) -> None:
        if self.process is not None and self.process.poll() is None:
            # The worker leads a session of its own: whatever it started ends with it.
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            # Where it was forked, it may not have come to lead one yet.
            self.process.kill()
            with self._reap:
                self.process.wait(5)
        self.close()
        if self.netns is not None:
            namespaces.delete_namespace(self.netns)


@cache
def program_is_readable() -> bool:
    """Return whether any user may run this Python and read this source tree."""
    return readable_by_others(Path(sys.executable)) and readable_by_others(IMPORT_PATH)


def readable_by_others(path: Path) -> bool:
    """Return whether any user may read ``path`` and traverse every directory on the way, following links."""
    real = path.resolve()
    if not real.stat().st_mode & 0o004:
        return False
    ways = [*path.absolute().parents, *real.parents]
    return all(parent.stat().st_mode & 0o001 for parent in ways)
