"""TLS on a connection that is counted from its first byte on."""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Any

#: Longest wait for the end of a session, seconds.
_END_S = 2.0


class TlsSession(SSLProtocol):
    """Server side of a TLS connection for ``protocol``, which is called once the handshake is complete.

    ``come``: called with the carrying transport before any data. ``go``: called when the connection has
    ended.
    """

    #: asyncio's own is 256 KiB for each connection.
    max_size = 16 << 10

    def __init__(
        self,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        handshake_s: float,
        come: Callable[[Any], None],
        go: Callable[[], None],
    ) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            protocol,
            context,
            None,  # type: ignore[arg-type]
            server_side=True,
            ssl_handshake_timeout=handshake_s,  # type: ignore[arg-type]
            ssl_shutdown_timeout=_END_S,
        )
        self._come, self._go = come, go

    def connection_made(self, transport: Any) -> None:
        self._come(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        # The protocol is not called where no session has begun.
        self._go()
        super().connection_lost(exc)
