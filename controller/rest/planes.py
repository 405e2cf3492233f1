"""REST: planes that have light, O-NICs, and the light that a job would get."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter

from ringlight.controller.errors import InvalidError, NotFoundError
from ringlight.controller.light.documents import (
    OnicDocument,
    OnicFlows,
    PlaneOverview,
    plane_document,
)
from ringlight.controller.light.provider import Provider, providers
from ringlight.controller.rest.common import PlainRoute, answers
from ringlight.controller.rest.requests import Cursor, GpuName, LightRequest, PlaneName
from ringlight.controller.service import Controller
from ringlight.fabric.planes.choice import lit_planes


def _union(types: Iterable[Any]) -> Any:
    """Return the union of types of documents; that of no type is Any."""
    there = list(types)
    return functools.reduce(operator.or_, there) if there else Any


def router(controller: Controller) -> APIRouter:
    """Return the routes ``/v1/planes``, ``/v1/onics`` and ``/v1/light-counters``."""
    routes = APIRouter(prefix="/v1", route_class=PlainRoute, tags=["planes"])
    lights, jobs = controller.lights, controller.jobs
    planes = {plane.name: plane for plane in lit_planes(controller.fabric)}
    kinds = providers()
    any_plane = plane_document(_union(kind.Own for kind in kinds))
    any_planned = _union(kind.Planned for kind in kinds)
    any_changes = _union(list[kind.Change] for kind in kinds if kind.Change is not None)  # type: ignore[name-defined]

    def light_of(gpu: str) -> tuple[Provider[Any], Any]:
        for plane in planes.values():
            if gpu in plane.nodes:
                return lights[plane.kind], plane
        raise NotFoundError(f"GPU {gpu} has no O-NIC")

    def named(name: str) -> Any:
        if name not in planes:
            raise NotFoundError(f"there is no plane {name}")
        return planes[name]

    @routes.get("/planes", **answers(list[PlaneOverview]))
    def all_planes() -> Any:
        """Optical planes: their nodes, and the jobs that use them."""
        holders = jobs.holders()
        return [
            lights[plane.kind].overview(plane, holders) for plane in planes.values()
        ]

    @routes.get("/planes/{name}", **answers(any_plane, 404))
    def plane(name: PlaneName) -> Any:
        """Nodes with the job that has them, what each switch passes, and what moving light took in the last
        job (seconds)."""
        return lights[named(name).kind].document(planes[name], jobs.holders())

    @routes.get("/planes/{name}/changes", **answers(any_changes, 404))
    def changes(name: PlaneName) -> Any:
        """The changes of light of the last job, one by one, at most the last 20,000 (seconds)."""
        return lights[named(name).kind].changes(planes[name])

    @routes.post("/planes/plan", **answers(any_planned, 409, 415, 422, 503))
    def plan(body: LightRequest) -> Any:
        """Light that a job would get; refused as the job would be. Nothing is changed."""
        placement = jobs.light_plan(
            body.selection, {"collective": body.collective}, body.plane
        )
        if placement is None:
            raise InvalidError("such a job runs on packet switches; name a plane")
        plane, light = placement
        return lights[plane.kind].plan_document(light)

    @routes.get("/onics", **answers(list[OnicDocument]))
    def onics() -> Any:
        """Every O-NIC, its agent asked now if it has one."""
        return [onic for provider in lights.values() for onic in provider.onics()]

    @routes.get("/onics/{gpu}", **answers(OnicDocument, 404, 409, 503))
    def onic(gpu: GpuName) -> Any:
        """One O-NIC, its agent asked now: map, flows, counters, lasers; or its transmit table."""
        provider, plane = light_of(gpu)
        return provider.onic(plane, gpu)

    @routes.get("/onics/{gpu}/flows", **answers(OnicFlows, 404, 409, 422, 503))
    def flows(gpu: GpuName, cursor: Cursor = 0) -> Any:
        """The timeline of its flows after ``cursor``, and the cursor to go on with."""
        provider, _ = light_of(gpu)
        return provider.flows(gpu, cursor)

    @routes.get("/light-counters", **answers(dict[str, Any], 409, 503))
    def counters() -> Any:
        """Counters of an emulated fabric's O-NICs and WSSs: collisions, packets lost to the dark."""
        return dict(jobs.light_counters())

    return routes
