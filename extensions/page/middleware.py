"""Serve the files of one page next to an application; the page may load nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringlight.controller.web.access import refuse
from ringlight.extensions.page.page_files import VIEW

_NAME = re.compile(r"(?:[a-z0-9][a-z0-9_.-]*/)*[A-Za-z0-9][A-Za-z0-9_.-]*")
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
#: Scripts and styles are files of this server; nothing else is loaded, framed or sent anywhere.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


class Page:
    """ASGI middleware: GET below :data:`VIEW` answers with the files of a directory, all else is the
    application's. ``documents``: files by name that are in place of the directory's.

    The files are the same for everybody and say nothing of a lab, so they ask for no token.
    """

    def __init__(
        self, app: Any, directory: Path, documents: Mapping[str, bytes] | None = None
    ) -> None:
        self._app, self._directory, self._documents = app, directory, documents or {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path == VIEW.rstrip("/"):
            await _send(send, 308, b"", {"location": VIEW})
        elif not path.startswith(VIEW):
            await self._app(scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD"):
            await refuse(
                scope, send, 405, f"{path} does not know the method {scope['method']}"
            )
        elif (file := self._read(path.removeprefix(VIEW) or "index.html")) is None:
            await refuse(scope, send, 404, f"there is no path {path}")
        else:
            body, kind = file
            await _send(
                send, 200, body, {"content-type": kind}, head=scope["method"] == "HEAD"
            )

    def _read(self, name: str) -> tuple[bytes, str] | None:
        """Return a file and its content type; None if the page has no such file."""
        kind = _KINDS.get(Path(name).suffix)
        if kind is None or not _NAME.fullmatch(name):
            return None
        try:
            return self._documents.get(name) or (
                self._directory / name
            ).read_bytes(), kind
        except OSError:
            return None


async def _send(
    send: Any, status: int, body: bytes, more: Mapping[str, str], *, head: bool = False
) -> None:
    headers = {**_HEADERS, **more, "content-length": str(len(body))}
    start = [(key.encode(), value.encode()) for key, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": b"" if head else body})
