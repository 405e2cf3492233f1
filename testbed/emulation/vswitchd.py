"""Watches the process of Open vSwitch, which is the machine's: when it ends, and when it is back."""

from __future__ import annotations

import logging
import os
import re
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ringlight.testbed.deaths import Deaths

log = logging.getLogger(__name__)

PID_FILE = Path("/var/run/openvswitch/ovs-vswitchd.pid")
#: Where its monitor says how it ended.
LOG_FILE = Path("/var/log/openvswitch/ovs-vswitchd.log")
NAME = "ovs-vswitchd"
#: Between two looks for another in its place, and what the monitor has to say how it ended, seconds.
LOOK_S, WORDS_S = 0.1, 0.5
STOP_S = 10.0


class VswitchdWatch:
    """Watches while it is entered. ``on_back`` is called once another process has the place of a dead one."""

    def __init__(
        self,
        deaths: Deaths,
        on_back: Callable[[], None],
        pid_file: Path = PID_FILE,
        log_file: Path = LOG_FILE,
    ) -> None:
        self._deaths, self._on_back = deaths, on_back
        self._pid_file, self._log_file = pid_file, log_file
        self._first: tuple[int, int] | None = None
        self._stop = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)

    def __enter__(self) -> VswitchdWatch:
        # Here: it may end before the thread has come so far.
        self._first = self._process()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        os.write(self._wake_write, b"!")
        self._thread.join(STOP_S)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        current, died = self._first, False
        while not self._stop.is_set():
            if current is None:
                self._stop.wait(LOOK_S)
                if (current := self._process()) is not None and died:
                    self._is_back()
                continue
            pid, descriptor = current
            poll = select.poll()
            poll.register(self._wake_read, select.POLLIN)
            poll.register(descriptor, select.POLLIN)
            # Without a deadline: stopping wakes it.
            poll.poll()
            os.close(descriptor)
            if self._stop.is_set():
                return
            how = self._how(pid)
            log.error("%s (process %d) has ended: %s", NAME, pid, how)
            self._deaths.ended("Open vSwitch", NAME, how, False)
            current, died = None, True

    def _is_back(self) -> None:
        log.warning("%s runs again", NAME)
        self._deaths.back("Open vSwitch", NAME)
        try:
            self._on_back()
        except Exception:
            # It is watched all the same.
            log.exception("%s: its buffers stay as they are", NAME)

    def _process(self) -> tuple[int, int] | None:
        """Process of vswitchd and a descriptor of it; None while it does not run."""
        try:
            pid = int(self._pid_file.read_text())
            descriptor = os.pidfd_open(pid)
        except (OSError, ValueError):
            return None
        # Not select(), which knows no descriptor beyond 1023: a lab of many containers has some.
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        ended = poll.poll(0)
        if ended:
            os.close(descriptor)
        return None if ended else (pid, descriptor)

    def _how(self, pid: int) -> str:
        """Return how a process ended, according to its monitor's log."""
        self._stop.wait(WORDS_S)
        with suppress(OSError):
            with self._log_file.open("rb") as file:
                file.seek(max(0, self._log_file.stat().st_size - 65536))
                text = file.read().decode(errors="replace")
            words = re.findall(
                rf"\b{pid} died, (.*?)(?:, restarting|, exiting)?$", text, re.MULTILINE
            )
            if words:
                return str(words[-1])
        return "how is not on record"
