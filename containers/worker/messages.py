"""Messages between ranks, matched by tag; a send ends when the receiver has all of it.

A message starts once its receive has been posted, as large messages do in MPI and NCCL (rendezvous): the
receiver gives the sender a credit. One connection carries the messages of one rank to another; credits and
receipts come back over the same one, against the payload's direction, so nothing waits behind a payload.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator

from ringlight.containers.worker.peer import PeerLost
from ringlight.containers.worker.posted import Posted

#: Kind, tag and size (bytes; only of data).
_HEAD = struct.Struct("!cqq")
_CREDIT, _DATA, _RECEIPT = b"C", b"D", b"R"


class _End:
    """End of a connection. A thread reads what arrives and notifies the callers that wait."""

    def __init__(self, peer: int, connection: socket.socket, patience_s: float) -> None:
        self.peer, self._socket, self._patience_s = peer, connection, patience_s
        connection.setblocking(True)
        self._changed = threading.Condition()
        self._failure: PeerLost | None = None
        self._over = False
        self._writing = threading.Lock()
        self._thread = threading.Thread(
            target=self._read, name=f"messages {peer}", daemon=True
        )
        self._thread.start()

    def _read(self) -> None:
        try:
            while head := self._exactly(_HEAD.size, may_end=True):
                self._take(*_HEAD.unpack(head))
        except (OSError, PeerLost) as error:
            failure = (
                error
                if isinstance(error, PeerLost)
                else PeerLost(self.peer, error.strerror or str(error))
            )
            with self._changed:
                self._failure = failure
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _take(self, kind: bytes, tag: int, size: int) -> None:
        raise NotImplementedError

    def _exactly(self, count: int, *, may_end: bool = False) -> bytes:
        data = bytearray(count)
        return bytes(data) if self._fill(memoryview(data), may_end=may_end) else b""

    def _fill(self, view: memoryview, *, may_end: bool = False) -> bool:
        """Read until ``view`` is full. Return True, or False at an end before the first byte if
        ``may_end``.
        """
        filled = 0
        while filled < len(view):
            count = self._socket.recv_into(view[filled:])
            if not count:
                if may_end and not filled:
                    return False
                raise PeerLost(self.peer, "it closed the connection in a message")
            filled += count
        return True

    def _say(self, kind: bytes, tag: int, payload: memoryview | None = None) -> None:
        head = _HEAD.pack(kind, tag, 0 if payload is None else len(payload))
        with self._writing:
            try:
                self._socket.sendall(head)
                if payload is not None:
                    self._socket.sendall(payload)
            except OSError as error:
                raise PeerLost(self.peer, error.strerror or str(error)) from error

    @contextlib.contextmanager
    def _await(self, there: Callable[[], bool], otherwise: str) -> Iterator[None]:
        """Wait until ``there`` returns true, and hold the lock for the ``with`` block.

        Raises PeerLost if that does not happen in time, or cannot happen any more.
        """
        deadline = time.monotonic() + self._patience_s
        with self._changed:
            while not there():
                if self._failure is not None:
                    raise self._failure
                if self._over:
                    raise PeerLost(self.peer, "it closed the connection")
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise PeerLost(self.peer, f"{otherwise} in {self._patience_s:g} s")
                self._changed.wait(left_s)
            yield

    def hang_up(self) -> None:
        """Say that no more messages follow. Raises PeerLost."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise PeerLost(self.peer, error.strerror or str(error)) from error

    def join(self) -> None:
        """Wait until the peer has hung up, too. Raises PeerLost."""
        self._thread.join(self._patience_s)
        if self._failure is not None:
            raise self._failure
        if self._thread.is_alive():
            raise PeerLost(self.peer, f"it did not part in {self._patience_s:g} s")


class Sender(_End):
    """The end from which messages go. ``patience_s``: longest wait for the other end, seconds.

    ``posted``: where each message is counted before its first byte goes.
    """

    def __init__(
        self,
        peer: int,
        connection: socket.socket,
        patience_s: float,
        posted: Posted | None = None,
    ) -> None:
        self._posted = posted
        self._credits: defaultdict[int, int] = defaultdict(int)
        self._receipts: defaultdict[int, int] = defaultdict(int)
        super().__init__(peer, connection, patience_s)

    def send(self, tag: int, payload: memoryview) -> None:
        """Send a message, and return when the receiver has all of it. Raises PeerLost."""
        self._take_one(self._credits, tag, f"it did not receive what has tag {tag}")
        if self._posted is not None:
            self._posted.add(self.peer, len(payload), _HEAD.size)
        self._say(_DATA, tag, payload)
        self._take_one(self._receipts, tag, f"it did not take all that has tag {tag}")

    def _take_one(self, of: dict[int, int], tag: int, otherwise: str) -> None:
        with self._await(lambda: of[tag] > 0, otherwise):
            of[tag] -= 1

    def _take(self, kind: bytes, tag: int, size: int) -> None:
        if kind not in (_CREDIT, _RECEIPT):
            raise PeerLost(
                self.peer, f"it says {kind!r} against the direction of its messages"
            )
        with self._changed:
            (self._credits if kind == _CREDIT else self._receipts)[tag] += 1
            self._changed.notify_all()


class Receiver(_End):
    """The end at which messages arrive."""

    def __init__(self, peer: int, connection: socket.socket, patience_s: float) -> None:
        self._posted: defaultdict[int, deque[memoryview]] = defaultdict(deque)
        self._done: set[int] = set()
        super().__init__(peer, connection, patience_s)

    def receive(self, tag: int, into: memoryview) -> None:
        """Wait for the next message of the tag in ``into``, and return when it is complete. Raises PeerLost,
        also for another size.
        """
        with self._changed:
            self._posted[tag].append(into)
        self._say(_CREDIT, tag)
        mine = id(into)
        with self._await(lambda: mine in self._done, f"nothing of tag {tag} came"):
            self._done.remove(mine)
        self._say(_RECEIPT, tag)

    def _take(self, kind: bytes, tag: int, size: int) -> None:
        with self._changed:
            into = (
                self._posted[tag].popleft()
                if kind == _DATA and self._posted[tag]
                else None
            )
        if into is None:
            raise PeerLost(
                self.peer, f"it sent what nobody receives: {kind!r} of tag {tag}"
            )
        if len(into) != size:
            raise PeerLost(
                self.peer, f"its message of tag {tag} has {size} bytes, not {len(into)}"
            )
        self._fill(into)
        with self._changed:
            self._done.add(id(into))
            self._changed.notify_all()
