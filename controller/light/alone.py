"""Light of jobs that have a plane for themselves, moved by a player while they run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from ringlight.controller.errors import ConflictError, ControllerError
from ringlight.controller.jobs.light_provider import L
from ringlight.controller.light.provider import LightContext, Provider
from ringlight.controller.light.switches import WRITE_S, Lights
from ringlight.controller.server_agent import required_agent
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.planes.base import Plane


class Player(Protocol):
    """Moves a job's light while the job runs. ``lights``: the job's switches, not closed by it."""

    job: str
    lights: Lights

    def start(self) -> None: ...

    def stop(self) -> None:
        """End it, begun or not. The light stays as it is."""

    @property
    def trouble(self) -> str | None:
        """Reason for which the light is not as it should be; None if it is."""

    @property
    def changes(self) -> list[Any]:
        """Return the last changes of light, one by one."""


P = TypeVar("P", bound=Player)


class Alone(Provider[L], Generic[L, P]):
    """Lights planes that are one job's alone, each switch of them."""

    alone = True
    #: Longest time for a switch to do what it is told, besides what its profile declares, seconds.
    patience_s = WRITE_S

    def __init__(self, context: LightContext) -> None:
        super().__init__(context)
        self._stopped = False
        #: By plane: the player of the job that has it, and that of the last job, for what it measured.
        self._playing: dict[str, P] = {}
        self._last: dict[str, P] = {}

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            playing, self._playing = dict(self._playing), {}
        for player in playing.values():
            player.stop()
            player.lights.close()

    def troubles(self) -> list[str]:
        with self._lock:
            playing = dict(self._playing)
        own_troubles = [
            f"{plane}: {p.trouble}"
            for plane, p in playing.items()
            if p.trouble is not None
        ]
        return super().troubles() + own_troubles

    def changes(self, plane: Plane) -> list[Any]:
        last = self._last.get(plane.name)
        return [] if last is None else last.changes

    @abstractmethod
    def _begin(
        self, job_id: str, light: L, lights: Lights
    ) -> tuple[P, dict[str, float]]:
        """Set the light and write the O-NICs' tables. Return the player, and the duration of each part in
        seconds.

        Raises ControllerError.
        """

    @abstractmethod
    def _resume(self, job_id: str, light: L, lights: Lights) -> P:
        """Return the player of a job that runs already. Raises ControllerError."""

    @abstractmethod
    def _forget(self, light: L) -> None:
        """Tell the O-NICs that their peers have no light. Raises ControllerError."""

    def _check_onics(self, light: L) -> None:
        required_agent(self._agent).health()

    def _light(self, job_id: str, light: L) -> dict[str, float]:
        took: dict[str, float] = {}

        def begin(lights: Lights) -> P:
            player, seconds = self._begin(job_id, light, lights)
            took.update(seconds)
            return player

        self._play(job_id, light, begin)
        return took

    def _adopt(self, job_id: str, light: L) -> None:
        self._play(job_id, light, lambda lights: self._resume(job_id, light, lights))

    def _play(self, job_id: str, light: L, begin: Callable[[Lights], P]) -> None:
        """Hold the switches for this job alone and have a player begin."""
        lights = self._lights(light)
        try:
            # Nothing is held before, so that no error leaves it so.
            if (other := self._site.hold(job_id, light.switches)) is not None:
                raise ConflictError(
                    f"the light of {light.place} is that of job {other}"
                )
            player = begin(lights)
        except BaseException:
            lights.close()
            raise
        with self._lock:
            if not self._stopped:
                self._playing[light.place] = self._last[light.place] = player
                player.start()
                return
        player.stop()
        lights.close()

    def _clear(self, job_id: str, light: L) -> list[str] | None:
        with self._lock:
            player = self._playing.get(light.place)
            if player is not None and player.job == job_id:
                del self._playing[light.place]
            else:
                player = None
        if player is not None:
            player.stop()
        if self._site.hold(job_id, light.switches) is not None:
            return None
        problems: list[str] = []
        try:
            self._forget(light)
        except ControllerError as error:
            problems.append(str(error))
        problems += (self._lights(light) if player is None else player.lights).put_out()
        if not problems:
            self._site.release(job_id)
        return problems

    def _lights(self, light: L) -> Lights:
        return Lights(self._site, tuple(light.switches), self.patience_s)

    def _carried(self, plane: Plane) -> dict[str, frozenset[CrossConnect]]:
        with self._lock:
            player = self._playing.get(plane.name)
        if player is None:
            return super()._carried(plane)
        return {name: player.lights.carries(name) for name in self.switches(plane)}
