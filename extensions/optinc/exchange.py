"""A message of each rank to each other, in a round that ends when a rank has those for it.

Every pair has a connection of its own, so a silent rank is known by its own silence. Messages are a length of
4 bytes and what follows; a rank reads no byte beyond the round's, so the next one may be on its way.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence

from ringlight.containers.worker.peer import PeerLost, ReduceFailed
from ringlight.containers.worker.stalls import Stalls

_LENGTH = struct.Struct("!I")
_AT_ONCE = 1 << 18


class _Talk:
    """Exchange with one peer in a round: its messages, and how far they are."""

    def __init__(self, peer: int, connection: socket.socket, message: bytes) -> None:
        self.peer, self.socket = peer, connection
        self.outgoing = memoryview(message)
        self.incoming = bytearray()

    @property
    def lacking(self) -> int:
        """Return how many bytes of the peer's message are missing; of its header, until the header is
        complete.
        """
        if len(self.incoming) < _LENGTH.size:
            return _LENGTH.size - len(self.incoming)
        return (
            _LENGTH.size
            + int(_LENGTH.unpack_from(self.incoming)[0])
            - len(self.incoming)
        )

    @property
    def events(self) -> int:
        return (select.POLLIN if self.lacking else 0) | (
            select.POLLOUT if self.outgoing else 0
        )

    def move(self) -> None:
        """Send and receive what goes. Raises PeerLost."""
        try:
            if self.outgoing:
                self.outgoing = self.outgoing[self.socket.send(self.outgoing) :]
        except BlockingIOError:
            pass
        except OSError as error:
            raise PeerLost(self.peer, error.strerror or str(error)) from error
        try:
            while lacking := self.lacking:
                data = self.socket.recv(min(lacking, _AT_ONCE))
                if not data:
                    raise PeerLost(self.peer, "it closed the connection")
                self.incoming += data
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerLost(self.peer, error.strerror or str(error)) from error


class Exchange:
    """Rounds over ``connections``, one to each other rank, which stay the caller's and become non-blocking.

    ``stalls``: since the owner last took them. ``timeout_s``: a rank that others wait for may be silent that
    long. ``bytes_sent`` and ``bytes_received``: of all rounds, with the lengths.
    """

    def __init__(
        self, rank: int, connections: Mapping[int, socket.socket], timeout_s: float
    ) -> None:
        self._rank, self._connections, self._timeout_s = (
            rank,
            dict(connections),
            timeout_s,
        )
        self.bytes_sent = self.bytes_received = 0
        self.stalls = Stalls()
        for connection in connections.values():
            connection.setblocking(False)

    def __call__(self, messages: Sequence[bytes]) -> list[bytes]:
        """Send ``messages``, one for each rank, and return each rank's message for this rank, in the order of
        ranks.

        This rank's own message is returned as it was given. Raises PeerLost if a rank has gone,
        ReduceFailed if one is silent for too long.
        """
        talks = {
            peer: _Talk(
                peer, connection, _LENGTH.pack(len(messages[peer])) + messages[peer]
            )
            for peer, connection in self._connections.items()
        }
        self.bytes_sent += sum(len(talk.outgoing) for talk in talks.values())
        by_descriptor = {talk.socket.fileno(): talk for talk in talks.values()}
        poller = select.poll()
        for descriptor, talk in by_descriptor.items():
            poller.register(descriptor, talk.events)
        moved_at = time.monotonic()
        while waiting := [talk.peer for talk in talks.values() if talk.events]:
            left_s = moved_at + self._timeout_s - time.monotonic()
            ready = poller.poll(max(0.0, left_s) * 1000 + 1)
            if not ready and time.monotonic() - moved_at > self._timeout_s:
                silent = min(waiting)
                cause = f"rank {silent}: silent for {self._timeout_s:g} s while others tell their scales"
                raise ReduceFailed(silent, cause)
            now = time.monotonic()
            self.stalls.note(moved_at, now)
            moved_at = now
            for descriptor, _ in ready:
                talk = by_descriptor[descriptor]
                talk.move()
                if talk.events:
                    poller.modify(descriptor, talk.events)
                else:
                    poller.unregister(descriptor)
        received = {
            peer: bytes(talk.incoming[_LENGTH.size :]) for peer, talk in talks.items()
        }
        self.bytes_received += sum(len(talk.incoming) for talk in talks.values())
        return [received.get(rank, messages[rank]) for rank in range(len(talks) + 1)]
