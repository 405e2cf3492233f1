"""Shared parts of the REST routes: errors of one shape, declared where they come, and plain JSON."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fastapi.utils import create_model_field
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from starlette.exceptions import HTTPException

from ringlight.controller.errors import ControllerError
from ringlight.controller.openflow.errors import OpenFlowError
from ringlight.controller.web.access import ANYBODY

_MEANINGS = {
    400: "The request cannot be carried out as it is written",
    401: "The call needs the header `Authorization: Bearer TOKEN`",
    403: "`Host` or `Origin` is that of a stranger",
    404: "There is no such thing",
    408: "The body did not come in time",
    409: "The present state does not allow it",
    413: "The body is larger than is allowed",
    415: "The body is not declared to be what this call takes (`application/json`)",
    422: "The request names or holds what is not valid here",
    501: "OpenFlow 1.3, or this switch, has no such thing",
    502: "A device did not do all that it was told",
    503: "A switch or agent cannot be reached now",
    504: "A switch did not answer in time",
}


class Error(BaseModel):
    """What every error answers; some add what was done until then."""

    model_config = ConfigDict(extra="allow")

    detail: str = Field(description="One line that says what is wrong and where")


async def _caller(request: Request) -> str:
    return getattr(request.state, "who", ANYBODY)


#: Who calls, for the audit log: the name of the token.
Who = Annotated[str, Depends(_caller)]


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI ``responses`` of an operation that gives these statuses; what takes a body (415) gives those of
    its size and time, too."""
    if 415 in statuses:
        statuses = (*sorted({*statuses, 408, 413, 503}),)
    return {status: {"model": Error, "description": _MEANINGS[status]} for status in statuses}


def answers(model: Any, *statuses: int, description: str = "") -> dict[str, Any]:
    """Arguments of a route that answers 200 with a document of this model, or one of these errors.

    What is sent has the model's keys; it is not checked again.
    """
    ok = {"model": model, "description": description or "Successful Response"}
    return {"response_model": None, "responses": {200: ok, **errors(*statuses)}}


def failure(status: int, detail: str, **more: Any) -> JSONResponse:
    """An error as an answer; the detail made one line."""
    return JSONResponse({"detail": " ".join(detail.split()), **more}, status)


class PlainRoute(APIRoute):
    """Sends what an endpoint returns in the form of its model, without checking it again.

    What it may answer is made a part of the description when that is asked for, which few controllers are:
    made at once, it was half of an application's start.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        responses = more.pop("responses", None) or {}
        if not iscoroutinefunction(endpoint):
            status = more.get("status_code") or 200
            endpoint = _plain(endpoint, sender(responses.get(status, {}).get("model", Any), status))
        super().__init__(path, endpoint, **more)
        self.responses = responses
        # Of no responses; so the next who asks has those below.
        del self.response_fields

    @functools.cached_property
    def response_fields(self) -> dict[int | str, Any]:  # type: ignore[override]
        """FastAPI's fields of the models of all answers but the first, by status."""
        return {
            status: create_model_field(
                name=f"Response_{status}_{self.unique_id}", type_=response["model"], mode="serialization"
            )
            for status, response in self.responses.items()
            if "model" in response
        }


def sender(model: Any, status: int = 200) -> Callable[[Any], Response]:
    """Makes answers of a model: a dataclass, or a dictionary of a kind."""

    @functools.cache
    def form() -> TypeAdapter[Any]:
        return TypeAdapter(model)

    def send(found: Any) -> Response:
        body = form().dump_json(found, by_alias=True, warnings=False)
        return Response(body, status, media_type="application/json")

    return send


def _plain(endpoint: Callable[..., Any], send: Callable[[Any], Response]) -> Callable[..., Response]:
    @functools.wraps(endpoint)
    def answer(*arguments: Any, **named: Any) -> Response:
        found = endpoint(*arguments, **named)
        return found if isinstance(found, Response) else send(found)

    # FastAPI reads the parameters from it.
    answer.__signature__ = inspect.signature(endpoint, eval_str=True)  # type: ignore[attr-defined]
    return answer


def add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ControllerError)
    def of_ours(_: Request, error: ControllerError) -> Response:
        return failure(error.status, str(error))

    @app.exception_handler(OpenFlowError)
    def of_openflow(_: Request, error: OpenFlowError) -> Response:
        return failure(error.status, str(error))

    @app.exception_handler(RequestValidationError)
    def of_input(request: Request, error: RequestValidationError) -> Response:
        # As Ryu's ofctl_rest, whose scripts know 400.
        return failure(400 if request.url.path.startswith("/stats/") else 422, wrong_input(error))

    @app.exception_handler(HTTPException)
    def of_http(request: Request, error: HTTPException) -> Response:
        path, status = request.url.path, error.status_code
        if status == 400 and not path.startswith("/stats/"):
            # FastAPI's word for a body that is not even text; other bodies that cannot be read get 422.
            status = 422
        told = {
            400: "the body is not JSON",
            404: f"there is no path {path}",
            405: f"{path} does not know the method {request.method}",
            422: "the body is not JSON",
        }
        answer = failure(status, told.get(status, str(error.detail)))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    def of_a_bug(request: Request, error: Exception) -> Response:
        return failure(500, f"internal error ({type(error).__name__}); the controller's log has it")


def wrong_input(error: RequestValidationError) -> str:
    """The first thing that is wrong with a request, in one line that names the field."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}"
    where = ".".join(str(part) for part in first["loc"][1:] if part != "[key]")
    text = first["msg"].removeprefix("Value error, ")
    return f"{where or 'the ' + str(first['loc'][0])}: {text}"
