"""A proxy between a client and an optical switch that misbehaves on demand."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader


class Proxy:
    """Proxy between a client and a switch that counts writes and misbehaves on demand.

    ``seen``: the writes. ``lose``: whether the next one is lost, True after it has had its effect.
    ``garble``: readings are damaged. Each request has one reply; of SCPI both are lines (a set command comes
    with a query behind it). A proxy for another protocol says what a write is, and what a reading, in
    ``WRITE`` and ``READ``; where a message is not a line, it has :meth:`request` and :meth:`reply` of its
    own.
    """

    #: Found in every request that changes the switch.
    WRITE = re.compile(
        rb"conn\w*:(add|sub|only)|disc|port:(enab|dis)|\*rst", re.IGNORECASE
    )
    #: Found in every request for the cross-connects that stand.
    READ = re.compile(rb"stat\?")

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.seen: list[str] = []
        self.lose: bool | None = None
        self.garble = False
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._accept, name="proxy", daemon=True)
        ]
        self._threads[0].start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        for thread in self._threads:
            thread.join(5)

    def drop(self) -> None:
        with self._lock:
            for item in self._sockets:
                with contextlib.suppress(OSError):
                    item.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(
                target=self._attend, args=(client,), name="proxy", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _attend(self, client: socket.socket) -> None:
        """Serve a client. Neither its end nor the switch's is an error."""
        with contextlib.suppress(OSError):
            self._serve(client)

    @contextmanager
    def _with_switch(self, client: socket.socket) -> Iterator[socket.socket]:
        """Yield a connection to the switch for as long as the client's. Raises OSError."""
        with client, socket.create_connection(self._upstream, timeout=30) as switch:
            for end in (client, switch):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {client, switch}
            try:
                yield switch
            finally:
                with self._lock:
                    self._sockets -= {client, switch}

    def _serve(self, client: socket.socket) -> None:
        with (
            self._with_switch(client) as switch,
            client.makefile("rb") as requests,
            switch.makefile("rb") as replies,
        ):
            while (request := self.request(requests)) and self._pass(
                request, client, switch, replies
            ):
                pass

    def request(self, file: BufferedReader) -> bytes:
        """Return the next request; empty at the end."""
        return file.readline()

    def reply(self, file: BufferedReader, request: bytes) -> bytes:
        """Return the reply to a request; empty at the end."""
        return file.readline()

    def _pass(
        self,
        request: bytes,
        client: socket.socket,
        switch: socket.socket,
        replies: BufferedReader,
    ) -> bool:
        write = self.WRITE.search(request) is not None
        lose, self.lose = (self.lose, None) if write else (None, self.lose)
        if write:
            self.seen.append(request.decode().strip())
        if lose is False:
            return False
        switch.sendall(request)
        reply = self.reply(replies, request)
        if lose:
            time.sleep(0.02)
            return False
        spoilt = self.garble and self.READ.search(request) is not None
        client.sendall(reply[: len(reply) // 2] if spoilt else reply)
        return bool(reply) and not spoilt
