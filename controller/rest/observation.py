"""Routes that observe: counters, throughput, metrics and the stream of events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

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

from ringlight.controller.errors import UnavailableError
from ringlight.controller.rest.common import answers
from ringlight.controller.rest.metrics import Metrics
from ringlight.controller.rest.requests import (
    EventId,
    LastEventId,
    Moment,
    StreamLength,
    WithRates,
)
from ringlight.controller.rest.samples import EVERY_S, Samples
from ringlight.controller.service import Controller
from ringlight.controller.web.bounds import Shared, Turns
from ringlight.controller.web.refusals import errors

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


def add_observation(app: FastAPI, controller: Controller, calls: Histogram) -> None:
    """Add the routes. ``calls``: times of REST calls."""
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
        """Server-sent events: jobs, claims, lost GPUs, regroups, switches up and down, alarms, changes of light.

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
