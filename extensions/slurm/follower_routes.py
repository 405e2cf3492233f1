"""REST: what the follower reports, which is part of the lab's health."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI
from pydantic import Field

from ringlight.controller.bus import EventBus
from ringlight.controller.errors import NotFoundError
from ringlight.controller.rest.body import Body
from ringlight.controller.rest.common import PlainRoute, answers
from ringlight.controller.rest.requests import Name
from ringlight.controller.service import Controller
from ringlight.extensions.slurm.site import FOLLOWER_PATH as PATH
from ringlight.extensions.slurm.site import PROBLEM_LENGTH

#: A follower that has reported nothing for so long is not well, seconds. It reports every 2 s, or after its
#: longest wait for Slurm.
SILENT_S = 12.0


class FollowerReport(Body):
    """``PUT /v1/slurm/follower``: the state of ``ringlight slurm follow``, which sends this.

    ``generation``: of the light by which Slurm places jobs, null if it has none. ``drained``: nodes of lost
    GPUs. ``problem``: why the follower cannot do its work, null if it can.
    """

    generation: int | None = Field(ge=0, le=2**53)
    drained: list[Name] = Field(max_length=65536)
    problem: str | None = Field(max_length=PROBLEM_LENGTH)


@dataclass(frozen=True)
class FollowerDocument:
    """State of Slurm's follower, as it last reported. ``silent_s``: time since then, seconds."""

    generation: int | None
    drained: list[str]
    problem: str | None
    silent_s: float


class FollowerState:
    """The last report of the follower, None if it has ended in order or was never there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[FollowerReport, float] | None = None

    def take(self, report: FollowerReport | None) -> bool:
        """Take in a report, None for its end. Return whether it is another than the last."""
        with self._lock:
            before = None if self._last is None else self._last[0]
            self._last = None if report is None else (report, time.monotonic())
        return report != before

    def document(self) -> FollowerDocument | None:
        with self._lock:
            last = self._last
        if last is None:
            return None
        return FollowerDocument(
            **last[0].model_dump(), silent_s=time.monotonic() - last[1]
        )

    def complaint(self) -> str | None:
        """Return a line for health, None if all is well."""
        state = self.document()
        if state is None:
            return None
        if state.silent_s > SILENT_S:
            return f"the Slurm follower has been silent for {state.silent_s:.0f} s"
        return None if state.problem is None else f"Slurm follower: {state.problem}"


def add(controller: Controller) -> None:
    """Add the routes, and the follower's line to health."""
    state = FollowerState()
    controller.complaints.append(state.complaint)

    def add_to(app: FastAPI) -> None:
        app.include_router(router(controller.bus, state))

    controller.app_parts.append(add_to)


def router(bus: EventBus, state: FollowerState) -> APIRouter:
    """Return the routes ``/v1/slurm/follower``. ``bus``: for events ``slurm``."""
    routes = APIRouter(prefix=PATH, tags=["Slurm"], route_class=PlainRoute)

    def required() -> FollowerDocument:
        document = state.document()
        if document is None:
            raise NotFoundError("no Slurm follower has reported")
        return document

    @routes.get("", **answers(FollowerDocument, 404))
    def follower() -> Any:
        """State of Slurm's follower: the light by which Slurm places jobs, and the nodes of lost GPUs."""
        return required()

    @routes.put("", **answers(FollowerDocument, 415, 422))
    def report(body: FollowerReport) -> Any:
        """Take in a report of the follower. An event ``slurm`` tells of each that is new."""
        if state.take(body):
            bus.publish("slurm", **body.model_dump())
        return FollowerDocument(**body.model_dump(), silent_s=0.0)

    @routes.delete("", **answers(FollowerDocument, 404))
    def end() -> Any:
        """Forget the follower, which has been ended."""
        document = required()
        state.take(None)
        return document

    return routes
