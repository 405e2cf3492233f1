"""The thread in which an emulated switch answers REST.

Until somebody calls there is none, and nothing of what it needs is loaded: a lab has many switches, and few
of them are ever asked.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ringlight.controller.web.serving import HttpServer

STOP_S = 5.0


class RestThread:
    """REST of a switch, on a socket that it closes. ``make_app`` makes what answers, for a host's name."""

    def __init__(
        self, listener: socket.socket, make_app: Callable[[str], FastAPI]
    ) -> None:
        self.listener = listener
        self._make_app = make_app
        self._server: HttpServer | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Answer from now on; return at once."""
        self._thread = threading.Thread(target=self._run, name="rest", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        if self._server is not None:
            self._server.end()
        if self._thread is not None:
            self._thread.join(STOP_S)
        self.listener.close()

    def _run(self) -> None:
        from ringlight.controller.web.serving import HttpServer

        host = self.listener.getsockname()[0]
        self._server = HttpServer(self._make_app(host), self.listener, end_s=1)
        if not self._stopping:
            self._server.run()
