"""REST: faults of emulated optical switches, passed on to the switch's own REST."""

from __future__ import annotations

from typing import Any

import httpx
from fastapi import APIRouter
from pydantic import ConfigDict
from typing_extensions import TypedDict

from ringlight.controller.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from ringlight.controller.rest.common import PlainRoute, answers
from ringlight.controller.rest.requests import (
    FaultId,
    OpticalFaultBody,
    OpticalSwitchName,
)
from ringlight.controller.service import Controller

CALL_S = 10.0


class OpticalFault(OpticalFaultBody):
    """A fault injected into an emulated switch. ``hits``: how often it has acted; ``left``: how often it may
    still, null until it is cleared. What each kind does: docs/optical-management.md."""

    model_config = ConfigDict(json_schema_extra={})

    id: int
    hits: int
    left: int | None


class OpticalFaultsCleared(TypedDict):
    """``cleared``: the faults that have ended, by their ids."""

    cleared: list[int]


#: A switch's own refusals, by their HTTP status.
_REFUSALS = {
    error.status: error for error in (NotFoundError, ConflictError, InvalidError)
}


def router(controller: Controller) -> APIRouter:
    """Return the routes below ``/v1/optical-switches/{name}/faults``."""
    routes = APIRouter(
        prefix="/v1/optical-switches/{name}/faults",
        tags=["optical switches"],
        route_class=PlainRoute,
    )

    def call(name: str, method: str, path: str = "", body: Any = None) -> Any:
        controller.site.driver(name)
        address = controller.site.entries[name].get("rest")
        if address is None:
            raise ConflictError(
                f"optical switch {name}: only faults of emulated ones can be injected"
            )
        try:
            answer = httpx.request(
                method,
                f"http://{address}/v1/faults{path}",
                json=body,
                timeout=CALL_S,
                trust_env=False,
            )
            document = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise UnavailableError(
                f"optical switch {name} at {address}: {error}"
            ) from error
        if answer.status_code in _REFUSALS:
            raise _REFUSALS[answer.status_code](
                f"optical switch {name}: {document.get('detail')}"
            )
        if answer.is_error:
            raise UnavailableError(
                f"optical switch {name} at {address}: {document.get('detail')}"
            )
        return document

    @routes.get("", **answers(list[OpticalFault], 404, 409, 503))
    def faults(name: OpticalSwitchName) -> Any:
        """Faults in force, those included that have acted as often as they may."""
        return call(name, "GET")

    @routes.post("", **answers(OpticalFault, 404, 409, 415, 422, 503))
    def add_fault(name: OpticalSwitchName, body: OpticalFaultBody) -> Any:
        """Inject a fault into an emulated switch; it is in force when this answers.

        The switch says what it can do (422). 409: it is no emulated switch, or has too many already.
        """
        return call(name, "POST", "", body.model_dump(exclude_unset=True))

    @routes.delete("", **answers(OpticalFaultsCleared, 404, 409, 503))
    def clear_faults(name: OpticalSwitchName) -> Any:
        """End all faults; what they have broken, or left without light, works again."""
        return call(name, "DELETE")

    @routes.delete("/{fault}", **answers(OpticalFaultsCleared, 404, 409, 422, 503))
    def clear_fault(name: OpticalSwitchName, fault: FaultId) -> Any:
        """End one fault."""
        return call(name, "DELETE", f"/{fault}")

    return routes
