"""The commands' client of the REST API, where what answers is no controller."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ringlight.experiments.client import Api, Unreachable


class Other(BaseHTTPRequestHandler):
    """Some other program's page."""

    def do_GET(self) -> None:
        body = b"data: <html>\n\n"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def other() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    "address", ["127.0.0.1:http", "http://[::1", f"{'a' * 64}.net:80", "a..b:80"]
)
def test_an_address_that_is_none_is_named(address: str) -> None:
    with pytest.raises(Unreachable) as caught:
        Api(address).get("/v1/jobs")
    assert address in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_another_program_answers_is_no_traceback(other: str) -> None:
    api = Api(other)
    for ask in (lambda: api.get("/v1/jobs"), lambda: list(api.stream("/v1/events"))):
        with pytest.raises(
            Unreachable, match=f"no controller answers at http://{other}"
        ):
            ask()


@pytest.mark.parametrize("lingers", [True, False], ids=["closed", "reset"])
def test_a_controller_that_ends_before_it_answers_is_told_with_what_helps(
    lingers: bool,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def end() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                if not lingers:
                    connection.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )

        ends = threading.Thread(target=end, daemon=True)
        ends.start()
        with pytest.raises(
            Unreachable,
            match=r"did not answer: .*; start one with: ringlight up SCENARIO",
        ):
            Api(f"127.0.0.1:{server.getsockname()[1]}").get("/v1/jobs")
        ends.join(10)
