"""What stands before the routes of applications."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import webob

from ringlight.extensions.applications.apps import wsgi

LIMIT = 1 << 20


class Table(wsgi.ControllerBase):
    @wsgi.route("table", "/table/{dpid}", methods=["PUT", "GET"])
    def table(self, req: Any, dpid: str, **more: Any) -> Any:
        self.data["programmed"].append(dpid)
        return wsgi.Response(
            content_type="application/json", text=json.dumps([dpid, len(req.body)])
        )

    @wsgi.route("bad", "/bad")
    def bad(self, req: Any, **more: Any) -> Any:
        raise RuntimeError("a bug of theirs")

    @wsgi.route("refused", "/refused")
    def refused(self, req: Any, **more: Any) -> Any:
        return webob.exc.HTTPForbidden()


@pytest.fixture
def routes() -> Iterator[tuple[int, list[str]]]:
    """The port of an application's routes, and what was programmed through them."""
    programmed: list[str] = []
    application = wsgi.WSGIApplication()
    application.register(Table, {"programmed": programmed})
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = wsgi.make_server(("127.0.0.1", port), application, ["lab.example"])
    server.start()
    try:
        yield port, programmed
    finally:
        server.stop(at_once=True)


def test_a_foreign_page_cannot_program_the_switches_of_an_application(
    routes: tuple[int, list[str]],
) -> None:
    port, programmed = routes
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for foreign in (
            {"Host": "evil.example"},
            {"Host": f"evil.example:{port}"},
            {"Origin": "http://evil.example"},
            {"Origin": "http://127.0.0.1:8080"},
            {"Origin": "null"},
        ):
            assert (
                client.put("/table/1", content=b"[1]", headers=foreign).status_code
                == 403
            ), foreign
        # A picture's address: a GET without an origin, which a route of theirs may take for an order.
        assert (
            client.get("/table/1", headers={"Sec-Fetch-Site": "cross-site"}).status_code
            == 403
        )
        assert programmed == []
        for own in (
            {},
            {"Host": "lab.example"},
            {"Origin": f"http://127.0.0.1:{port}"},
        ):
            assert client.put("/table/1", content=b"[1]", headers=own).json() == [
                "1",
                3,
            ]
        assert client.get("/table/2?a=1").json() == ["2", 0]
        assert programmed == ["1", "1", "1", "2"]


def test_routes_of_an_application_are_bounded_and_fail_alone(
    routes: tuple[int, list[str]],
) -> None:
    port, programmed = routes
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        assert client.put("/table/1", content=b"x" * (LIMIT + 1)).status_code == 413
        assert (
            client.put("/table/1", content=iter([b"x" * LIMIT, b"x"])).status_code
            == 413
        )
        assert programmed == []
        found = [
            client.get(path).status_code
            for path in ("/bad", "/refused", "/nothing", "/table/2")
        ]
        assert found == [500, 403, 404, 200]
