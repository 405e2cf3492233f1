"""Bound the size and the time of a client's requests: ASGI middleware.

A body is read completely before the application sees the request, so that a client that sends slowly holds no
thread. A body that is too large is refused as soon as that is known, by its declared length or on arrival,
and never kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import Any, Generic, TypeVar

from starlette.exceptions import HTTPException

from ringlight.controller.web.access import has_body, headers, refuse
from ringlight.fabric.text import HalfCharacterError, parse_json

#: A body, bytes, and how long it may take to come, seconds.
BODY_BYTES, BODY_S = 1 << 20, 20.0
#: All bodies that one server holds while they come, bytes, and one of its largest at least. Bodies up to
#: `SMALL_BYTES` do not wait for others.
BODIES_BYTES, SMALL_BYTES = 8 << 20, 4 << 10
#: Bodies that become files, at a time.
_UPLOADS = 4

Found = TypeVar("Found")


class BoundedBodies:
    """Middleware that bounds bodies.

    Answers 413 for a body of more than ``limit`` bytes, 408 for a body that has not arrived within `BODY_S`
    seconds, 503 if the server is full of other bodies. JSON text that UTF-8 cannot encode is refused, because
    the application could not keep it or answer with it: 422, and 400 below the paths ``bad_request``.
    ``streamed``: by method and beginning of the path, the bytes allowed if a route takes the body piece by
    piece (:class:`Uploads`); such a body is not kept here.
    """

    def __init__(
        self,
        app: Any,
        limit: int = BODY_BYTES,
        streamed: Mapping[tuple[str, str], int] | None = None,
        bad_request: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._limit = limit
        self._streamed = dict(streamed or {})
        self._bad_request = bad_request
        self._held = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not has_body(scope):
            await self._app(scope, receive, send)
            return
        streamed = next(
            (n for (m, p), n in self._streamed.items() if _is_for(scope, m, p)), None
        )
        limit = self._limit if streamed is None else streamed
        declared = headers(scope, "content-length")
        if any(
            len(length) > 18 or int(length) > limit
            for length in declared
            if length.isdigit()
        ):
            await _refuse_body(
                scope, send, 413, f"the body has more than {limit} bytes"
            )
        elif streamed is not None:
            await self._app(scope, receive, send)
        else:
            await self._whole(scope, receive, send)

    async def _whole(self, scope: Any, receive: Any, send: Any) -> None:
        deadline = time.monotonic() + BODY_S
        body = bytearray()
        counted = 0
        try:
            while True:
                try:
                    message = await asyncio.wait_for(
                        receive(), max(0.0, deadline - time.monotonic())
                    )
                except TimeoutError:
                    await _refuse_body(
                        scope, send, 408, f"the body did not come within {BODY_S:g} s"
                    )
                    return
                if message["type"] == "http.disconnect":
                    return
                piece = message.get("body", b"")
                if len(body) + len(piece) > self._limit:
                    await _refuse_body(
                        scope, send, 413, f"the body has more than {self._limit} bytes"
                    )
                    return
                body += piece
                if len(body) > SMALL_BYTES:
                    self._held += len(body) - counted
                    counted = len(body)
                    if self._held > max(BODIES_BYTES, self._limit):
                        await _refuse_body(
                            scope, send, 503, "too many large bodies at once; try again"
                        )
                        return
                if not message.get("more_body", False):
                    break
            if (complaint := _unsayable(body)) is not None:
                is_old = scope["path"].startswith(tuple(self._bad_request))
                await _refuse_body(scope, send, 400 if is_old else 422, complaint)
                return
            messages = [
                {"type": "http.request", "body": bytes(body), "more_body": False}
            ]
            del body

            async def replay() -> Any:
                return messages.pop() if messages else await receive()

            await self._app(scope, replay, send)
        finally:
            self._held -= counted


class Uploads:
    """Bodies that become files in ``directory`` while they come, each of at most ``limit`` bytes;
    `_UPLOADS` at a time."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory, self._limit = directory, limit
        self._running = 0

    @contextlib.asynccontextmanager
    async def __call__(self, receive: Any) -> AsyncIterator[tuple[Path, str]]:
        """Yield the body as a file, and its SHA-256. The file is removed at the end unless it was moved.

        Raises starlette's HTTPException 400, 408, 413 and 503, and OSError.
        """
        if self._running >= _UPLOADS:
            raise HTTPException(503, f"{_UPLOADS} bodies are coming already; try again")
        self._running += 1
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=".part-", dir=self._directory)
        try:
            digest = hashlib.sha256()
            with os.fdopen(descriptor, "wb") as file:
                async for piece in _pieces(receive, self._limit):
                    digest.update(piece)
                    file.write(piece)
            yield Path(name), digest.hexdigest()
        finally:
            self._running -= 1
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)


async def _pieces(receive: Any, limit: int) -> AsyncIterator[bytes]:
    taken = 0
    # No slower than 1 MiB a second over all, and never silent for long.
    deadline = time.monotonic() + BODY_S + limit / (1 << 20)
    while True:
        try:
            message = await asyncio.wait_for(
                receive(), max(0.0, min(BODY_S, deadline - time.monotonic()))
            )
        except TimeoutError:
            raise HTTPException(408, "the body did not come in time") from None
        if message["type"] == "http.disconnect":
            raise HTTPException(400, "the body was not sent whole")
        piece = message.get("body", b"")
        taken += len(piece)
        if taken > limit:
            raise HTTPException(413, f"the body has more than {limit} bytes")
        yield piece
        if not message.get("more_body", False):
            return


class Turns:
    """Lets a few go on in each round of the event loop, so that others are looked at between."""

    def __init__(self, at_once: int = 4) -> None:
        self._places = asyncio.Semaphore(at_once)

    async def __call__(self) -> None:
        async with self._places:
            await asyncio.sleep(0)


class InTurn:
    """ASGI middleware: of many requests that come together a few are begun at a time, and those for the paths
    ``first`` at once."""

    def __init__(self, app: Any, first: Collection[str] = ()) -> None:
        self._app = app
        self._first = frozenset(first)
        self._turn = Turns()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] not in self._first:
            await self._turn()
        await self._app(scope, receive, send)


class Shared(Generic[Found]):
    """Shared computation for simultaneous requests.

    A request during a computation gets the result of the next one, so that no result is older than its
    request.
    """

    def __init__(self, compute: Callable[[], Awaitable[Found]]) -> None:
        self._compute = compute
        self._running: asyncio.Task[Found] | None = None
        self._next: asyncio.Task[Found] | None = None

    async def __call__(self) -> Found:
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._compute())
            task = self._running
        else:
            if self._next is None:
                self._next = asyncio.ensure_future(self._after(self._running))
            task = self._next
        # Whoever goes away does not take it from the others.
        return await asyncio.shield(task)

    async def _after(self, before: asyncio.Task[Found]) -> Found:
        await asyncio.wait([before])
        self._running, self._next = self._next, None
        return await self._compute()


def _is_for(scope: Any, method: str, path: str) -> bool:
    return bool(scope["method"] == method and scope["path"].startswith(path))


def _unsayable(body: bytes | bytearray) -> str | None:
    """Return the error for text in a JSON body that UTF-8 cannot encode; None if there is none.

    Bodies that are not JSON are reported elsewhere.
    """
    try:
        body.decode()
        if b"\\u" not in body:
            return None
    except UnicodeDecodeError:
        pass
    try:
        parse_json(bytes(body))
    except HalfCharacterError as error:
        return error.msg
    except (ValueError, RecursionError):
        pass
    return None


async def _refuse_body(scope: Any, send: Any, status: int, detail: str) -> None:
    # A client that was to be asked for its body before it sends it: nobody knows whether it still will.
    ending = [(b"connection", b"close")] if headers(scope, "expect") else []
    await refuse(scope, send, status, detail, ending)
