"""Choose the GPUs on which a job goes on after it lost some."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

from ringlight.controller.errors import ConflictError, ControllerError
from ringlight.controller.jobs.job import Job
from ringlight.controller.jobs.job_book import JobBook
from ringlight.controller.jobs.job_lights import JobLights
from ringlight.controller.jobs.light_provider import Light
from ringlight.controller.jobs.reservation import JOB, Holder, Reservations
from ringlight.fabric.gpu_choice import spares_for
from ringlight.fabric.planes.base import Plane
from ringlight.fabric.planes.choice import plane_of
from ringlight.fabric.topology import Fabric

#: At most so many choices of spares are looked at.
_CHOICES = 1000


class Replacements:
    """GPUs in place of lost ones.

    ``switch_of``: returns the packet switch that each GPU is lit to now. ``reaches``: returns whether packets
    get from a GPU to all of some other GPUs and back.
    """

    def __init__(
        self,
        fabric: Fabric,
        book: JobBook,
        lights: JobLights,
        switch_of: Callable[[], Mapping[str, str | None]],
        reaches: Callable[[str, Collection[str]], bool],
        reservations: Reservations,
    ) -> None:
        self._fabric, self._book, self._lights = fabric, book, lights
        self._switch_of, self._reaches = switch_of, reaches
        self._reservations = reservations

    def gpus_after(
        self, job: Job, lost: Collection[int]
    ) -> tuple[Sequence[str], tuple[Plane, Light] | None]:
        """Return the job's GPUs in rank order after it lost these ranks, and their light.

        Raises ControllerError.
        """
        left = [rank.gpu for rank in job.ranks if rank.rank not in lost]
        own = Holder(JOB, job.id)
        other_holders = {
            gpu: holder
            for gpu, holder in self._reservations.holders().items()
            if holder != own
        }
        with self._book.lock:
            busy = self._book.left_on()
        if job.on_loss == "shrink":
            if len(left) < 2:
                raise ConflictError("one rank is too few")
            return left, self._lights.plan_again(job, left, other_holders)
        gone = busy.union(
            other_holders,
            job.gpus,
            self._book.dead_gpus,
            (loss.gpu for loss in job.losses),
        )
        pool = job.spares or plane_of(self._fabric, job.gpus).nodes
        spares = [gpu for gpu in pool if gpu not in gone]
        if job.plane is None:
            spares = [
                g
                for g in spares_for(left, spares, self._switch_of())
                if self._reaches(g, left)
            ]
        if len(spares) < len(lost):
            among = f" of {', '.join(job.spares)}" if job.spares else ""
            there = ", ".join(spares) or "none"
            raise ConflictError(
                f"spare GPUs needed: {len(lost)}; free and reachable{among}: {there}"
            )
        refused: ControllerError | None = None
        for chosen in itertools.islice(
            itertools.permutations(spares, len(lost)), _CHOICES
        ):
            instead = dict(zip(lost, chosen, strict=True))
            gpus = [instead.get(rank.rank, rank.gpu) for rank in job.ranks]
            try:
                return gpus, self._lights.plan_again(job, gpus, other_holders)
            except ControllerError as error:
                refused = refused or error
        assert refused is not None
        raise refused
