"""REST: grids, rings, an interconnect's divided light, O-NICs, and the light that a job would get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter

from ringlight.controller.errors import InvalidError
from ringlight.controller.grids.arbiter import plan_document
from ringlight.controller.jobs.light import Kind
from ringlight.controller.rest import answers as shapes
from ringlight.controller.rest.common import PlainRoute, answers
from ringlight.controller.rest.requests import Cursor, GpuName, GridName, LightRequest, RingName
from ringlight.controller.rings.site import ring_document
from ringlight.controller.service import Controller
from ringlight.fabric.planes.choice import plane_of
from ringlight.fabric.planes.ring.ring_plane import RingPlane


def router(controller: Controller) -> APIRouter:
    """Routes ``/v1/grids``, ``/v1/rings``, ``/v1/interconnect``, ``/v1/onics`` and ``/v1/arbiter``."""
    routes = APIRouter(prefix="/v1", route_class=PlainRoute)
    demand = controller.demand
    documents: dict[Kind, Callable[[Any], dict[str, Any]]] = {
        "grid": plan_document,
        "ring": ring_document,
        "interconnect": demand.plan_document,
    }
    arbiter, jobs, onics, all_rings = controller.arbiter, controller.jobs, controller.onics, controller.rings

    @routes.get("/grids", tags=["grids"], **answers(list[shapes.GridOverview]))
    def grids() -> Any:
        return arbiter.grids(jobs.holders())

    @routes.get("/grids/{name}", tags=["grids"], **answers(shapes.GridDocument, 404))
    def grid(name: GridName) -> Any:
        """Nodes with the job that has them, and the wavelengths that each WSS passes."""
        return arbiter.grid(name, jobs.holders())

    @routes.get("/rings", tags=["rings"], **answers(list[shapes.RingOverview]))
    def rings() -> Any:
        return all_rings.rings(jobs.holders())

    @routes.get("/rings/{name}", tags=["rings"], **answers(shapes.RingDocument, 404))
    def ring(name: RingName) -> Any:
        """Nodes, the step that its job is in, and what changing light took in the last job (seconds)."""
        return all_rings.ring(name, jobs.holders())

    @routes.get("/rings/{name}/set-ups", tags=["rings"], **answers(list[shapes.SetUpDocument], 404))
    def set_ups(name: RingName) -> Any:
        """The changes of light of the last job, one by one, at most the last 20,000 (seconds)."""
        return all_rings.set_ups(name)

    @routes.get("/interconnect", tags=["interconnect"], **answers(shapes.InterconnectDocument, 404))
    def interconnect() -> Any:
        """The interconnect whose light is divided by demand: which job has it, and what dividing took in the
        last job (seconds)."""
        return demand.document()

    @routes.get(
        "/interconnect/decisions", tags=["interconnect"], **answers(list[shapes.DecisionDocument], 404)
    )
    def decisions() -> Any:
        """The divisions of light of the last job, one by one, at most the last 20,000 (seconds)."""
        return demand.decisions()

    @routes.get("/onics", tags=["grids"], **answers(list[shapes.GridOnic | shapes.RingOnic]))
    def all_onics() -> Any:
        """Every O-NIC, its agent asked now if it has one."""
        return [*arbiter.onics(), *all_rings.onics()]

    @routes.get("/onics/{gpu}", tags=["grids"], **answers(shapes.GridOnic | shapes.RingOnic, 404, 409, 503))
    def onic(gpu: GpuName) -> Any:
        """One O-NIC, its agent asked now: map, flows, counters, lasers. On a ring: its transmit table."""
        kind = plane_of(controller.fabric, (gpu,)).kind
        return all_rings.onic(gpu) if kind == RingPlane.kind else arbiter.onic(gpu)

    @routes.get("/onics/{gpu}/flows", tags=["grids"], **answers(shapes.OnicFlows, 404, 409, 422, 503))
    def flows(gpu: GpuName, cursor: Cursor = 0) -> Any:
        """The timeline of its flows after ``cursor``, and the cursor to go on with."""
        return onics.ask(gpu, "trace", cursor=cursor, timeout_s=5.0)

    @routes.get("/arbiter/counters", tags=["grids"], **answers(dict[str, Any], 409, 503))
    def counters() -> Any:
        """What an emulated fabric's O-NICs and WSSs have counted: collisions, packets lost to the dark."""
        return dict(jobs.light_counters())

    @routes.post(
        "/arbiter/plan",
        tags=["grids"],
        **answers(shapes.GridPlan | shapes.RingPlanDocument | shapes.DemandPlanDocument, 409, 415, 422, 503),
    )
    def plan(body: LightRequest) -> Any:
        """What a job would get; refused as the job would be. Nothing is changed."""
        found = jobs.light_plan(body.wanted, {"collective": body.collective}, body.place)
        if found is None:
            raise InvalidError("such a job is not for a grid, ring or interconnect; name one")
        kind, light = found
        return documents[kind](light)

    return routes
