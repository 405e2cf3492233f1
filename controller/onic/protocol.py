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

from collections.abc import Iterator, Mapping

from ringlight.controller.onic.control_messages import (
    CONFIRM,
    FROM_SOURCE,
    GRANT,
    NO_MAP,
    RELEASE,
    RELEASED,
    RENEW,
    REQUEST,
    UNKNOWN_GRANT,
    Message,
)
from ringlight.controller.onic.effects import Effect, Failed, Flow, Peer, Send
from ringlight.controller.onic.lease_times import NEVER, Times
from ringlight.controller.onic.reach import Reach
from ringlight.controller.onic.receiver import Receiver
from ringlight.controller.onic.transmitter import Transmitter
from ringlight.controller.onic.unit_state import UnitState


class Onic:
    """Control unit of one O-NIC. ``epoch`` must be greater than in any earlier life of this O-NIC.

    ``quarantine``: grant nothing for one lease and guard, because a grant of an earlier life may still be in
    use. All lasers must be dark when the control unit is created.
    """

    __slots__ = ("_rx", "_tx", "_unit", "counts", "epoch", "times")

    def __init__(
        self,
        epoch: int,
        times: Times,
        now_s: float,
        *,
        ports: int = 2,
        quarantine: bool = True,
    ) -> None:
        self.epoch = epoch
        self.times = times
        quiet_s = now_s + times.lease_s + times.guard_s if quarantine else now_s
        self._unit = UnitState(epoch, times, quiet_s)
        self.counts = self._unit.counts
        self._tx = [Transmitter(port, self._unit) for port in range(ports)]
        self._rx = [Receiver(port, self._unit) for port in range(ports)]

    # Requests of the O-NIC's own side.

    def set_map(self, now_s: float, reach: Mapping[Peer, Reach]) -> list[Effect]:
        """Set the peers of the job and the way to reach each. Return the effects.

        Flows to peers that left or moved fail. Grants stay until they are released or expire, because their
        light may be on. ``reach`` is kept as it is and must not change.
        """
        out: list[Effect] = []
        moved = {
            peer for peer, way in self._unit.reach.items() if reach.get(peer) != way
        }
        self._unit.reach = reach
        for tx, rx in zip(self._tx, self._rx, strict=True):
            rx.drop(moved)
            tx.leave(now_s, moved, out)
        return out

    def open(self, now_s: float, flow: Flow, peer: Peer) -> list[Effect]:
        """Request light to ``peer`` for a new flow.

        Return the effects. Raises ValueError if the flow is open.
        """
        if flow in self._unit.flows:
            raise ValueError(f"flow {flow!r} is already open")
        out: list[Effect] = []
        way = self._unit.reach.get(peer)
        if way is None:
            self.counts["failed"] += 1
            return [Failed(flow, peer, "no wavelength leads there", None)]
        self._tx[way.port].open(now_s, flow, peer, way.wavelength, out)
        return out

    def close(self, now_s: float, flow: Flow) -> list[Effect]:
        """Close a flow that has sent everything or is abandoned.

        Return the effects, none if the flow has already ended.
        """
        out: list[Effect] = []
        port = self._unit.flows.get(flow)
        if port is not None:
            self._tx[port].close(now_s, flow, out)
        return out

    def tuned(self, now_s: float, port: int, ready_s: float) -> list[Effect]:
        """Record that the laser of ``port`` has been set and is ready at ``ready_s``. Return the effects."""
        out: list[Effect] = []
        self._tx[port].tuned(now_s, ready_s, out)
        return out

    def untuned(self, now_s: float, port: int, reason: str) -> list[Effect]:
        """End the flow on ``port``, whose laser could not be set. Return the effects."""
        out: list[Effect] = []
        if self._tx[port].active is not None:
            self._tx[port].end(now_s, out, reason)
        return out

    # Messages of the peers.

    def receive(self, now_s: float, sender: Peer, message: Message) -> list[Effect]:
        out: list[Effect] = []
        epochs = self._unit.epochs
        known = epochs.get(sender)
        if known != message.epoch:
            if known is None:
                if sender not in self._unit.reach:
                    self._answer_stranger(sender, message, out)
                    return out
                epochs[sender] = message.epoch
            elif message.epoch < known:
                self.counts["stale"] += 1
                return out
            else:
                epochs[sender] = message.epoch
                self._forget(now_s, sender, out)
        if message.kind not in FROM_SOURCE:
            self._tx[message.port].answered(now_s, sender, message, out)
        elif message.flow_epoch == message.epoch:
            self._rx[message.port].receive(now_s, sender, message, out)
        return out

    def other_version(
        self, now_s: float, sender: Peer, version: int, own: int
    ) -> list[Effect]:
        """End the flows to ``sender``, which uses another version of the protocol. Return the effects."""
        out: list[Effect] = []
        for tx in self._tx:
            if tx.active is not None and tx.active.peer == sender:
                tx.end(
                    now_s,
                    out,
                    f"it speaks protocol version {version}, this O-NIC version {own}",
                )
        return out

    # Time.

    def next_deadline(self) -> float | None:
        """Return the time in seconds at which :meth:`timer` must be called if nothing else happens; None:
        never.
        """
        first = NEVER
        for tx in self._tx:
            if (due_s := tx.next_deadline()) < first:
                first = due_s
        for rx in self._rx:
            if (due_s := rx.next_deadline()) < first:
                first = due_s
        return None if first == NEVER else first

    def timer(self, now_s: float) -> list[Effect]:
        """Perform everything that is due; nothing if called early. Return the effects."""
        out: list[Effect] = []
        for tx in self._tx:
            tx.due(now_s, out)
        for rx in self._rx:
            rx.due(now_s, out)
        return out

    # Peers.

    def _answer_stranger(
        self, sender: Peer, message: Message, out: list[Effect]
    ) -> None:
        """Answer an O-NIC that belongs to no job here, without keeping any state about it."""
        if message.kind in (REQUEST, RENEW, CONFIRM):
            reason = NO_MAP if message.kind == REQUEST else UNKNOWN_GRANT
            self._unit.deny(sender, message, reason, self.times.refresh_s, out)
        elif message.kind == RELEASE:
            released = Message(
                RELEASED, message.port, self.epoch, message.flow_epoch, message.seq
            )
            out.append(Send(sender, released))
        elif message.kind == GRANT:
            release = Message(
                RELEASE, message.port, self.epoch, message.flow_epoch, message.seq
            )
            out.append(Send(sender, release))

    def _forget(self, now_s: float, peer: Peer, out: list[Effect]) -> None:
        """Forget the state of ``peer``, which has restarted with dark lasers and without memory."""
        for tx, rx in zip(self._tx, self._rx, strict=True):
            tx.forget(now_s, peer, out)
            rx.forget(now_s, peer, out)

    # For people and tests.

    def flows(self) -> Iterator[tuple[Flow, Peer, int, str]]:
        """Yield (flow, peer, port, "queued" | "asking" | "tuning" | "lit") of every open flow."""
        for tx in self._tx:
            yield from tx.flows()

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
            tx.idle() and rx.idle() for tx, rx in zip(self._tx, self._rx, strict=True)
        )
