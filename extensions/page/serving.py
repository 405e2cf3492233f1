"""Serve the page over run folders, until interrupted."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any

from anyio import to_thread

from ringlight.controller.web.access import OwnPagesOnly, refuse
from ringlight.controller.web.listening import listen
from ringlight.controller.web.serving import HttpServer
from ringlight.extensions.page.middleware import Page
from ringlight.extensions.page.page_files import PAGE, VIEW, index_of
from ringlight.extensions.page.recorded import Recorded

#: Takes that are kept ready.
_KEPT = 8
_TAKE = re.compile(r"take/([0-9]{1,6})/([0-9]{1,6})\.json")


class Takes:
    """ASGI application: ``runs.json`` beside the page's files, a take at ``take/FOLDER/NUMBER.json``, and the
    page itself."""

    def __init__(self, folders: Sequence[Recorded]) -> None:
        self._folders = folders
        self._index = [folder.index() for folder in folders]
        self._take = lru_cache(_KEPT)(self._made)
        self._page = Page(
            self._nothing, PAGE, {"index.html": index_of("runs").encode()}
        )

    def _made(self, folder: int, number: int) -> bytes:
        name = self._index[folder]["takes"][number]["name"]
        return json.dumps(
            self._folders[folder].take(name), separators=(",", ":")
        ).encode()

    def document(self, name: str) -> bytes | None:
        """Return the document of this name; None if there is none."""
        if name == "runs.json":
            return json.dumps(self._index).encode()
        match = _TAKE.fullmatch(name)
        if match is None:
            return None
        folder, number = int(match[1]), int(match[2])
        if folder >= len(self._index) or number >= len(self._index[folder]["takes"]):
            return None
        return self._take(folder, number)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path == "/":
            await _answer(send, 307, b"", (b"location", VIEW.encode()))
        elif not path.endswith(".json"):
            await self._page(scope, receive, send)
        elif (
            body := await to_thread.run_sync(self.document, path.removeprefix(VIEW))
        ) is None:
            await self._nothing(scope, receive, send)
        else:
            await _answer(send, 200, body, (b"content-type", b"application/json"))

    async def _nothing(self, scope: Any, receive: Any, send: Any) -> None:
        await refuse(scope, send, 404, f"there is no path {scope['path']}")


async def _answer(
    send: Any, status: int, body: bytes, header: tuple[bytes, bytes]
) -> None:
    start = [
        header,
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


def application(folders: Sequence[Recorded]) -> Any:
    """Return the application that serves the page over these folders; only its own pages may call it."""
    return OwnPagesOnly(Takes(folders))


def serve(
    folders: Sequence[Recorded], host: str, port: int, announce: Callable[[str], None]
) -> None:
    """Serve on ``host`` until interrupted. Call ``announce`` with the page's address. Raises OSError."""
    with closing(listen(host, port)) as listener:
        server = HttpServer(application(folders), listener, end_s=0, name="view")
        server.start()
        announce(address(listener))
        try:
            while server.alive:
                time.sleep(0.2)
        finally:
            server.stop(at_once=True)


def address(listener: socket.socket) -> str:
    """Return the URL of the page."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{VIEW}"
