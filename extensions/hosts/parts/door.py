"""The door of a part: what it lets the other parts of its lab reach, and how it reaches theirs.

Management goes on as if all were on one machine: a client connects to a socket of its own host, and what it
says is carried to the server's host and back. Between hosts it is TLS with the certificates of Dask's
processes, both ways. A caller first says the lab's token and the name of what it wants.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import socket
import ssl
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from ringlight.extensions.hosts.parts.plan import Parts, Place, Tls

log = logging.getLogger(__name__)

#: A server on this host: the path of a Unix socket, or an address and a TCP port.
Server = Path | tuple[str, int]
#: Longest wait for a connection to another part, and for what a caller wants, seconds.
CONNECT_S, TOLD_S = 5.0, 5.0
#: Callers at once; longest first line, bytes.
MOST, LINE_BYTES = 512, 256
_BLOCK = 1 << 16
#: What asks for the clock of a part, and what ends the part.
CLOCK, ASK, END = "clock", b"?", b"."
TIME = struct.Struct("=d")


def _server_tls(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tls.cert, tls.key)
    return context


def client_tls(tls: Tls) -> ssl.SSLContext:
    """Return TLS settings that accept any peer with a certificate of the lab's authority, whatever its name,
    as Dask does."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=tls.ca)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tls.cert, tls.key)
    return context


class Door:
    """Owns a thread with all connections. ``servers``: what others may reach, by name; it may grow.

    ``on_end``: called once the first part tells this one to end. ``heard_s``: when it last asked anything,
    seconds of CLOCK_MONOTONIC.
    """

    def __init__(
        self, parts: Parts, servers: dict[str, Server], on_end: Callable[[], None]
    ) -> None:
        self._parts, self.servers, self._on_end = parts, servers, on_end
        self._client_tls = None if parts.tls is None else client_tls(parts.tls)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[asyncio.Server] = []
        self._callers = 0
        self.heard_s = time.monotonic()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="door", daemon=True
        )
        self._thread.start()

    def open(self) -> None:
        """Answer the other parts. Raises OSError."""
        own = self._parts.places[self._parts.own]
        tls = None if self._parts.tls is None else _server_tls(self._parts.tls)
        timed: dict[str, Any] = {} if tls is None else {"ssl_handshake_timeout": TOLD_S}
        self._listen(
            asyncio.start_server(
                self._called, own.ip, own.door, ssl=tls, limit=LINE_BYTES, **timed
            )
        )

    def to_unix(self, path: Path, place: Place, name: str) -> None:
        """Have a Unix socket here, which only root may use, lead to a server of another part."""
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            path.chmod(0o600)
            self._listen(
                asyncio.start_unix_server(
                    self._leading(place, name), sock=listener.dup()
                )
            )

    def to_tcp(self, place: Place, name: str) -> tuple[str, int]:
        """Have a TCP port of this machine's loopback lead to a server of another part. Return its address."""
        server = self._listen(
            asyncio.start_server(self._leading(place, name), "127.0.0.1", 0)
        )
        host, port = server.sockets[0].getsockname()
        return str(host), int(port)

    def close(self) -> None:
        """End all connections, and the thread."""
        if self._thread.is_alive():
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(5.0)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5.0)
        if not self._thread.is_alive():
            self._loop.close()

    # -- in the thread

    def _listen(self, making: Coroutine[Any, Any, asyncio.Server]) -> asyncio.Server:
        server = asyncio.run_coroutine_threadsafe(making, self._loop).result(CONNECT_S)
        self._listeners.append(server)
        return server

    async def _end(self) -> None:
        for listener in self._listeners:
            listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _leading(
        self, place: Place, name: str
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def lead(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            async def there() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                far = await asyncio.open_connection(
                    place.ip, place.door, ssl=self._client_tls
                )
                far[1].write(f"{self._parts.token} {name}\n".encode())
                return far

            await self._owned(
                self._joined(reader, writer, there(), f"{place.host}: {name}"), writer
            )

        return lead

    async def _called(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await self._owned(self._answered(reader, writer), writer)

    async def _owned(
        self, work: Coroutine[Any, Any, None], writer: asyncio.StreamWriter
    ) -> None:
        """Do the work of a connection, which ends with it, and with the door."""
        if self._callers >= MOST:
            work.close()
            writer.close()
            return
        self._callers += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await work
        except (
            OSError,
            ValueError,
            EOFError,
            TimeoutError,
            asyncio.CancelledError,
        ) as error:
            # Cancelled, where the door closes: asyncio would log it as a fault.
            log.debug("a connection between parts ended: %s", error)
        finally:
            self._callers -= 1
            self._tasks.discard(task)
            writer.close()

    async def _answered(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        words = (
            (await asyncio.wait_for(reader.readline(), TOLD_S))
            .decode(errors="replace")
            .split()
        )
        if len(words) != 2 or not hmac.compare_digest(
            words[0].encode(), self._parts.token.encode()
        ):
            return
        name = words[1]
        if name == CLOCK:
            await self._tell_time(reader, writer)
        elif (server := self.servers.get(name)) is not None:
            there = (
                asyncio.open_unix_connection(str(server))
                if isinstance(server, Path)
                else asyncio.open_connection(*server)
            )
            await self._joined(reader, writer, there, name)

    async def _tell_time(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while request := await reader.read(1):
            self.heard_s = time.monotonic()
            if request == END:
                self._on_end()
            else:
                writer.write(TIME.pack(time.monotonic()))
                await writer.drain()

    async def _joined(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
        what: str,
    ) -> None:
        """Carry both ways until either side has ended."""
        try:
            far_reader, far_writer = await asyncio.wait_for(there, CONNECT_S)
        except (OSError, TimeoutError) as error:
            log.info("%s is not reached: %s", what, error or "no answer")
            return
        ways = [
            asyncio.ensure_future(_carried(reader, far_writer)),
            asyncio.ensure_future(_carried(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            far_writer.close()


async def _carried(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while block := await reader.read(_BLOCK):
        writer.write(block)
        await writer.drain()
