"""Ask Linux what became of the bytes that were sent on a TCP connection."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
import termios

#: Linux's names for a note in the error queue once all that was sent is acknowledged; Python has none.
_SO_TIMESTAMPING = 37
_TX_ACK, _SOFTWARE, _TSONLY = 1 << 9, 1 << 4, 1 << 11
#: tcpi_rtt, in microseconds, and tcpi_total_retrans in Linux's struct tcp_info.
_TCP_INFO = struct.Struct("68xI28xI")
#: Sent along with a message, asks for such a note about it.
NOTE_WHEN_ACKNOWLEDGED = [
    (socket.SOL_SOCKET, _SO_TIMESTAMPING, struct.pack("I", _TX_ACK))
]


def allow_notes(connection: socket.socket) -> None:
    """Let the kernel put notes into the connection's error queue, without what was sent."""
    connection.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _SOFTWARE | _TSONLY)


def unacknowledged(connection: socket.socket) -> int:
    """Return the bytes sent on a TCP connection that its peer's host has not acknowledged (SIOCOUTQ)."""
    return int.from_bytes(
        fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder
    )


def round_trip_s(connection: socket.socket) -> float:
    """Return TCP's smoothed round trip of a connection in seconds: mostly the time that its frames wait in
    queues.
    """
    return _tcp_info(connection)[0] / 1e6


def retransmits(connection: socket.socket) -> int:
    """Return how many segments TCP sent again on a connection."""
    return _tcp_info(connection)[1]


def _tcp_info(connection: socket.socket) -> tuple[int, int]:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    round_trip_us, again = (
        _TCP_INFO.unpack(info) if len(info) == _TCP_INFO.size else (0, 0)
    )
    return round_trip_us, again
