"""REST: grids, O-NICs and what the arbiter would do."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from controller.arbiter import plan_document
from controller.errors import InvalidError
from controller.requests import LightRequest
from controller.service import Controller


def router(controller: Controller) -> APIRouter:
    """Routes ``/v1/grids``, ``/v1/onics`` and ``/v1/arbiter``."""
    routes = APIRouter(prefix="/v1")
    arbiter, jobs, onics = controller.arbiter, controller.jobs, controller.onics

    @routes.get("/grids", tags=["grids"])
    def grids() -> list[dict[str, Any]]:
        return arbiter.grids(jobs.holders())

    @routes.get("/grids/{name}", tags=["grids"])
    def grid(name: str) -> dict[str, Any]:
        """Nodes with the job that has them, and the wavelengths that each WSS passes."""
        return arbiter.grid(name, jobs.holders())

    @routes.get("/onics", tags=["grids"])
    def all_onics() -> list[dict[str, Any]]:
        """Every O-NIC, its agent asked now."""
        return arbiter.onics()

    @routes.get("/onics/{gpu}", tags=["grids"])
    def onic(gpu: str) -> dict[str, Any]:
        """One O-NIC, its agent asked now: map, flows, counters, lasers."""
        return arbiter.onic(gpu)

    @routes.get("/onics/{gpu}/flows", tags=["grids"])
    def flows(gpu: str, cursor: int = 0) -> dict[str, Any]:
        """The timeline of its flows after ``cursor``, and the cursor to go on with."""
        return onics.ask(gpu, "trace", cursor=cursor, timeout_s=5.0)

    @routes.get("/arbiter/counters", tags=["grids"])
    def counters() -> dict[str, Any]:
        """What an emulated fabric's O-NICs and WSSs have counted: collisions, packets lost to the dark."""
        return dict(jobs.light_counters())

    @routes.post("/arbiter/plan", tags=["grids"])
    def plan(body: LightRequest) -> dict[str, Any]:
        """What a job would get; refused as the job would be. Nothing is changed."""
        wanted = body.ranks if body.ranks is not None else body.gpus or 0
        found = jobs.light_plan(wanted, {"collective": body.collective}, body.grid)
        if found is None:
            raise InvalidError("such a job is not for a grid; name one")
        return plan_document(found)

    return routes
