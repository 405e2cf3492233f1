"""Executes a collective's schedule over TCP connections, one thread, no barriers between steps.

Every rank works through its own transfers as fast as the data lets it, byte by byte: a send may go as
far as the last earlier receive into its chunk has been applied, and a receive never destroys bytes that
an earlier send has still to send. The result is bit-identical to ``fabric.collectives.apply_schedule``.

Why it cannot deadlock: take the unfinished transfer that is first in order (step, place in the
schedule). Everything before it is finished, so its bytes are ready at the sender, it is first in its
connection on both sides, and a receive that would overwrite unsent bytes copies them aside instead of
waiting. So it can always move.
"""

from __future__ import annotations

import fcntl
import select
import socket
import sys
import termios
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fabric.collectives import Schedule, chunk_bounds

#: Bytes received, added and sent on at a time: large, because each receive costs an acknowledgement.
SEGMENT_BYTES = 1024 * 1024
#: A short chunk is cut into this many segments, so that a rank can send on while it still receives.
SEGMENTS_PER_CHUNK = 8
ITEM_BYTES = 4
ACKNOWLEDGEMENT_POLL_S = 0.0005


class PeerLost(Exception):
    """A peer closed its connection, or was silent for too long. ``rank`` is the peer's."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank} lost: {reason}")
        self.rank = rank
        self.reason = reason


@dataclass(frozen=True)
class AllReduceReport:
    """What one all-reduce moved.

    ``max_stall_s``: longest time, seconds, in which no byte moved in either direction.
    """

    bytes_sent: int
    bytes_received: int
    max_stall_s: float


class _Receive:
    """A transfer into this rank. Positions are byte offsets in the vector."""

    __slots__ = ("applied", "before", "end", "previous", "reduce", "segment", "start")

    def __init__(self, start: int, end: int, reduce: bool, previous: _Receive | None) -> None:
        self.start, self.end, self.reduce, self.previous = start, end, reduce, previous
        self.applied = start
        share = -(-(end - start) // (SEGMENTS_PER_CHUNK * ITEM_BYTES)) * ITEM_BYTES
        self.segment = min(SEGMENT_BYTES, share)
        #: Sends that must take their bytes before this receive changes them.
        self.before: list[_Send] = []

    def ready(self) -> int:
        """How far a later send of the chunk may go now: to the end of a segment."""
        if self.applied == self.end:
            return self.end
        return self.applied - (self.applied - self.start) % self.segment

    def limit(self) -> int:
        """How far the next receive may go: one segment, and not beyond an earlier receive of the chunk.

        It stops before what an earlier send has still to send, if that leaves anything to receive.
        """
        begin = self.applied
        limit = self.end if self.previous is None else self.previous.applied
        # Whole elements only; a ``replace`` may have stopped inside one.
        limit = min(limit - limit % ITEM_BYTES, begin - begin % ITEM_BYTES + self.segment)
        for send in self.before:
            free = max(send.sent, send.aside_end)
            free -= free % ITEM_BYTES
            if begin < free < limit:
                limit = free
        return limit


class _Send:
    """A transfer out of this rank; ``after`` is the last earlier receive into its chunk."""

    __slots__ = ("after", "aside", "aside_end", "end", "sent", "start")

    def __init__(self, start: int, end: int, after: _Receive | None) -> None:
        self.start, self.end, self.after = start, end, after
        self.sent = self.aside_end = start
        self.aside: memoryview | None = None

    def keep(self, data: memoryview, until: int) -> None:
        """Copy what is unsent before ``until`` aside, because a receive is about to overwrite it."""
        begin = max(self.sent, self.aside_end)
        if until > begin:
            if self.aside is None:
                self.aside = memoryview(bytearray(self.end - self.start))
            self.aside[begin - self.start : until - self.start] = data[begin:until]
            self.aside_end = until


class _Link:
    """One connection with its transfers in order, and how far they are."""

    __slots__ = (
        "can_read", "can_write", "filled", "moved_at", "next_receive", "next_send", "peer", "receives",
        "scratch", "scratch_items", "sends", "socket", "watched",
    )  # fmt: skip

    def __init__(self, peer: int, connection: socket.socket) -> None:
        self.peer, self.socket = peer, connection
        self.sends: list[_Send] = []
        self.receives: list[_Receive] = []
        self.scratch_items = np.empty(0, dtype=np.float32)
        self.scratch = memoryview(b"")
        self.rewind()

    def make_scratch(self) -> None:
        """Room for the largest segment that is received to be added."""
        segments = [receive.segment for receive in self.receives if receive.reduce]
        self.scratch_items = np.empty(max(segments, default=0) // ITEM_BYTES, dtype=np.float32)
        self.scratch = memoryview(self.scratch_items).cast("B")  # type: ignore[arg-type]

    def rewind(self) -> None:
        self.next_send = self.next_receive = self.filled = self.watched = 0
        self.can_read = self.can_write = True
        self.moved_at = time.monotonic()
        for send in self.sends:
            send.sent = send.aside_end = send.start
        for receive in self.receives:
            receive.applied = receive.start

    def unfinished(self) -> bool:
        return self.next_send < len(self.sends) or self.next_receive < len(self.receives)


class Transport:
    """Runs one schedule again and again over the same connections.

    ``connections``: a connected stream socket for each peer that ``peers_of`` names; they become
    non-blocking and stay the caller's to close. ``length``: elements (float32) of the vector.
    ``peer_timeout_s``: a peer from which a byte is awaited may be silent that long. Raises ValueError
    when a connection is missing.
    """

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        connections: Mapping[int, socket.socket],
        length: int,
        peer_timeout_s: float = 15.0,
    ) -> None:
        missing = peers_of(schedule, rank) - connections.keys()
        if missing:
            raise ValueError(f"rank {rank} has no connection to ranks {sorted(missing)}")
        self._length = length
        self._peer_timeout_s = peer_timeout_s
        self._links = [_Link(peer, connections[peer]) for peer in sorted(peers_of(schedule, rank))]
        self._assign(schedule, rank)
        for link in self._links:
            link.make_scratch()
            link.socket.setblocking(False)

    def _assign(self, schedule: Schedule, rank: int) -> None:
        link_of = {link.peer: link for link in self._links}
        bounds = [(a * ITEM_BYTES, b * ITEM_BYTES) for a, b in chunk_bounds(self._length, schedule.chunks)]
        steps = defaultdict(list)
        for transfer in schedule.transfers:
            if rank in (transfer.source, transfer.destination):
                steps[transfer.step].append(transfer)
        last_receive: dict[int, _Receive] = {}
        unguarded: dict[int, list[_Send]] = defaultdict(list)
        for step in sorted(steps):
            # A send takes what its rank had before the step: so all sends of the step come first.
            for transfer in steps[step]:
                start, end = bounds[transfer.chunk]
                if transfer.source == rank and start < end:
                    send = _Send(start, end, last_receive.get(transfer.chunk))
                    link_of[transfer.destination].sends.append(send)
                    unguarded[transfer.chunk].append(send)
            for transfer in steps[step]:
                start, end = bounds[transfer.chunk]
                if transfer.destination == rank and start < end:
                    receive = _Receive(start, end, transfer.op == "reduce", last_receive.get(transfer.chunk))
                    receive.before = unguarded.pop(transfer.chunk, [])
                    link_of[transfer.source].receives.append(receive)
                    last_receive[transfer.chunk] = receive

    def all_reduce(self, vector: npt.NDArray[np.float32]) -> AllReduceReport:
        """Run the schedule in place on ``vector``, a contiguous 1-D float32 array.

        Raises PeerLost when a peer closes or is silent for ``peer_timeout_s``, ValueError for another
        shape or type.
        """
        if vector.dtype != np.float32 or vector.shape != (self._length,) or not vector.flags.c_contiguous:
            raise ValueError(f"expected {self._length} contiguous float32, got {vector.dtype}{vector.shape}")
        data = memoryview(vector).cast("B")  # type: ignore[arg-type]
        links = self._links
        for link in links:
            link.rewind()
        poller = select.poll()
        link_of = {link.socket.fileno(): link for link in links}
        moved_at = time.monotonic()
        max_stall_s = 0.0
        unfinished = [link for link in links if link.unfinished()]
        while unfinished:
            progress = False
            for link in links:
                if link.can_write:
                    progress |= self._write(link, data)
            for link in links:
                if link.can_read:
                    progress |= self._read(link, data, vector)
            if progress:
                now = time.monotonic()
                max_stall_s = max(max_stall_s, now - moved_at)
                moved_at = now
                unfinished = [link for link in unfinished if link.unfinished()]
                continue
            for link in links:
                self._watch(poller, link)
            self._wait(poller, link_of, unfinished, moved_at + self._peer_timeout_s)
        return AllReduceReport(
            sum(send.end - send.start for link in links for send in link.sends),
            sum(receive.end - receive.start for link in links for receive in link.receives),
            max_stall_s,
        )

    def wait_delivered(self) -> None:
        """Wait until the peers' hosts have acknowledged every byte sent, as an RDMA send completes.

        A socket buffer is not scaled down with the payload: it can hold a whole scaled gradient, and
        without this wait a rank would go on while what it sent has yet to cross the slowest link. Raises
        PeerLost when the bytes left do not become fewer for ``peer_timeout_s``.
        """
        for link in self._links:
            left = _unacknowledged(link.socket)
            deadline = time.monotonic() + self._peer_timeout_s
            while left:
                time.sleep(ACKNOWLEDGEMENT_POLL_S)
                before, left = left, _unacknowledged(link.socket)
                if left < before:
                    deadline = time.monotonic() + self._peer_timeout_s
                elif time.monotonic() > deadline:
                    raise PeerLost(link.peer, f"no byte acknowledged for {self._peer_timeout_s:g} s")

    @staticmethod
    def _watch(poller: select.poll, link: _Link) -> None:
        events = 0
        if not link.can_read and link.next_receive < len(link.receives):
            events |= select.POLLIN
        if not link.can_write and link.next_send < len(link.sends):
            events |= select.POLLOUT
        if events != link.watched:
            if events:
                poller.register(link.socket, events)
            else:
                poller.unregister(link.socket)
            link.watched = events

    def _wait(
        self, poller: select.poll, link_of: dict[int, _Link], unfinished: list[_Link], deadline: float
    ) -> None:
        ready = poller.poll(max(0.0, deadline - time.monotonic()) * 1000 + 1)
        if not ready and time.monotonic() >= deadline:
            awaited = [link for link in unfinished if link.watched]
            silent = min(awaited, key=lambda link: link.moved_at)
            raise PeerLost(silent.peer, f"no byte moved for {self._peer_timeout_s:g} s")
        for descriptor, events in ready:
            link = link_of[descriptor]
            link.can_read = link.can_read or bool(events & ~select.POLLOUT)
            link.can_write = link.can_write or bool(events & ~select.POLLIN)

    @staticmethod
    def _write(link: _Link, data: memoryview) -> bool:
        progress = False
        while link.next_send < len(link.sends):
            send = link.sends[link.next_send]
            ready = send.end if send.after is None else send.after.ready()
            if send.sent < send.aside_end:
                assert send.aside is not None
                part = send.aside[send.sent - send.start : send.aside_end - send.start]
            elif send.sent < ready:
                part = data[send.sent : ready]
            else:
                break
            try:
                count = link.socket.send(part)
            except BlockingIOError:
                link.can_write = False
                break
            except OSError as error:
                raise PeerLost(link.peer, error.strerror or str(error)) from error
            progress = True
            link.moved_at = time.monotonic()
            send.sent += count
            if send.sent == send.end:
                link.next_send += 1
            if count < len(part):
                link.can_write = False
                break
        return progress

    @staticmethod
    def _read(link: _Link, data: memoryview, vector: npt.NDArray[np.float32]) -> bool:
        """One receive of up to a segment, applied; False when nothing could be read."""
        if link.next_receive >= len(link.receives):
            return False
        receive = link.receives[link.next_receive]
        begin, limit = receive.applied, receive.limit()
        if limit <= begin:
            return False
        into = link.scratch[link.filled : limit - begin] if receive.reduce else data[begin:limit]
        endangered = [send for send in receive.before if max(send.sent, send.aside_end) < limit]
        try:
            if endangered:
                link.socket.recv(1, socket.MSG_PEEK)
                for send in endangered:
                    send.keep(data, limit)
            count = link.socket.recv_into(into)
        except BlockingIOError:
            link.can_read = False
            return False
        except OSError as error:
            raise PeerLost(link.peer, error.strerror or str(error)) from error
        if count == 0:
            raise PeerLost(link.peer, "it closed the connection")
        link.moved_at = time.monotonic()
        if count < len(into):
            link.can_read = False
        if receive.reduce:
            filled = link.filled + count
            whole = filled - filled % ITEM_BYTES
            first = begin // ITEM_BYTES
            part = vector[first : first + whole // ITEM_BYTES]
            np.add(part, link.scratch_items[: whole // ITEM_BYTES], out=part)
            link.scratch[: filled - whole] = link.scratch[whole:filled]
            link.filled = filled - whole
            receive.applied = begin + whole
        else:
            receive.applied = begin + count
        if receive.applied == receive.end:
            link.next_receive += 1
        return True


def _unacknowledged(connection: socket.socket) -> int:
    """Bytes sent on a TCP connection that its peer's host has not acknowledged (SIOCOUTQ)."""
    return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def peers_of(schedule: Schedule, rank: int) -> set[int]:
    """Ranks to or from which ``rank`` transfers anything."""
    return {
        t.destination if t.source == rank else t.source
        for t in schedule.transfers
        if rank in (t.source, t.destination)
    } - {rank}
