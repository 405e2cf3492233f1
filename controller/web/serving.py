"""Serves an ASGI application in a thread: uvicorn with bounds on connections and on time.

A client that says nothing, or says it slowly, costs a descriptor for a while and no more: whoever has not
sent a whole request goes first when there are too many connections, so nobody is shut out by such.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import resource
import socket
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger(__name__)

#: Connections of one server. Those that wait for a request are ended for others: first those that have never
#: sent a whole one, the longest-waiting first.
MOST_CONNECTIONS = 2048
#: Longest that a client may take for the head of a request, and for reading what it is sent, seconds.
HEAD_S, UNREAD_S = 10.0, 30.0
#: Longest head of a request, bytes.
HEAD_BYTES = 64 << 10
#: Idle connections are kept so long, seconds: longer than clients keep theirs, or one sends on it as it is
#: closed (httpx: 5 s).
IDLE_S = 60
#: How old the date in an answer may be, seconds.
_DATE_S = 1.0
#: Requests on one connection that may wait for the answer to an earlier one.
_PIPELINED = 16
#: Descriptors that a process of a server asks for.
_DESCRIPTORS = 8192
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 49\r\n"
    b'connection: close\r\n\r\n{"detail":"too many connections at once; later"}\n'
)


class _Connection(HttpToolsProtocol):
    """``new`` and ``idle``: the connections of this server that wait for a whole request, their first or the
    next, the longest-waiting first."""

    def __init__(
        self, *, new: dict[_Connection, None], idle: dict[_Connection, None], most: int, **more: Any
    ) -> None:
        super().__init__(**more)
        self._new, self._idle, self._most = new, idle, most
        self._head_bytes: int | None = 0
        self._patience: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._most:
            longest = next(iter(self._new), None) or next(iter(self._idle), None)
            if longest is None:
                transport.write(_FULL)
                transport.close()
                return
            longest.busy()
            longest.transport.abort()
        self._new[self] = None
        self._be_patient()

    def busy(self) -> None:
        """Remove the connection from those that wait for a request."""
        self._new.pop(self, None)
        self._idle.pop(self, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.busy()
        for timer in (self._patience, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._patience is None:
                self._be_patient()
        super().data_received(data)
        # Headers that have not ended are kept by the parser; a body that nobody wants is not.
        if self._head_bytes is not None and self._head_bytes > HEAD_BYTES and self._answered:
            log.warning("a request with a head of more than %d bytes", HEAD_BYTES)
            self.send_400_response("The head of the request is too long.")

    @property
    def _answered(self) -> bool:
        """Whether no request is in work, and none is being skipped."""
        return self.cycle is None or (self.cycle.response_complete and not self.cycle.more_body)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._be_patient()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        # From here on it is up to us.
        self.busy()
        self._be_impatient()
        if self.cycle is not None:
            self.cycle.more_body = False
            if self.cycle.response_complete:
                # It was answered before it was sent to its end.
                self._begin_again()
                self._be_patient()

    def on_headers_complete(self) -> None:
        self._be_impatient()
        self._head_bytes = None
        if len(self.pipeline) >= _PIPELINED:
            raise ValueError("too many requests at once on one connection")
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        cycle = self.cycle
        super().on_response_complete()
        if cycle is self.cycle and not self.transport.is_closing() and not self.pipeline:
            self._begin_again()
            if cycle.more_body:
                # The rest of a body that was refused is skipped for so long.
                self._be_patient()

    def _begin_again(self) -> None:
        self._head_bytes = 0
        self.busy()
        self._idle[self] = None

    def _be_patient(self) -> None:
        self._be_impatient()
        self._patience = self.loop.call_later(HEAD_S, self._give_up)

    def _be_impatient(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class _Server(uvicorn.Server):
    """Sleeps until a request comes: uvicorn's own looks ten times a second whether it is to end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ended: asyncio.Future[None] | None = None

    def end(self, *, at_once: bool) -> None:
        """Has it end; any thread may call."""
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
            return
        # uvicorn's own waits a tenth of a second for answers that nobody is to have.
        for server in self.servers:
            server.close()
        for connection in [*self.server_state.connections]:
            connection.transport.abort()
        while self.server_state.connections:
            await asyncio.sleep(0)


def _is_no_end(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn's is about something else than a request that was cut off at the end."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


class HttpServer:
    """Answers ``app`` on ``listener`` until it is stopped; the listener is the caller's.

    ``tls``: files with certificate chain and private key; None for plain HTTP. ``end_s``: how long requests
    in work may take at the end.
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
        config = uvicorn.Config(
            app,
            http=functools.partial(  # type: ignore[arg-type]
                _Connection, new={}, idle={}, most=_connections()
            ),
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            lifespan="off",
            timeout_graceful_shutdown=end_s,
            timeout_keep_alive=IDLE_S,
            ssl_certfile=None if tls is None else str(tls[0]),
            ssl_keyfile=None if tls is None else str(tls[1]),
        )
        # With what is being answered ended at once, each answer would leave a traceback.
        logging.getLogger("uvicorn.error").addFilter(_is_no_end)
        self._server = _Server(config)
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
                raise TimeoutError(f"the HTTP server did not start within {timeout_s:g} s")
            time.sleep(0.005)

    def run(self) -> None:
        """Answers on the calling thread until :meth:`end` is called."""
        if not self._stopping:
            self._server.run(sockets=[self._listener])

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def end(self, *, at_once: bool = False) -> None:
        """Has it end; ``at_once``: whatever is being answered."""
        self._stopping = True
        self._server.end(at_once=at_once)

    def stop(self, timeout_s: float = 5.0, *, at_once: bool = False) -> None:
        """No connection is left and none can be made."""
        self.end(at_once=at_once)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)


def _connections() -> int:
    """How many connections a server may have of the descriptors that its process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _DESCRIPTORS:
        with contextlib.suppress(OSError, ValueError):
            soft = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(16, min(MOST_CONNECTIONS, soft // 2))
