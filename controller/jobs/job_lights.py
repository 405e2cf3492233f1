"""Plan, set and take away the light of jobs, by the providers of their planes."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ringlight.controller.errors import (
    ConflictError,
    ControllerError,
    InvalidError,
    UnavailableError,
)
from ringlight.controller.jobs.job import Job, JobState
from ringlight.controller.jobs.light_provider import Light, LightProvider
from ringlight.controller.jobs.reservation import Holder, placed, planes_for
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.planes.base import Plane
from ringlight.fabric.planes.choice import lit_planes
from ringlight.fabric.topology import Fabric

log = logging.getLogger(__name__)


class JobLights:
    """Light of the jobs that are on a plane with light and have not been cleaned up.

    ``providers``: by kind of plane.
    """

    def __init__(
        self, fabric: Fabric, providers: Mapping[str, LightProvider[Any]]
    ) -> None:
        self._fabric, self._providers = fabric, providers
        self._planes = {plane.name: plane for plane in lit_planes(fabric)}
        self._lights: dict[str, Light] = {}

    def plan(
        self,
        gpus_or_count: Sequence[str] | int,
        spec: Mapping[str, Any],
        name: str | None,
        holders: Mapping[str, Holder],
    ) -> tuple[Plane, Light] | None:
        """Return the plane of such a job and the light that it would get there; None on packet switches.

        Everything that the light needs is checked, and nothing is changed. ``name``: name of the plane, if
        given. ``holders``: holder of each taken GPU. Raises InvalidError, ConflictError,
        UnavailableError.
        """
        refusals: list[ControllerError] = []
        for plane in planes_for(self._fabric, gpus_or_count, name):
            try:
                light = self._planned(plane, gpus_or_count, spec, holders)
            except (InvalidError, ConflictError) as refusal:
                refusals.append(refusal)
                continue
            self._provider(plane).check(light)
            return plane, light
        if refusals:
            # A conflict, which may pass, is reported before a refusal for ever.
            raise min(
                refusals, key=lambda refusal: not isinstance(refusal, ConflictError)
            )
        return None

    def plan_again(
        self, job: Job, gpus: Sequence[str], other_holders: Mapping[str, Holder]
    ) -> tuple[Plane, Light] | None:
        """Return the job's light on these GPUs; None on packet switches.

        Raises ControllerError if its collective cannot run there.
        """
        try:
            steps_named(job.spec.get("collective", "ring"), len(gpus))
        except ValueError as error:
            raise InvalidError(str(error)) from error
        return (
            None
            if job.plane is None
            else self.plan(gpus, job.spec, job.plane, other_holders)
        )

    def stored(self, job: Job) -> Light | None:
        """Return the light that a stored job has; None without any.

        Raises InvalidError or ConflictError for a job that is none of this fabric.
        """
        if job.plane is None or job.clean:
            return None
        return self._planned(
            planes_for(self._fabric, job.gpus, job.plane)[0], job.gpus, job.spec, {}
        )

    def take_over(self, job: Job, light: Light) -> None:
        """Go on with the light of a stored job, which its workers may be using."""
        self._lights[job.id] = light
        if (
            not job.state.ended
            and job.state is not JobState.PENDING
            and (provider := self._lit_by(job))
        ):
            provider.adopt(job.id, light)

    def give(self, job: Job, light: Light) -> None:
        """Record the light that a job is to have."""
        self._lights[job.id] = light
        job.plane, job.switches = light.place, list(light.switches)

    def light(self, job: Job) -> None:
        """Set a job's light before its workers start; nothing on packet switches. Raises ControllerError."""
        if (provider := self._lit_by(job)) is not None:
            provider.light(job.id, self._lights[job.id])

    def clear(
        self, job: Job, stop: threading.Event, timeout_s: float = math.inf
    ) -> None:
        """Take a job's light away, tried until it works or ``stop`` is set. Raises UnavailableError after
        ``timeout_s``.
        """
        provider = self._lit_by(job)
        if provider is None:
            return
        light = self._lights[job.id]
        pause_s, deadline = 0.5, time.monotonic() + timeout_s
        while not stop.is_set() and (problems := provider.clear(job.id, light)):
            log.warning("light of job %s not cleared: %s", job.id, problems[0])
            if time.monotonic() + pause_s > deadline:
                raise UnavailableError(
                    f"its light is not cleared after {timeout_s:g} s: {problems[0]}"
                )
            stop.wait(pause_s)
            pause_s = min(2 * pause_s, 10.0)

    def forget(self, job: Job) -> None:
        """Forget the light of a job that has been cleaned up."""
        self._lights.pop(job.id, None)

    def alone(self, job: Job) -> bool:
        """Return whether a job has its plane for itself."""
        provider = self._lit_by(job)
        return provider is not None and provider.alone

    def standing(self, job: Job) -> bool:
        """Return whether a job's workers need not ask for light, because it stands."""
        return job.plane is not None and self._planes[job.plane].light == "stands"

    def _planned(
        self,
        plane: Plane,
        gpus_or_count: Sequence[str] | int,
        spec: Mapping[str, Any],
        holders: Mapping[str, Holder],
    ) -> Light:
        provider = self._provider(plane)
        light: Light = provider.plan(
            plane, placed(plane, gpus_or_count, holders, alone=provider.alone), spec
        )
        return light

    def _provider(self, plane: Plane) -> LightProvider[Any]:
        """Return the provider of a plane's light. Raises InvalidError if there is none."""
        if plane.kind not in self._providers:
            raise InvalidError(f"nobody lights {plane}")
        return self._providers[plane.kind]

    def _lit_by(self, job: Job) -> LightProvider[Any] | None:
        """Return the provider that lights a job that was accepted; None on packet switches."""
        return None if job.plane is None else self._provider(self._planes[job.plane])
