"""Shared parts of the REST routes: caller names, plain JSON, and the controller's errors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute
from fastapi.utils import create_model_field
from pydantic import TypeAdapter

from ringlight.controller.errors import ControllerError
from ringlight.controller.openflow.errors import OpenFlowError
from ringlight.controller.web.access import ANYBODY
from ringlight.controller.web.refusals import add_input_handlers, errors, failure


async def _caller(request: Request) -> str:
    return getattr(request.state, "who", ANYBODY)


#: Caller, for the audit log: the name of the token.
Who = Annotated[str, Depends(_caller)]


def answers(model: Any, *statuses: int, description: str = "") -> dict[str, Any]:
    """Return the arguments of a route that answers 200 with a document of this model, or one of these errors.

    The document must have the model's keys; it is not checked again.
    """
    ok = {"model": model, "description": description or "Successful Response"}
    return {"response_model": None, "responses": {200: ok, **errors(*statuses)}}


class PlainRoute(APIRoute):
    """Route that sends the result of an endpoint in the form of its model, without checking it again.

    The models of its responses are created only when the API's description is requested, which is rare:
    creating them at once took half of an application's start.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        responses = more.pop("responses", None) or {}
        if not iscoroutinefunction(endpoint):
            status = more.get("status_code") or 200
            endpoint = _plain(
                endpoint, sender(responses.get(status, {}).get("model", Any), status)
            )
        super().__init__(path, endpoint, **more)
        self.responses = responses
        # Of no responses; so the next who asks has those below.
        del self.response_fields

    @functools.cached_property
    def response_fields(self) -> dict[int | str, Any]:  # type: ignore[override]
        """FastAPI's fields of the models of all answers but the first, by status."""
        return {
            status: create_model_field(
                name=f"Response_{status}_{self.unique_id}",
                type_=response["model"],
                mode="serialization",
            )
            for status, response in self.responses.items()
            if "model" in response
        }


class AlwaysJson(PlainRoute):
    """Route that reads every body as JSON: clients of other APIs declare a form, as ``curl -d``, or nothing."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read(request: Request) -> Response:
            kept = [
                (key, value)
                for key, value in request.scope["headers"]
                if key != b"content-type"
            ]
            scope = {
                **request.scope,
                "headers": [*kept, (b"content-type", b"application/json")],
            }
            return await handle(Request(scope, request.receive))

        return read


def sender(model: Any, status: int = 200) -> Callable[[Any], Response]:
    """Return a function that makes responses of a model: a dataclass, or a dictionary of a kind."""

    @functools.cache
    def form() -> TypeAdapter[Any]:
        return TypeAdapter(model)

    def send(document: Any) -> Response:
        body = form().dump_json(document, by_alias=True, warnings=False)
        return Response(body, status, media_type="application/json")

    return send


def tagged(answer: Response, generation: int) -> Response:
    """Return an answer with the generation of its document of light as its ``ETag``."""
    answer.headers["ETag"] = f'"{generation}"'
    return answer


def _plain(
    endpoint: Callable[..., Any], send: Callable[[Any], Response]
) -> Callable[..., Response]:
    @functools.wraps(endpoint)
    def answer(*arguments: Any, **named: Any) -> Response:
        result = endpoint(*arguments, **named)
        return result if isinstance(result, Response) else send(result)

    # FastAPI reads the parameters from it.
    answer.__signature__ = inspect.signature(endpoint, eval_str=True)  # type: ignore[attr-defined]
    return answer


def add_error_handlers(app: FastAPI) -> None:
    add_input_handlers(app, app.state.bad_request)

    @app.exception_handler(ControllerError)
    @app.exception_handler(OpenFlowError)
    def of_ours(_: Request, error: ControllerError | OpenFlowError) -> Response:
        return failure(error.status, str(error))

    @app.exception_handler(Exception)
    def of_a_bug(request: Request, error: Exception) -> Response:
        return failure(
            500, f"internal error ({type(error).__name__}); the controller's log has it"
        )
