"""TLS for the OpenFlow plane: authenticate switches by their certificates, encrypt messages.

os-ken reads and writes a switch's socket on two threads, which a TLS connection of Python does not bear. So
what comes is decrypted here and handed on over loopback, one connection for each switch.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import ssl
import threading

from ringlight.controller.openflow.errors import ListenError
from ringlight.controller.tls_session import TlsSession
from ringlight.controller.waiting_room import SentAway

log = logging.getLogger(__name__)

#: Longest that a switch may take to show its certificate, those that have not at a time, and switches.
_HANDSHAKE_S, _MOST_NEW, _MOST = 10.0, 128, 1024
#: Bytes that are handed on at a time.
_PIECE = 1 << 16


class TlsFront:
    """TLS server on ``host:port`` that forwards to ``port_within`` on loopback.

    ``context`` authenticates the clients.
    """

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext,
        port_within: int,
        sent_away: SentAway,
    ) -> None:
        self.port = port
        self._sent_away = sent_away
        #: Carrying transports of clients that have not shown a certificate, the earliest first.
        self._new: dict[TlsSession, asyncio.Transport] = {}
        self._host, self._context, self._within = host, context, port_within
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="openflow-tls", daemon=True
        )
        self._server: asyncio.Server | None = None
        self._joined: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start listening. Raises ListenError naming the port."""
        self._thread.start()
        opening = self._loop.create_server(self._session, self._host, self.port)
        try:
            self._server = asyncio.run_coroutine_threadsafe(opening, self._loop).result(
                _HANDSHAKE_S
            )
        except OSError as error:
            self.stop()
            reason = (
                "is already in use"
                if error.errno == errno.EADDRINUSE
                else f"cannot be opened: {error}"
            )
            raise ListenError(
                f"OpenFlow port {self._host}:{self.port} {reason}"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self, timeout_s: float = 5.0) -> None:
        """No connection is left. Safe to call twice."""
        if not self._thread.is_alive():
            return
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(timeout_s)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        for carrier in [*self._new.values()]:
            carrier.abort()
        for task in self._joined:
            task.cancel()
        await asyncio.gather(*self._joined, return_exceptions=True)

    def _session(self) -> TlsSession:
        """Begin a connection: TLS, and within it what is handed on."""

        def come(carrier: asyncio.Transport) -> None:
            if len(self._new) >= _MOST_NEW:
                self._sent_away.count()
                self._new.pop(next(iter(self._new))).abort()
            self._new[session] = carrier

        def go() -> None:
            self._new.pop(session, None)

        async def join(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            go()
            await self._join(reader, writer)

        reader = asyncio.StreamReader(loop=self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, join, loop=self._loop)
        session = TlsSession(protocol, self._context, _HANDSHAKE_S, come, go)
        return session

    async def _join(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = writer.get_extra_info("peername")
        self._joined.add(task)
        inner: asyncio.StreamWriter | None = None
        try:
            if len(self._joined) > _MOST:
                log.warning("more than %d switches: %s is turned away", _MOST, peer)
                return
            within, inner = await asyncio.open_connection("127.0.0.1", self._within)
            log.info("a switch at %s has shown %s", peer, _subject(writer))
            ways = [
                asyncio.ensure_future(_pump(reader, inner)),
                asyncio.ensure_future(_pump(within, writer)),
            ]
            try:
                # Either end hangs up for both.
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
        except asyncio.CancelledError:
            # We end; asyncio would tell the log of a connection that was cancelled.
            return
        except OSError as error:
            log.warning("the connection of a switch at %s ended: %s", peer, error)
        finally:
            self._joined.discard(task)
            for stream in (inner, writer):
                if stream is not None:
                    stream.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()


def _subject(writer: asyncio.StreamWriter) -> str:
    certificate = writer.get_extra_info("peercert") or {}
    return (
        ", ".join(
            f"{key}={value}"
            for part in certificate.get("subject", ())
            for key, value in part
        )
        or "no name"
    )
