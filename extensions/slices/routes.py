"""REST: slices, with the fields of GKE's Slice."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request

from ringlight.controller.errors import InvalidError, NotFoundError
from ringlight.controller.rest.common import AlwaysJson, PlainRoute, answers
from ringlight.controller.web.refusals import errors
from ringlight.extensions.slices.manager import SliceManager
from ringlight.extensions.slices.resource import (
    API_VERSION,
    SliceBody,
    SliceDocument,
    SliceGpus,
    SliceList,
    SwapBody,
)

SliceName = Annotated[str, Path(description="Name of a slice", examples=["red"])]
Wait = Annotated[
    float, Query(ge=0, le=20, description="Longest wait for the light, seconds")
]


#: Beginning of the paths of a Kubernetes API server.
KUBERNETES = f"/apis/{API_VERSION}/slices"
#: Parameters of Kubernetes that would change what a call does.
_WITHOUT_EFFECT = ("watch", "labelSelector", "fieldSelector", "dryRun")


def add_slice_routes(app: FastAPI, slices: SliceManager) -> None:
    """Add the routes, also where clients of Kubernetes expect them; these declare no type of a body."""
    app.include_router(_router(slices, "/v1/slices", PlainRoute))
    kubernetes = _router(slices, KUBERNETES, AlwaysJson)
    app.include_router(kubernetes, dependencies=[Depends(_check_parameters)])


def add_no_slices(app: FastAPI) -> None:
    """Add routes that answer that there are no slices, for a fabric without cubes."""

    def missing() -> None:
        raise NotFoundError("there are no slices: the fabric has no cubes")

    for prefix in ("/v1/slices", KUBERNETES):
        for path in (prefix, prefix + "/{rest:path}"):
            app.add_api_route(
                path,
                missing,
                methods=["GET", "POST", "DELETE"],
                include_in_schema=False,
            )


def _check_parameters(request: Request) -> None:
    """Raise InvalidError for a parameter of Kubernetes whose effect would be missing."""
    for name in _WITHOUT_EFFECT:
        if request.query_params.get(name, "").lower() not in ("", "false", "0"):
            raise InvalidError(f"{name}: there is no such parameter here")


def _router(slices: SliceManager, prefix: str, route: type[PlainRoute]) -> APIRouter:
    routes = APIRouter(prefix=prefix, tags=["slices"], route_class=route)

    @routes.get("", **answers(SliceList))
    def all_slices() -> Any:
        """All slices, and the newest that could not be made."""
        return SliceList(API_VERSION, "SliceList", slices.all())

    @routes.post(
        "",
        status_code=201,
        response_model=None,
        responses={201: {"model": SliceDocument}, **errors(409, 415, 422, 503)},
    )
    def create(body: SliceBody, wait_s: Wait = 0.0) -> Any:
        """Join cubes into a torus by light.

        The condition Ready has the state. 201 with reason SliceCreationFailed: there is no such slice here, and
        the message says why. 409: there is a slice of this name.
        """
        return slices.create(
            body.metadata.name,
            body.metadata.annotations,
            body.spec.type,
            body.spec.topology,
            body.spec.partition_ids or (),
            wait_s,
        )

    @routes.get("/{name}", **answers(SliceDocument, 404))
    def get_slice(name: SliceName) -> Any:
        """One slice, as it is now."""
        return slices.get(name)

    @routes.delete("/{name}", **answers(SliceDocument, 404, 409, 422))
    def delete(name: SliceName, wait_s: Wait = 0.0) -> Any:
        """End a slice. Its circuits are removed. 409: a job or a claim has GPUs of it."""
        return slices.delete(name, wait_s)

    @routes.get("/{name}/gpus", **answers(SliceGpus, 404, 409))
    def gpus(name: SliceName) -> Any:
        """GPUs of a slice, by cube, and in the order of a ring through its torus."""
        return slices.gpus(name)

    @routes.post("/{name}/swap", **answers(SliceDocument, 404, 409, 415, 422))
    def swap(name: SliceName, body: SwapBody, wait_s: Wait = 0.0) -> Any:
        """Put a spare cube in the place of one. Light of other slices is not touched."""
        return slices.swap(name, body.partition, body.spare, wait_s)

    return routes
