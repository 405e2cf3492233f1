"""Common parts of connections to other ranks and to devices, whatever the connections carry.

Without numpy, which takes half of the time in which a link test's worker starts.
"""

from __future__ import annotations

import socket
import time


class PeerLost(Exception):
    """A peer closed its connection, or was silent for too long. ``rank`` is the peer's.

    ``at_s``: when that was noticed (monotonic seconds), which is before this rank closes connections itself.
    """

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank} lost: {reason}")
        self.rank = rank
        self.reason = reason
        self.at_s = time.monotonic()


class ReduceFailed(Exception):
    """Failure of an all-reduce, one line. ``rank``: the one at fault, None if unknown."""

    def __init__(self, rank: int | None, cause: str) -> None:
        super().__init__(cause)
        self.rank = rank


def read_notes(connection: socket.socket) -> None:
    """Empty the connection's error queue, which poll reports until the queue is empty."""
    try:
        while True:
            connection.recvmsg(1, 512, socket.MSG_ERRQUEUE)
    except OSError:
        # Empty; an error of the connection itself will come from its next send or receive.
        return
