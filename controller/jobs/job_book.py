"""Keep the jobs of a fabric: in memory under one lock, on disk, and told to who listens."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.errors import ConflictError, InvalidError, NotFoundError
from ringlight.controller.jobs.job import Job, JobState
from ringlight.controller.store import Store

log = logging.getLogger(__name__)

_JOBS = "jobs"
#: Stored jobs that cannot be used, each with the reason.
_ASIDE = "jobs_set_aside"


class JobBook:
    """All jobs that this controller and earlier ones accepted.

    ``changed`` holds their ``lock``: whoever waits for a job waits on it. ``starting``: jobs whose workers
    are being started. ``cursor``: up to where the agent's events were taken in. ``dead_gpus``: GPUs that the
    agent starts no worker on.
    """

    def __init__(self, store: Store, bus: EventBus) -> None:
        self._store, self._bus = store, bus
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.jobs: dict[str, Job] = {}
        self.starting: set[str] = set()
        self.cursor = 0
        self.dead_gpus: frozenset[str] = frozenset()
        self._aside: list[dict[str, Any]] = []

    def take_lost(self, gpus: Collection[str]) -> None:
        """Take in which GPUs are lost now, and tell of each that was not before or is no more."""
        before, self.dead_gpus = self.dead_gpus, frozenset(gpus)
        for gpu in sorted(before ^ self.dead_gpus):
            holder = self.holders().get(gpu)
            lost = gpu in self.dead_gpus
            self._bus.publish("gpu", gpu=gpu, lost=lost, job=holder)

    def load(self, take_over: Callable[[Mapping[str, Any]], None]) -> None:
        """Take over stored jobs; one that cannot be used is set aside.

        Raises ValueError on a file that is no JSON.
        """
        self._aside = list(self._store.read(_ASIDE) or ())
        aside = len(self._aside)
        for record in (self._store.read(_JOBS) or {"jobs": []})["jobs"]:
            try:
                take_over(record)
            except (
                ValueError,
                KeyError,
                TypeError,
                AttributeError,
                InvalidError,
            ) as error:
                self._set_aside(record, error)
        if len(self._aside) > aside:
            self._store.write(_ASIDE, self._aside)
            self.save()

    def _set_aside(self, record: Any, error: Exception) -> None:
        """Go on without a job that cannot be used; its record is kept."""
        name = record.get("id") if isinstance(record, Mapping) else None
        reason = (
            f"{type(error).__name__}: {error}"
            if isinstance(error, KeyError)
            else str(error)
        )
        log.error("the stored job %s cannot be used and is set aside: %s", name, reason)
        self._aside.append({"job": name, "reason": reason, "record": record})

    @property
    def set_aside(self) -> list[str]:
        """A line for each stored job that cannot be used."""
        return [
            f"the stored job {record['job']} cannot be used ({record['reason']}); it is in {_ASIDE}.json"
            for record in self._aside
        ]

    def find(self, job_id: str) -> Job:
        """Return a job. Raises NotFoundError."""
        job = self.jobs.get(job_id)
        if job is None:
            raise NotFoundError(f"there is no job {job_id}")
        return job

    def holders(self) -> dict[str, str]:
        """Return the job that has each taken GPU."""
        with self.lock:
            going = [job for job in self.jobs.values() if not job.state.ended]
            return {gpu: job.id for job in going for gpu in (*job.gpus, *job.kept)}

    def running(self, ids: Iterable[str] | None = None) -> list[Job]:
        """Return the jobs that hold GPUs and have not ended; only those in ``ids``, if given.

        Raises NotFoundError; ConflictError if a job in ``ids`` has ended.
        """
        with self.lock:
            chosen = (
                [self.find(i) for i in ids]
                if ids is not None
                else list(self.jobs.values())
            )
            for job in chosen:
                if ids is not None and job.state.ended:
                    raise ConflictError(f"job {job.id} has ended ({job.state.value})")
            return [job for job in chosen if not job.state.ended]

    def busy(self) -> bool:
        """Return whether any job has workers, or may have some. The caller holds the lock."""
        return any(not (job.state.ended and job.clean) for job in self.jobs.values())

    def left_on(self) -> set[str]:
        """Return GPUs on which workers of ended jobs may still be."""
        left = (job for job in self.jobs.values() if job.state.ended and not job.clean)
        return {gpu for job in left for gpu in job.gpus}

    def vacated(self, job: Job, alone: bool) -> bool:
        """Return whether no ended job has workers left on this job's GPUs, or light on the plane that this
        job has ``alone``.
        """
        return not any(
            other.state.ended
            and not other.clean
            and (
                set(other.gpus) & set(job.gpus) or (alone and other.plane == job.plane)
            )
            for other in self.jobs.values()
            if other is not job
        )

    def new_id(self, name: str, taken: Container[str] = ()) -> str:
        """Return a job id that no job has and that is not ``taken``, made of a name."""
        number, job_id = 1, name
        while job_id in self.jobs or job_id in taken:
            number += 1
            job_id = f"{name}-{number}"
        return job_id

    def enter(self, job: Job, state: JobState) -> None:
        """Put a job into a state."""
        job.enter(state, time.monotonic())
        self.keep(job)

    def keep(self, job: Job) -> None:
        """Keep the state on disk and tell it."""
        self.save()
        fields = {
            "name": job.name,
            "state": job.state.value,
            "error": job.error,
            "gpus": list(job.gpus),
        }
        self._bus.publish("job", job=job.id, **fields)

    def save(self) -> None:
        """Keep all jobs on disk."""
        self._store.write(_JOBS, {"jobs": [job.record() for job in self.jobs.values()]})

    def started(self, job: Job) -> None:
        """Note that starting the job has ended, in success or failure."""
        with self.changed:
            self.starting.discard(job.id)
            self.changed.notify_all()
