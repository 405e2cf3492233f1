"""The REST API: FastAPI with its OpenAPI page at ``/docs``; errors are ``{"detail": "one line"}``."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Response
from fastapi.responses import StreamingResponse
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from pydantic import Field

from ringlight.controller.errors import InvalidError, NotFoundError, UnavailableError
from ringlight.controller.jobs.workload_files import PACKED_BYTES
from ringlight.controller.packets.attachment import (
    Circuit,
    FabricDocument,
    Topology,
    fabric_document,
    lit_circuits,
    topology,
)
from ringlight.controller.packets.port_notifications import Attached, attached
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
from ringlight.controller.rest.metrics import Metrics
from ringlight.controller.rest.requests import (
    Circuits,
    CircuitsPatch,
    EventId,
    IfMatch,
    LastEventId,
    Moment,
    OtherPathEnd,
    PacketSwitchName,
    PathEnd,
    StreamLength,
    WithRates,
    expected,
)
from ringlight.controller.rest.samples import EVERY_S, Samples
from ringlight.controller.service import NO_OTHERS, Controller, health_model
from ringlight.controller.web.access import JsonBodies, OwnPagesOnly, TokenRequired
from ringlight.controller.web.api_page import add_api_page
from ringlight.controller.web.bounds import BoundedBodies, InTurn, Shared, Turns
from ringlight.controller.web.refusals import errors
from ringlight.controller.web.timing import Timed, call_histogram
from ringlight.fabric.extension import loaded
from ringlight.fabric.parts import PacketSwitch, Port
from ringlight.fabric.topology import port_name

_HEALTH = "/v1/health"
#: Streams of events at a time.
_MOST_STREAMS = 256
#: A silent event stream says so every so many seconds.
_STILL_HERE_S = 10.0
_EVENTS = "text/event-stream"
#: One event of the stream; ``data`` is JSON with ``id``, ``t``, ``event`` and what belongs to its kind. Rates
#: have no id.
_EVENT = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
    "required": ["event", "data"],
}
#: Content type of the metrics without its parameters.
_METRICS = CONTENT_TYPE_LATEST.partition(";")[0]


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


@dataclass(frozen=True)
class PacketSwitchDocument(PacketSwitch):
    """``connected``: to our controller, as those are whose tables it writes."""

    connected: bool = False
    attached: list[Attached] = dataclasses.field(default_factory=list)


@dataclass(frozen=True)
class Flow:
    """An entry of a flow table; ``duration_s``: seconds since it was written."""

    priority: int
    match: dict[str, int | str]
    out_ports: list[int]
    cookie: int
    table_id: int
    packets: int
    bytes: int
    duration_s: float


@dataclass(frozen=True)
class PacketPort:
    """Counters are 0 for a port that came just now; rx is what the switch received."""

    port: int
    interface: str
    up: bool
    gpu: str | None
    peer: str | None
    rx_packets: int = 0
    tx_packets: int = 0
    rx_bytes: int = 0
    tx_bytes: int = 0
    rx_dropped: int = 0
    tx_dropped: int = 0
    rx_errors: int = 0
    tx_errors: int = 0


@dataclass(frozen=True)
class PortBytes:
    """Bytes that a port of a packet switch has received and sent, as frames without FCS."""

    switch: str
    port: int
    rx_bytes: int
    tx_bytes: int


@dataclass(frozen=True)
class SeriesSample:
    t: float
    switch: str
    port: int
    gpu: str | None
    peer: str | None
    rx_bps: float
    tx_bps: float


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
    _add_packet_switches(app, controller)
    calls = call_histogram()
    _add_observation(app, controller, calls)
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
    for add_routes in loaded("routes"):
        add_routes(app, controller)
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
        lambda: to_thread.run_sync(controller.others, limiter=others_thread)
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
        state = circuits.generation(), controller.forwarding.down, lost
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
        lit = lit_circuits(fabric, light, controller.jobs.lost_gpus)
        document = LitCircuits(generation, lit)
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
        """Add some duplex circuits and remove others; the rest stays lit. Otherwise like ``PUT``.

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


def _add_packet_switches(app: FastAPI, controller: Controller) -> None:
    fabric, plane = controller.fabric, controller.plane

    def dpid(name: str) -> int:
        if name not in fabric.packet_switches:
            raise NotFoundError(f"there is no packet switch {name}")
        if not fabric.packet_switches[name].is_ours:
            whose = fabric.packet_switches[name].controller
            raise UnavailableError(
                f"{name} is not connected here: its tables are left to {whose}"
            )
        return fabric.packet_switches[name].dpid

    @app.get(
        "/v1/packet-switches",
        tags=["packet switches"],
        **answers(list[PacketSwitchDocument]),
    )
    def packet_switches() -> Any:
        """Packet switches: who writes their tables, and which circuits end at their ports now."""
        connected, ends = plane.connected(), controller.circuits.ends()
        return [
            PacketSwitchDocument(
                **vars(s),
                connected=s.dpid in connected,
                attached=attached(fabric, ends, s.name),
            )
            for s in fabric.packet_switches.values()
        ]

    @app.get(
        "/v1/packet-switches/{name}/flows",
        tags=["packet switches"],
        **answers(list[Flow], 404, 503, 504),
    )
    def flows(name: PacketSwitchName) -> Any:
        """The flow table, read from the switch now. ``duration_s``: seconds since the flow was written."""
        entries = plane.flows(dpid(name), timeout_s=5.0, counted=True)
        entries.sort(
            key=lambda e: (-e.priority, sorted((k, str(v)) for k, v in e.match.items()))
        )
        # The wire format is left out: nobody reads it.
        return [
            Flow(
                e.priority,
                dict(e.match),
                list(e.out_ports),
                e.cookie,
                e.table_id,
                e.packets,
                e.bytes,
                e.duration_s,
            )
            for e in entries
        ]

    @app.get(
        "/v1/packet-switches/{name}/ports",
        tags=["packet switches"],
        **answers(list[PacketPort], 404, 503, 504),
    )
    def ports(name: PacketSwitchName) -> Any:
        """The ports with their counters and what is lit to them."""
        number = dpid(name)
        stats = {s.port_no: s for s in plane.port_stats(number, timeout_s=5.0)}
        ends = controller.circuits.ends()
        result = []
        for port in plane.ports(number):
            counters = dict(vars(stats[port.number])) if port.number in stats else {}
            end = ends.get(Port(name, port.number))
            gpu = end.node if end is not None and end.node in fabric.gpus else None
            peer = None if end is None else str(end)
            counters.pop("port_no", None)
            result.append(
                PacketPort(port.number, port.name, port.up, gpu, peer, **counters)
            )
        return result


def _add_observation(app: FastAPI, controller: Controller, calls: Histogram) -> None:
    # When each counter began is nobody's question, and a third of the text.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    registry.register(Metrics(controller))
    registry.register(calls)
    metrics_thread, sending = CapacityLimiter(1), Turns()
    exposition = Shared(
        lambda: to_thread.run_sync(generate_latest, registry, limiter=metrics_thread)
    )

    @app.get(
        "/metrics",
        tags=["observation"],
        response_class=Response,
        responses={200: {"content": {_METRICS: {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """Counters for Prometheus."""
        text = await exposition()
        # All who have waited for it have it now; they send it in turn.
        await sending()
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/port-bytes", tags=["observation"], **answers(list[PortBytes], 503))
    def port_bytes() -> Any:
        """Counters of all packet switches' ports, read now."""
        return [
            PortBytes(name, port.port_no, port.rx_bytes, port.tx_bytes)
            for name, ports in controller.statistics.read_now().items()
            for port in ports
        ]

    @app.get("/v1/series", tags=["observation"], **answers(list[SeriesSample], 422))
    def series(since: Moment = 0.0) -> Any:
        """Port throughput after ``since`` (CLOCK_MONOTONIC seconds); rx is what the switch received."""
        gpus = controller.fabric.gpus
        return [
            SeriesSample(
                sample.t,
                sample.port.node,
                sample.port.number,
                sample.end.node
                if sample.end is not None and sample.end.node in gpus
                else None,
                None if sample.end is None else str(sample.end),
                sample.rx_bps,
                sample.tx_bps,
            )
            for sample in controller.statistics.since(since)
        ]

    samples = Samples(controller)

    @app.get(
        "/v1/events",
        tags=["observation"],
        response_class=Response,
        responses={200: {"content": {_EVENTS: {"schema": _EVENT}}}, **errors(422, 503)},
    )
    async def events(
        after: EventId = None,
        last_event_id: LastEventId = None,
        seconds: StreamLength = None,
        rates: WithRates = False,
    ) -> Response:
        """Server-sent events: jobs, regroups, switches up and down, alarms, changes of light.

        ``after`` (or the header Last-Event-ID) asks for kept events with higher ids first. The stream ends
        after ``seconds``; without, it does not end. With ``rates`` there are also events ``rates``, twice a
        second and without an id: of every port of a packet switch that is busy the mean bits per second
        received and sent (``ports``), each iteration that a job has ended (``iterations``, means over its
        ranks), and the power at ports with a meter (``power_dbm``, at most 10 s old).
        """
        if controller.bus.listeners >= _MOST_STREAMS:
            raise UnavailableError(f"{_MOST_STREAMS} listen to events already")
        begin = after if after is not None else last_event_id
        stream = _stream(controller, begin, seconds, samples if rates else None)
        return StreamingResponse(
            stream, media_type=_EVENTS, headers={"cache-control": "no-store"}
        )


async def _stream(
    controller: Controller,
    after: int | None,
    seconds: float | None,
    samples: Samples | None,
) -> AsyncIterator[str]:
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    deadline = math.inf if seconds is None else time.monotonic() + seconds

    def wake() -> None:
        # The loop of a server that was made to end is closed: nobody is left to be woken.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(news.set)

    subscription = controller.bus.subscribe(after, wake)
    try:
        yield ": ringlight events\n\n"
        due = math.inf if samples is None else time.monotonic()
        while not controller.bus.closed:
            news.clear()
            for event in subscription.take():
                yield f"id: {event['id']}\nevent: {event['event']}\ndata: {json.dumps(event)}\n\n"
            now = time.monotonic()
            if samples is not None and now >= due:
                due = (now // EVERY_S + 1) * EVERY_S
                yield f"event: rates\ndata: {await to_thread.run_sync(samples.latest)}\n\n"
            left_s = deadline - time.monotonic()
            if left_s <= 0.0:
                return
            try:
                await asyncio.wait_for(
                    news.wait(), max(0.0, min(_STILL_HERE_S, left_s, due - now))
                )
            except TimeoutError:
                if samples is None:
                    yield ": still here\n\n"
    finally:
        subscription.close()
