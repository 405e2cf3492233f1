"""Executes a collective's schedule over TCP connections, one thread, no barriers between steps.

Every rank works through its own transfers as fast as the data lets it, byte by byte: a send may go as
far as the last earlier receive into its chunk has been applied, and a receive never destroys bytes that
an earlier send has still to send. The result is bit-identical to ``fabric.collectives.apply_schedule``.

Why it cannot deadlock: take the unfinished transfer that is first in order (step, place in the
schedule). Everything before it is finished, so its bytes are ready at the sender, it is first in its
connection on both sides, and a receive that would overwrite unsent bytes copies them aside instead of
waiting. So it can always move. (A word of ``step_by_step``, below, waits for earlier steps only.)

A vector is of float32 values, or of other :class:`Elements` that are added in a way of their own.

If the schedule is one of exchanges (``step_by_step``), a rank takes part in a step once it has received all
of the earlier ones, and tells those who send to it in the step by one byte that it is ready: until then they
send nothing of it. That is MPI's Sendrecv of a large message (rendezvous). Without it a rank that is early
shares the NIC of one that is late, which makes that one later still: halving and doubling on a fat tree took
a third longer than its slowest links.

A rank is done when its peers have received all that it sent them. They say so by a receipt, one byte after
all else that they have to say on that connection. Until then its memory may be lent to the connection instead
of copied into it, if the schedule itself does not overwrite it sooner.

With an O-NIC, payload is sent only under light: what one rank sends to another in one step is a burst, and a
burst is one flow. It is opened when all of the burst is ready and closed when the peer's host has
acknowledged its last byte, so that nothing is in flight when the light goes out. A flow occupies the peer's
receiver, so it must end whatever else waits: its bytes are all there, and the peer reads them even when it
cannot use them yet (it keeps them aside). So a lit flow never waits for another flow, and since the agents
serve a receiver's flows in turn, the first unfinished burst gets its light in the end.
"""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import sys
import termios
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ringlight.containers.worker.flows import Flows, LitFlow
from ringlight.containers.worker.lending import Lender
from ringlight.containers.worker.peer import PeerLost, read_notes
from ringlight.containers.worker.stalls import Stalls
from ringlight.fabric.collectives import Schedule, Transfer, chunk_bounds, lendable

#: Bytes received, added and sent on at a time: large, because each receive costs an acknowledgement.
SEGMENT_BYTES = 2 * 1024 * 1024
#: A short chunk is cut into this many segments, so that a rank can send on while it still receives.
SEGMENTS_PER_CHUNK = 8
ITEM_BYTES = 4
#: Shorter transfers are copied. Four ranks on loopback, lent over copied: with chunks of 256 KiB 0.9 times as
#: fast, of 1 MiB the same, of 16 MiB 1.2 times.
LEND_BYTES = 1024 * 1024
#: Asked for each direction of a connection that carries such transfers. What is lent is in no buffer of the
#: sender's, so much of it may be under way: four ranks on loopback need a tenth less CPU than with a quarter.
LONG_BUFFER_BYTES = 3 * 1024 * 1024
RECEIPT = b"\6"
READY = b"\5"
#: The kernel wakes us when a burst is acknowledged; were that lost, we would notice after so long.
DRAIN_POLL_S = 0.01
#: A wait is made of slices of this length. One that takes longer by so much is no silence of a peer: this
#: process stood still, perhaps with the whole machine. Seconds.
SLICE_S, STILL_S = 1.0, 0.5
#: Bytes at a time that are received before they can be used.
_AHEAD_BYTES = 256 * 1024
#: Linux's names for a note in the error queue once all that was sent is acknowledged; Python has none.
_SO_TIMESTAMPING = 37
_TX_ACK, _SOFTWARE, _TSONLY = 1 << 9, 1 << 4, 1 << 11
#: tcpi_rtt, in microseconds, and tcpi_total_retrans in Linux's struct tcp_info.
_TCP_INFO = struct.Struct("68xI28xI")
_NOTE_WHEN_ACKNOWLEDGED = [(socket.SOL_SOCKET, _SO_TIMESTAMPING, struct.pack("I", _TX_ACK))]


@dataclass(frozen=True)
class Elements:
    """Kind of the elements of a vector.

    ``add(into, what)`` adds in place. ``together``: number of elements of one item, which are never added
    separately.
    """

    kind: np.dtype[Any]
    add: Callable[[npt.NDArray[Any], npt.NDArray[Any]], object]
    together: int = 1

    @property
    def item_bytes(self) -> int:
        return self.kind.itemsize * self.together


def _add(into: npt.NDArray[Any], what: npt.NDArray[Any]) -> None:
    np.add(into, what, out=into)


FLOATS = Elements(np.dtype(np.float32), _add)


@dataclass(frozen=True)
class RunReport:
    """Amounts that one run moved. ``bytes_lent``: the part of ``bytes_sent`` that was sent without a copy.

    ``max_stall_s``: longest time in seconds during which no byte moved in either direction. ``stalls``: begin
    and end of such times of at least STALL_S (CLOCK_MONOTONIC, seconds). With an O-NIC: number of ``flows``
    opened, and the longest and the sum of the times that a flow waited for its light, in seconds.
    """

    bytes_sent: int
    bytes_received: int
    bytes_lent: int
    max_stall_s: float
    stalls: tuple[tuple[float, float], ...] = ()
    flows: int = 0
    flow_wait_longest_s: float = 0.0
    flow_wait_sum_s: float = 0.0


#: An all-reduce of a vector, in place.
Reduce = Callable[[npt.NDArray[np.float32]], RunReport]


class _Receive:
    """A transfer into this rank, at byte offsets of the vector; or a peer's READY (``is_word``), at 0."""

    __slots__ = ("applied", "before", "end", "is_word", "item", "previous", "reduce", "segment", "start")

    def __init__(
        self,
        start: int,
        end: int,
        reduce: bool,
        previous: _Receive | None,
        item: int = 1,
        is_word: bool = False,
    ) -> None:
        self.start, self.end, self.reduce, self.previous = start, end, reduce, previous
        self.item, self.is_word = item, is_word
        self.applied = start
        share = -(-(end - start) // (SEGMENTS_PER_CHUNK * item)) * item
        self.segment = min(SEGMENT_BYTES // item * item, share)
        #: Sends that must take their bytes before this receive changes them.
        self.before: list[_Send] = []

    def ready(self) -> int:
        """Return the byte offset up to which a later send of the chunk may go now: the end of a segment."""
        if self.applied == self.end:
            return self.end
        return self.applied - (self.applied - self.start) % self.segment

    def limit(self) -> int:
        """Return the byte offset up to which the next receive may go.

        That is one segment further, and not beyond an earlier receive of the chunk. The limit lies before
        bytes that an earlier send has still to send, if that leaves anything to receive.
        """
        if self.is_word:
            return self.end
        begin = self.applied
        limit = self.end if self.previous is None else self.previous.applied
        # Whole items only; a ``replace`` may have stopped inside one.
        limit = min(limit - limit % self.item, begin - begin % self.item + self.segment)
        for send in self.before:
            free = max(send.sent, send.aside_end)
            free -= free % self.item
            if begin < free < limit:
                limit = free
        return limit


class _Send:
    """A transfer out of this rank, at byte offsets of the vector; or READY (``is_word``), at 0.

    ``after``: the last earlier receive into its chunk. ``awaits``: receives that end before it begins.
    """

    __slots__ = ("after", "aside", "aside_end", "awaits", "end", "is_word", "lent", "sent", "start")

    def __init__(
        self,
        start: int,
        end: int,
        after: _Receive | None,
        awaits: tuple[_Receive, ...],
        lent: bool = False,
        is_word: bool = False,
    ) -> None:
        self.start, self.end, self.after, self.awaits, self.lent = start, end, after, awaits, lent
        self.is_word = is_word
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


@dataclass(frozen=True)
class _Burst:
    """The sends of ``step`` to one peer, up to index ``end``: ready when ``needs`` have been applied."""

    step: int
    end: int
    needs: tuple[_Receive, ...]


class _Link:
    """Connection with its transfers in order, and their progress. Sends before ``begun`` have begun.

    ``bursts``, ``flow`` and ``early`` (bytes received before they could be used) are used only with an O-NIC.
    ``lender``, and whether the connection ``owes`` a receipt or ``awaits`` one, are used only without.
    """

    __slots__ = (
        "awaits", "begun", "bursts", "can_read", "can_write", "early", "ended", "filled", "flow", "lender",
        "moved_at", "next_burst", "next_receive", "next_send", "owes", "peer", "receives", "scratch",
        "scratch_items", "sends", "socket", "unacknowledged", "watched",
    )  # fmt: skip

    def __init__(self, peer: int, connection: socket.socket) -> None:
        self.peer, self.socket = peer, connection
        self.sends: list[_Send] = []
        self.receives: list[_Receive] = []
        self.bursts: list[_Burst] = []
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
        return max(sends + [receive.end - receive.start for receive in self.receives], default=0)

    def rewind(self, by_flow: bool) -> None:
        self.next_send = self.next_receive = self.next_burst = self.begun = self.filled = self.watched = 0
        self.flow: LitFlow | None = None
        self.unacknowledged = 0
        # Words are not acknowledged: their receiver waits for them.
        self.owes = not by_flow and not all(receive.is_word for receive in self.receives)
        self.awaits = not by_flow and not all(send.is_word for send in self.sends)
        self.can_read = self.can_write = True
        self.moved_at = time.monotonic()
        for send in self.sends:
            send.sent = send.aside_end = send.start
        for receive in self.receives:
            receive.applied = receive.start

    def transferred(self) -> bool:
        return self.next_send == len(self.sends) and self.next_receive == len(self.receives)

    def unfinished(self) -> bool:
        return not self.transferred() or self.next_burst < len(self.bursts) or self.owes or self.awaits

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


class Transport:
    """Runs one schedule again and again over the same connections.

    ``connections``: a connected stream socket for each of its :func:`partners`; they become non-blocking and
    stay the caller's to close, as does the transport. ``into``: sockets to receive payload on, if they differ
    from ``connections``; ``connections`` then are those over which it goes. ``length``: ``elements`` of the
    vector. ``peer_timeout_s``: a peer from which a byte is awaited may be silent that long. ``flows``: the
    O-NIC's agent, without whose light nothing is sent; then ``addresses`` gives each rank's. ``bounds``: of
    the chunks in this rank's vector, elements (``fabric.collectives.chunk_bounds``); a chunk is as long at
    every rank that transfers it. ``on_begin``: called with each transfer's peer and bytes before the first
    one is sent. Raises ValueError when a connection is missing or the bounds do not fit, or cut items.
    """

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        connections: Mapping[int, socket.socket],
        length: int,
        peer_timeout_s: float = 15.0,
        flows: Flows | None = None,
        addresses: Sequence[str] = (),
        bounds: Sequence[int] | None = None,
        into: Mapping[int, socket.socket] | None = None,
        on_begin: Callable[[int, int], None] | None = None,
        elements: Elements = FLOATS,
    ) -> None:
        to, from_ = partners(schedule, rank)
        into = connections if into is None else into
        missing = (to - connections.keys()) | (from_ - into.keys())
        if missing:
            raise ValueError(f"rank {rank} has no connection to ranks {sorted(missing)}")
        self._length, self._elements = length, elements
        self._peer_timeout_s = peer_timeout_s
        self._flows = flows
        self._addresses = addresses
        self._on_begin = on_begin
        self._waits_s: list[float] = []
        #: How long this process stood still since a byte last moved.
        self._stood_s = 0.0
        self._word = memoryview(bytearray(len(READY)))
        self._steps, self._steps_before = schedule.steps, 0
        # Each begins with the rank behind it: with the same one first, all would send to that at once.
        peers = sorted(to | from_, key=lambda peer: (peer - rank) % schedule.world_size)
        link_to = {peer: _Link(peer, connections[peer]) for peer in peers if peer in to}
        link_from = {
            peer: link_to[peer] if peer in to and connections[peer] is into[peer] else _Link(peer, into[peer])
            for peer in peers
            if peer in from_
        }
        self._links = list(dict.fromkeys([*link_to.values(), *link_from.values()]))
        self._assign(schedule, rank, bounds, link_to, link_from)
        for link in self._links:
            link.make_scratch(elements.kind)
            link.socket.setblocking(False)
            if any(send.lent for send in link.sends):
                link.lender = lender_for(link.socket)
            if flows is None and link.longest() >= LEND_BYTES:
                for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                    link.socket.setsockopt(socket.SOL_SOCKET, buffer, LONG_BUFFER_BYTES)
            if flows is not None:
                link.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _SOFTWARE | _TSONLY)

    def _assign(
        self,
        schedule: Schedule,
        rank: int,
        offsets: Sequence[int] | None,
        link_to: Mapping[int, _Link],
        link_from: Mapping[int, _Link],
    ) -> None:
        """Give the links their transfers: for payload to each peer, and from it."""
        size, item = self._elements.kind.itemsize, self._elements.item_bytes
        chunks = chunk_bounds(self._length, schedule.chunks, offsets)
        bounds = [(a * size, b * size) for a, b in chunks]
        if any(start % item for start, _ in bounds) or bounds[-1][1] % item:
            raise ValueError(f"chunks that cut items of {self._elements.together} elements: {chunks}")
        steps = defaultdict(list)
        # A receipt would need light of its own.
        lent = lendable(schedule) if self._flows is None else [False] * len(schedule.transfers)
        for transfer, may_lend in zip(schedule.transfers, lent, strict=True):
            if rank in (transfer.source, transfer.destination):
                steps[transfer.step].append((transfer, may_lend))
        last_receive: dict[int, _Receive] = {}
        unguarded: dict[int, list[_Send]] = defaultdict(list)
        for step in sorted(steps):
            # A send takes what its rank had before the step: so all sends of the step come first.
            sends_before = {peer: len(link.sends) for peer, link in link_to.items()}
            awaits: dict[int, tuple[_Receive, ...]] = {}
            if schedule.step_by_step and self._flows is None:
                full = [t for t, _ in steps[step] if bounds[t.chunk][0] < bounds[t.chunk][1]]
                awaits = self._make_ready(link_to, link_from, rank, full)
            for transfer, may_lend in steps[step]:
                start, end = bounds[transfer.chunk]
                if transfer.source == rank and start < end:
                    lend = may_lend and end - start >= LEND_BYTES
                    needs = awaits.get(transfer.destination, ())
                    send = _Send(start, end, last_receive.get(transfer.chunk), needs, lend)
                    link_to[transfer.destination].sends.append(send)
                    unguarded[transfer.chunk].append(send)
            if self._flows is not None:
                for peer, link in link_to.items():
                    if sends := link.sends[sends_before[peer] :]:
                        applied = tuple(send.after for send in sends if send.after is not None)
                        link.bursts.append(_Burst(step, len(link.sends), applied))
            for transfer, _ in steps[step]:
                start, end = bounds[transfer.chunk]
                if transfer.destination == rank and start < end:
                    before = last_receive.get(transfer.chunk)
                    receive = _Receive(start, end, transfer.op == "reduce", before, item)
                    receive.before = unguarded.pop(transfer.chunk, [])
                    link_from[transfer.source].receives.append(receive)
                    last_receive[transfer.chunk] = receive

    def _make_ready(
        self,
        link_to: Mapping[int, _Link],
        link_from: Mapping[int, _Link],
        rank: int,
        transfers: Sequence[Transfer],
    ) -> dict[int, tuple[_Receive, ...]]:
        """Add the READY words of a step with these ``transfers``. Return the receives that the sends to each
        peer await.
        """
        # Those of a connection are applied in order, so its last one stands for all.
        so_far = tuple(link.receives[-1] for link in self._links if link.receives)
        for peer in sorted({t.source for t in transfers if t.destination == rank}):
            link_from[peer].sends.append(_Send(0, len(READY), None, so_far, is_word=True))
        awaits = {}
        for peer in sorted({t.destination for t in transfers if t.source == rank}):
            link_to[peer].receives.append(_Receive(0, len(READY), False, None, is_word=True))
            awaits[peer] = (*so_far, link_to[peer].receives[-1])
        return awaits

    def run(self, vector: npt.NDArray[Any]) -> RunReport:
        """Run the schedule in place on ``vector``, a contiguous 1-D array of the transport's elements.

        Returns when the peers have received what this rank sent (with an O-NIC: when their hosts have
        acknowledged it), as an RDMA send completes. It is the time that counts: a socket buffer is not scaled
        down with the payload, it can hold a whole scaled gradient that has yet to cross the slowest link.
        Raises PeerLost when a peer closes or is silent for ``peer_timeout_s``, ValueError for another
        shape or type, OSError when the O-NIC's agent was away for as long.
        """
        kind = self._elements.kind
        if vector.dtype != kind or vector.shape != (self._length,) or not vector.flags.c_contiguous:
            raise ValueError(f"expected {self._length} contiguous {kind}, got {vector.dtype}{vector.shape}")
        data = memoryview(vector).cast("B")  # type: ignore[arg-type]
        links = self._links
        for link in links:
            link.rewind(self._flows is not None)
        address = vector.ctypes.data
        poller = select.poll()
        link_of = {link.socket.fileno(): link for link in links}
        moved_at = time.monotonic()
        stalls = Stalls()
        self._waits_s.clear()
        unfinished = [link for link in links if link.unfinished()]
        while unfinished:
            progress = changed = False
            if self._flows is not None:
                self._flows.update()
            for link in links:
                if link.can_write:
                    progress |= self._write(link, data, address)
            for link in links:
                if link.can_read or link.early:
                    progress |= self._read(link, data, vector)
            for link in unfinished:
                if self._flows is None:
                    changed |= self._settle(link)
                else:
                    progress |= self._acknowledged(link)
                    changed |= self._switch(link, self._flows)
            if progress:
                now = time.monotonic()
                stalls.note(moved_at, now)
                moved_at, self._stood_s = now, 0.0
            if progress or changed:
                unfinished = [link for link in unfinished if link.unfinished()]
                continue
            for link in links:
                self._watch(poller, link)
            if not self._wait(poller, link_of, unfinished, moved_at + self._peer_timeout_s):
                if not self._delivers(unfinished):
                    self._give_up(unfinished)
                moved_at, self._stood_s = time.monotonic(), 0.0
        self._steps_before += self._steps
        sends = [send for link in links for send in link.sends if not send.is_word]
        receives = [receive for link in links for receive in link.receives if not receive.is_word]
        return RunReport(
            sum(send.end - send.start for send in sends),
            sum(receive.end - receive.start for receive in receives),
            sum(send.end - send.start for link in links if link.lender for send in link.sends if send.lent),
            stalls.longest_s,
            tuple(stalls.spans),
            len(self._waits_s),
            max(self._waits_s, default=0.0),
            sum(self._waits_s),
        )

    def close(self) -> None:
        """Free all resources except the connections."""
        for link in self._links:
            if link.lender is not None:
                link.lender.close()
                link.lender = None

    @staticmethod
    def _settle(link: _Link) -> bool:
        """Send and receive the receipts of a connection on which all else is done. Return whether anything
        changed.

        Raises PeerLost.
        """
        if not link.transferred():
            return False
        changed = False
        # While the lender holds anything the socket is full: so no receipt overtakes that.
        try:
            if link.owes and link.can_write:
                link.socket.send(RECEIPT)
                link.owes, changed = False, True
        except BlockingIOError:
            link.can_write = False
        except OSError as error:
            raise PeerLost(link.peer, error.strerror or str(error)) from error
        try:
            if link.awaits and link.can_read:
                if not link.socket.recv(len(RECEIPT)):
                    raise PeerLost(link.peer, "it closed the connection")
                link.awaits, changed = False, True
        except BlockingIOError:
            link.can_read = False
        except OSError as error:
            raise PeerLost(link.peer, error.strerror or str(error)) from error
        return changed

    @staticmethod
    def _acknowledged(link: _Link) -> bool:
        """Return whether more of a completely sent burst has been acknowledged since the last look."""
        if link.flow is None or link.next_send < link.bursts[link.next_burst].end:
            return False
        before, link.unacknowledged = link.unacknowledged, unacknowledged(link.socket)
        if link.unacknowledged >= before:
            return False
        link.moved_at = time.monotonic()
        return True

    def _switch(self, link: _Link, flows: Flows) -> bool:
        """Open a flow for a burst that is ready, or close the flow of an acknowledged burst. Return whether
        either was done.
        """
        if link.next_burst == len(link.bursts):
            return False
        burst = link.bursts[link.next_burst]
        if link.flow is None:
            if any(receive.applied < receive.end for receive in burst.needs):
                return False
            link.flow = flows.open(self._addresses[link.peer], self._steps_before + burst.step)
            return True
        if link.next_send < burst.end or link.unacknowledged:
            return False
        flows.close(link.flow)
        self._waits_s.append(link.flow.waited_s)
        link.flow = None
        link.next_burst += 1
        return True

    def _watch(self, poller: select.poll, link: _Link) -> None:
        by_flow = self._flows is not None
        events = 0
        if not link.can_read and (link.next_receive < len(link.receives) or link.awaits or by_flow):
            events |= select.POLLIN
        if not link.can_write and (link.next_send < link.sendable(by_flow) or link.held() or link.owes):
            events |= select.POLLOUT
        if link.flow is not None:
            # The kernel's note that all is acknowledged comes as POLLERR.
            events |= select.POLLERR
        if events != link.watched:
            if events:
                poller.register(link.socket, events)
            else:
                poller.unregister(link.socket)
            link.watched = events

    def _wait(
        self, poller: select.poll, link_of: dict[int, _Link], unfinished: list[_Link], deadline: float
    ) -> bool:
        """Wait for a while until something can be done. Return False if nothing could by ``deadline``.

        The deadline is later by the time for which this process stood still.
        """
        until = deadline + self._stood_s
        agent = -1
        if self._flows is not None:
            agent = self._flows.fileno()
            until = min(until, self._flows.due())
            if any(link.unacknowledged for link in unfinished):
                until = min(until, time.monotonic() + DRAIN_POLL_S)
        if agent >= 0:
            poller.register(agent, select.POLLIN)
        began = time.monotonic()
        asked_s = min(max(0.0, until - began), SLICE_S)
        ready = poller.poll(asked_s * 1000 + 1)
        ended = time.monotonic()
        if ended - began - asked_s > STILL_S:
            self._stood_s += ended - began - asked_s
        if agent >= 0:
            poller.unregister(agent)
        if not ready and ended >= deadline + self._stood_s:
            return False
        for descriptor, events in ready:
            if descriptor == agent:
                continue
            link = link_of[descriptor]
            if self._flows is not None and events & select.POLLERR:
                read_notes(link.socket)
                events &= ~select.POLLERR
            if self._flows is not None and events & select.POLLHUP:
                # Without light there may be nothing else to do on this connection that would show it.
                raise PeerLost(link.peer, "it closed the connection")
            link.can_read = link.can_read or bool(events & ~select.POLLOUT)
            link.can_write = link.can_write or bool(events & ~select.POLLIN)
        return True

    @staticmethod
    def _delivers(unfinished: list[_Link]) -> bool:
        """Return whether only receipts are awaited, and more bytes have been acknowledged since the last
        look.
        """
        if not all(link.transferred() and link.awaits for link in unfinished):
            return False
        before = sum(link.unacknowledged for link in unfinished)
        for link in unfinished:
            link.unacknowledged = unacknowledged(link.socket)
        return sum(link.unacknowledged for link in unfinished) < before

    def _give_up(self, unfinished: list[_Link]) -> NoReturn:
        for_s = f"for {self._peer_timeout_s:g} s"
        if self._flows is not None and self._flows.trouble is not None:
            raise ConnectionError(f"no light {for_s}: {self._flows.trouble}")
        awaited = [
            link
            for link in unfinished
            if link.watched
            and (self._flows is None or link.flow is not None or link.next_receive < len(link.receives))
        ]
        silent = min(awaited or unfinished, key=lambda link: link.moved_at)
        if silent.flow is not None and not silent.flow.lit:
            raise PeerLost(silent.peer, f"no light to it {for_s}: {silent.flow.reason}")
        if silent.transferred():
            raise PeerLost(silent.peer, f"it did not take what was sent {for_s}")
        raise PeerLost(silent.peer, f"no byte moved {for_s}")

    def _write(self, link: _Link, data: memoryview, address: int) -> bool:
        """Send the bytes that may go now. Return whether any were sent. ``address``: address of ``data`` in
        memory.

        Raises PeerLost.
        """
        progress = False
        last = link.sendable(self._flows is not None)
        if link.lender is not None and (held := link.lender.held):
            try:
                link.lender.flush()
            except OSError as error:
                raise PeerLost(link.peer, error.strerror or str(error)) from error
            progress = link.lender.held < held
            if link.lender.held:
                link.can_write = False
                return progress
        while link.next_send < last:
            send = link.sends[link.next_send]
            if any(receive.applied < receive.end for receive in send.awaits):
                break
            ready = send.end if send.after is None else send.after.ready()
            if send.is_word:
                part = memoryview(READY)[send.sent :]
            elif send.sent < send.aside_end:
                assert send.aside is not None
                part = send.aside[send.sent - send.start : send.aside_end - send.start]
            elif send.sent < ready:
                part = data[send.sent : ready]
            else:
                break
            if self._on_begin is not None and link.begun <= link.next_send and not send.is_word:
                link.begun = link.next_send + 1
                self._on_begin(link.peer, send.end - send.start)
            try:
                if link.flow is not None and link.next_send == last - 1 and send.sent + len(part) == send.end:
                    count = link.socket.sendmsg([part], _NOTE_WHEN_ACKNOWLEDGED)
                elif send.lent and link.lender is not None:
                    count = link.lender.send(address + send.sent, len(part))
                else:
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
                if link.next_send == last:
                    link.unacknowledged = unacknowledged(link.socket)
            if count < len(part) or link.held():
                link.can_write = False
                break
        return progress

    def _read(self, link: _Link, data: memoryview, vector: npt.NDArray[Any]) -> bool:
        """Receive up to a segment, and apply it or keep it for later. Return False if nothing could be read.
        Raises PeerLost.
        """
        receive = link.receives[link.next_receive] if link.next_receive < len(link.receives) else None
        begin, limit = (0, 0) if receive is None else (receive.applied, receive.limit())
        if receive is None or limit <= begin:
            return self._flows is not None and link.can_read and self._read_ahead(link)
        if receive.is_word:
            into = self._word[begin:limit]
        else:
            into = link.scratch[link.filled : limit - begin] if receive.reduce else data[begin:limit]
        endangered = [send for send in receive.before if max(send.sent, send.aside_end) < limit]
        try:
            if endangered:
                if not link.early:
                    link.socket.recv(1, socket.MSG_PEEK)
                for send in endangered:
                    send.keep(data, limit)
            early = bool(link.early)
            count = link.take(into)
        except BlockingIOError:
            link.can_read = False
            return False
        except OSError as error:
            raise PeerLost(link.peer, error.strerror or str(error)) from error
        if count == 0:
            raise PeerLost(link.peer, "it closed the connection")
        link.moved_at = time.monotonic()
        if count < len(into) and not early:
            link.can_read = False
        if receive.reduce:
            filled = link.filled + count
            whole, size = filled - filled % receive.item, vector.itemsize
            part = vector[begin // size : (begin + whole) // size]
            if whole:
                self._elements.add(part, link.scratch_items[: whole // size])
            link.scratch[: filled - whole] = link.scratch[whole:filled]
            link.filled = filled - whole
            receive.applied = begin + whole
        else:
            receive.applied = begin + count
        if receive.applied == receive.end:
            link.next_receive += 1
        return True

    @staticmethod
    def _read_ahead(link: _Link) -> bool:
        try:
            progress = link.read_ahead()
        except BlockingIOError:
            link.can_read = False
            return False
        except OSError as error:
            raise PeerLost(link.peer, error.strerror or str(error)) from error
        if progress:
            link.moved_at = time.monotonic()
        return progress


def lender_for(connection: socket.socket) -> Lender | None:
    """Return a lender, or None if memory cannot be lent. Then everything is copied, which always works."""
    try:
        return Lender(connection)
    except OSError:
        return None


def unacknowledged(connection: socket.socket) -> int:
    """Return the bytes sent on a TCP connection that its peer's host has not acknowledged (SIOCOUTQ)."""
    return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


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
    round_trip_us, again = _TCP_INFO.unpack(info) if len(info) == _TCP_INFO.size else (0, 0)
    return round_trip_us, again


def partners(schedule: Schedule, rank: int) -> tuple[set[int], set[int]]:
    """Return the ranks to which ``rank`` transfers anything, and the ranks that transfer anything to it."""
    to = {t.destination for t in schedule.transfers if t.source == rank}
    return to - {rank}, {t.source for t in schedule.transfers if t.destination == rank} - {rank}
