"""The REST API: FastAPI with its OpenAPI page at ``/docs``; errors are ``{"detail": "one line"}``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Response
from pydantic import Field

from ringlight.controller.errors import InvalidError
from ringlight.controller.jobs.workload_files import PACKED_BYTES
from ringlight.controller.packets.attachment import (
    Circuit,
    FabricDocument,
    Topology,
    fabric_document,
    lit_circuits,
    topology,
)
from ringlight.controller.rest import (
    claims,
    gpus,
    jobs,
    lab_faults,
    optical,
    optical_changes,
    optical_faults,
    planes,
)
from ringlight.controller.rest.common import (
    PlainRoute,
    Who,
    add_error_handlers,
    answers,
    sender,
    tagged,
)
from ringlight.controller.rest.light_requests import (
    Circuits,
    CircuitsPatch,
    IfMatch,
    expected,
)
from ringlight.controller.rest.observation import add_observation
from ringlight.controller.rest.packet_switches import add_packet_switches
from ringlight.controller.rest.requests import OtherPathEnd, PathEnd
from ringlight.controller.service import NO_OTHERS, Controller, health_model
from ringlight.controller.web.access import JsonBodies, OwnPagesOnly, TokenRequired
from ringlight.controller.web.api_page import add_api_page
from ringlight.controller.web.bounds import BoundedBodies, InTurn, Shared
from ringlight.controller.web.refusals import errors
from ringlight.controller.web.timing import Timed, call_histogram
from ringlight.fabric.parts import Port
from ringlight.fabric.topology import port_name

_HEALTH = "/v1/health"


@dataclass(frozen=True)
class PathHop:
    """Link on a path. ``path``: every port that packets pass."""

    out: Annotated[str, Field(serialization_alias="from")]
    into: Annotated[str, Field(serialization_alias="to")]
    rate_bps: float
    path: list[str]
    choices: int


@dataclass(frozen=True)
class PathDocument:
    """``paths``: how one of several is chosen; ``rate_bps``: of the slowest link."""

    source: str
    destination: str
    paths: str
    rate_bps: float
    hops: list[PathHop]


@dataclass(frozen=True)
class LitCircuits:
    """``generation``: number of this light, which grows with every change."""

    generation: int
    circuits: list[Circuit]


def create_app(
    controller: Controller,
    tokens: Mapping[str, str] | None = None,
    hosts: Collection[str] = (),
) -> FastAPI:
    """Return the ASGI application of a controller.

    ``tokens``: name of each token; if given, every call needs a token. ``hosts``: names of this server, in
    addition to the names of loopback and the address of the call. Raises ExtensionError.
    """
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        title="Ringlight controller",
        version="1",
        description="Packet switches, optical switches, circuits and jobs of one fabric. "
        "Times `t` are seconds of CLOCK_MONOTONIC; rates are bits per second.",
        responses=errors(403) if tokens is None else errors(401, 403),
    )
    app.router.route_class = PlainRoute
    #: Beginnings of paths below which what cannot be read is answered 400.
    app.state.bad_request = []
    add_error_handlers(app)
    add_api_page(app)
    _add_fabric(app, controller)
    add_packet_switches(app, controller)
    calls = call_histogram()
    add_observation(app, controller, calls)
    app.include_router(optical.router(controller))
    app.include_router(optical_faults.router(controller))
    app.include_router(optical_changes.router(controller))
    app.include_router(planes.router(controller))
    app.include_router(lab_faults.router(controller))
    app.include_router(jobs.router(controller))
    app.include_router(gpus.router(controller))
    app.include_router(claims.router(controller))
    # The last one added is asked first.
    streamed = {("PUT", jobs.WORKLOADS): PACKED_BYTES}
    app.add_middleware(
        BoundedBodies, streamed=streamed, bad_request=app.state.bad_request
    )
    app.add_middleware(JsonBodies, binary=[jobs.WORKLOADS])
    if tokens is not None:
        app.add_middleware(TokenRequired, tokens=tokens)
    for add_part in controller.app_parts:
        add_part(app)
    app.add_middleware(OwnPagesOnly, names=hosts)
    app.add_middleware(InTurn, first=[_HEALTH])
    app.add_middleware(Timed, calls=calls)
    return app


def _add_fabric(app: FastAPI, controller: Controller) -> None:
    fabric, circuits = controller.fabric, controller.circuits

    others_thread = CapacityLimiter(1)
    health_form = health_model()
    send_health = sender(health_form)
    shared_others = Shared(
        lambda: to_thread.run_sync(controller.foreign, limiter=others_thread)
    )

    @app.get(_HEALTH, tags=["controller"], **answers(health_form))
    async def health() -> Any:
        """Report whether every switch and the server agent can be reached."""
        # On the loop itself: a thread would wait for the interpreter as long as many ask for other things.
        return send_health(
            controller.health(
                await shared_others() if controller.has_others else NO_OTHERS
            )
        )

    # It never changes, so it is written out once, and no thread is needed to send it.
    plugged = sender(FabricDocument)(fabric_document(fabric, controller.scale)).body

    @app.get("/v1/fabric", tags=["fabric"], **answers(FabricDocument))
    async def get_fabric() -> Any:
        """Fabric: its GPUs, switches and fixed links."""
        return Response(plugged, media_type="application/json")

    send_topology = sender(Topology)
    drawn: tuple[object, bytes] = (None, b"")

    @app.get("/v1/topology", tags=["fabric"], **answers(Topology))
    async def get_topology() -> Any:
        """Current packet topology; links that are down and those of lost GPUs are left out."""
        nonlocal drawn
        lost = controller.jobs.lost_gpus
        state = circuits.revision, controller.forwarding.down, lost
        if drawn[0] != state:
            drawn = state, await to_thread.run_sync(draw)
        return Response(drawn[1], media_type="application/json")

    def draw() -> bytes:
        graph = controller.forwarding.graph(circuits.cross_connects())
        document = topology(graph, controller.jobs.lost_gpus)
        return bytes(send_topology(document).body)

    @app.get(
        "/v1/paths", tags=["fabric"], **answers(PathDocument, 404, 409, 422, 503, 504)
    )
    def get_path(source: PathEnd, destination: OtherPathEnd) -> Any:
        """The links that packets from one GPU to another take now, read from the switches' flow tables.

        ``choices``: from how many links on shortest paths the switch could choose. The way back may be
        another one. 404: there is no such GPU; 409: packets do not arrive, and why.
        """
        hops = controller.forwarding.path(
            source, destination, circuits.cross_connects()
        )
        path_hops = [
            PathHop(
                port_name(fabric, hop.out),
                port_name(fabric, hop.into),
                hop.rate_bps,
                [str(port) for port in hop.through],
                hop.choices,
            )
            for hop in hops
        ]
        slowest_bps = min(hop.rate_bps for hop in hops)
        return PathDocument(source, destination, fabric.paths, slowest_bps, path_hops)

    send_circuits = sender(LitCircuits)
    changes = answers(optical.CircuitsChange, 409, 415, 422, 502, 503)

    def ports(pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[Port, Port]]:
        for index, (a, b) in enumerate(pairs):
            try:
                yield Port.parse(a), Port.parse(b)
            except ValueError as error:
                raise InvalidError(f"circuits[{index}]: {error}") from error

    @app.get("/v1/circuits", tags=["fabric"], **answers(LitCircuits))
    def get_circuits() -> Any:
        """End-to-end circuits lit now. The ``ETag`` is the generation."""
        generation, light = circuits.light()
        entries = lit_circuits(fabric, light, controller.jobs.lost_gpus)
        document = LitCircuits(generation, entries)
        return tagged(send_circuits(document), generation)

    @app.put("/v1/circuits", tags=["fabric"], **changes)
    def put_circuits(body: Circuits, who: Who, if_match: IfMatch = None) -> Any:
        """Make exactly these duplex circuits stand, the forwarding rules changed while they are dark.

        On all optical switches or on none: 502 says what did not work, and with ``undone`` that all was taken
        back but what is ``left``. 409 names who changed the light since the generation that was expected.
        """
        change = circuits.set_circuits(
            list(ports(body.circuits)),
            who=who,
            dry_run=body.dry_run,
            expect=expected(if_match, body.expect, body.generation),
        )
        return optical.answer(change)

    @app.patch("/v1/circuits", tags=["fabric"], **changes)
    def patch_circuits(body: CircuitsPatch, who: Who, if_match: IfMatch = None) -> Any:
        """Add some duplex circuits and remove others; the rest stays lit. Return the change, like ``PUT``.

        409: a circuit to remove is not lit, a port is in use, or a packet switch has no free port.
        """
        change = circuits.alter_circuits(
            body.add,
            body.remove,
            who=who,
            dry_run=body.dry_run,
            expect=expected(if_match, body.expect),
        )
        return optical.answer(change)
