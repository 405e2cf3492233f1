"""Errors of one shape that every REST API returns: ``{"detail": "one line"}``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

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
    """Body of every error response; some have keys for the parts that were done before the error."""

    model_config = ConfigDict(extra="allow")

    detail: str = Field(description="One line that says what is wrong and where")


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI ``responses`` of an operation with these statuses.

    An operation with a body (415) also gets the statuses for the body's size and time.
    """
    if 415 in statuses:
        statuses = (*sorted({*statuses, 408, 413, 503}),)
    return {
        status: {"model": Error, "description": _MEANINGS[status]}
        for status in statuses
    }


def failure(status: int, detail: str, **more: Any) -> JSONResponse:
    """Return a JSON error response whose ``detail`` is collapsed to one line."""
    return JSONResponse({"detail": " ".join(detail.split()), **more}, status)


def add_input_handlers(app: FastAPI, bad_request: Sequence[str] = ()) -> None:
    """Tell in one line what is wrong with a request: 422, and 400 below the paths that ``bad_request`` has
    when it comes."""

    def of_body(request: Request) -> int:
        return 400 if request.url.path.startswith(tuple(bad_request)) else 422

    @app.exception_handler(RequestValidationError)
    def of_input(request: Request, error: RequestValidationError) -> Response:
        return failure(of_body(request), wrong_input(error))

    @app.exception_handler(HTTPException)
    def of_http(request: Request, error: HTTPException) -> Response:
        path, status, detail = request.url.path, error.status_code, str(error.detail)
        if status == 400:
            # FastAPI's word for a body that is not even text.
            status, detail = of_body(request), "the body is not JSON"
        elif status == 404 and detail == "Not Found":
            detail = f"there is no path {path}"
        elif status == 405:
            detail = f"{path} does not know the method {request.method}"
        answer = failure(status, detail)
        answer.headers.update(error.headers or {})
        return answer


def wrong_input(error: RequestValidationError) -> str:
    """Return the first error in a request, as one line that names the field."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return (
            f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}"
        )
    where = ".".join(str(part) for part in first["loc"][1:] if part != "[key]")
    text = first["msg"].removeprefix("Value error, ")
    return f"{where or 'the ' + str(first['loc'][0])}: {text}"
