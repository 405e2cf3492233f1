"""Who may call the REST API: a foreign web page may not, on any route, whatever routes there are."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from anyio import to_thread
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from ringlight.controller.__main__ import _listen
from ringlight.controller.errors import StartError
from ringlight.controller.inventory import Inventory
from ringlight.controller.openflow.plane import OpenFlowPlane
from ringlight.controller.rest.app import create_app
from ringlight.controller.service import Controller
from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed.emulation.agent.http import make_app
from ringlight.testbed.emulation.optical.rest import create_app as create_switch_app
from tests.unit.fabrics import six_gpus

TOKEN = "a-token-of-the-tests"
FOREIGN = [
    {"host": "evil.example"},
    {"host": "evil.example:8080"},
    {"host": "127.0.0.1.evil.example"},
    {"host": "localhost@evil.example"},
    {"host": ""},
    {"origin": "http://evil.example"},
    {"origin": "http://127.0.0.1:8081"},
    {"origin": "http://127.0.0.1"},
    {"origin": "http://localhost.evil.example:8080"},
    {"origin": "file://127.0.0.1:8080"},
    {"origin": "null"},
    {"origin": ""},
    # A picture or a script with an address of ours, in a page of elsewhere and of this machine.
    {
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "no-cors",
        "sec-fetch-dest": "image",
    },
    {"sec-fetch-site": "same-site"},
    {
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "iframe",
    },
]
FORMS = [
    "application/x-www-form-urlencoded",
    "multipart/form-data",
    "text/plain",
    "application/jsonp",
    None,
]
OWN = [
    {},
    {"host": "localhost"},
    {"host": "LOCALHOST:9999"},
    {"host": "[::1]:8080"},
    {"host": "lab.example:8080"},
    {"origin": "http://127.0.0.1:8080"},
    {"origin": "http://localhost:8080"},
    {"host": "lab.example", "origin": "https://lab.example"},
    {"host": "[::1]:8080", "origin": "http://[::1]:8080"},
    {
        "sec-fetch-site": "same-origin",
        "sec-fetch-mode": "cors",
        "sec-fetch-dest": "empty",
    },
    {
        "sec-fetch-site": "none",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
    },
]


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Controller:
    """Never started: no call of these tests may get as far as its switches."""
    fabric = build_fabric(FabricSpec.model_validate(six_gpus()))
    optical = {"ocs0": {"driver": "scpi", "address": "127.0.0.1:9"}}
    inventory = Inventory.model_validate({"lab": "test", "optical_switches": optical})
    state = tmp_path_factory.mktemp("state")
    return Controller(fabric, inventory, state, OpenFlowPlane("127.0.0.1", 0))


class Reached:
    """Stands where the routes are, behind all that asks who calls: notes what gets there."""

    def __init__(self, app: FastAPI) -> None:
        self.calls: list[tuple[str, str]] = []
        self.app = app
        app.router.middleware_stack = self

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls.append((scope["method"], scope["path"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def routes(app: FastAPI) -> list[tuple[str, str]]:
    """Every method and path that the router knows, the pages about the API too."""
    found = [
        (method, route.path) for route in leaves(app.routes) for method in route.methods
    ]
    documented = {
        (m.upper(), path) for path, item in app.openapi()["paths"].items() for m in item
    }
    more = {
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/metrics"),
        ("GET", "/v1/events"),
    }
    assert documented | more <= {*found}
    return [(method, re.sub(r"\{[^}]*\}", "1", path)) for method, path in found]


def leaves(entries: Any) -> Iterator[Any]:
    for entry in entries:
        if hasattr(entry, "original_router"):
            assert not entry.include_context.prefix
            yield from leaves(entry.original_router.routes)
        else:
            assert hasattr(entry, "methods"), (
                f"this test does not know what {entry} answers"
            )
            yield entry


def call(
    app: FastAPI,
    method: str,
    path: str,
    headers: Mapping[str, str] = {},
    body: bytes = b"",
    *,
    query: str = "",
    server: str = "127.0.0.1",
) -> tuple[int, bytes]:
    """Status and body of the answer to one request that came to the address ``server``."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "query_string": query.encode(),
        "headers": [
            (k.encode(), v.encode())
            for k, v in {"host": f"{server}:8080", **headers}.items()
        ],
        "server": (server, 8080),
        "client": ("192.0.2.1", 1),
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


@pytest.mark.parametrize("token", [None, TOKEN], ids=["without token", "with token"])
def test_no_route_is_open_to_foreign_pages(
    controller: Controller, token: str | None
) -> None:
    app = create_app(
        controller, None if token is None else {token: "lab"}, ["Lab.example"]
    )
    reached = Reached(app)
    usual = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    for method, path in routes(app):
        for foreign in FOREIGN:
            status, text = call(app, method, path, {**usual, **foreign}, b"{}")
            assert status == 403, (method, path, foreign)
            assert "\n" not in json.loads(text)["detail"]
        assert not reached.calls, "a refused call went on to its route"
        for own in OWN:
            assert call(app, method, path, {**usual, **own})[0] == 200, (
                method,
                path,
                own,
            )
        assert reached.calls == [(method, path)] * len(OWN)
        reached.calls.clear()


def test_a_link_on_another_page_may_be_followed_and_its_form_not_sent(
    controller: Controller,
) -> None:
    app = create_app(controller)
    Reached(app)
    link = {
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
    }
    assert call(app, "GET", "/docs", link)[0] == 200
    assert call(app, "POST", "/v1/jobs", link)[0] == 403


def test_a_body_below_v1_must_be_json(controller: Controller) -> None:
    app = create_app(controller)
    reached = Reached(app)
    for method, path in routes(app):
        for headers in ({"content-length": "2"}, {"transfer-encoding": "chunked"}):
            for kind in FORMS:
                named = {} if kind is None else {"content-type": kind}
                # Elsewhere scripts of old may call their bodies what they like, or nothing.
                wanted = 415 if path.startswith("/v1/") else 200
                assert (
                    call(app, method, path, {**headers, **named}, b"{}")[0] == wanted
                ), (method, path, kind)
            assert bool(reached.calls) == (not path.startswith("/v1/"))
            reached.calls.clear()
            packed = path.startswith("/v1/workloads/")
            kind = (
                "Application/Octet-Stream"
                if packed
                else "Application/JSON; charset=utf-8"
            )
            assert (
                call(app, method, path, {**headers, "content-type": kind}, b"{}")[0]
                == 200
            )
            assert call(app, method, path, {"content-length": "0"})[0] == 200
            reached.calls.clear()


def test_every_server_refuses_a_body_that_is_too_large(
    controller: Controller, tmp_path: Path
) -> None:
    """Those of applications are in ``test_web_bounds``, as is what happens to a body without a length."""
    unused: Any = SimpleNamespace(workloads=tmp_path, device=None, faults=None)
    servers = {
        "controller": (create_app(controller), "/v1/jobs", 1 << 20),
        "server agent": (make_app(unused, unused, unused, {}), "/v1/workers", 16 << 20),
        "optical switch": (create_switch_app(unused), "/v1/faults", 1 << 20),
    }
    for name, (app, path, limit) in servers.items():
        json_body = {
            "content-type": "application/json",
            "content-length": str(limit + 1),
        }
        status, text = call(app, "POST", path, json_body, b"x")
        assert (status, json.loads(text)) == (
            413,
            {"detail": f"the body has more than {limit} bytes"},
        ), name


def test_health_waits_for_no_thread(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_is_free(*_: Any, **__: Any) -> None:
        raise AssertionError("a thread was asked for")

    app = create_app(controller)
    monkeypatch.setattr(to_thread, "run_sync", none_is_free)
    status, text = call(app, "GET", "/v1/health")
    assert (status, json.loads(text)["controllers"]) == (200, {})


def test_calls_are_timed_by_route(controller: Controller) -> None:
    app = create_app(controller)
    assert call(app, "GET", "/v1/health")[0] == 200
    assert call(app, "GET", "/v1/planes/nobody")[0] == 404
    assert call(app, "INVENTED", "/invented")[0] == 404
    assert call(app, "GET", "/v1/health", FOREIGN[0])[0] == 403
    families = {
        family.name: family
        for family in text_string_to_metric_families(
            call(app, "GET", "/metrics")[1].decode()
        )
    }
    counts = {
        (s.labels["method"], s.labels["route"], s.labels["status"]): s.value
        for s in families["ringlight_rest_seconds"].samples
        if s.name.endswith("_count")
    }
    assert counts == {
        ("GET", "/v1/health", "200"): 1,
        ("GET", "/v1/planes/{name}", "404"): 1,
        ("none", "none", "404"): 1,
        ("none", "none", "403"): 1,
    }


def test_a_moment_is_a_number(controller: Controller) -> None:
    app = create_app(controller)
    for wrong in ("nan", "inf", "-inf", "-1", "1e999"):
        for path, name in (("/v1/series", "since"), ("/v1/events", "seconds")):
            status, text = call(app, "GET", path, query=f"{name}={wrong}")
            assert (status, json.loads(text)["detail"].partition(":")[0]) == (
                422,
                name,
            ), wrong
    assert call(app, "GET", "/v1/series", query="since=1.5") == (200, b"[]")
    for wrong in ("NaN", "Infinity"):
        body = f'{{"jobs": ["x"], "delay_s": {wrong}}}'.encode()
        head = {"content-type": "application/json", "content-length": str(len(body))}
        status, text = call(app, "POST", "/v1/jobs/release", head, body)
        assert (status, json.loads(text)["detail"].partition(":")[0]) == (
            422,
            "delay_s",
        )


def test_the_address_called_is_own_and_another_is_not(controller: Controller) -> None:
    """As behind ``--rest 0.0.0.0:8080``: what a connection was made to is only known from itself."""
    app = create_app(controller, {TOKEN: "lab"})
    Reached(app)

    def status(host: str, token: str) -> int:
        headers = {"host": host, "authorization": f"Bearer {token}"}
        return call(app, "GET", "/v1/fabric", headers, server="::ffff:192.0.2.7")[0]

    assert status("192.0.2.7:8080", TOKEN) == 200
    assert status("192.0.2.8:8080", TOKEN) == 403
    assert status("192.0.2.7:8080", "another") == 401
    assert status("evil.example", "another") == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_answer_does_not_wait_for_acknowledgements(host: str) -> None:
    """With Nagle's algorithm on every call took 44 ms; asyncio turns it off where it knows that it is TCP."""

    async def nodelay(listener: socket.socket) -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def accepted(_: Any, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.set_result(
                connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            )
            writer.close()

        async with await asyncio.start_server(accepted, sock=listener):
            with socket.create_connection(listener.getsockname()[:2]):
                return await asyncio.wait_for(found, 5.0)

    try:
        listener = _listen(host, 0)
    except StartError as error:
        pytest.skip(str(error))
    assert asyncio.run(nodelay(listener))
