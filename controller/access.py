"""Access by bearer token: every call needs it once there is one."""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
from pathlib import Path
from typing import Any

from controller.errors import StartError


def read_token(path: Path) -> str:
    """The token in a file. Raises StartError naming the file when it cannot be read or is too short."""
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from error
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise StartError(f"{path}: a token is one line of at least 16 ASCII characters without spaces")
    return token


def is_loopback(host: str) -> bool:
    """Whether every address that the host name stands for is a loopback address."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(str(address)).is_loopback for address in found)


class TokenRequired:
    """ASGI middleware: 401 for a request without ``Authorization: Bearer TOKEN``."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        # Constant time, so that the token cannot be found byte by byte.
        if hmac.compare_digest(given, self._expected):
            await self._app(scope, receive, send)
            return
        body = json.dumps({"detail": "this call needs the header Authorization: Bearer TOKEN"}).encode()
        headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body})
