"""REST: the paths of Ryu's ``ofctl_rest``, with the same shapes, for OpenFlow 1.3.

As there: datapath ids are decimal (or ``0x…``), an unknown one gives 404, a body that cannot be read 400,
what only a later OpenFlow has 501, and a change that was made answers 200 with an empty body. Unlike there,
a change answers once the switch has confirmed it, what the switch refuses is told (Ryu says 200 and logs it),
and so is a match field or an action that there is not (Ryu leaves it out).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from pydantic import BaseModel

from ringlight.controller.errors import ConflictError, NotFoundError, UnsupportedError
from ringlight.controller.openflow.plane import OpenFlowPlane
from ringlight.controller.rest.common import AlwaysJson, answers
from ringlight.controller.service import Controller
from ringlight.controller.web.refusals import errors
from ringlight.extensions.ofctl import shapes
from ringlight.extensions.ofctl.exchange import Ofctl
from ringlight.extensions.ofctl.shapes import (
    Dpid,
    OneGroup,
    OneMeter,
    OnePort,
    OneQueue,
)

PREFIX = "/stats"
#: Questions of later OpenFlow, and where 1.3 has the answer.
_LATER = {"queuedesc": "queueconfig", "meterdesc": "meterconfig"}
_ALIASES = {"flowdesc": "flow"}
#: Largest number of a port, queue, group or meter.
_MOST = 0xFFFFFFFF
_SLAVE = (3, "SLAVE", "OFPCR_ROLE_SLAVE")


def add(controller: Controller) -> None:
    """Add the routes below ``/stats``; what cannot be read there is answered 400."""

    def add_to(app: FastAPI) -> None:
        app.include_router(router(controller.plane, controller.tables.written_by_user))
        app.state.bad_request.append(f"{PREFIX}/")

    controller.app_parts.append(add_to)


def router(
    plane: OpenFlowPlane,
    writing: Callable[[int], contextlib.AbstractContextManager[None]],
) -> APIRouter:
    """Return the routes below ``/stats``.

    ``writing``: context, given a datapath id, for each change of a switch's flows.
    """
    routes = APIRouter(prefix=PREFIX, tags=["ofctl_rest"], route_class=AlwaysJson)
    ofctl = Ofctl(plane)

    def known(dpid: int | str) -> int:
        number = int(str(dpid), 0)
        if number not in plane.connected():
            raise NotFoundError(f"there is no switch with datapath id {dpid}")
        return number

    def ask(dpid: str, what: str, **narrowed: str) -> Any:
        number = known(dpid)
        if what in _LATER:
            raise UnsupportedError(
                f"OpenFlow 1.3 has no {what}; ask /stats/{_LATER[what]}/{number}"
            )
        filters: dict[str, Any] = {
            key: None if value == "ALL" else int(value, 0)
            for key, value in narrowed.items()
        }
        for key, value in filters.items():
            if value is not None and value > _MOST:
                raise NotFoundError(f"there is no {key} {value}: it has 32 bits")
        return ofctl.read(number, _ALIASES.get(what, what), **filters)

    @routes.get("/switches", **answers(list[int]))
    def switches() -> Any:
        """Datapath ids of the connected switches."""
        return sorted(plane.connected())

    # One function for each set of parameters that a path may have.

    def of_switch(what: str) -> Any:
        def endpoint(dpid: Dpid) -> Any:
            return ask(dpid, what)

        return endpoint

    def of_port(what: str) -> Any:
        def endpoint(dpid: Dpid, port: OnePort) -> Any:
            return ask(dpid, what, port=port)

        return endpoint

    def of_queue(what: str) -> Any:
        def endpoint(dpid: Dpid, port: OnePort, queue_id: OneQueue) -> Any:
            return ask(dpid, what, port=port, queue_id=queue_id)

        return endpoint

    def of_group(what: str) -> Any:
        def endpoint(dpid: Dpid, group_id: OneGroup) -> Any:
            return ask(dpid, what, group_id=group_id)

        return endpoint

    def of_meter(what: str) -> Any:
        def endpoint(dpid: Dpid, meter_id: OneMeter) -> Any:
            return ask(dpid, what, meter_id=meter_id)

        return endpoint

    def add(method: str, path: str, endpoint: Any, summary: str, **more: Any) -> None:
        name = "_".join(word.strip("{}") for word in path.split("/"))
        routes.add_api_route(
            f"/{path}", endpoint, methods=[method], name=name, summary=summary, **more
        )

    def read(what: str, shape: Any, summary: str, *narrower: tuple[str, Any]) -> None:
        if what in _LATER:
            given: dict[str, Any] = {
                "response_model": None,
                "status_code": 501,
                "responses": errors(400, 404, 501),
            }
        else:
            given = answers(dict[str, shape], 400, 404, 501, 503, 504)
        add("GET", f"{what}/{{dpid}}", of_switch(what), summary, **given)
        for path, endpoint in narrower:
            add(
                "GET",
                f"{what}/{{dpid}}/{path}",
                endpoint(what),
                f"{summary}, narrowed",
                **given,
            )

    one_port, one_queue = ("{port}", of_port), ("{port}/{queue_id}", of_queue)
    one_group, one_meter = ("{group_id}", of_group), ("{meter_id}", of_meter)
    read("desc", shapes.Desc, "Who made the switch")
    read("flow", shapes.many(shapes.FlowStats), "Flows")
    read(
        "flowdesc",
        shapes.many(shapes.FlowStats),
        "Flows, as Ryu answers here under OpenFlow 1.3",
    )
    read("aggregateflow", shapes.many(shapes.AggregateStats), "Flows, added up")
    read("table", shapes.many(shapes.TableStats), "Tables")
    read("tablefeatures", shapes.many(shapes.TableFeatures), "What each table can do")
    read("port", shapes.many(shapes.PortStats), "Counters of ports", one_port)
    read("portdesc", shapes.many(shapes.PortDesc), "Ports", one_port)
    read(
        "queue",
        shapes.many(shapes.QueueStats),
        "Counters of queues",
        one_port,
        one_queue,
    )
    read("queueconfig", shapes.many(shapes.QueueConfig), "Queues by port", one_port)
    read("queuedesc", None, "Queues, in later OpenFlow", one_port, one_queue)
    read("group", shapes.many(shapes.GroupStats), "Counters of groups", one_group)
    read("groupdesc", shapes.many(shapes.GroupDesc), "Groups", one_group)
    read("groupfeatures", shapes.many(shapes.GroupFeatures), "What groups there can be")
    read("meter", shapes.many(shapes.MeterStats), "Counters of meters", one_meter)
    read("meterconfig", shapes.many(shapes.MeterConfig), "Meters", one_meter)
    read("meterdesc", None, "Meters, in later OpenFlow", one_meter)
    read("meterfeatures", shapes.many(shapes.MeterFeatures), "What meters there can be")
    read("role", shapes.many(shapes.Role), "The role of this controller")

    def filtered(what: str) -> Any:
        def endpoint(dpid: Dpid, body: shapes.FlowFilter | None = None) -> Any:
            return ofctl.read(
                known(dpid), what, flow={} if body is None else _given(body)
            )

        return endpoint

    for what, shape in (
        ("flow", shapes.FlowStats),
        ("flowdesc", shapes.FlowStats),
        ("aggregateflow", shapes.AggregateStats),
    ):
        given = answers(dict[str, list[shape]], 400, 404, 501, 503, 504)  # type: ignore[valid-type]
        add(
            "POST",
            f"{what}/{{dpid}}",
            filtered(_ALIASES.get(what, what)),
            "Only some flows",
            **given,
        )

    # Changes

    made: dict[str, Any] = {
        "response_class": Response,
        "responses": {200: {"description": "Done, and confirmed by the switch"}}
        | errors(400, 404, 409, 501, 502, 503, 504),
    }

    def writer(what: str, body_type: Any, command: str) -> Any:
        def endpoint(body: Any) -> Response:
            number = known(body.dpid)
            with writing(number):
                ofctl.write(number, what, _given(body), command)
            return Response()

        endpoint.__annotations__["body"] = body_type
        return endpoint

    for what, body_type, commands in (
        (
            "flow",
            shapes.FlowEntry,
            ("add", "modify", "modify_strict", "delete", "delete_strict"),
        ),
        ("group", shapes.GroupEntry, ("add", "modify")),
        ("group", shapes.GroupKey, ("delete",)),
        ("meter", shapes.MeterEntry, ("add", "modify")),
        ("meter", shapes.MeterKey, ("delete",)),
    ):
        for command in commands:
            summary = f"{command.replace('_', ' ')} {what}s".capitalize()
            add(
                "POST",
                f"{what}entry/{command}",
                writer(what, body_type, command),
                summary,
                **made,
            )

    @routes.delete("/flowentry/clear/{dpid}", **made)
    def clear_flows(dpid: Dpid) -> Response:
        """Delete every flow. The controller's own, without which no packet gets through, are back at once."""
        number = known(dpid)
        with writing(number):
            ofctl.clear_flows(number)
        return Response()

    @routes.post("/portdesc/modify", **made)
    def modify_port(body: shapes.PortEntry) -> Response:
        """Change the configuration of a port."""
        ofctl.modify_port(known(body.dpid), _given(body))
        return Response()

    @routes.post("/role", **made)
    def set_role(body: shapes.RoleEntry) -> Response:
        """Ask a switch for a role. SLAVE is refused: this controller must be able to write."""
        number = known(body.dpid)
        if body.role in _SLAVE:
            raise ConflictError(
                "role: as SLAVE this controller could not forward any more"
            )
        ofctl.set_role(number, body.role)
        return Response()

    @routes.post("/experimenter/{dpid}", **made)
    def experimenter(dpid: Dpid, body: shapes.Experiment) -> Response:
        """Send an experimenter message."""
        number = known(dpid)
        with writing(number):
            ofctl.experimenter(number, body.model_dump())
        return Response()

    return routes


def _given(body: BaseModel) -> dict[str, Any]:
    """Return the values of a body that were given and are not null, as os-ken's library expects them."""
    return body.model_dump(exclude_unset=True, exclude_none=True)
