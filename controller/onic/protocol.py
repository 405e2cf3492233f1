"""State machine of one O-NIC's control unit, which grants the light to each receiver for a time.

No I/O, no clock, no randomness: every method is handed the time (seconds of this O-NIC's own steady clock)
and returns effects in the order in which they must be carried out. The agent runs it on sockets, the
simulator under virtual time, the tests through every reachable state.

Each port is one independent pair. *Transmitter*: a FIFO of local flows, of which the first has the port.
*Receiver*: at most one grant, and a FIFO with at most one request of each source. A flow takes the
transmitter of its port at the source, then the receiver of the same port number at the destination; whoever
holds a receiver waits for nothing. Why no receiver is ever granted twice and nothing waits for ever:
``docs/onic-protocol.md``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ringlight.controller.onic.reach import Reach

#: Whatever the caller names peers and flows by, if it is hashable: addresses, numbers, texts.
Peer = Any
Flow = Any

REQUEST, GRANT, QUEUED, DENY, CONFIRM, RELEASE, RELEASED, RENEW, RENEWED = range(1, 10)
KINDS = {
    REQUEST: "request",
    GRANT: "grant",
    QUEUED: "queued",
    DENY: "deny",
    CONFIRM: "confirm",
    RELEASE: "release",
    RELEASED: "released",
    RENEW: "renew",
    RENEWED: "renewed",
}
#: Kinds of message that only the source of a flow sends, and only its destination answers.
FROM_SOURCE = frozenset({REQUEST, CONFIRM, RELEASE, RENEW})

NO_MAP, QUEUE_FULL, UNKNOWN_GRANT = 1, 2, 3
REASONS = {
    NO_MAP: "the receiver's wavelength map does not have this O-NIC",
    QUEUE_FULL: "the receiver's queue is full",
    UNKNOWN_GRANT: "the receiver no longer knows the grant",
}

ASKING, TUNING, LIT = 0, 1, 2
PHASES = ("asking", "tuning", "lit")

#: The life of a flow at its source: from each phase to those that may follow, and by what.
LIFE: Mapping[str, Mapping[str, str]] = {
    "waiting": {"asking": "it has the transmitter: REQUEST", "over": "closed"},
    "asking": {"tuning": "GRANT", "over": "DENY, silence, another map, or closed: RELEASE"},
    "tuning": {"lit": "the laser is ready; CONFIRM follows", "over": "the lease ran out, or closed: RELEASE"},
    "lit": {"over": "closed, the lease ran out, or the receiver restarted: RELEASE"},
}

_NEVER = float("inf")


class Message(NamedTuple):
    """Control message.

    ``epoch``: the sender's epoch. ``flow_epoch`` and ``seq``: the flow, numbered by its source in that epoch
    of the source. ``stamp_s``: the source's clock when it sent the REQUEST or RENEW that this message
    answers; the destination only echoes it. ``value_s``: lease (GRANT, RENEWED) or time to retry (DENY),
    seconds. ``detail``: number of requests ahead (QUEUED) or reason (DENY).
    """

    kind: int
    port: int
    epoch: int
    flow_epoch: int
    seq: int
    stamp_s: float = 0.0
    value_s: float = 0.0
    detail: int = 0


class Send(NamedTuple):
    peer: Peer
    message: Message


class Tune(NamedTuple):
    """Tune the laser and answer with :meth:`Onic.tuned`; it goes dark by itself at ``until_s``."""

    port: int
    wavelength: int
    until_s: float


class Extend(NamedTuple):
    """The light that is on may stay until ``until_s``; it must not flicker."""

    port: int
    wavelength: int
    until_s: float


class Dark(NamedTuple):
    port: int


class FlowLit(NamedTuple):
    """The flow may send."""

    flow: Flow


class Closed(NamedTuple):
    """The flow was closed as asked; its light, if any, is out."""

    flow: Flow


class Failed(NamedTuple):
    """The flow never had light and is over. ``retry_after_s``: when it is worth another try, if it is."""

    flow: Flow
    peer: Peer
    reason: str
    retry_after_s: float | None


class Lost(NamedTuple):
    """Effect: the flow lost its light before it was closed, and has ended. The sender must open a new one."""

    flow: Flow
    peer: Peer
    reason: str


class Finished(NamedTuple):
    """Effect: times in the life of a flow that had light, seconds, after the receiver has confirmed its
    release.

    ``released_s``: None if the receiver never answered again. ``waited``: the flow was in a queue, here or at
    the receiver.
    """

    flow: Flow
    peer: Peer
    port: int
    wavelength: int
    opened_s: float
    request_s: float
    grant_s: float
    lit_s: float
    close_s: float
    released_s: float | None
    waited: bool


Effect = Send | Tune | Extend | Dark | FlowLit | Closed | Failed | Lost | Finished


@dataclass(frozen=True, slots=True)
class Times:
    """All durations, seconds. Raises ValueError when they do not fit each other.

    ``lease_s``: how long a grant lasts unless renewed; the same at all O-NICs of a fabric. ``guard_s``: how
    much longer the receiver waits than the source may shine: drift between two clocks in one lease, and the
    light's way through the fibre. ``retry_s``: first retransmission, each later one after twice the time up
    to ``refresh_s``, which is also how often a queued request is renewed. ``patience_s``: a receiver that has
    not answered for so long makes the flow fail.
    """

    lease_s: float = 2.0
    guard_s: float = 0.1
    retry_s: float = 0.02
    refresh_s: float = 0.5
    patience_s: float = 5.0

    def __post_init__(self) -> None:
        if (
            not 0 < self.retry_s <= self.refresh_s <= self.lease_s / 2 < _NEVER
            or not 0 <= self.guard_s < _NEVER
        ):
            raise ValueError(f"0 < retry_s <= refresh_s <= lease_s / 2 and guard_s >= 0 must hold: {self}")
        if not self.retry_s <= self.patience_s < _NEVER:
            raise ValueError(f"patience_s must be at least retry_s: {self}")

    @property
    def confirm_s(self) -> float:
        """Seconds for which light is on before its source confirms it; the receiver
        repeats its GRANT later.
        """
        return self.retry_s / 4

    @classmethod
    def dilated(cls, lease_s: float, dilation: float) -> Times:
        """Return the durations for a lease (emulated seconds) in a run that is ``dilation`` times slower."""
        usual = cls()
        return cls(
            lease_s=lease_s * dilation,
            guard_s=usual.guard_s * dilation,
            retry_s=min(usual.retry_s, lease_s / 4) * dilation,
            refresh_s=min(usual.refresh_s, lease_s / 4) * dilation,
            patience_s=usual.patience_s * dilation,
        )


@dataclass(slots=True)
class _Outgoing:
    """The flow that has a transmitter."""

    flow: Flow
    peer: Peer
    wavelength: int
    seq: int
    phase: int
    deadline_s: float
    """Next message, or when the laser will be ready."""
    interval_s: float
    give_up_s: float
    """While asking: when the receiver's silence has lasted too long."""
    until_s: float
    """The end of the lease as this source counts it."""
    opened_s: float
    request_s: float
    waited: bool
    grant_s: float = 0.0
    lit_s: float = 0.0
    confirmed: bool = False


@dataclass(slots=True)
class _Leaving:
    """A RELEASE not yet answered; the transmitter is free meanwhile."""

    peer: Peer
    deadline_s: float
    interval_s: float
    give_up_s: float
    """The receiver's lease has surely run out."""
    life: tuple[_Outgoing, float] | None
    """The flow, if it had light, and when it was closed."""


@dataclass(slots=True)
class _Transmitter:
    queue: deque[tuple[Flow, Peer, int, float]]
    active: _Outgoing | None
    leaving: dict[int, _Leaving]


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


@dataclass(slots=True)
class _Receiver:
    grant: _Grant | None
    queue: dict[Peer, _Waiting]
    """In order of arrival; one request per source."""
    done: dict[Peer, int]
    """Highest flow number of each source that is over: late copies of its messages are known by it."""


class Onic:
    """Control unit of one O-NIC. ``epoch`` must be greater than in any earlier life of this O-NIC.

    ``quarantine``: grant nothing for one lease and guard, because a grant of an earlier life may still be in
    use. All lasers must be dark when the control unit is created.
    """

    __slots__ = ("_epochs", "_flows", "_quiet_s", "_reach", "_rx", "_seq", "_tx", "counts", "epoch", "times")

    MAX_QUEUE = 256

    def __init__(
        self, epoch: int, times: Times, now_s: float, *, ports: int = 2, quarantine: bool = True
    ) -> None:
        self.epoch = epoch
        self.times = times
        self.counts = dict.fromkeys(("grants", "denies", "expired", "stale", "lost", "failed", "done"), 0)
        self._seq = 0
        self._quiet_s = now_s + times.lease_s + times.guard_s if quarantine else now_s
        self._reach: Mapping[Peer, Reach] = {}
        self._epochs: dict[Peer, int] = {}
        self._flows: dict[Flow, int] = {}
        self._tx = [_Transmitter(deque(), None, {}) for _ in range(ports)]
        self._rx = [_Receiver(None, {}, {}) for _ in range(ports)]

    # Requests of the O-NIC's own side.

    def set_map(self, now_s: float, reach: Mapping[Peer, Reach]) -> list[Effect]:
        """Set the peers of the job and the way to reach each. Return the effects.

        Flows to peers that left or moved fail. Grants stay until they are released or expire, because their
        light may be on. ``reach`` is kept as it is and must not change.
        """
        out: list[Effect] = []
        moved = {peer for peer, way in self._reach.items() if reach.get(peer) != way}
        self._reach = reach
        for port, (tx, rx) in enumerate(zip(self._tx, self._rx, strict=True)):
            for source in moved & rx.queue.keys():
                del rx.queue[source]
            for flow, peer, _, _ in [entry for entry in tx.queue if entry[1] in moved]:
                self._drop_queued(tx, flow)
                self._fail(out, flow, peer, "the wavelength map changed", None)
            if tx.active is not None and tx.active.peer in moved:
                self._end(now_s, port, out, "the wavelength map changed")
        return out

    def open(self, now_s: float, flow: Flow, peer: Peer) -> list[Effect]:
        """Request light to ``peer`` for a new flow.

        Return the effects. Raises ValueError if the flow is open.
        """
        if flow in self._flows:
            raise ValueError(f"flow {flow!r} is already open")
        out: list[Effect] = []
        way = self._reach.get(peer)
        if way is None:
            self.counts["failed"] += 1
            return [Failed(flow, peer, "no wavelength leads there", None)]
        self._flows[flow] = way.port
        tx = self._tx[way.port]
        if tx.active is None and not tx.queue:
            self._ask(now_s, way.port, out, flow, peer, way.wavelength, now_s, False)
        else:
            tx.queue.append((flow, peer, way.wavelength, now_s))
        return out

    def close(self, now_s: float, flow: Flow) -> list[Effect]:
        """Close a flow that has sent everything or is abandoned.

        Return the effects, none if the flow has already ended.
        """
        out: list[Effect] = []
        port = self._flows.get(flow)
        if port is None:
            return out
        tx = self._tx[port]
        if tx.active is not None and tx.active.flow == flow:
            if tx.active.phase == LIT:
                self.counts["done"] += 1
            self._let_go(now_s, port, out)
            out.append(Closed(flow))
            self._next(now_s, port, out)
        else:
            self._drop_queued(tx, flow)
            out.append(Closed(flow))
        return out

    def tuned(self, now_s: float, port: int, ready_s: float) -> list[Effect]:
        """Record that the laser of ``port`` has been set and is ready at ``ready_s``. Return the effects."""
        out: list[Effect] = []
        active = self._tx[port].active
        if active is not None and active.phase == TUNING:
            active.deadline_s = ready_s
            if ready_s <= now_s:
                self._light(now_s, port, active, out)
        return out

    def untuned(self, now_s: float, port: int, reason: str) -> list[Effect]:
        """End the flow on ``port``, whose laser could not be set. Return the effects."""
        out: list[Effect] = []
        if self._tx[port].active is not None:
            self._end(now_s, port, out, reason)
        return out

    # Messages of the peers.

    def receive(self, now_s: float, sender: Peer, message: Message) -> list[Effect]:
        out: list[Effect] = []
        known = self._epochs.get(sender)
        if known != message.epoch:
            if known is None:
                if sender not in self._reach:
                    self._answer_stranger(sender, message, out)
                    return out
                self._epochs[sender] = message.epoch
            elif message.epoch < known:
                self.counts["stale"] += 1
                return out
            else:
                self._epochs[sender] = message.epoch
                self._forget(now_s, sender, out)
        if message.kind not in FROM_SOURCE:
            self._answered(now_s, sender, message, out)
        elif message.flow_epoch == message.epoch:
            self._asked(now_s, sender, message, out)
        return out

    def other_version(self, now_s: float, sender: Peer, version: int, own: int) -> list[Effect]:
        """End the flows to ``sender``, which uses another version of the protocol. Return the effects."""
        out: list[Effect] = []
        for port, tx in enumerate(self._tx):
            if tx.active is not None and tx.active.peer == sender:
                self._end(now_s, port, out, f"it speaks protocol version {version}, this O-NIC version {own}")
        return out

    # Time.

    def next_deadline(self) -> float | None:
        """Return the time in seconds at which :meth:`timer` must be called if nothing else happens; None:
        never.
        """
        first = _NEVER
        for tx in self._tx:
            active = tx.active
            if active is not None:
                limit_s = active.give_up_s if active.phase == ASKING else active.until_s
                first = min(first, active.deadline_s, limit_s)
            for leaving in tx.leaving.values():
                first = min(first, leaving.deadline_s, leaving.give_up_s)
        for rx in self._rx:
            grant = rx.grant
            if grant is not None:
                first = min(first, grant.until_s if grant.confirmed else min(grant.deadline_s, grant.until_s))
            elif rx.queue:
                first = min(first, self._quiet_s)
        return None if first == _NEVER else first

    def timer(self, now_s: float) -> list[Effect]:
        """Perform everything that is due; nothing if called early. Return the effects."""
        out: list[Effect] = []
        for port, tx in enumerate(self._tx):
            for seq, leaving in list(tx.leaving.items()):
                if leaving.give_up_s <= now_s:
                    self._released(port, seq, None, out)
                elif leaving.deadline_s <= now_s:
                    leaving.interval_s = min(2 * leaving.interval_s, self.times.refresh_s)
                    leaving.deadline_s = now_s + leaving.interval_s
                    out.append(Send(leaving.peer, Message(RELEASE, port, self.epoch, self.epoch, seq)))
            if tx.active is not None:
                self._transmitter_due(now_s, port, tx.active, out)
        for port, rx in enumerate(self._rx):
            grant = rx.grant
            if grant is None:
                self._grant_next(now_s, port, out)
            elif grant.until_s <= now_s:
                self.counts["expired"] += 1
                rx.grant = None
                self._grant_next(now_s, port, out)
            elif not grant.confirmed and grant.deadline_s <= now_s:
                grant.interval_s = min(2 * grant.interval_s, self.times.refresh_s)
                grant.deadline_s = now_s + grant.interval_s
                self._send_grant(port, grant, out)
        return out

    # Transmitter.

    def _ask(
        self, now_s: float, port: int, out: list[Effect], flow: Flow, peer: Peer, wavelength: int,
        opened_s: float, waited: bool,
    ) -> None:  # fmt: skip
        self._seq += 1
        retry_s = self.times.retry_s
        self._tx[port].active = _Outgoing(
            flow, peer, wavelength, self._seq, ASKING, now_s + retry_s, retry_s,
            now_s + self.times.patience_s, 0.0, opened_s, now_s, waited,
        )  # fmt: skip
        out.append(Send(peer, Message(REQUEST, port, self.epoch, self.epoch, self._seq, now_s)))

    def _ask_again(self, now_s: float, port: int, active: _Outgoing, out: list[Effect]) -> None:
        active.interval_s = min(2 * active.interval_s, self.times.refresh_s)
        active.deadline_s = now_s + active.interval_s
        out.append(Send(active.peer, Message(REQUEST, port, self.epoch, self.epoch, active.seq, now_s)))

    def _answered(self, now_s: float, sender: Peer, message: Message, out: list[Effect]) -> None:
        """Process a destination's message about a flow of this O-NIC."""
        kind, port, _, flow_epoch, seq, stamp_s, value_s, detail = message
        tx = self._tx[port]
        active = tx.active
        if flow_epoch != self.epoch or active is None or active.seq != seq or active.peer != sender:
            if kind == RELEASED and flow_epoch == self.epoch:
                leaving = tx.leaving.get(seq)
                if leaving is not None and leaving.peer == sender:
                    self._released(port, seq, now_s, out)
            elif kind == GRANT:
                # It is for a flow that is over, perhaps of an earlier life: give it back.
                out.append(Send(sender, Message(RELEASE, port, self.epoch, flow_epoch, seq)))
            return
        if kind == GRANT:
            self._granted(now_s, port, active, stamp_s + value_s, value_s, out)
        elif kind == RENEWED:
            if active.phase == LIT:
                self._extend(now_s, port, active, stamp_s + value_s, value_s, out)
        elif kind == QUEUED:
            if active.phase == ASKING:
                active.waited = True
                active.interval_s = self.times.retry_s / 2
                active.deadline_s = now_s + self.times.refresh_s
                active.give_up_s = now_s + self.times.patience_s
        elif kind == DENY:
            if detail == NO_MAP:
                self._end(now_s, port, out, REASONS[NO_MAP], value_s)
            elif detail == UNKNOWN_GRANT and active.phase != ASKING:
                self._end(now_s, port, out, REASONS[UNKNOWN_GRANT])
            elif detail == QUEUE_FULL and active.phase == ASKING:
                active.waited = True
                active.deadline_s = now_s + value_s
                active.give_up_s = now_s + value_s + self.times.patience_s

    def _granted(
        self, now_s: float, port: int, active: _Outgoing, until_s: float, lease_s: float, out: list[Effect]
    ) -> None:
        if active.phase == ASKING:
            if until_s <= now_s:
                # Too old to use. A fresh request gets the same grant with a fresh lease.
                active.give_up_s = now_s + self.times.patience_s
                self._ask_again(now_s, port, active, out)
                return
            active.phase, active.until_s, active.grant_s = TUNING, until_s, now_s
            active.deadline_s = _NEVER
            out.append(Tune(port, active.wavelength, until_s))
            return
        self._extend(now_s, port, active, until_s, lease_s, out)
        if active.phase == LIT:
            self._confirm(now_s, port, active, out)

    def _extend(
        self, now_s: float, port: int, active: _Outgoing, until_s: float, lease_s: float, out: list[Effect]
    ) -> None:
        if not active.until_s < until_s or active.until_s <= now_s:
            return
        active.until_s = until_s
        if active.phase == LIT:
            self._renew_at(now_s, active, until_s - lease_s / 2)
        out.append(Extend(port, active.wavelength, until_s))

    def _renew_at(self, now_s: float, active: _Outgoing, half_s: float) -> None:
        """Schedule the renewal at ``half_s``, or soon if a late grant has left less than
        half of the lease.
        """
        active.interval_s = self.times.retry_s / 2
        active.deadline_s = max(half_s, now_s + active.interval_s)

    def _light(self, now_s: float, port: int, active: _Outgoing, out: list[Effect]) -> None:
        if active.until_s <= now_s:
            self._end(now_s, port, out, "the lease ran out before the laser was ready")
            return
        active.phase, active.lit_s = LIT, now_s
        # Others ask for light at the same moment, and their messages must not wait for this one.
        active.deadline_s = now_s + self.times.confirm_s
        out.append(FlowLit(active.flow))

    def _confirm(self, now_s: float, port: int, active: _Outgoing, out: list[Effect]) -> None:
        if not active.confirmed:
            active.confirmed = True
            self._renew_at(now_s, active, active.until_s - self.times.lease_s / 2)
        out.append(Send(active.peer, Message(CONFIRM, port, self.epoch, self.epoch, active.seq)))

    def _transmitter_due(self, now_s: float, port: int, active: _Outgoing, out: list[Effect]) -> None:
        if active.phase == ASKING:
            if active.give_up_s <= now_s:
                self._end(now_s, port, out, f"no answer for {self.times.patience_s:g} s")
            elif active.deadline_s <= now_s:
                self._ask_again(now_s, port, active, out)
        elif active.until_s <= now_s:
            self._end(now_s, port, out, "the lease ran out and was not renewed")
        elif active.deadline_s <= now_s:
            if active.phase == TUNING:
                self._light(now_s, port, active, out)
            elif not active.confirmed:
                self._confirm(now_s, port, active, out)
            else:
                active.interval_s = min(2 * active.interval_s, self.times.refresh_s)
                active.deadline_s = now_s + active.interval_s
                out.append(Send(active.peer, Message(RENEW, port, self.epoch, self.epoch, active.seq, now_s)))

    def _end(
        self, now_s: float, port: int, out: list[Effect], reason: str, retry_after_s: float | None = None
    ) -> None:
        """End the active flow before it was closed, and give the transmitter to the next one."""
        active = self._tx[port].active
        assert active is not None
        self._let_go(now_s, port, out)
        if active.phase == LIT:
            self.counts["lost"] += 1
            out.append(Lost(active.flow, active.peer, reason))
        else:
            self._fail(out, active.flow, active.peer, reason, retry_after_s)
        self._next(now_s, port, out)

    def _fail(
        self, out: list[Effect], flow: Flow, peer: Peer, reason: str, retry_after_s: float | None
    ) -> None:
        self.counts["failed"] += 1
        out.append(Failed(flow, peer, reason, retry_after_s))

    def _let_go(self, now_s: float, port: int, out: list[Effect]) -> None:
        """Darken the laser, then send a RELEASE: a promise that this flow number is never lit again."""
        tx = self._tx[port]
        active = tx.active
        assert active is not None
        tx.active = None
        del self._flows[active.flow]
        if active.phase != ASKING:
            out.append(Dark(port))
        life = (active, now_s) if active.phase == LIT else None
        retry_s = self.times.retry_s
        give_up_s = now_s + self.times.lease_s + self.times.guard_s
        tx.leaving[active.seq] = _Leaving(active.peer, now_s + retry_s, retry_s, give_up_s, life)
        out.append(Send(active.peer, Message(RELEASE, port, self.epoch, self.epoch, active.seq)))

    def _next(self, now_s: float, port: int, out: list[Effect]) -> None:
        tx = self._tx[port]
        if tx.queue and tx.active is None:
            flow, peer, wavelength, opened_s = tx.queue.popleft()
            self._ask(now_s, port, out, flow, peer, wavelength, opened_s, True)

    def _drop_queued(self, tx: _Transmitter, flow: Flow) -> None:
        tx.queue = deque(entry for entry in tx.queue if entry[0] != flow)
        del self._flows[flow]

    def _released(self, port: int, seq: int, now_s: float | None, out: list[Effect]) -> None:
        life = self._tx[port].leaving.pop(seq).life
        if life is not None:
            flow, close_s = life
            out.append(Finished(
                flow.flow, flow.peer, port, flow.wavelength, flow.opened_s, flow.request_s, flow.grant_s,
                flow.lit_s, close_s, now_s, flow.waited,
            ))  # fmt: skip

    # Receiver.

    def _asked(self, now_s: float, source: Peer, message: Message, out: list[Effect]) -> None:
        """Process a source's message about a flow to this O-NIC."""
        kind, port, _, flow_epoch, seq, stamp_s, _, _ = message
        rx = self._rx[port]
        grant = rx.grant
        held = grant if grant is not None and grant.source == source and grant.seq == seq else None
        if kind == RELEASE:
            rx.done[source] = max(rx.done.get(source, 0), seq)
            if source in rx.queue and rx.queue[source].seq <= seq:
                del rx.queue[source]
            if grant is not None and grant.source == source and grant.seq <= seq:
                rx.grant = None
                self._grant_next(now_s, port, out)
            out.append(Send(source, Message(RELEASED, port, self.epoch, flow_epoch, seq)))
        elif seq <= rx.done.get(source, 0):
            self.counts["stale"] += 1
        elif kind == REQUEST:
            self._requested(now_s, source, message, out)
        elif held is None:
            # The source may believe that it has the light; after a restart here, say.
            self._deny(source, message, UNKNOWN_GRANT, 0.0, out)
        elif kind == RENEW and source not in self._reach:
            self._deny(source, message, NO_MAP, self.times.refresh_s, out)
        else:
            held.confirmed = True
            if kind == RENEW:
                held.until_s = max(held.until_s, now_s + self.times.lease_s + self.times.guard_s)
                answer = Message(RENEWED, port, self.epoch, flow_epoch, seq, stamp_s, self.times.lease_s)
                out.append(Send(source, answer))

    def _requested(self, now_s: float, source: Peer, request: Message, out: list[Effect]) -> None:
        _, port, _, flow_epoch, seq, stamp_s, _, _ = request
        rx = self._rx[port]
        way = self._reach.get(source)
        if way is None or way.port != port:
            self._deny(source, request, NO_MAP, self.times.refresh_s, out)
            return
        # A source has one request at a time on a port and is dark before the next: earlier ones are over.
        rx.done[source] = max(rx.done.get(source, 0), seq - 1)
        waiting = rx.queue.get(source)
        if waiting is not None and waiting.seq < seq:
            del rx.queue[source]
        grant = rx.grant
        if grant is not None and grant.source == source:
            if grant.seq == seq:
                grant.until_s = max(grant.until_s, now_s + self.times.lease_s + self.times.guard_s)
                grant.stamp_s = max(grant.stamp_s, stamp_s)
                self._send_grant(port, grant, out)
                return
            rx.grant = None
        if rx.grant is None and not rx.queue and now_s >= self._quiet_s:
            # As by way of the queue, which is more than most requests need.
            self._grant(now_s, port, source, seq, stamp_s, now_s, out)
            return
        if source not in rx.queue and len(rx.queue) >= self.MAX_QUEUE:
            self._deny(source, request, QUEUE_FULL, self.times.refresh_s, out)
            return
        # A refreshed request keeps its place.
        latest_s = stamp_s if waiting is None or waiting.seq != seq else max(stamp_s, waiting.stamp_s)
        rx.queue[source] = _Waiting(seq, latest_s, now_s)
        self._grant_next(now_s, port, out)
        if source in rx.queue:
            ahead = min(list(rx.queue).index(source), 0xFFFF)
            out.append(Send(source, Message(QUEUED, port, self.epoch, flow_epoch, seq, stamp_s, 0.0, ahead)))

    def _grant_next(self, now_s: float, port: int, out: list[Effect]) -> None:
        rx = self._rx[port]
        if rx.grant is not None or now_s < self._quiet_s:
            return
        while rx.queue:
            source = next(iter(rx.queue))
            seq, stamp_s, heard_s = rx.queue.pop(source)
            if heard_s + self.times.lease_s <= now_s:
                # It did not renew its request: gone, or cut off. It will ask again when it is back.
                self.counts["expired"] += 1
                continue
            self._grant(now_s, port, source, seq, stamp_s, heard_s, out)
            return

    def _grant(
        self, now_s: float, port: int, source: Peer, seq: int, stamp_s: float, heard_s: float,
        out: list[Effect],
    ) -> None:  # fmt: skip
        # Counted from when this stamp arrived, which is after the source sent it.
        until_s = heard_s + self.times.lease_s + self.times.guard_s
        retry_s = self.times.retry_s
        grant = self._rx[port].grant = _Grant(source, seq, stamp_s, until_s, False, now_s + retry_s, retry_s)
        self.counts["grants"] += 1
        self._send_grant(port, grant, out)

    def _send_grant(self, port: int, grant: _Grant, out: list[Effect]) -> None:
        flow_epoch = self._epochs[grant.source]
        lease_s = self.times.lease_s
        message = Message(GRANT, port, self.epoch, flow_epoch, grant.seq, grant.stamp_s, lease_s)
        out.append(Send(grant.source, message))

    def _deny(self, peer: Peer, about: Message, reason: int, retry_s: float, out: list[Effect]) -> None:
        self.counts["denies"] += 1
        answer = Message(
            DENY, about.port, self.epoch, about.flow_epoch, about.seq, about.stamp_s, retry_s, reason
        )
        out.append(Send(peer, answer))

    # Peers.

    def _answer_stranger(self, sender: Peer, message: Message, out: list[Effect]) -> None:
        """Answer an O-NIC that belongs to no job here, without keeping any state about it."""
        if message.kind in (REQUEST, RENEW, CONFIRM):
            reason = NO_MAP if message.kind == REQUEST else UNKNOWN_GRANT
            self._deny(sender, message, reason, self.times.refresh_s, out)
        elif message.kind == RELEASE:
            released = Message(RELEASED, message.port, self.epoch, message.flow_epoch, message.seq)
            out.append(Send(sender, released))
        elif message.kind == GRANT:
            release = Message(RELEASE, message.port, self.epoch, message.flow_epoch, message.seq)
            out.append(Send(sender, release))

    def _forget(self, now_s: float, peer: Peer, out: list[Effect]) -> None:
        """Forget the state of ``peer``, which has restarted with dark lasers and without memory."""
        for port, (tx, rx) in enumerate(zip(self._tx, self._rx, strict=True)):
            rx.done.pop(peer, None)
            rx.queue.pop(peer, None)
            for seq in [seq for seq, leaving in tx.leaving.items() if leaving.peer == peer]:
                self._released(port, seq, None, out)
            active = tx.active
            if active is not None and active.peer == peer:
                if active.phase == ASKING:
                    self._ask_again(now_s, port, active, out)
                else:
                    self._end(now_s, port, out, "the receiver restarted")
            if rx.grant is not None and rx.grant.source == peer:
                rx.grant = None
                self._grant_next(now_s, port, out)

    # For people and tests.

    def flows(self) -> Iterator[tuple[Flow, Peer, int, str]]:
        """Yield (flow, peer, port, "queued" | "asking" | "tuning" | "lit") of every open flow."""
        for port, tx in enumerate(self._tx):
            if tx.active is not None:
                yield tx.active.flow, tx.active.peer, port, PHASES[tx.active.phase]
            for flow, peer, _, _ in tx.queue:
                yield flow, peer, port, "queued"

    def holder(self, port: int) -> Peer | None:
        """Return the source that the receiver of ``port`` is granted to; None if there is no grant."""
        grant = self._rx[port].grant
        return None if grant is None else grant.source

    def waiting(self, port: int) -> tuple[Peer, ...]:
        """Return the sources that wait for the receiver of ``port``, in order of arrival."""
        return tuple(self._rx[port].queue)

    def idle(self) -> bool:
        """Return whether no flow, grant, request or unanswered release is left."""
        return all(
            tx.active is None and not tx.queue and not tx.leaving and rx.grant is None and not rx.queue
            for tx, rx in zip(self._tx, self._rx, strict=True)
        )
