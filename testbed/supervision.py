"""Keeps a lab's devices running: one thread that waits for deaths and restarts what died."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ringlight.testbed.process_start import Process

log = logging.getLogger(__name__)

#: Pause before a dead process is started again, seconds; doubles with each death soon after a start.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
#: One that has run so long has recovered.
STEADY_S = 5.0
STOP_S = 2.0


class SupervisionError(RuntimeError):
    """A process cannot be killed, because it does not run; one line."""


Start = Callable[[], Process]


@dataclass
class _Charge:
    start: Start
    process: Process
    pidfd: int
    since: float
    pause_s: float = FIRST_PAUSE_S
    due: float | None = None
    restarts: int = 0
    #: How the one before ended.
    ended: str | None = None
    away: bool = False
    #: Killed on purpose, since it was started.
    asked: bool = False


@dataclass(frozen=True)
class Life:
    """Process as it is now, and how often it was started again.

    ``ended``: how it ended last, None if it never has. ``since``: its last start, CLOCK_MONOTONIC seconds.
    """

    pid: int
    runs: bool
    restarts: int
    ended: str | None
    since: float

    @property
    def has_died(self) -> bool:
        return self.restarts > 0 or not self.runs


class Supervisor:
    """Starts processes, and starts them again when they die.

    ``on_restart`` is called with name and process id, and whether the one before was killed on purpose;
    ``on_end``, as soon as one has ended: name, how, and whether it was killed on purpose.

    ``kind``: what people call such a process, before its name. ``last_words``: what a process said last, for
    one that ended by itself. ``stop_s``: how long they may take to end in order, seconds. Raises what
    ``start`` raises, for the first start only.
    """

    def __init__(
        self,
        kind: str,
        starts: Mapping[str, Start],
        on_restart: Callable[[str, int, bool], None],
        last_words: Callable[[str], str] | None = None,
        stop_s: float = STOP_S,
        *,
        on_end: Callable[[str, str, bool], None] | None = None,
    ) -> None:
        self.kind = kind
        self._stop_s = stop_s
        self._on_restart = on_restart
        self._last_words = last_words
        self._on_end = on_end
        self._lock = threading.Lock()
        self._stopping = False
        self._charges: dict[str, _Charge] = {}
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(
            target=self._run, name=f"supervisor: {kind}", daemon=True
        )
        try:
            for name, start in starts.items():
                self._charges[name] = _launch(start)
        except BaseException:
            self._end()
            raise
        self._thread.start()

    def lives(self) -> dict[str, Life]:
        with self._lock:
            return {
                name: Life(
                    c.process.pid,
                    c.due is None and c.process.poll() is None,
                    c.restarts,
                    c.ended,
                    c.since,
                )
                for name, c in self._charges.items()
            }

    def kill(self, name: str) -> None:
        """SIGKILL; it is not started again before :meth:`let_start`. Raises SupervisionError."""
        with self._lock:
            charge = self._charges[name]
            if charge.due is not None or charge.process.poll() is not None:
                raise SupervisionError(f"{self.kind} {name} does not run")
            charge.away = charge.asked = True
            charge.process.kill()

    def let_start(self, name: str) -> None:
        """Start one again that was killed, as soon as it has ended."""
        with self._lock:
            charge = self._charges[name]
            charge.away = False
            if charge.due is not None:
                charge.due = time.monotonic()
        os.write(self._wake_write, b"!")

    def stop(self) -> None:
        """End them all, without starting any again."""
        with self._lock:
            self._stopping = True
        if self._thread.ident is not None:
            os.write(self._wake_write, b"!")
            self._thread.join(10)
        self._end()

    def _end(self) -> None:
        for charge in self._charges.values():
            if charge.process.poll() is None:
                charge.process.terminate()
        deadline = time.monotonic() + self._stop_s
        for charge in self._charges.values():
            try:
                charge.process.wait(max(0.01, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                charge.process.kill()
                charge.process.wait(5)
            with suppress(OSError):
                os.close(charge.pidfd)
        self._charges.clear()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._stopping:
                    return
                waiting = [
                    c.due
                    for c in self._charges.values()
                    if c.due is not None and not c.away
                ]
                alive = {
                    c.pidfd: name for name, c in self._charges.items() if c.due is None
                }
            poll = select.poll()
            poll.register(self._wake_read, select.POLLIN)
            for descriptor in alive:
                poll.register(descriptor, select.POLLIN)
            pause_s = max(0.0, min(waiting) - time.monotonic()) if waiting else 60.0
            for descriptor, _ in poll.poll(pause_s * 1000 + 1):
                if descriptor == self._wake_read:
                    os.read(self._wake_read, 4096)
                elif descriptor in alive:
                    self._died(alive[descriptor])
            for name in [
                n
                for n, c in self._charges.items()
                if c.due is not None and not c.away and c.due <= time.monotonic()
            ]:
                self._restart(name)

    def _died(self, name: str) -> None:
        charge = self._charges[name]
        code = charge.process.wait()
        now = time.monotonic()
        how = ended(code)
        if self._last_words is not None and code >= 0:
            # A process that was killed had no say in it.
            with suppress(OSError):
                how = f"{how}: {self._last_words(name)}"
        with self._lock:
            charge.ended = how
            steady = now - charge.since > STEADY_S
            charge.pause_s = FIRST_PAUSE_S if steady else charge.pause_s
            charge.due = now + charge.pause_s
        pause = "later" if charge.away else f"in {charge.pause_s:.1f} s"
        log.error(
            "%s %s has ended (%s); it is started again %s", self.kind, name, how, pause
        )
        if self._on_end is not None:
            self._on_end(name, how, charge.asked)

    def _restart(self, name: str) -> None:
        charge = self._charges[name]
        with self._lock:
            if self._stopping:
                return
            pause_s = min(LONGEST_PAUSE_S, 2 * charge.pause_s)
            try:
                fresh = _launch(charge.start)
            except Exception as error:  # noqa: BLE001  (said, and tried again)
                log.error("%s %s cannot be started: %s", self.kind, name, error)
                charge.pause_s, charge.due = pause_s, time.monotonic() + pause_s
                return
            os.close(charge.pidfd)
            fresh.pause_s, fresh.restarts, fresh.ended = (
                pause_s,
                charge.restarts + 1,
                charge.ended,
            )
            self._charges[name] = fresh
        log.warning("%s %s runs again", self.kind, name)
        try:
            self._on_restart(name, fresh.process.pid, charge.asked)
        except Exception:
            # The callback may fail; the processes are looked after all the same.
            log.exception("%s %s: its restart could not be told", self.kind, name)


def ended(code: int) -> str:
    """Return how a process ended, for people. ``code``: as in ``Popen.returncode``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def answers(address: Path | tuple[str, int]) -> bool:
    """Return whether a server listens on a Unix socket, or at an IP address and port."""
    inet = (
        socket.AF_INET6
        if ":" in str(address[0] if isinstance(address, tuple) else "")
        else socket.AF_INET
    )
    family = socket.AF_UNIX if isinstance(address, Path) else inet
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(address) if isinstance(address, Path) else address)
        except OSError:
            return False
    return True


def last_line(log_file: Path) -> str:
    """Return the last line that a process of the lab wrote, or a notice if it wrote none."""
    with suppress(OSError):
        lines = log_file.read_text(errors="replace").strip().splitlines()
        if lines:
            return lines[-1]
    return "it said nothing"


def _launch(start: Start) -> _Charge:
    process = start()
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        process.kill()
        process.wait(STOP_S)
        raise
    return _Charge(start, process, pidfd, time.monotonic())
