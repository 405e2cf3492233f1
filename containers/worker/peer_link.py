"""A connection to another rank, with the transfers that go over it in their order."""

from __future__ import annotations

import socket
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from ringlight.containers.worker.flows import LitFlow
from ringlight.containers.worker.lending import Lender
from ringlight.containers.worker.transfers import Burst, Receive, Send

#: Bytes at a time that are received before they can be used.
_AHEAD_BYTES = 256 * 1024


class PeerLink:
    """Connection with its transfers in order, and their progress. Sends before ``begun`` have begun.

    ``bursts``, ``flow`` and ``early`` (bytes received before they could be used) are used only with an O-NIC.
    ``lender``, and whether the connection ``owes`` a receipt or ``awaits`` one, are used only without.
    """

    __slots__ = (
        "awaits",
        "begun",
        "bursts",
        "can_read",
        "can_write",
        "early",
        "ended",
        "filled",
        "flow",
        "lender",
        "moved_at",
        "next_burst",
        "next_receive",
        "next_send",
        "owes",
        "peer",
        "receives",
        "scratch",
        "scratch_items",
        "sends",
        "socket",
        "unacknowledged",
        "watched",
    )

    def __init__(self, peer: int, connection: socket.socket) -> None:
        self.peer, self.socket = peer, connection
        self.sends: list[Send] = []
        self.receives: list[Receive] = []
        self.bursts: list[Burst] = []
        # A peer may be so far ahead that these are bytes of the next all-reduce.
        self.early = bytearray()
        self.ended = False
        self.lender: Lender | None = None
        self.scratch_items: npt.NDArray[Any] = np.empty(0, dtype=np.float32)
        self.scratch = memoryview(b"")
        self.rewind(by_flow=False)

    def make_scratch(self, kind: np.dtype[Any]) -> None:
        """Room for the largest segment that is received to be added."""
        segments = [receive.segment for receive in self.receives if receive.reduce]
        self.scratch_items = np.empty(max(segments, default=0) // kind.itemsize, kind)
        self.scratch = memoryview(self.scratch_items).cast("B")  # type: ignore[arg-type]

    def longest(self) -> int:
        """Return the bytes of the longest transfer in either direction, 0 if there is none."""
        sends = [send.end - send.start for send in self.sends]
        return max(
            sends + [receive.end - receive.start for receive in self.receives],
            default=0,
        )

    def rewind(self, by_flow: bool) -> None:
        self.next_send = self.next_receive = self.next_burst = self.begun = (
            self.filled
        ) = self.watched = 0
        self.flow: LitFlow | None = None
        self.unacknowledged = 0
        # Words are not acknowledged: their receiver waits for them.
        self.owes = not by_flow and not all(
            receive.is_word for receive in self.receives
        )
        self.awaits = not by_flow and not all(send.is_word for send in self.sends)
        self.can_read = self.can_write = True
        self.moved_at = time.monotonic()
        for send in self.sends:
            send.sent = send.aside_end = send.start
        for receive in self.receives:
            receive.applied = receive.start

    def transferred(self) -> bool:
        return self.next_send == len(self.sends) and self.next_receive == len(
            self.receives
        )

    def unfinished(self) -> bool:
        return (
            not self.transferred()
            or self.next_burst < len(self.bursts)
            or self.owes
            or self.awaits
        )

    def held(self) -> int:
        """Return the bytes that were lent and for which the socket had no room yet."""
        return 0 if self.lender is None else self.lender.held

    def sendable(self, by_flow: bool) -> int:
        """Return the index before which sends may go now."""
        if not by_flow:
            return len(self.sends)
        if self.flow is None or not self.flow.lit:
            return 0
        return self.bursts[self.next_burst].end

    def take(self, into: memoryview) -> int:
        """Read bytes that came early, else from the connection, into ``into``. Return how many."""
        if not self.early:
            return self.socket.recv_into(into)
        count = min(len(into), len(self.early))
        with memoryview(self.early) as early:
            into[:count] = early[:count]
        del self.early[:count]
        return count

    def read_ahead(self) -> bool:
        """Read bytes that cannot be used yet, so that the flow that brings them can end. Return whether any
        came.

        They stay few: a peer can be at most one all-reduce ahead.
        """
        if self.ended:
            return False
        data = self.socket.recv(_AHEAD_BYTES)
        self.ended = not data
        self.early += data
        return bool(data)
