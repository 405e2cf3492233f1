"""One port's receiver of an O-NIC: at most one grant, and a queue of requests."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import NamedTuple

from ringlight.controller.onic.control_messages import (
    GRANT,
    NO_MAP,
    QUEUE_FULL,
    QUEUED,
    RELEASE,
    RELEASED,
    RENEW,
    RENEWED,
    REQUEST,
    UNKNOWN_GRANT,
    Message,
)
from ringlight.controller.onic.effects import Effect, Peer, Send
from ringlight.controller.onic.lease_times import NEVER
from ringlight.controller.onic.unit_state import UnitState


class _Waiting(NamedTuple):
    seq: int
    stamp_s: float
    heard_s: float


@dataclass(slots=True)
class _Grant:
    source: Peer
    seq: int
    stamp_s: float
    until_s: float
    confirmed: bool
    deadline_s: float
    interval_s: float


class Receiver:
    """Receiver of a port. ``grant``: who may light it. ``queue``: who waits, in order of arrival.

    There is one request per source. ``done``: highest flow number of each source that is over: late copies of
    its messages are known by it.
    """

    __slots__ = (
        "_counts",
        "_epoch",
        "_times",
        "_unit",
        "done",
        "grant",
        "port",
        "queue",
    )

    MAX_QUEUE = 256

    def __init__(self, port: int, unit: UnitState) -> None:
        self.port = port
        self._unit, self._epoch, self._times, self._counts = (
            unit,
            unit.epoch,
            unit.times,
            unit.counts,
        )
        self.grant: _Grant | None = None
        self.queue: dict[Peer, _Waiting] = {}
        self.done: dict[Peer, int] = {}

    def drop(self, sources: Set[Peer]) -> None:
        """Drop the requests of these sources."""
        for source in sources & self.queue.keys():
            del self.queue[source]

    def forget(self, now_s: float, peer: Peer, out: list[Effect]) -> None:
        """Forget the state of ``peer``, which has restarted with dark lasers."""
        self.done.pop(peer, None)
        self.queue.pop(peer, None)
        if self.grant is not None and self.grant.source == peer:
            self.grant = None
            self._grant_next(now_s, out)

    def next_deadline(self) -> float:
        """Return the time in seconds at which :meth:`due` must be called."""
        grant = self.grant
        if grant is not None:
            return (
                grant.until_s
                if grant.confirmed
                else min(grant.deadline_s, grant.until_s)
            )
        return self._unit.quiet_s if self.queue else NEVER

    def due(self, now_s: float, out: list[Effect]) -> None:
        """Do what is due."""
        grant = self.grant
        if grant is None:
            self._grant_next(now_s, out)
        elif grant.until_s <= now_s:
            self._counts["expired"] += 1
            self.grant = None
            self._grant_next(now_s, out)
        elif not grant.confirmed and grant.deadline_s <= now_s:
            grant.interval_s = min(2 * grant.interval_s, self._times.refresh_s)
            grant.deadline_s = now_s + grant.interval_s
            self._send_grant(grant, out)

    def idle(self) -> bool:
        """Return whether no grant and no request is left."""
        return self.grant is None and not self.queue

    def receive(
        self, now_s: float, source: Peer, message: Message, out: list[Effect]
    ) -> None:
        """Process a source's message about a flow to this O-NIC."""
        kind, _, _, flow_epoch, seq, stamp_s, _, _ = message
        grant = self.grant
        held = (
            grant
            if grant is not None and grant.source == source and grant.seq == seq
            else None
        )
        if kind == RELEASE:
            self.done[source] = max(self.done.get(source, 0), seq)
            if source in self.queue and self.queue[source].seq <= seq:
                del self.queue[source]
            if grant is not None and grant.source == source and grant.seq <= seq:
                self.grant = None
                self._grant_next(now_s, out)
            out.append(
                Send(source, Message(RELEASED, self.port, self._epoch, flow_epoch, seq))
            )
        elif seq <= self.done.get(source, 0):
            self._counts["stale"] += 1
        elif kind == REQUEST:
            self._requested(now_s, source, message, out)
        elif held is None:
            # The source may believe that it has the light; after a restart here, say.
            self._unit.deny(source, message, UNKNOWN_GRANT, 0.0, out)
        elif kind == RENEW and source not in self._unit.reach:
            self._unit.deny(source, message, NO_MAP, self._times.refresh_s, out)
        else:
            held.confirmed = True
            if kind == RENEW:
                held.until_s = max(
                    held.until_s, now_s + self._times.lease_s + self._times.guard_s
                )
                answer = Message(
                    RENEWED,
                    self.port,
                    self._epoch,
                    flow_epoch,
                    seq,
                    stamp_s,
                    self._times.lease_s,
                )
                out.append(Send(source, answer))

    def _requested(
        self, now_s: float, source: Peer, request: Message, out: list[Effect]
    ) -> None:
        _, _, _, flow_epoch, seq, stamp_s, _, _ = request
        way = self._unit.reach.get(source)
        if way is None or way.port != self.port:
            self._unit.deny(source, request, NO_MAP, self._times.refresh_s, out)
            return
        # A source has one request at a time on a port and is dark before the next: earlier ones are over.
        self.done[source] = max(self.done.get(source, 0), seq - 1)
        waiting = self.queue.get(source)
        if waiting is not None and waiting.seq < seq:
            del self.queue[source]
        grant = self.grant
        if grant is not None and grant.source == source:
            if grant.seq == seq:
                grant.until_s = max(
                    grant.until_s, now_s + self._times.lease_s + self._times.guard_s
                )
                grant.stamp_s = max(grant.stamp_s, stamp_s)
                self._send_grant(grant, out)
                return
            self.grant = None
        if self.grant is None and not self.queue and now_s >= self._unit.quiet_s:
            # As by way of the queue, which is more than most requests need.
            self._give(now_s, source, seq, stamp_s, now_s, out)
            return
        if source not in self.queue and len(self.queue) >= self.MAX_QUEUE:
            self._unit.deny(source, request, QUEUE_FULL, self._times.refresh_s, out)
            return
        # A refreshed request keeps its place.
        latest_s = (
            stamp_s
            if waiting is None or waiting.seq != seq
            else max(stamp_s, waiting.stamp_s)
        )
        self.queue[source] = _Waiting(seq, latest_s, now_s)
        self._grant_next(now_s, out)
        if source in self.queue:
            ahead = min(list(self.queue).index(source), 0xFFFF)
            out.append(
                Send(
                    source,
                    Message(
                        QUEUED,
                        self.port,
                        self._epoch,
                        flow_epoch,
                        seq,
                        stamp_s,
                        0.0,
                        ahead,
                    ),
                )
            )

    def _grant_next(self, now_s: float, out: list[Effect]) -> None:
        if self.grant is not None or now_s < self._unit.quiet_s:
            return
        while self.queue:
            source = next(iter(self.queue))
            seq, stamp_s, heard_s = self.queue.pop(source)
            if heard_s + self._times.lease_s <= now_s:
                # It did not renew its request: gone, or cut off. It will ask again when it is back.
                self._counts["expired"] += 1
                continue
            self._give(now_s, source, seq, stamp_s, heard_s, out)
            return

    def _give(
        self,
        now_s: float,
        source: Peer,
        seq: int,
        stamp_s: float,
        heard_s: float,
        out: list[Effect],
    ) -> None:
        # Counted from when this stamp arrived, which is after the source sent it.
        until_s = heard_s + self._times.lease_s + self._times.guard_s
        retry_s = self._times.retry_s
        grant = self.grant = _Grant(
            source, seq, stamp_s, until_s, False, now_s + retry_s, retry_s
        )
        self._counts["grants"] += 1
        self._send_grant(grant, out)

    def _send_grant(self, grant: _Grant, out: list[Effect]) -> None:
        flow_epoch = self._unit.epochs[grant.source]
        lease_s = self._times.lease_s
        message = Message(
            GRANT, self.port, self._epoch, flow_epoch, grant.seq, grant.stamp_s, lease_s
        )
        out.append(Send(grant.source, message))
