"""The thread in which an emulated switch answers REST.

Until somebody calls there is none, and nothing of what it needs is loaded: a lab has many switches, and few
of them are ever asked.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringlight.controller.web.serving import HttpServer
    from ringlight.testbed.emulation.optical.server import OpticalSwitchServer

STOP_S = 5.0


class RestThread:
    """REST of a switch, on a socket that it closes. ``tokens``: the name of each; None: none is needed."""

    def __init__(self, listener: socket.socket, tokens: Mapping[str, str] | None) -> None:
        self.listener = listener
        self._tokens = tokens
        self._server: HttpServer | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self, switch: OpticalSwitchServer) -> None:
        """Answers from now on; returns at once."""
        self._thread = threading.Thread(target=self._run, args=(switch,), name="rest", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        if self._server is not None:
            self._server.end()
        if self._thread is not None:
            self._thread.join(STOP_S)
        self.listener.close()

    def _run(self, switch: OpticalSwitchServer) -> None:
        from ringlight.controller.web.serving import HttpServer
        from ringlight.testbed.emulation.optical.rest import create_app

        host = self.listener.getsockname()[0]
        self._server = HttpServer(create_app(switch, self._tokens, [host]), self.listener, end_s=1)
        if not self._stopping:
            self._server.run()
