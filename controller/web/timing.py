"""Measure the duration of HTTP calls, for Prometheus: ASGI middleware."""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import Histogram

#: From an answer out of memory to a change of light on slow switches, seconds.
_BUCKETS_S = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    60.0,
)
#: Label of calls that no route takes: a stranger shall not make labels.
_NO_ROUTE = "none"


class Timed:
    """Observes each call from its head until its answer begins, by method, route and status.

    Streams count until their first byte.
    """

    def __init__(self, app: Any, calls: Histogram) -> None:
        self._app = app
        self._calls = calls

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def observed(message: Any) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", _NO_ROUTE)
                method = _NO_ROUTE if route == _NO_ROUTE else scope["method"]
                self._calls.labels(method, route, message["status"]).observe(
                    time.perf_counter() - began
                )
            await send(message)

        await self._app(scope, receive, observed)


def call_histogram() -> Histogram:
    """Return the histogram of one server's calls."""
    return Histogram(
        "ringlight_rest_seconds",
        "From the head of a REST call until its answer begins",
        ["method", "route", "status"],
        registry=None,
        buckets=_BUCKETS_S,
    )
