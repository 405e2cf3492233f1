"""REST: faults of an emulated lab, passed on to its server agent, which has the fault service."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from typing_extensions import TypedDict

from ringlight.controller.errors import ConflictError
from ringlight.controller.rest.common import PlainRoute, Who, answers
from ringlight.controller.rest.requests import FaultBody
from ringlight.controller.server_agent import AgentClient
from ringlight.controller.service import Controller


class Fault(TypedDict):
    """Fault (docs/faults.md). Times in seconds of CLOCK_MONOTONIC, null for an event that has not happened.

    ``t_done``: the fault was read back. ``t_back``: everything was seen to work again. ``error``: the part
    that failed.
    """

    id: str
    do: str
    target: str
    state: str
    back_after_s: float | None
    t_asked: float
    t_done: float | None
    t_back: float | None
    error: str | None


def router(controller: Controller) -> APIRouter:
    """Return the routes ``/v1/faults``."""
    routes = APIRouter(prefix="/v1/faults", tags=["faults"], route_class=PlainRoute)

    def agent() -> AgentClient:
        if controller.agent is None:
            raise ConflictError("this lab has no server agent, and so no fault service")
        return controller.agent

    @routes.get("", **answers(list[Fault], 409, 503))
    def faults() -> Any:
        """Faults of links, switches, GPUs and processes since the lab came up, in the order of asking."""
        return agent().faults()

    @routes.post("", **answers(Fault, 409, 415, 422, 503))
    def ask(body: FaultBody, who: Who) -> Any:
        """Cut, kill, lose or restore a target; it is not in force yet when this answers.

        409: the lab has no such target, or no fault service.
        """
        fault = agent().ask_fault(body.model_dump(exclude_none=True))
        controller.bus.publish("fault", who=who, **body.model_dump())
        return fault

    return routes
