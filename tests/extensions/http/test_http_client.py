"""The web client of the drivers against bad switches, and the switch's web server against bad clients."""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import (
    AuthFailed,
    DeadlineExceeded,
    Indeterminate,
    OpticalError,
    PermissionDenied,
    ProtocolError,
    Refused,
    Unreachable,
)
from ringlight.controller.optical.inventory import Entry
from ringlight.extensions.http.http_client import (
    MAX_REPLY_BYTES,
    HttpClient,
    Reply,
    http_client,
)
from ringlight.extensions.http.http_session import (
    MAX_BODY_BYTES,
    REQUEST_S,
    Answer,
    HttpSession,
    Request,
    Response,
)
from ringlight.extensions.http.restconf import parse_error
from tests.http_script import Asked, Script, answer, request

# The client


def ask(port: int, timeout_s: float = 2.0) -> Reply:
    client = HttpClient("ocs0", "127.0.0.1", port)
    try:
        return client.read("/x", {}, Deadline(timeout_s))
    finally:
        client.close()


def tell(port: int, timeout_s: float = 2.0) -> Reply:
    client = HttpClient("ocs0", "127.0.0.1", port)
    try:
        return client.write("POST", "/x", {}, b"{}", Deadline(timeout_s))
    finally:
        client.close()


def test_one_connection_serves_all_requests_and_is_made_anew_when_it_was_dropped() -> (
    None
):
    with Script(lambda asked: answer(200, asked.target)) as switch:
        client = HttpClient("ocs0", "127.0.0.1", switch.port)
        for number in range(5):
            assert client.read(f"/{number}", {}, Deadline(2)).json() == f"/{number}"
        assert switch.connections == 1
        switch.drop()
        assert client.write("PUT", "/y", {}, b"1", Deadline(2)).json() == "/y"
        assert switch.connections == 2
        client.close()


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (None, Unreachable),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", ProtocolError),
        (b"hello\r\n\r\n", ProtocolError),
        (b"\0" * 100_000, ProtocolError),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, ProtocolError),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            ProtocolError,
        ),
        (answer(200, b" " * (MAX_REPLY_BYTES + 1)), ProtocolError),
    ],
    ids=[
        "nothing",
        "truncated",
        "garbage",
        "zeros",
        "endless header",
        "two lengths",
        "huge",
    ],
)
def test_a_bad_reply_is_an_error_of_its_own_kind(
    said: bytes | None, error: type[OpticalError]
) -> None:
    def reply(asked: Asked) -> bytes | None:
        if said is not None:
            switch._open[-1].sendall(said)
        return None

    with Script(reply) as switch:
        with pytest.raises(error):
            ask(switch.port)
        switch.asked.clear()
        with pytest.raises(Indeterminate):
            tell(switch.port)
        assert len(switch.asked) == 1, "a write is never repeated"


def test_slow_drip_ends_at_the_deadline() -> None:
    def drip(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            for byte in answer(200, b"x" * 10_000):
                connection.sendall(bytes([byte]))
                time.sleep(0.01)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(
            target=lambda: drip(listener.accept()[0]), daemon=True
        )
        thread.start()
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            ask(listener.getsockname()[1], 0.3)
        assert time.monotonic() - started < 1.5
        thread.join(5)


def test_nobody_there_and_nothing_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for call in (ask, tell):
        with pytest.raises(Unreachable):
            call(port)


@pytest.mark.parametrize(
    ("status", "read", "write"),
    [
        (200, None, None),
        (204, ProtocolError, None),
        (302, ProtocolError, Refused),
        (400, ProtocolError, Refused),
        (401, AuthFailed, AuthFailed),
        (403, PermissionDenied, PermissionDenied),
        (404, ProtocolError, Refused),
        (500, ProtocolError, Indeterminate),
        (503, ProtocolError, Refused),
    ],
)
def test_a_status_means_one_thing(
    status: int, read: type[OpticalError] | None, write: type[OpticalError] | None
) -> None:
    reply = Reply(status, (), b"what it says")
    for check, error in ((reply.check_read, read), (reply.check_write, write)):
        with pytest.raises(error) if error else contextlib.nullcontext():
            check("GET /x")


@pytest.mark.fuzz
@given(st.binary())
def test_any_body_is_json_or_an_error(body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        Reply(200, (), body).json()


def test_nesting_without_end_is_an_error() -> None:
    with pytest.raises(ProtocolError):
        Reply(200, (), b"[" * 200_000).json()


@pytest.mark.fuzz
@given(said=st.binary(max_size=200))
def test_any_bytes_are_a_reply_or_an_error(switch_saying: Any, said: bytes) -> None:
    switch_saying.said = said
    with contextlib.suppress(OpticalError):
        ask(switch_saying.port)


@pytest.fixture(scope="module")
def switch_saying() -> Iterator[Any]:
    class Saying(Script):
        said = b""

        def __init__(self) -> None:
            super().__init__(self.say)

        def say(self, asked: Asked) -> None:
            self._open[-1].sendall(self.said)

    with Saying() as made:
        yield made


def test_garbage_is_no_reply_though_the_connection_stays() -> None:
    held = threading.Event()

    def say(asked: Asked) -> None:
        script._open[-1].sendall(b"no line and no end of it")
        held.wait(10)

    with Script(say) as script:
        started = time.monotonic()
        try:
            with pytest.raises(ProtocolError, match="not an HTTP reply"):
                ask(script.port, timeout_s=9.0)
            assert time.monotonic() - started < 5.0, "it does not wait for more of it"
        finally:
            held.set()


# Where it connects to


@pytest.mark.parametrize(
    ("entry", "plain"),
    [
        ({"address": "127.0.0.1:80"}, True),
        ({"address": "[::1]:80"}, True),
        ({"address": "localhost:80"}, True),
        ({"address": "ocs.example:80"}, False),
        ({"address": "10.1.1.1:443"}, False),
        ({"address": "10.1.1.1:443", "tls": False}, True),
        ({"address": "127.0.0.1:443", "tls": True}, False),
    ],
)
def test_tls_is_used_unless_it_is_said_otherwise_or_this_machine(
    entry: dict[str, Any], plain: bool
) -> None:
    context = http_client(Entry("ocs0", entry))._connection._tls
    assert (context is None) is plain
    if context is not None:
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"address": "ocs0"}, "address: 'ocs0' is not host:port"),
        ({"address": "ocs0:99999"}, "address"),
        ({"address": "ocs0:1", "tls": "no"}, "tls: 'no' is neither true nor false"),
        ({"address": "ocs0:1", "ca_file": "/nowhere"}, "ca_file: /nowhere"),
    ],
)
def test_a_bad_entry_names_the_switch_and_the_key(
    entry: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match="optical switch ocs0: ") as caught:
        http_client(Entry("ocs0", entry))
    assert complaint in str(caught.value)


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl makes the certificate"
)
def test_a_certificate_is_checked(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += [
        "-keyout",
        str(key),
        "-out",
        str(certificate),
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True, timeout=20)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def serve(listener: socket.socket) -> None:
        for _ in range(3):
            with (
                contextlib.suppress(OSError),
                context.wrap_socket(listener.accept()[0], True) as connection,
            ):
                for _ in range(2):
                    connection.recv(1 << 16)
                    connection.sendall(answer(200, "hello"))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        entry = {"address": f"localhost:{port}", "tls": True}
        trusted = http_client(Entry("ocs0", entry | {"ca_file": str(certificate)}))
        for _ in range(2):
            assert trusted.read("/x", {}, Deadline(3)).json() == "hello"
        trusted.close()
        for other in (
            entry,
            {**entry, "address": f"127.0.0.1:{port}", "ca_file": str(certificate)},
        ):
            with pytest.raises(Unreachable, match="no TLS"):
                http_client(Entry("ocs0", other)).write(
                    "POST", "/x", {}, b"", Deadline(3)
                )
        thread.join(5)


def test_no_log_line_shows_headers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Script(lambda _: answer(200, 1, set_cookie="session=tasty")) as switch:
        client = HttpClient("ocs0", "127.0.0.1", switch.port)
        client.read("/x", {"authorization": "Basic c2VzYW1l"}, Deadline(2))
        client.close()
    assert "/x" in caplog.text
    assert "c2VzYW1l" not in caplog.text
    assert "tasty" not in caplog.text


# The server's side


class Echo(HttpSession):
    """Says what it heard; of ``/later`` once the time is 5."""

    def _answer(self, request: Request, now_ns: int) -> Answer:
        while request.url.path == "/later" and now_ns < 5:
            now_ns = yield 5
        return Response(
            200,
            request.method.encode() + b" " + request.body,
            {"x-path": request.url.path},
        )


def replies(data: bytes, *methods: str) -> list[tuple[int, bytes]]:
    """Status and body of each response to these requests."""
    client = h11.Connection(h11.CLIENT)
    found = []
    client.receive_data(data)
    for method in methods:
        client.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        client.send(h11.EndOfMessage())
        body = b""
        status = 0
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            assert not isinstance(event, type), event
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
        found.append((status, body))
        with contextlib.suppress(h11.LocalProtocolError):
            client.start_next_cycle()
    return found


def test_trailers_and_heads_behind_a_request_in_work_are_bounded() -> None:
    chunked = b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    later = b"GET /later HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nx-a: b"
    for first in (chunked, later, b"GET / HTTP/1.1\r\nx-a: b"):
        session, taken = Echo(), 0
        session.feed(first)
        session.advance(0)
        for piece in [b"x-a: b\r\n" * 8192] * 640:
            if not session.wants_bytes:
                break
            session.feed(piece)
            session.advance(0)
            taken += len(piece)
        assert taken < 1 << 18, first
        session.advance(5)
        session.advance(6)
        assert session.over, first


@pytest.mark.fuzz
@given(cuts=st.lists(st.integers(0, 400)))
def test_however_the_bytes_are_cut_the_answers_are_the_same(cuts: list[int]) -> None:
    data = (
        request("POST", "/a", b"one")
        + request("HEAD", "/b")
        + request("PUT", "/c", b"x" * 100)
    )
    session, out, last = Echo(), b"", 0
    for cut in [*sorted(cuts), len(data)]:
        session.feed(data[last:cut])
        last = max(last, min(cut, len(data)))
        out += session.advance(0)
    assert replies(out, "POST", "HEAD", "PUT") == [
        (200, b"POST one"),
        (200, b""),
        (200, b"PUT " + b"x" * 100),
    ]
    assert session.idle
    assert not session.over


def test_an_answer_that_takes_time_holds_back_the_next() -> None:
    session = Echo()
    session.feed(request("GET", "/later") + request("GET", "/now"))
    assert session.advance(0) == b""
    assert session.next_ns == 5
    assert not session.idle
    assert replies(session.advance(5), "GET", "GET") == [(200, b"GET "), (200, b"GET ")]
    assert session.next_ns is None


def test_a_client_that_wants_to_go_on_is_told_so() -> None:
    session = Echo()
    session.feed(
        b"PUT / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    )
    assert session.advance(0).startswith(b"HTTP/1.1 100 ")
    session.feed(b"hi")
    assert replies(session.advance(0), "PUT") == [(200, b"PUT hi")]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"\xff\xfe\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\ny: " + b"z" * 70_000, 431),
        (
            b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            400,
        ),
        (request("PUT", "/", b"x" * (MAX_BODY_BYTES + 1)), 413),
    ],
)
def test_what_is_no_request_ends_the_connection(data: bytes, status: int) -> None:
    session = Echo()
    session.feed(data)
    assert [code for code, _ in replies(session.advance(0), "GET")] == [status]
    assert session.over
    session.feed(request("GET", "/"))
    assert session.advance(0) == b""


def test_a_client_of_http_1_0_is_answered_and_sent_away() -> None:
    session = Echo()
    session.feed(b"GET / HTTP/1.0\r\n\r\n")
    assert replies(session.advance(0), "GET") == [(200, b"GET ")]
    assert session.over


def test_memory_is_bounded() -> None:
    session = Echo()
    session.feed(request("GET", "/later"))
    session.advance(0)
    fed = 0
    while session.wants_bytes:
        session.feed(request("GET", "/x"))
        fed += 1
        session.advance(0)
    assert fed < 10_000


@pytest.mark.fuzz
@given(
    st.lists(
        st.binary(max_size=50)
        | st.sampled_from([request("GET", "/"), b"GET / HTTP/1.1\r\n", b"\r\n"])
    )
)
def test_any_bytes_are_answered_or_end_it(pieces: list[bytes]) -> None:
    session = Echo()
    for piece in pieces:
        session.feed(piece)
        session.advance(0)


def test_half_a_request_is_waited_for_no_longer_than_stated() -> None:
    due_ns = int(REQUEST_S * 1e9)
    for half in (b"GET / HT", request("POST", "/a", b"12345")[:-2]):
        session = Echo()
        assert session.advance(0) == b""
        assert session.next_ns is None
        session.feed(half)
        assert session.advance(1000) == b""
        # More of it does not put that off.
        session.feed(b"X" if half.startswith(b"GET") else b"4")
        assert session.advance(due_ns) == b""
        assert session.next_ns == 1000 + due_ns
        said = session.advance(1000 + due_ns)
        assert session.over
        assert said.startswith(b"HTTP/1.1 408 "), said
    whole = Echo()
    whole.feed(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n")
    whole.advance(0)
    whole.feed(b"1")
    assert replies(whole.advance(1), "POST") == [(200, b"POST 1")]
    assert whole.next_ns is None


def test_half_of_a_character_is_refused() -> None:
    with pytest.raises(ProtocolError):
        Reply(200, [], rb'["a", {"b": "\ud800"}]').json()
    assert (
        parse_error(rb'{"ietf-restconf:errors": {"error": [{"error-tag": "\ud800"}]}}')
        == ""
    )
