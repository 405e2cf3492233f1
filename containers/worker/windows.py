"""Keeps what a peer may have under way to a connection within a window.

A route's window does not hold: when Linux (6.10 and later) sees the first segment of a new size, it sets the
receiver's clamp anew, from the buffer. So a full segment goes both ways first, and then the clamp is set.
"""

from __future__ import annotations

import socket

#: A full segment of the largest frames that workers send.
_SEGMENT = bytes(9000)


def keep_window(connection: socket.socket, window_bytes: int) -> None:
    """Exchange a full segment with the peer, which does so too, and set the clamp. Raises OSError."""
    connection.sendall(_SEGMENT)
    into = memoryview(bytearray(len(_SEGMENT)))
    while into:
        count = connection.recv_into(into)
        if not count:
            raise ConnectionResetError("the peer closed the connection before it began")
        into = into[count:]
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        # The kernel counts its own bookkeeping, too, and gives twice what is asked for.
        if connection.getsockopt(socket.SOL_SOCKET, buffer) < 4 * window_bytes:
            connection.setsockopt(socket.SOL_SOCKET, buffer, 2 * window_bytes)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, window_bytes)
