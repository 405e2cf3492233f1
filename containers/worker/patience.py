"""Wait until a connection can go on, for as long as a peer may be silent."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import NoReturn

from ringlight.containers.worker.flows import Flows
from ringlight.containers.worker.peer import PeerLost, read_notes
from ringlight.containers.worker.peer_link import PeerLink
from ringlight.containers.worker.tcp_state import unacknowledged

#: The kernel wakes us when a burst is acknowledged; were that lost, we would notice after so long.
DRAIN_POLL_S = 0.01
#: A wait is made of slices of this length. One that takes longer by so much is no silence of a peer: this
#: process stood still, perhaps with the whole machine. Seconds.
SLICE_S, STILL_S = 1.0, 0.5


class Patience:
    """Waits of one run on its ``links``, and when to give up.

    ``timeout_s``: a peer from which a byte is awaited may be silent that long. ``moved_at``: when a byte
    moved last, monotonic seconds.
    """

    def __init__(
        self, links: Sequence[PeerLink], timeout_s: float, flows: Flows | None
    ) -> None:
        self._links, self._timeout_s, self._flows = links, timeout_s, flows
        self._link_of = {link.socket.fileno(): link for link in links}
        self._poller = select.poll()
        self.moved(time.monotonic())

    def moved(self, now: float) -> None:
        """Begin to count anew: a byte has moved."""
        self.moved_at = now
        #: How long this process stood still since a byte last moved.
        self._stood_s = 0.0

    def wait(self, unfinished: list[PeerLink]) -> None:
        """Wait for a while until something can be done.

        Raises PeerLost for a peer that was silent for too long, ConnectionError if the O-NIC's agent was.
        """
        for link in self._links:
            self._watch(link)
        if not self._can_go_on(unfinished):
            if not self._delivers(unfinished):
                self._give_up(unfinished)
            self.moved(time.monotonic())

    def _watch(self, link: PeerLink) -> None:
        by_flow = self._flows is not None
        events = 0
        if not link.can_read and (
            link.next_receive < len(link.receives) or link.awaits or by_flow
        ):
            events |= select.POLLIN
        if not link.can_write and (
            link.next_send < link.sendable(by_flow) or link.held() or link.owes
        ):
            events |= select.POLLOUT
        if link.flow is not None:
            # The kernel's note that all is acknowledged comes as POLLERR.
            events |= select.POLLERR
        if events != link.watched:
            if events:
                self._poller.register(link.socket, events)
            else:
                self._poller.unregister(link.socket)
            link.watched = events

    def _can_go_on(self, unfinished: list[PeerLink]) -> bool:
        """Wait for a while until something can be done. Return False if nothing could by the deadline.

        The deadline is later by the time for which this process stood still.
        """
        deadline = self.moved_at + self._timeout_s
        until = deadline + self._stood_s
        agent = -1
        if self._flows is not None:
            agent = self._flows.fileno()
            until = min(until, self._flows.due())
            if any(link.unacknowledged for link in unfinished):
                until = min(until, time.monotonic() + DRAIN_POLL_S)
        if agent >= 0:
            self._poller.register(agent, select.POLLIN)
        began = time.monotonic()
        asked_s = min(max(0.0, until - began), SLICE_S)
        ready = self._poller.poll(asked_s * 1000 + 1)
        ended = time.monotonic()
        if ended - began - asked_s > STILL_S:
            self._stood_s += ended - began - asked_s
        if agent >= 0:
            self._poller.unregister(agent)
        if not ready and ended >= deadline + self._stood_s:
            return False
        for descriptor, events in ready:
            if descriptor == agent:
                continue
            link = self._link_of[descriptor]
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
    def _delivers(unfinished: list[PeerLink]) -> bool:
        """Return whether only receipts are awaited, and more bytes have been acknowledged since the last
        look.
        """
        if not all(link.transferred() and link.awaits for link in unfinished):
            return False
        before = sum(link.unacknowledged for link in unfinished)
        for link in unfinished:
            link.unacknowledged = unacknowledged(link.socket)
        return sum(link.unacknowledged for link in unfinished) < before

    def _give_up(self, unfinished: list[PeerLink]) -> NoReturn:
        for_s = f"for {self._timeout_s:g} s"
        if self._flows is not None and self._flows.trouble is not None:
            raise ConnectionError(f"no light {for_s}: {self._flows.trouble}")
        awaited = [
            link
            for link in unfinished
            if link.watched
            and (
                self._flows is None
                or link.flow is not None
                or link.next_receive < len(link.receives)
            )
        ]
        silent = min(awaited or unfinished, key=lambda link: link.moved_at)
        if silent.flow is not None and not silent.flow.lit:
            raise PeerLost(silent.peer, f"no light to it {for_s}: {silent.flow.reason}")
        if silent.transferred():
            raise PeerLost(silent.peer, f"it did not take what was sent {for_s}")
        raise PeerLost(silent.peer, f"no byte moved {for_s}")
