"""A web server that follows a script, and requests as bytes."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h11


@dataclass(frozen=True)
class Asked:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body) if self.body else None


def answer(status: int, body: object = None, **headers: str) -> bytes:
    """An HTTP response; ``body`` is JSON unless it is bytes."""
    content = (
        body
        if isinstance(body, bytes)
        else b""
        if body is None
        else json.dumps(body).encode()
    )
    lines = [
        f"HTTP/1.1 {status} x",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    if status not in (204, 304):
        lines.append(f"content-length: {len(content)}")
    return "\r\n".join([*lines, "", ""]).encode() + content


def request(method: str, target: str, body: object = None, **headers: str) -> bytes:
    """An HTTP request; ``body`` is JSON unless it is bytes."""
    content = (
        body
        if isinstance(body, bytes)
        else b""
        if body is None
        else json.dumps(body).encode()
    )
    lines = [
        f"{method} {target} HTTP/1.1",
        "host: x",
        f"content-length: {len(content)}",
    ]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


class Script:
    """Answers each request with the bytes that ``reply`` gives; at None it hangs up."""

    def __init__(self, reply: Callable[[Asked], bytes | None]) -> None:
        self.reply = reply
        self.asked: list[Asked] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._run, daemon=True)]
        self._open: list[socket.socket] = []
        self._threads[0].start()

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        for thread in self._threads:
            thread.join(5)

    def drop(self) -> None:
        """Every connection ends."""
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            thread = threading.Thread(
                target=self._serve, args=(connection,), daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, h11.RemoteProtocolError):
            http = h11.Connection(h11.SERVER)
            while (asked := _next(connection, http)) is not None:
                self.asked.append(asked)
                said = self.reply(asked)
                if said is None:
                    return
                connection.sendall(said)
                http = h11.Connection(h11.SERVER)


def _next(connection: socket.socket, http: h11.Connection) -> Asked | None:
    head, body = None, b""
    while True:
        event = http.next_event()
        match event:
            case h11.NEED_DATA:
                data = connection.recv(1 << 16)
                if not data:
                    return None
                http.receive_data(data)
            case h11.Request():
                head = event
            case h11.Data():
                body += bytes(event.data)
            case h11.EndOfMessage():
                assert head is not None
                headers = {key.decode(): value.decode() for key, value in head.headers}
                return Asked(head.method.decode(), head.target.decode(), headers, body)
            case _:
                return None
