"""The socket of an HTTP server. It is open before the server runs: early clients wait."""

from __future__ import annotations

import socket


def listen(host: str, port: int, waiting: int = 128) -> socket.socket:
    """Return a listening TCP socket. ``waiting``: length of the queue of connections. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where a socket says that it is TCP. With it the body of an
    # answer waits for the acknowledgement of the head, which the client delays for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(waiting)
    except OSError:
        listener.close()
        raise
    return listener
