"""Guests of workers: begun, watched over, and what they wrote and how they ended."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import docker.errors
import requests

from ringlight.containers.worker.holder import ENDED
from ringlight.testbed.emulation.agent.files import read_from, write_whole
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.agent.worker import Worker
from ringlight.testbed.emulation.agent.worker_events import WorkerEvents
from ringlight.testbed.emulation.docker_hosts import docker_reason
from ringlight.testbed.emulation.guests import Guest, GuestEnd

log = logging.getLogger(__name__)

DockerFailures = (docker.errors.DockerException, requests.RequestException)
#: As of a shell: the command could not be started.
NOT_STARTED = 127
#: What a guest said, in its worker's directory.
STREAMS = ("stdout", "stderr")
#: From one look at the space of a guest to the next, seconds.
LOOK_S = 0.5


class WorkerGuests:
    """The guests of a lab's workers.

    ``directory``: that of the workers' directories. ``lock``: that of the workers and their ``events``.
    ``wake``: has whoever hears of the ends of processes look for another one.
    """

    def __init__(
        self,
        directory: Path,
        events: WorkerEvents,
        lock: threading.RLock,
        wake: Callable[[], None],
    ) -> None:
        self._directory, self._events, self._lock, self._wake = (
            directory,
            events,
            lock,
            wake,
        )

    def begin(self, worker: Worker, start_s: float) -> None:
        """Start a worker's guest at ``start_s``, in a thread of its own."""
        while (left := start_s - time.monotonic()) > 0:
            if worker.state != "running":
                return
            time.sleep(min(left, 0.1))
        guest = worker.host.guest
        assert guest is not None
        try:
            started = guest.start()
        except DockerFailures as error:
            # Before the cause Docker names each program that it went through.
            cause = docker_reason(error).rpartition(
                "unable to start container process: "
            )[2]
            why = GuestEnd(time.monotonic(), NOT_STARTED, None, False, cause)
            self._note_guest_end(worker, why)
            return
        if started is None:
            return
        with self._lock:
            self._events.note(worker, {"t": started, "event": "command_started"})
        if guest.pidfd is None:
            self.ended(worker)
        self._wake()
        self._watch_home(worker, guest)

    def _watch_home(self, worker: Worker, guest: Guest) -> None:
        """End a guest that takes more space than it may."""
        while worker.guest_end is None and worker.state == "running":
            try:
                why = guest.overdrawn()
            except OSError as error:
                log.warning(
                    "the space that the guest of worker %s takes cannot be told: %s",
                    worker.place.id,
                    error,
                )
                why = None
            if why is not None:
                with self._lock:
                    worker.overdrawn = why
                guest.kill()
                return
            time.sleep(LOOK_S)

    def ended(self, worker: Worker) -> None:
        """Note how a worker's guest has ended."""
        guest = worker.host.guest
        assert guest is not None
        try:
            end = guest.end()
        except DockerFailures as error:
            end = GuestEnd(
                time.monotonic(), None, None, False, f"Docker: {docker_reason(error)}"
            )
        except Exception as error:
            log.exception(
                "how the command of worker %s ended cannot be told", worker.place.id
            )
            end = GuestEnd(
                time.monotonic(), None, None, False, f"internal error: {error}"
            )
        self._note_guest_end(worker, end)

    def _note_guest_end(self, worker: Worker, end: GuestEnd) -> None:
        self.save_output(worker)
        with self._lock:
            if worker.guest_end is not None or worker.state == "removed":
                return
            if worker.overdrawn is not None:
                # Nobody else has killed it.
                end = replace(end, exit_code=None, signal=None, error=worker.overdrawn)
            worker.guest_end = end
            self._events.note(worker, {"event": "command_ended", **asdict(end)})
        try:
            write_whole(worker.place.directory / ENDED, b"")
        except OSError as error:
            log.error(
                "worker %s is not told that its command has ended: %s",
                worker.place.id,
                error.strerror,
            )

    def save_output(self, worker: Worker) -> None:
        """Write the output of a worker's guest into the worker's directory."""
        guest, directory = worker.host.guest, worker.place.directory
        if guest is None or not guest.made or (directory / "stdout.txt").exists():
            return
        try:
            for stream, text in guest.output().items():
                write_whole(directory / f"{stream}.txt", text)
        except (*DockerFailures, OSError) as error:
            log.warning("output of worker %s is lost: %s", worker.place.id, error)

    def output(self, name: str, worker: Worker | None) -> dict[str, str]:
        """Return what the guest of a worker wrote, by stream; ``worker``: None if it has been removed. Raises
        AgentError."""
        if (
            worker is not None
            and worker.host.guest is not None
            and worker.guest_end is None
        ):
            try:
                streams = worker.host.guest.output()
            except DockerFailures as error:
                raise AgentError(
                    503, f"worker {name}: Docker: {docker_reason(error)}"
                ) from None
        else:
            try:
                streams = {
                    stream: read_from(self._directory / name / f"{stream}.txt", 0)
                    for stream in STREAMS
                }
            except OSError as error:
                raise AgentError(
                    404, f"worker {name}: no output of a command: {error.strerror}"
                ) from None
        return {
            stream: text.decode(errors="replace") for stream, text in streams.items()
        }
