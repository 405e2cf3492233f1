"""REST: the paths of Ryu's ``ofctl_rest`` that its users' scripts call, with the same shapes.

As there: datapath ids are decimal, an unknown one gives 404, a body that cannot be read 400, and a
change that was made answers 200 with an empty body (here once the switch has confirmed it).
"""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from controller.openflow.errors import NotConnectedError, OpenFlowError
from controller.openflow.plane import OpenFlowPlane

_COMMANDS = ("add", "modify", "modify_strict", "delete", "delete_strict")


def router(plane: OpenFlowPlane) -> APIRouter:
    """Routes below ``/stats``."""
    routes = APIRouter(prefix="/stats", tags=["ofctl_rest"])

    def answer(work: Any, *arguments: Any) -> Response:
        try:
            return JSONResponse(work(*arguments))
        except NotConnectedError as error:
            return _error(404, str(error))
        except OpenFlowError as error:
            return _error(502, str(error))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # What os-ken's reader of flow entries raises on input that it does not understand.
            return _error(400, f"cannot be read: {error}")

    @routes.get("/switches")
    def switches() -> list[int]:
        return sorted(plane.connected())

    @routes.get("/desc/{dpid}")
    def desc(dpid: str) -> Response:
        return answer(lambda: plane.ofctl_desc(_dpid(dpid)))

    @routes.get("/flow/{dpid}")
    def flow(dpid: str) -> Response:
        return answer(lambda: plane.ofctl_flows(_dpid(dpid)))

    @routes.post("/flow/{dpid}")
    async def filtered_flow(dpid: str, request: Request) -> Response:
        try:
            wanted = _object(await request.body())
        except ValueError as error:
            return _error(400, str(error))
        return await run_in_threadpool(answer, lambda: plane.ofctl_flows(_dpid(dpid), wanted))

    @routes.get("/port/{dpid}")
    def port(dpid: str) -> Response:
        return answer(lambda: plane.ofctl_port_stats(_dpid(dpid)))

    @routes.get("/port/{dpid}/{number}")
    def one_port(dpid: str, number: str) -> Response:
        return answer(lambda: plane.ofctl_port_stats(_dpid(dpid), number))

    @routes.post("/flowentry/{command}")
    async def flow_entry(command: str, request: Request) -> Response:
        if command not in _COMMANDS:
            return _error(404, f"there is no command {command}")
        try:
            entry = _object(await request.body())
            dpid = _dpid(entry.get("dpid"))
        except ValueError as error:
            return _error(400, str(error))

        def write() -> Any:
            return plane.ofctl_flow_mod(dpid, entry, command)

        made = await run_in_threadpool(answer, write)
        return Response(status_code=200) if made.status_code == 200 else made

    return routes


def _dpid(value: Any) -> int:
    try:
        return int(str(value), 0)
    except ValueError:
        raise ValueError(f"dpid: {value!r} is not a datapath id") from None


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body or b"{}")
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("the body must be a JSON object")
    return value


def _error(status: int, detail: str) -> Response:
    return JSONResponse({"detail": " ".join(detail.split())}, status)
