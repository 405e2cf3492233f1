"""Keeps a peer's data in flight to a connection within a window, which is given only in the end.

Both ends exchange a full segment first, with windows as large as buffers. When Linux (6.10 and later) sees
the first segment of a new size, it sets the receiver's clamp again, from the buffer. And it drops payload
whose acknowledgement is older by more than the largest window that the sender was ever given (RFC 5961,
5.2): a connection that knows of small ones only loses what has waited in a queue that acknowledgements pass.
"""

from __future__ import annotations

import socket

#: A full segment of the largest frames that workers send.
_SEGMENT = bytes(9000)
#: The second comes after the first's number, so Linux takes a smaller window from it.
_SHRUNK = (b"\0", b"\0")


def keep_window(connection: socket.socket, window_bytes: int) -> None:
    """Give the peer, which does the same, a window of ``window_bytes``; both know the other's on return.

    A window once given can be made smaller only if ``net.ipv4.tcp_shrink_window`` is set; otherwise it ends
    with what was given before. Raises OSError.
    """
    _exchange(connection, _SEGMENT)
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        # The kernel counts its own bookkeeping, too, and gives twice what is asked for.
        if connection.getsockopt(socket.SOL_SOCKET, buffer) < 4 * window_bytes:
            connection.setsockopt(socket.SOL_SOCKET, buffer, 2 * window_bytes)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, window_bytes)
    for data in _SHRUNK:
        _exchange(connection, data)


def _exchange(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)
    into = memoryview(bytearray(len(data)))
    while into:
        count = connection.recv_into(into)
        if not count:
            raise ConnectionResetError("the peer closed the connection before it began")
        into = into[count:]
