"""os-ken's threads, mended where native ones differ from the eventlet threads that it was written for.

``hub.Event.wait`` ignores its time-out, so whatever is repeated every few seconds happens once.
``hub.TaskExit`` is ``Exception``, so every exception ends a thread without a word, and an application's event
loop with it. A request to an application that does not run is never answered.
"""

from __future__ import annotations

import logging
import queue
import threading
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import Any

from os_ken.base import app_manager
from os_ken.lib import hub

log = logging.getLogger("apps")

#: Set once the applications are being closed: their threads may then fail as they like.
closing = threading.Event()
#: Longest that an application waits for the reply of another one, seconds.
REPLY_S = 30.0


class TaskExit(BaseException):
    """Ends a thread without being a failure; an application may raise it."""


class OneLine(logging.Formatter):
    """Formatter that writes an exception after its message, on the same line, with files and lines of its
    traceback.
    """

    def formatException(self, ei: Any) -> str:
        _, error, trace = ei
        return f"{type(error).__name__}: {error} ({passed(trace)})"

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return ": ".join(filter(None, text.splitlines())) if record.exc_info else text


def passed(trace: TracebackType | None) -> str:
    """Return ``file:line in function`` of each frame but those of threads themselves, the outermost first."""
    frames = [
        frame
        for frame in extract_tb(trace)
        if frame.filename not in (__file__, threading.__file__)
    ]
    return ", ".join(
        f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
        for frame in frames
    )


def install() -> None:
    """Mend os-ken's threads in this process."""
    hub.Event = threading.Event
    hub.TaskExit = TaskExit
    hub.HubThread.run = _run
    app_manager.OSKenApp.send_request = _send_request


def _run(thread: Any) -> None:
    """Run a thread of ``hub.spawn``; a failure becomes one line of the log."""
    try:
        threading.Thread.run(thread)
    except TaskExit:
        pass
    except BaseException:
        if thread.raise_error:
            raise
        if not closing.is_set():
            log.exception("a thread of the applications has failed")


def _send_request(application: Any, request: Any) -> Any:
    """Send a request to another application and return its reply.

    Raises RuntimeError if that application does not run, or has not replied after :data:`REPLY_S`.
    """
    if request.dst not in app_manager.SERVICE_BRICKS:
        raise RuntimeError(
            f"{type(request).__name__}: no application {request.dst} runs that could reply (yet)"
        )
    request.sync = True
    request.reply_q = hub.Queue()
    application.send_event(request.dst, request)
    try:
        return request.reply_q.get(timeout=REPLY_S)
    except queue.Empty:
        raise RuntimeError(
            f"{type(request).__name__}: application {request.dst} did not reply within {REPLY_S:g} s"
        ) from None
