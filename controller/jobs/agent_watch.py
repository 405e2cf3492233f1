"""Look at the workers of jobs through the server agent, now and then and as soon as one has ended."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.errors import ControllerError
from ringlight.controller.jobs.job import JobState
from ringlight.controller.jobs.job_book import JobBook
from ringlight.controller.server_agent import AgentClient

log = logging.getLogger(__name__)

#: Longest wait of the controller for the end of a worker, before it waits again, seconds.
_LISTEN_S = 0.5
#: A look at the workers of a job that goes on follows after so long, and its release, seconds.
HASTE_S = 0.02


class AgentWatch:
    """Threads that ask the agent. ``stop``: set when the controller ends.

    ``digest``: takes in an answer, the jobs whose workers had all been started when it was asked, and whether
    it is the first one. ``error``: reason for which the agent does not answer; None if it does.
    """

    def __init__(
        self,
        agent: AgentClient | None,
        book: JobBook,
        bus: EventBus,
        digest: Callable[[Mapping[str, Any], Collection[str], bool], None],
        stop: threading.Event,
        *,
        busy_s: float,
        idle_s: float,
    ) -> None:
        self._agent, self._book, self._bus, self._digest = agent, book, bus, digest
        self._busy_s, self._idle_s = busy_s, idle_s
        #: When the last look at the workers that is over began.
        self._looked_s = -math.inf
        self.error: str | None = None
        self._wake = threading.Event()
        self._stop = stop
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._listener = threading.Thread(target=self._listen, name="ends", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()
        self._listener.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads, which end once ``stop`` is set, ``timeout_s`` seconds for each."""
        self._wake.set()
        with self._book.changed:
            self._book.changed.notify_all()
        for thread in (self._thread, self._listener):
            if thread.ident is not None:
                thread.join(timeout_s)

    def look_soon(self) -> None:
        """Have the workers looked at without delay."""
        self._wake.set()

    def wait_for_look(self, since_s: float, timeout_s: float) -> None:
        """Have the workers looked at, and wait for a look that began after ``since_s`` (monotonic seconds).

        The caller holds the jobs' lock.
        """
        self._wake.set()
        self._book.changed.wait_for(
            lambda: self._looked_s >= since_s or self._stop.is_set(), timeout_s
        )

    def _listen(self) -> None:
        """Look at the workers as soon as one has ended."""
        known = 0
        while self._agent is not None and not self._stop.is_set():
            with self._book.changed:
                if not self._book.busy():
                    self._book.changed.wait_for(
                        lambda: self._book.busy() or self._stop.is_set()
                    )
                    continue
            try:
                ends = self._agent.ends(known, _LISTEN_S)
            except ControllerError:
                # That it does not answer is told by whoever looks.
                self._stop.wait(1.0)
                continue
            if ends != known:
                known = ends
                self._wake.set()

    def _run(self) -> None:
        if self._agent is None:
            return
        first = True
        period_s = 0.0
        while not self._stop.is_set():
            self._wake.wait(period_s)
            self._wake.clear()
            if self._stop.is_set():
                return
            with self._book.lock:
                busy, jobs = self._book.busy(), list(self._book.jobs.values())
                # An answer may be older than a start that ends while it is on its way.
                complete = {job.id for job in jobs if job.started}
                hasty = any(
                    job.state is JobState.RECOVERING and job.started for job in jobs
                )
            begun_s = time.monotonic()
            period_s = self._busy_s if busy else self._idle_s
            period_s = min(period_s, HASTE_S) if hasty else period_s
            try:
                answer = self._agent.workers(self._book.cursor)
            except ControllerError as error:
                if self.error is None:
                    self._bus.publish("agent", state="down", text=str(error))
                self.error = str(error)
                continue
            if self.error is not None:
                self._bus.publish("agent", state="up")
                self.error = None
            try:
                self._digest(answer, complete, first)
            except Exception:
                # One odd answer must not end the watch over all jobs.
                log.exception("the agent's answer could not be used")
            first = False
            with self._book.changed:
                self._looked_s = begun_s
                self._book.changed.notify_all()
