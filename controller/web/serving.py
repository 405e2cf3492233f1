"""Serve an ASGI application in a thread: uvicorn with bounds on connections and on time.

A client that says nothing, or says it slowly, costs a descriptor for a while and no more: whoever has not
sent a whole request goes first when there are too many connections, so nobody is shut out by such.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import resource
import socket
import ssl
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ringlight.controller.tls_session import TlsSession
from ringlight.controller.waiting_room import SentAway

log = logging.getLogger(__name__)

#: Connections of one server. Those that wait for a request are ended for others: first those that have never
#: sent a whole one, the longest-waiting first.
MOST_CONNECTIONS = 2048
#: Longest that a client may take for the head of a request, and for reading what it is sent, seconds.
HEAD_S, UNREAD_S = 10.0, 30.0
#: The same over TLS, which takes 170 kB for each, also of those that have not shown that they know it.
MOST_TLS = 96
#: Longest head of a request, and longest trailers of a body, bytes; most fields of either.
HEAD_BYTES, FIELDS = 64 << 10, 128
#: Memory that a field takes besides its characters, bytes.
_FIELD_BYTES = 160
#: Memory that requests of one server take until they are answered, without their bodies, bytes. Connections
#: that take no more than `_SMALL_BYTES` do not wait for others.
HEADS_BYTES, _SMALL_BYTES = 4 << 20, 4 << 10
#: Bytes that are parsed at a time. Of a piece nobody knows how much the parser keeps.
_PIECE = 4 << 10
#: Idle connections are kept so long, seconds: longer than clients keep theirs, or one sends on it as it is
#: closed (httpx: 5 s).
IDLE_S = 60
#: Maximum age of the date in a response, seconds.
_DATE_S = 1.0
#: Requests on one connection that may wait for the answer to an earlier one.
_PIPELINED = 16
#: Descriptors that a process of a server asks for.
_DESCRIPTORS = 8192


@dataclass
class _Door:
    """Shared state of the connections of one server.

    ``new`` and ``idle``: connections that wait for a whole request, their first or the next, longest wait
    first. ``every``: all connections. ``most``: their largest number. ``held``: bytes of their requests,
    until these are answered.
    """

    most: int
    new: dict[_Connection, None] = field(default_factory=dict)
    idle: dict[_Connection, None] = field(default_factory=dict)
    every: set[_Connection] = field(default_factory=set)
    held: int = 0
    sent_away: SentAway = field(default_factory=lambda: SentAway("REST"))


class _Connection(HttpToolsProtocol):
    def __init__(self, *, door: _Door, **more: Any) -> None:
        super().__init__(**more)
        self._door = door
        #: Transport that carries the bytes, with TLS or without.
        self._carrier: asyncio.Transport | None = None
        #: True while a request's head is incomplete, and true while its body is.
        self._in_head, self._in_body = False, False
        #: Size of the head, or of the trailers, so far.
        self._bytes, self._fields = 0, 0
        #: Bytes since the parser has said anything: of a field without an end.
        self._loose = 0
        #: Memory that each request takes that is not answered, the one that comes last.
        self._taken = deque([0])
        self._held = 0
        self._refusal: tuple[int, str] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self._carrier is None:
            self.come(transport)
        else:
            self._be_patient()

    def come(self, carrier: Any) -> None:
        """Count the connection, before it has sent anything; close another connection if
        there are too many.
        """
        self._carrier = carrier
        door = self._door
        door.every.add(self)
        if len(door.every) > door.most:
            door.sent_away.count()
            longest = next(iter(door.new), None) or next(iter(door.idle), None)
            if longest is None:
                if self.transport is not None:
                    self.transport.write(
                        _answer(503, "too many connections at once; later")
                    )
                carrier.close()
                return
            longest.busy()
            longest.abort()
        door.new[self] = None
        self._be_patient()

    def go(self) -> None:
        """Take the connection out of all counts."""
        self.busy()
        self._door.every.discard(self)
        self._door.held -= self._held
        self._held = 0
        for timer in (self._patience, self._unread):
            if timer is not None:
                timer.cancel()

    def abort(self) -> None:
        if self._carrier is not None:
            self._carrier.abort()

    def busy(self) -> None:
        """Remove the connection from those that wait for a request."""
        self._door.new.pop(self, None)
        self._door.idle.pop(self, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.go()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._in_body and self._patience is None:
            self._be_patient()
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            self._loose += len(piece)
            super().data_received(piece)
            if not self.transport.is_closing() and (self._refusal or not self._fits()):
                self.send_400_response("")
            if self.transport.is_closing():
                return

    def _fits(self) -> bool:
        """Return whether the received part of a request is within bounds; record the refusal if not."""
        if self._bytes + self._loose > HEAD_BYTES or self._fields > FIELDS:
            self._refusal = (
                400,
                f"a head has at most {HEAD_BYTES} bytes and {FIELDS} fields, and so have trailers",
            )
        taken = sum(self._taken) + self._loose
        held = taken if taken > _SMALL_BYTES else 0
        more, self._held = held - self._held, held
        self._door.held += more
        if more > 0 and self._door.held > HEADS_BYTES:
            self._refusal = 503, "too many large heads at once; later"
        return self._refusal is None

    def _count(self, size: int, fields: int = 0) -> None:
        self._loose = 0
        self._bytes += size
        self._fields += fields
        if self._in_head:
            self._taken[-1] += size + fields * _FIELD_BYTES
        self._must(self._fits())

    def _must(self, right: bool, refusal: str | None = None) -> None:
        """Stop the parser unless ``right``, with the recorded refusal or ``refusal``. Raises ValueError."""
        if not right:
            self._refusal = self._refusal or (400, str(refusal))
            raise ValueError(self._refusal[1])

    def send_400_response(self, msg: str) -> None:
        """Send the error of a request and close the connection.

        Only close it if the error would be taken for the answer to another request.
        """
        status, detail = self._refusal or (400, msg)
        log.warning("a request is not taken: %s", detail)
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self.transport.write(_answer(status, detail))
        elif self._in_body and not self.pipeline and not cycle.response_started:
            # It gets this answer and no other.
            cycle.disconnected = True
            cycle.message_event.set()
            self.transport.write(_answer(status, detail))
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._begin_part()
        self._be_patient()

    def _begin_part(self) -> None:
        self._bytes, self._fields, self._loose = 0, 0, 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4, 1)
        # Trailers would become fields of the head, after those were checked.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._be_impatient()
        self._in_head, self._in_body = False, True
        self._begin_part()
        self._must(
            len(self.pipeline) < _PIPELINED,
            "too many requests at once on one connection",
        )
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._begin_part()
        if self.pipeline:
            # It is read once what came earlier is answered.
            self._taken[-1] += len(body)
            self._must(self._fits())
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_body = False
        self._begin_part()
        # From here on it is up to us.
        self.busy()
        self._be_impatient()
        if self.cycle is not None:
            self.cycle.more_body = False
            if self.cycle.response_complete:
                # It was answered before it was sent to its end.
                self._begin_again()
                self._be_patient()
            else:
                self._taken.append(0)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if len(self._taken) > 1:
            self._taken.popleft()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._begin_again()
            if self.cycle.more_body:
                # The rest of a body that was refused is skipped for so long.
                self._be_patient()

    def _begin_again(self) -> None:
        if not self._in_head:
            # An idle connection keeps nothing of what was asked.
            self._taken[-1] = 0
            self.url, self.headers = b"", []
            self.cycle.scope = self.scope = {}  # type: ignore[typeddict-item]
        self._fits()
        self.busy()
        self._door.idle[self] = None

    def _be_patient(self) -> None:
        self._be_impatient()
        self._patience = self.loop.call_later(HEAD_S, self._give_up)

    def _be_impatient(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        if self.transport is None:
            self.abort()
        elif not self.transport.is_closing():
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(UNREAD_S, self.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def _answer(status: int, detail: str) -> bytes:
    """Return an error response after which the connection ends."""
    body = json.dumps({"detail": detail}).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def _connection(
    door: _Door, tls: ssl.SSLContext | None, **more: Any
) -> asyncio.BaseProtocol:
    connection = _Connection(door=door, **more)
    if tls is None:
        return connection
    connection.loop = asyncio.get_running_loop()
    return TlsSession(connection, tls, HEAD_S, connection.come, connection.go)


class _Server(uvicorn.Server):
    """Sleeps until a request comes: uvicorn's own looks ten times a second whether it is to end."""

    def __init__(self, config: uvicorn.Config, door: _Door) -> None:
        super().__init__(config)
        self._door = door
        self._ended: asyncio.Future[None] | None = None

    def end(self, *, at_once: bool) -> None:
        """Make the server end. Any thread may call."""
        self.should_exit, self.force_exit = True, at_once
        if self._ended is not None:
            # It has ended already where its loop is closed.
            with contextlib.suppress(RuntimeError):
                self._ended.get_loop().call_soon_threadsafe(self._ended.cancel)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.end(at_once=self.force_exit)

    async def main_loop(self) -> None:
        self._ended = asyncio.get_running_loop().create_future()
        while not await self.on_tick(0):
            await asyncio.wait([self._ended], timeout=_DATE_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if not self.force_exit:
            await super().shutdown(sockets)
        # uvicorn's own waits a tenth of a second for answers that nobody is to have.
        for server in self.servers:
            server.close()
        for connection in [*self._door.every]:
            connection.abort()
        while self._door.every:
            await asyncio.sleep(0)


def _is_no_end(record: logging.LogRecord) -> bool:
    """Return whether a log record of uvicorn is about anything but a request cut off at the server's end."""
    return record.exc_info is None or not isinstance(
        record.exc_info[1], asyncio.CancelledError
    )


class HttpServer:
    """Server of ``app`` on ``listener`` until it is stopped; the listener belongs to the caller.

    ``tls``: files with certificate chain and private key; None for plain HTTP. ``end_s``: seconds that
    requests in progress may take at the end.
    """

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        *,
        tls: tuple[Path, Path] | None = None,
        end_s: int = 2,
        name: str = "rest",
    ) -> None:
        context = None
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            # An empty password: nobody is there to be asked for one.
            context.load_cert_chain(*tls, password="")
        self._door = door = _Door(
            _connections(MOST_CONNECTIONS if tls is None else MOST_TLS)
        )
        config = uvicorn.Config(
            app,
            http=functools.partial(_connection, door, context),  # type: ignore[arg-type]
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            lifespan="off",
            timeout_graceful_shutdown=end_s,
            timeout_keep_alive=IDLE_S,
        )
        # With what is being answered ended at once, each answer would leave a traceback.
        logging.getLogger("uvicorn.error").addFilter(_is_no_end)
        self._server = _Server(config, door)
        self._listener = listener
        self._stopping = False
        # uvicorn handles signals in the main thread only; there it would end the process before us.
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)

    def start(self, timeout_s: float = 10.0) -> None:
        """Returns once it answers. Raises TimeoutError."""
        self._thread.start()
        deadline = time.monotonic() + timeout_s
        while self.alive and not self._server.started:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the HTTP server did not start within {timeout_s:g} s"
                )
            time.sleep(0.005)

    def run(self) -> None:
        """Answers on the calling thread until :meth:`end` is called."""
        if not self._stopping:
            self._server.run(sockets=[self._listener])

    @property
    def complaint(self) -> str | None:
        """One line about connections that were closed because there were too many; None without any."""
        return self._door.sent_away.complaint

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def end(self, *, at_once: bool = False) -> None:
        """Make the server end. ``at_once``: without completing requests in progress."""
        self._stopping = True
        self._server.end(at_once=at_once)

    def stop(self, timeout_s: float = 5.0, *, at_once: bool = False) -> None:
        """No connection is left and none can be made."""
        self.end(at_once=at_once)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)


def _connections(most: int) -> int:
    """Return the number of connections, at most ``most``, that the process's file descriptors allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _DESCRIPTORS:
        with contextlib.suppress(OSError, ValueError):
            soft = (
                _DESCRIPTORS
                if hard == resource.RLIM_INFINITY
                else min(hard, _DESCRIPTORS)
            )
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(16, min(most, soft // 2))
