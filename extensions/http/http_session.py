"""HTTP/1.1 from the server's side for the switch's web protocols: bytes in, reply bytes out, over h11.

A protocol is a subclass of :class:`HttpSession` with `_answer`, a generator: it yields the time at which it
wants to be called again (None: when the device has done something), is sent the time, and returns its
response. One request is answered at a time, in order; a client may send the next ones meanwhile.

A request that is not HTTP gets its 4xx and the connection ends. Bodies are at most `MAX_BODY_BYTES`, and a
request that has begun must be there whole within `REQUEST_S`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

import h11

from ringlight.testbed.emulation.optical.session import Conversation, Work

MAX_BODY_BYTES = 1 << 20
#: A session that holds this many unread bytes wants no more until some are done.
MAX_WAITING_BYTES = 1 << 16
#: Longest from the first byte of a request to its last, seconds.
REQUEST_S = 30.0

_GO_ON = h11.InformationalResponse(status_code=100, headers=[])


@dataclass(frozen=True)
class Request:
    """One request. Header names are lower case; of a header that comes twice the last one stands."""

    method: str
    url: SplitResult
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Answer = Work[Response]


class HttpError(Exception):
    """A request is refused with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def basic_login(request: Request) -> tuple[str, str] | None:
    """Return user and password of basic authentication, None without any."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, _, password = (
            base64.b64decode(token.strip(), validate=True).decode().partition(":")
        )
    except (binascii.Error, ValueError):
        return None
    return user, password


class HttpSession(Conversation[Response]):
    """One client's connection. ``feed`` bytes, then ``advance`` for the replies due now."""

    def __init__(self) -> None:
        super().__init__()
        self._connection = h11.Connection(h11.SERVER)
        self._waiting = bytearray()
        self._head: h11.Request | None = None
        self._body = bytearray()
        #: When what is there of a request is given up, if it is not whole.
        self._due_ns: int | None = None

    def _answer(self, request: Request, now_ns: int) -> Answer:
        """The response to one request. May raise HttpError."""
        raise NotImplementedError

    def _error(self, error: HttpError, request: Request | None) -> Response:
        """Return the response to a request that is refused. ``request``: None if the request could not be
        read."""
        return Response(
            error.status,
            f"{error}\n".encode(),
            {"content-type": "text/plain; charset=utf-8"},
        )

    @property
    def wants_bytes(self) -> bool:
        return not self.over and len(self._waiting) < MAX_WAITING_BYTES

    @property
    def idle(self) -> bool:
        """Return whether everything fed so far is done and answered. An incomplete request does not
        count."""
        return super().idle and not self._waiting

    def feed(self, data: bytes) -> None:
        """Takes bytes as they come; how they are split makes no difference."""
        if not self.over:
            self._waiting += data

    def interrupted(self, reply: bytes, now_ns: int) -> bytes:
        """Return the answer with an interim response (103) before it, which a client must skip."""
        return b"HTTP/1.1 103 Early Hints\r\nlink: </>; rel=preload\r\n\r\n" + reply

    def advance(self, now_ns: int) -> bytes:
        """Do what can be done now, and return the bytes to send. May leave commands with the device: advance
        the device, then call again."""
        out = bytearray()
        self._wake_ns = None
        while not self.over:
            for response in self._replies(now_ns):
                out += self._send(response)
            if self._running is not None or self.over:
                break
            try:
                event = self._connection.next_event()
            except h11.RemoteProtocolError as error:
                out += self._refuse(HttpError(error.error_status_hint, str(error)))
                break
            match event:
                case h11.Request():
                    self._head, self._body = event, bytearray()
                case h11.Data():
                    self._body += event.data
                    if len(self._body) > MAX_BODY_BYTES:
                        out += self._refuse(
                            HttpError(
                                413, f"a body of more than {MAX_BODY_BYTES} bytes"
                            )
                        )
                case h11.EndOfMessage():
                    out += self._begin()
                case h11.NEED_DATA:
                    if self._connection.they_are_waiting_for_100_continue:
                        out += self._connection.send(_GO_ON) or b""
                    if not self._waiting:
                        out += self._wait(now_ns)
                        self._wake(self._due_ns)
                        break
                    # No more at a time than is looked at before the next request is answered.
                    self._connection.receive_data(
                        bytes(self._waiting[:MAX_WAITING_BYTES])
                    )
                    del self._waiting[:MAX_WAITING_BYTES]
                case _:
                    self.over = True
        return bytes(out)

    def _wait(self, now_ns: int) -> bytes:
        """Wait for the rest of a request, up to REQUEST_S."""
        if (
            self._connection.their_state is not h11.SEND_BODY
            and not self._connection.trailing_data[0]
        ):
            self._due_ns = None
        elif self._due_ns is None:
            self._due_ns = now_ns + int(REQUEST_S * 1e9)
        elif now_ns >= self._due_ns:
            return self._refuse(
                HttpError(408, f"the request was not whole within {REQUEST_S:g} s")
            )
        return b""

    def _begin(self) -> bytes:
        self._due_ns = None
        head = self._head
        assert head is not None
        try:
            url = urlsplit(head.target.decode("ascii"))
        except ValueError:
            return self._refuse(HttpError(400, "not a request target"))
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in head.headers
        }
        self.requests.append(
            Request(head.method.decode("ascii"), url, headers, bytes(self._body))
        )
        return b""

    def _work(self, request: Request, now_ns: int) -> Answer:
        try:
            return (yield from self._answer(request, now_ns))
        except HttpError as error:
            return self._error(error, request)

    def _send(self, response: Response) -> bytes:
        connection = self._connection
        body = b"" if response.status in (204, 304) else response.body
        headers = list(response.headers.items())
        if response.status not in (204, 304):
            headers.append(("content-length", str(len(body))))
        out = (
            connection.send(h11.Response(status_code=response.status, headers=headers))
            or b""
        )
        if body and (self._head is None or self._head.method != b"HEAD"):
            out += connection.send(h11.Data(data=body)) or b""
        out += connection.send(h11.EndOfMessage()) or b""
        self._head = None
        if connection.our_state is h11.DONE and connection.their_state is h11.DONE:
            connection.start_next_cycle()
        else:
            self.over = True
        return out

    def _refuse(self, error: HttpError) -> bytes:
        """Ends the connection with an error, where one can still be sent."""
        self.over, self._due_ns = True, None
        self._waiting.clear()
        if self._connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return b""
        response = self._error(error, None)
        headers = {**response.headers, "connection": "close"}
        return self._send(Response(error.status, response.body, headers))
