"""REST: grids, rings, O-NICs and the light that a job would get."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from controller.arbiter import plan_document
from controller.errors import InvalidError
from controller.requests import LightRequest
from controller.ring_light import ring_of
from controller.rings import ring_document
from controller.service import Controller
from fabric.wdm import RingPlan


def router(controller: Controller) -> APIRouter:
    """Routes ``/v1/grids``, ``/v1/rings``, ``/v1/onics`` and ``/v1/arbiter``."""
    routes = APIRouter(prefix="/v1")
    arbiter, jobs, onics, all_rings = controller.arbiter, controller.jobs, controller.onics, controller.rings

    @routes.get("/grids", tags=["grids"])
    def grids() -> list[dict[str, Any]]:
        return arbiter.grids(jobs.holders())

    @routes.get("/grids/{name}", tags=["grids"])
    def grid(name: str) -> dict[str, Any]:
        """Nodes with the job that has them, and the wavelengths that each WSS passes."""
        return arbiter.grid(name, jobs.holders())

    @routes.get("/rings", tags=["rings"])
    def rings() -> list[dict[str, Any]]:
        return all_rings.rings(jobs.holders())

    @routes.get("/rings/{name}", tags=["rings"])
    def ring(name: str) -> dict[str, Any]:
        """Nodes, the step that its job is in, and what changing light took in the last job (seconds)."""
        return all_rings.ring(name, jobs.holders())

    @routes.get("/rings/{name}/set-ups", tags=["rings"])
    def set_ups(name: str) -> list[dict[str, Any]]:
        """The changes of light of the last job, one by one, at most the last 20,000 (seconds)."""
        return all_rings.set_ups(name)

    @routes.get("/onics", tags=["grids"])
    def all_onics() -> list[dict[str, Any]]:
        """Every O-NIC, its agent asked now if it has one."""
        return [*arbiter.onics(), *all_rings.onics()]

    @routes.get("/onics/{gpu}", tags=["grids"])
    def onic(gpu: str) -> dict[str, Any]:
        """One O-NIC, its agent asked now: map, flows, counters, lasers. On a ring: its transmit table."""
        return all_rings.onic(gpu) if ring_of(controller.fabric, gpu) is not None else arbiter.onic(gpu)

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
        found = jobs.light_plan(body.wanted, {"collective": body.collective}, body.grid, body.ring)
        if found is None:
            raise InvalidError("such a job is not for a grid or ring; name one")
        return ring_document(found) if isinstance(found, RingPlan) else plan_document(found)

    return routes
