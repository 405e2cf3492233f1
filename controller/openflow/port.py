"""The TCP port that switches connect to. It may be open before the plane runs: early switches wait."""

from __future__ import annotations

import errno
import socket

from ringlight.controller.openflow.errors import ListenError


def open_port(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 is any. Raises ListenError naming the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(64)
    except OSError as error:
        listener.close()
        reason = (
            "is already in use"
            if error.errno == errno.EADDRINUSE
            else f"cannot be opened: {error}"
        )
        raise ListenError(f"OpenFlow port {host}:{port} {reason}") from error
    return listener
