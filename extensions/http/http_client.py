"""HTTP/1.1 to a switch's management port over a kept-alive connection, with deadlines.

Our own client over h11, for three things that general clients do not give: a deadline for the whole
exchange (theirs is for each piece, so that a switch that sends a byte now and then holds them for ever),
knowing whether anything was sent, and no log lines of theirs with cookies in them.

Requests that read are sent again, once, when the switch has dropped the connection since it was last used.
Requests that write are never repeated.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h11

from ringlight.controller.optical.connection import Connection, ask_again
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import (
    AuthFailed,
    Indeterminate,
    OpticalError,
    PermissionDenied,
    ProtocolError,
    Refused,
    Unreachable,
)
from ringlight.controller.optical.inventory import Entry
from ringlight.controller.web.access import is_local
from ringlight.fabric.text import parse_json

log = logging.getLogger(__name__)

#: A reply longer than this is garbage; 4,096 circuits of a Calient switch need 2 MB.
MAX_REPLY_BYTES = 1 << 23
#: Longest wait for the reply to a question, seconds.
REPLY_S = 5.0
#: Answers to a write that leave open whether it was done: the switch, or a proxy before it, broke down.
_OPEN = (408, 500, 502, 504)


@dataclass(frozen=True)
class Reply:
    """``headers`` are pairs with names in lower case, in the order they came."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str:
        """Return the first header of that name; empty if there is none."""
        return next((value for key, value in self.headers if key == name), "")

    def json(self) -> Any:
        """Return the JSON value of the body. Raises ProtocolError."""
        try:
            return parse_json(self.body)
        except (ValueError, RecursionError):
            raise ProtocolError("a reply that is not JSON", self._raw) from None

    def check_read(self, what: str) -> None:
        """Check the status of a read.

        Raises AuthFailed, PermissionDenied or ProtocolError unless it is 200.
        """
        self._check_access(what)
        if self.status != 200:
            raise ProtocolError(
                f"{what}: status {self.status} instead of 200", self._raw
            )

    def check_write(self, what: str) -> None:
        """Check the status of a write.

        Raises AuthFailed, PermissionDenied, Refused or Indeterminate unless it is a success.
        """
        self._check_access(what)
        if self.status in _OPEN:
            raise Indeterminate(f"{what}: status {self.status}: {self._raw[:120]!r}")
        if not 200 <= self.status < 300:
            raise Refused(f"{what}: status {self.status}: {self._raw[:120]!r}")

    def _check_access(self, what: str) -> None:
        if self.status == 401:
            raise AuthFailed(f"{what}: the switch wants another user or password")
        if self.status == 403:
            raise PermissionDenied(f"{what}: the switch does not let this user do it")

    @property
    def _raw(self) -> str:
        return self.body[:400].decode("utf-8", "replace")


class HttpClient:
    """Client with one connection. Not for several threads.

    ``tls``: context that checks the switch's certificate; None for plain HTTP.
    """

    def __init__(
        self, name: str, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self.name = name
        self._connection = Connection(host, port, tls)
        self._http = h11.Connection(h11.CLIENT)

    def close(self) -> None:
        self._connection.close()

    def read(
        self, target: str, headers: Mapping[str, str], deadline: Deadline
    ) -> Reply:
        """Send a GET request. Return the reply. Raises Unreachable, DeadlineExceeded, ProtocolError."""
        limit = deadline.within(REPLY_S)
        return ask_again(
            self._connection.is_open,
            lambda: self._exchange("GET", target, headers, b"", limit),
        )

    def ask(self, target: str, headers: Mapping[str, str], deadline: Deadline) -> Reply:
        """Return the reply of :meth:`read` if it is a good one, else raise as :meth:`Reply.check_read`."""
        reply = self.read(target, headers, deadline)
        reply.check_read(target)
        return reply

    def write(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
        deadline: Deadline,
    ) -> Reply:
        """Send a request that changes the switch. Return the reply.

        Raises Unreachable or DeadlineExceeded if nothing was sent, else Indeterminate.
        """
        self._connect(deadline)
        try:
            return self._exchange(method, target, headers, body, deadline)
        except OpticalError as error:
            self.close()
            raise Indeterminate(f"no answer to {method} {target}: {error}") from error

    def _connect(self, deadline: Deadline) -> None:
        """Connect unless there is a connection that the switch has not dropped."""
        if not self._connection.is_quiet():
            self.close()
        if self._connection.open(deadline):
            self._http = h11.Connection(h11.CLIENT)

    def _exchange(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
        limit: Deadline,
    ) -> Reply:
        self._connect(limit)
        pairs = [("host", self._connection.authority), *headers.items()]
        if body or method not in ("GET", "DELETE"):
            pairs.append(("content-length", str(len(body))))
        http, what = self._http, f"{method} {target}"
        try:
            out = (
                http.send(h11.Request(method=method, target=target, headers=pairs))
                or b""
            )
            if body:
                out += http.send(h11.Data(data=body)) or b""
            out += http.send(h11.EndOfMessage()) or b""
            self._connection.send(out, limit, what)
            reply = self._receive(limit, what)
        except h11.RemoteProtocolError as error:
            self.close()
            raise ProtocolError(f"{what}: not an HTTP reply: {error}") from None
        except BaseException:
            # Later bytes on this connection would be taken for the reply to the next request.
            self.close()
            raise
        if (
            http.our_state is h11.DONE
            and http.their_state is h11.DONE
            and not http.trailing_data[0]
        ):
            http.start_next_cycle()
        else:
            self.close()
        log.debug("%s: %s -> %d", self.name, what, reply.status)
        return reply

    def _receive(self, limit: Deadline, what: str) -> Reply:
        head: h11.Response | None = None
        body, start = bytearray(), b""
        while True:
            event = self._http.next_event()
            match event:
                case h11.NEED_DATA:
                    data = self._connection.receive(limit, what)
                    if not data and head is None and not self._http.trailing_data[0]:
                        raise Unreachable("the switch closed the connection")
                    # With anything else, the package would wait for a line's end.
                    start = (start + data[:16]).lstrip(b"\r\n")[:16]
                    if head is None and start[:5] != b"HTTP/"[: len(start)]:
                        raise ProtocolError("not an HTTP reply", repr(start))
                    self._http.receive_data(data)
                case h11.Response():
                    head = event
                case h11.Data():
                    body += event.data
                    if len(body) > MAX_REPLY_BYTES:
                        raise ProtocolError(
                            f"a reply of more than {MAX_REPLY_BYTES} bytes"
                        )
                case h11.EndOfMessage():
                    assert head is not None
                    pairs = [
                        (key.decode("latin-1"), value.decode("latin-1"))
                        for key, value in head.headers
                    ]
                    return Reply(head.status_code, pairs, bytes(body))
                case h11.InformationalResponse():
                    continue
                case _:
                    raise ProtocolError("the switch ended the connection in a reply")


def http_client(entry: Entry) -> HttpClient:
    """Return a client for ``{"address": "host:port", "tls": true, "ca_file": path}`` of an inventory entry.

    ``tls`` defaults to true, or to false if the switch is on this machine. With TLS the switch's certificate
    is checked against ``ca_file`` or the machine's authorities. Raises ValueError, and KeyError without an
    address.
    """
    host, port = entry.address()
    context = None
    if entry.flag("tls", not is_local(host)):
        try:
            context = ssl.create_default_context(cafile=entry.keys.get("ca_file"))
        except (OSError, TypeError) as error:
            raise entry.wrong("ca_file", f"{entry.keys['ca_file']}: {error}") from None
    return HttpClient(entry.switch, host, port, context)
