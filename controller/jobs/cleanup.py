"""End jobs: have their workers, maps and light removed, each tried until it works."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ringlight.controller.bus import EventBus
from ringlight.controller.errors import ControllerError
from ringlight.controller.jobs.background import Background
from ringlight.controller.jobs.job import Job, JobState
from ringlight.controller.jobs.job_book import JobBook
from ringlight.controller.jobs.job_lights import JobLights
from ringlight.controller.server_agent import AgentClient

log = logging.getLogger(__name__)

#: Longest time that starting a job's workers may take, seconds.
START_S = 120.0
#: At most so many of a job's spares have a process that waits for them.
WAITING = 8


class Cleanup:
    """Frees the GPUs of jobs that have ended. ``stop``: set when the controller ends."""

    def __init__(
        self,
        agent: AgentClient | None,
        book: JobBook,
        lights: JobLights,
        bus: EventBus,
        background: Background,
        stop: threading.Event,
    ) -> None:
        self._agent, self._book, self._lights, self._bus = agent, book, lights, bus
        self._background, self._stop = background, stop

    def end(self, job: Job, state: JobState) -> None:
        """End a job in this state; its workers are removed in the background."""
        self._book.enter(job, state)
        self.begin(job)

    def begin(self, job: Job) -> None:
        """Remove what an ended job has left, in the background."""
        self._background.spawn(self._remove_workers, job)

    def _remove_workers(self, job: Job) -> None:
        """Remove every worker of a job that has ended, its maps and light, then free its GPUs.

        Each is tried until it works.
        """
        with self._book.changed:
            self._book.changed.wait_for(
                lambda: job.id not in self._book.starting or self._stop.is_set(),
                START_S,
            )
        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(self._remove_worker, job.workers))
        if job.plane is None:
            self.remove_spares(job)
        self._lights.clear(job, self._stop)
        if job.on_loss != "fail":
            self.until_done(
                f"states of job {job.id}", lambda agent: agent.remove_states(job.id)
            )
        if self._stop.is_set():
            return
        with self._book.changed:
            job.clean = True
            self._lights.forget(job)
            self._book.save()
            self._book.changed.notify_all()
        self._bus.publish("job_clean", job=job.id, gpus=list(job.gpus))

    def remove_spares(self, job: Job) -> None:
        """Remove the processes that wait on a job's spares."""
        for gpu in job.spares[:WAITING]:
            self._remove_worker(f"{job.id}-spare-{gpu}")

    def _remove_worker(self, worker: str) -> None:
        self.until_done(f"worker {worker}", lambda agent: agent.remove(worker))

    def until_done(self, what: str, remove: Callable[[AgentClient], None]) -> None:
        """Have the agent remove something; tried until it works."""
        while self._agent is not None and not self._stop.is_set():
            try:
                remove(self._agent)
            except ControllerError as error:
                log.warning("%s not removed: %s", what, error)
                self._stop.wait(1.0)
            else:
                return
