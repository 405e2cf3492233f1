"""REST: claims, by which GPUs belong together without a job of ours."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from ringlight.controller.circuits.claims import ClaimDocument
from ringlight.controller.rest.common import PlainRoute, Who, answers
from ringlight.controller.rest.requests import ClaimName, ClaimRequest
from ringlight.controller.service import Controller
from ringlight.controller.web.refusals import errors


def router(controller: Controller) -> APIRouter:
    """Return the routes ``/v1/claims``."""
    routes = APIRouter(prefix="/v1/claims", tags=["claims"], route_class=PlainRoute)
    claims = controller.claims

    @routes.post(
        "",
        status_code=201,
        response_model=None,
        responses={201: {"model": ClaimDocument}, **errors(409, 415, 422, 503)},
    )
    def claim(body: ClaimRequest, who: Who) -> Any:
        """Reserve GPUs, and have light bring them to as few packet switches as it can.

        The GPUs of other claims and of jobs keep their places. 201 with state FAILED: the light could not be
        moved, and ``reason`` names why. 409: a GPU is lost or taken, or there is such a claim.
        """
        return claims.claim(
            body.name,
            body.selection,
            collective=body.collective,
            wait_s=body.wait_s,
            who=who,
        )

    @routes.get("", **answers(list[ClaimDocument]))
    def all_claims() -> Any:
        """All claims; a job of ours on packet switches is one, too."""
        return claims.all()

    @routes.get("/{name}", **answers(ClaimDocument, 404))
    def get_claim(name: ClaimName) -> Any:
        """One claim, as it is now."""
        return claims.get(name)

    @routes.delete("/{name}", **answers(ClaimDocument, 404, 409))
    def release(name: ClaimName) -> Any:
        """Release a claim. Its light stays where it is. 409: it is the claim of a job."""
        return claims.release(name)

    return routes
