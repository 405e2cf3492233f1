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

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ringlight.containers.worker.assignment import (
    LEND_BYTES,
    READY,
    chunks_in_bytes,
    links_for,
)
from ringlight.containers.worker.elements import FLOATS, Elements
from ringlight.containers.worker.flows import Flows
from ringlight.containers.worker.lending import lender_for
from ringlight.containers.worker.patience import Patience
from ringlight.containers.worker.peer import PeerLost
from ringlight.containers.worker.peer_link import PeerLink
from ringlight.containers.worker.stalls import Stalls
from ringlight.containers.worker.tcp_state import (
    NOTE_WHEN_ACKNOWLEDGED,
    allow_notes,
    unacknowledged,
)
from ringlight.fabric.collectives import Schedule

#: Asked for each direction of a connection that carries such transfers. What is lent is in no buffer of the
#: sender's, so much of it may be under way: four ranks on loopback need a tenth less CPU than with a quarter.
LONG_BUFFER_BYTES = 3 * 1024 * 1024
RECEIPT = b"\6"


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
        self._length, self._elements = length, elements
        self._peer_timeout_s = peer_timeout_s
        self._flows = flows
        self._addresses = addresses
        self._on_begin = on_begin
        self._waits_s: list[float] = []
        self._word = memoryview(bytearray(len(READY)))
        self._steps, self._steps_before = schedule.steps, 0
        in_bytes = chunks_in_bytes(length, schedule.chunks, bounds, elements)
        self._links = links_for(
            schedule,
            rank,
            connections,
            connections if into is None else into,
            in_bytes,
            elements.item_bytes,
            by_flow=flows is not None,
        )
        for link in self._links:
            link.make_scratch(elements.kind)
            link.socket.setblocking(False)
            if any(send.lent for send in link.sends):
                link.lender = lender_for(link.socket)
            if flows is None and link.longest() >= LEND_BYTES:
                for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                    link.socket.setsockopt(socket.SOL_SOCKET, buffer, LONG_BUFFER_BYTES)
            if flows is not None:
                allow_notes(link.socket)

    def run(self, vector: npt.NDArray[Any]) -> RunReport:
        """Run the schedule in place on ``vector``, a contiguous 1-D array of the transport's elements.

        Returns when the peers have received what this rank sent (with an O-NIC: when their hosts have
        acknowledged it), as an RDMA send completes. It is the time that counts: a socket buffer is not scaled
        down with the payload, it can hold a whole scaled gradient that has yet to cross the slowest link.
        Raises PeerLost when a peer closes or is silent for ``peer_timeout_s``, ValueError for another
        shape or type, OSError when the O-NIC's agent was away for as long.
        """
        kind = self._elements.kind
        if (
            vector.dtype != kind
            or vector.shape != (self._length,)
            or not vector.flags.c_contiguous
        ):
            raise ValueError(
                f"expected {self._length} contiguous {kind}, got {vector.dtype}{vector.shape}"
            )
        data = memoryview(vector).cast("B")  # type: ignore[arg-type]
        links = self._links
        for link in links:
            link.rewind(self._flows is not None)
        address = vector.ctypes.data
        patience = Patience(links, self._peer_timeout_s, self._flows)
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
                stalls.note(patience.moved_at, now)
                patience.moved(now)
            if progress or changed:
                unfinished = [link for link in unfinished if link.unfinished()]
                continue
            patience.wait(unfinished)
        self._steps_before += self._steps
        sends = [send for link in links for send in link.sends if not send.is_word]
        receives = [
            receive
            for link in links
            for receive in link.receives
            if not receive.is_word
        ]
        return RunReport(
            sum(send.end - send.start for send in sends),
            sum(receive.end - receive.start for receive in receives),
            sum(
                send.end - send.start
                for link in links
                if link.lender
                for send in link.sends
                if send.lent
            ),
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
    def _settle(link: PeerLink) -> bool:
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
    def _acknowledged(link: PeerLink) -> bool:
        """Return whether more of a completely sent burst has been acknowledged since the last look."""
        if link.flow is None or link.next_send < link.bursts[link.next_burst].end:
            return False
        before, link.unacknowledged = link.unacknowledged, unacknowledged(link.socket)
        if link.unacknowledged >= before:
            return False
        link.moved_at = time.monotonic()
        return True

    def _switch(self, link: PeerLink, flows: Flows) -> bool:
        """Open a flow for a burst that is ready, or close the flow of an acknowledged burst. Return whether
        either was done.
        """
        if link.next_burst == len(link.bursts):
            return False
        burst = link.bursts[link.next_burst]
        if link.flow is None:
            if any(receive.applied < receive.end for receive in burst.needs):
                return False
            link.flow = flows.open(
                self._addresses[link.peer], self._steps_before + burst.step
            )
            return True
        if link.next_send < burst.end or link.unacknowledged:
            return False
        flows.close(link.flow)
        self._waits_s.append(link.flow.waited_s)
        link.flow = None
        link.next_burst += 1
        return True

    def _write(self, link: PeerLink, data: memoryview, address: int) -> bool:
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
            if (
                self._on_begin is not None
                and link.begun <= link.next_send
                and not send.is_word
            ):
                link.begun = link.next_send + 1
                self._on_begin(link.peer, send.end - send.start)
            try:
                if (
                    link.flow is not None
                    and link.next_send == last - 1
                    and send.sent + len(part) == send.end
                ):
                    count = link.socket.sendmsg([part], NOTE_WHEN_ACKNOWLEDGED)
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

    def _read(self, link: PeerLink, data: memoryview, vector: npt.NDArray[Any]) -> bool:
        """Receive up to a segment, and apply it or keep it for later. Return False if nothing could be read.
        Raises PeerLost.
        """
        receive = (
            link.receives[link.next_receive]
            if link.next_receive < len(link.receives)
            else None
        )
        begin, limit = (0, 0) if receive is None else (receive.applied, receive.limit())
        if receive is None or limit <= begin:
            return self._flows is not None and link.can_read and self._read_ahead(link)
        if receive.is_word:
            into = self._word[begin:limit]
        else:
            into = (
                link.scratch[link.filled : limit - begin]
                if receive.reduce
                else data[begin:limit]
            )
        endangered = [
            send for send in receive.before if max(send.sent, send.aside_end) < limit
        ]
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
    def _read_ahead(link: PeerLink) -> bool:
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
