"""One port's transmitter of an O-NIC: its flows one after the other, and the light of the first."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ringlight.controller.onic.control_messages import (
    CONFIRM,
    DENY,
    GRANT,
    NO_MAP,
    QUEUE_FULL,
    QUEUED,
    REASONS,
    RELEASE,
    RELEASED,
    RENEW,
    RENEWED,
    REQUEST,
    UNKNOWN_GRANT,
    Message,
)
from ringlight.controller.onic.effects import (
    Closed,
    Dark,
    Effect,
    Extend,
    Failed,
    Finished,
    Flow,
    FlowLit,
    Lost,
    Peer,
    Send,
    Tune,
)
from ringlight.controller.onic.lease_times import NEVER
from ringlight.controller.onic.unit_state import UnitState

ASKING, TUNING, LIT = 0, 1, 2
PHASES = ("asking", "tuning", "lit")

#: The life of a flow at its source: from each phase to those that may follow, and by what.
LIFE: Mapping[str, Mapping[str, str]] = {
    "waiting": {"asking": "it has the transmitter: REQUEST", "over": "closed"},
    "asking": {
        "tuning": "GRANT",
        "over": "DENY, silence, another map, or closed: RELEASE",
    },
    "tuning": {
        "lit": "the laser is ready; CONFIRM follows",
        "over": "the lease ran out, or closed: RELEASE",
    },
    "lit": {"over": "closed, the lease ran out, or the receiver restarted: RELEASE"},
}


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


class Transmitter:
    """Transmitter of a port. ``queue``: flows that wait, with their peers, wavelengths and times of opening.

    ``active``: the flow that has it. ``leaving``: by flow number, flows whose release is not yet confirmed.
    """

    __slots__ = (
        "_counts",
        "_epoch",
        "_times",
        "_unit",
        "active",
        "leaving",
        "port",
        "queue",
    )

    def __init__(self, port: int, unit: UnitState) -> None:
        self.port = port
        self._unit, self._epoch, self._times, self._counts = (
            unit,
            unit.epoch,
            unit.times,
            unit.counts,
        )
        self.queue: deque[tuple[Flow, Peer, int, float]] = deque()
        self.active: _Outgoing | None = None
        self.leaving: dict[int, _Leaving] = {}

    def open(
        self, now_s: float, flow: Flow, peer: Peer, wavelength: int, out: list[Effect]
    ) -> None:
        """Request light for a new flow, in its turn."""
        self._unit.flows[flow] = self.port
        if self.active is None and not self.queue:
            self._ask(now_s, out, flow, peer, wavelength, now_s, False)
        else:
            self.queue.append((flow, peer, wavelength, now_s))

    def close(self, now_s: float, flow: Flow, out: list[Effect]) -> None:
        """Close a flow of this port, which has not ended."""
        if self.active is not None and self.active.flow == flow:
            if self.active.phase == LIT:
                self._counts["done"] += 1
            self._let_go(now_s, out)
            out.append(Closed(flow))
            self._next(now_s, out)
        else:
            self._drop_queued(flow)
            out.append(Closed(flow))

    def tuned(self, now_s: float, ready_s: float, out: list[Effect]) -> None:
        """Record that the laser has been set and is ready at ``ready_s``."""
        active = self.active
        if active is not None and active.phase == TUNING:
            active.deadline_s = ready_s
            if ready_s <= now_s:
                self._light(now_s, active, out)

    def leave(self, now_s: float, moved: Collection[Peer], out: list[Effect]) -> None:
        """End the flows to peers that have ``moved`` in the wavelength map."""
        for flow, peer, _, _ in [entry for entry in self.queue if entry[1] in moved]:
            self._drop_queued(flow)
            self._fail(out, flow, peer, "the wavelength map changed", None)
        if self.active is not None and self.active.peer in moved:
            self.end(now_s, out, "the wavelength map changed")

    def forget(self, now_s: float, peer: Peer, out: list[Effect]) -> None:
        """Forget what ``peer`` knew, which has restarted."""
        for seq in [
            seq for seq, leaving in self.leaving.items() if leaving.peer == peer
        ]:
            self._released(seq, None, out)
        active = self.active
        if active is not None and active.peer == peer:
            if active.phase == ASKING:
                self._ask_again(now_s, active, out)
            else:
                self.end(now_s, out, "the receiver restarted")

    def next_deadline(self) -> float:
        """Return the time in seconds at which :meth:`due` must be called."""
        active = self.active
        if active is None:
            first = NEVER
        else:
            limit_s = active.give_up_s if active.phase == ASKING else active.until_s
            first = min(active.deadline_s, limit_s)
        for leaving in self.leaving.values():
            first = min(first, leaving.deadline_s, leaving.give_up_s)
        return first

    def due(self, now_s: float, out: list[Effect]) -> None:
        """Do what is due."""
        for seq, leaving in list(self.leaving.items()):
            if leaving.give_up_s <= now_s:
                self._released(seq, None, out)
            elif leaving.deadline_s <= now_s:
                leaving.interval_s = min(2 * leaving.interval_s, self._times.refresh_s)
                leaving.deadline_s = now_s + leaving.interval_s
                out.append(
                    Send(
                        leaving.peer,
                        Message(RELEASE, self.port, self._epoch, self._epoch, seq),
                    )
                )
        if self.active is not None:
            self._active_due(now_s, self.active, out)

    def flows(self) -> Iterator[tuple[Flow, Peer, int, str]]:
        """Yield (flow, peer, port, "queued" | "asking" | "tuning" | "lit") of every open flow."""
        if self.active is not None:
            yield (
                self.active.flow,
                self.active.peer,
                self.port,
                PHASES[self.active.phase],
            )
        for flow, peer, _, _ in self.queue:
            yield flow, peer, self.port, "queued"

    def idle(self) -> bool:
        """Return whether no flow and no unanswered release is left."""
        return self.active is None and not self.queue and not self.leaving

    def answered(
        self, now_s: float, sender: Peer, message: Message, out: list[Effect]
    ) -> None:
        """Process a destination's message about a flow of this O-NIC."""
        kind, _, _, flow_epoch, seq, stamp_s, value_s, detail = message
        active = self.active
        if (
            flow_epoch != self._epoch
            or active is None
            or active.seq != seq
            or active.peer != sender
        ):
            if kind == RELEASED and flow_epoch == self._epoch:
                leaving = self.leaving.get(seq)
                if leaving is not None and leaving.peer == sender:
                    self._released(seq, now_s, out)
            elif kind == GRANT:
                # It is for a flow that is over, perhaps of an earlier life: give it back.
                out.append(
                    Send(
                        sender,
                        Message(RELEASE, self.port, self._epoch, flow_epoch, seq),
                    )
                )
            return
        if kind == GRANT:
            self._granted(now_s, active, stamp_s + value_s, value_s, out)
        elif kind == RENEWED:
            if active.phase == LIT:
                self._extend(now_s, active, stamp_s + value_s, value_s, out)
        elif kind == QUEUED:
            if active.phase == ASKING:
                active.waited = True
                active.interval_s = self._times.retry_s / 2
                active.deadline_s = now_s + self._times.refresh_s
                active.give_up_s = now_s + self._times.patience_s
        elif kind == DENY:
            if detail == NO_MAP:
                self.end(now_s, out, REASONS[NO_MAP], value_s)
            elif detail == UNKNOWN_GRANT and active.phase != ASKING:
                self.end(now_s, out, REASONS[UNKNOWN_GRANT])
            elif detail == QUEUE_FULL and active.phase == ASKING:
                active.waited = True
                active.deadline_s = now_s + value_s
                active.give_up_s = now_s + value_s + self._times.patience_s

    def end(
        self,
        now_s: float,
        out: list[Effect],
        reason: str,
        retry_after_s: float | None = None,
    ) -> None:
        """End the active flow before it was closed, and give the transmitter to the next one."""
        active = self.active
        assert active is not None
        self._let_go(now_s, out)
        if active.phase == LIT:
            self._counts["lost"] += 1
            out.append(Lost(active.flow, active.peer, reason))
        else:
            self._fail(out, active.flow, active.peer, reason, retry_after_s)
        self._next(now_s, out)

    def _ask(
        self,
        now_s: float,
        out: list[Effect],
        flow: Flow,
        peer: Peer,
        wavelength: int,
        opened_s: float,
        waited: bool,
    ) -> None:
        self._unit.seq += 1
        retry_s = self._times.retry_s
        self.active = _Outgoing(
            flow,
            peer,
            wavelength,
            self._unit.seq,
            ASKING,
            now_s + retry_s,
            retry_s,
            now_s + self._times.patience_s,
            0.0,
            opened_s,
            now_s,
            waited,
        )
        out.append(
            Send(
                peer,
                Message(
                    REQUEST, self.port, self._epoch, self._epoch, self._unit.seq, now_s
                ),
            )
        )

    def _ask_again(self, now_s: float, active: _Outgoing, out: list[Effect]) -> None:
        active.interval_s = min(2 * active.interval_s, self._times.refresh_s)
        active.deadline_s = now_s + active.interval_s
        out.append(
            Send(
                active.peer,
                Message(
                    REQUEST, self.port, self._epoch, self._epoch, active.seq, now_s
                ),
            )
        )

    def _granted(
        self,
        now_s: float,
        active: _Outgoing,
        until_s: float,
        lease_s: float,
        out: list[Effect],
    ) -> None:
        if active.phase == ASKING:
            if until_s <= now_s:
                # Too old to use. A fresh request gets the same grant with a fresh lease.
                active.give_up_s = now_s + self._times.patience_s
                self._ask_again(now_s, active, out)
                return
            active.phase, active.until_s, active.grant_s = TUNING, until_s, now_s
            active.deadline_s = NEVER
            out.append(Tune(self.port, active.wavelength, until_s))
            return
        self._extend(now_s, active, until_s, lease_s, out)
        if active.phase == LIT:
            self._confirm(now_s, active, out)

    def _extend(
        self,
        now_s: float,
        active: _Outgoing,
        until_s: float,
        lease_s: float,
        out: list[Effect],
    ) -> None:
        if not active.until_s < until_s or active.until_s <= now_s:
            return
        active.until_s = until_s
        if active.phase == LIT:
            self._renew_at(now_s, active, until_s - lease_s / 2)
        out.append(Extend(self.port, active.wavelength, until_s))

    def _renew_at(self, now_s: float, active: _Outgoing, half_s: float) -> None:
        """Schedule the renewal at ``half_s``, or soon if a late grant has left less than
        half of the lease.
        """
        active.interval_s = self._times.retry_s / 2
        active.deadline_s = max(half_s, now_s + active.interval_s)

    def _light(self, now_s: float, active: _Outgoing, out: list[Effect]) -> None:
        if active.until_s <= now_s:
            self.end(now_s, out, "the lease ran out before the laser was ready")
            return
        active.phase, active.lit_s = LIT, now_s
        # Others ask for light at the same moment, and their messages must not wait for this one.
        active.deadline_s = now_s + self._times.confirm_s
        out.append(FlowLit(active.flow))

    def _confirm(self, now_s: float, active: _Outgoing, out: list[Effect]) -> None:
        if not active.confirmed:
            active.confirmed = True
            self._renew_at(now_s, active, active.until_s - self._times.lease_s / 2)
        out.append(
            Send(
                active.peer,
                Message(CONFIRM, self.port, self._epoch, self._epoch, active.seq),
            )
        )

    def _active_due(self, now_s: float, active: _Outgoing, out: list[Effect]) -> None:
        if active.phase == ASKING:
            if active.give_up_s <= now_s:
                self.end(now_s, out, f"no answer for {self._times.patience_s:g} s")
            elif active.deadline_s <= now_s:
                self._ask_again(now_s, active, out)
        elif active.until_s <= now_s:
            self.end(now_s, out, "the lease ran out and was not renewed")
        elif active.deadline_s <= now_s:
            if active.phase == TUNING:
                self._light(now_s, active, out)
            elif not active.confirmed:
                self._confirm(now_s, active, out)
            else:
                active.interval_s = min(2 * active.interval_s, self._times.refresh_s)
                active.deadline_s = now_s + active.interval_s
                out.append(
                    Send(
                        active.peer,
                        Message(
                            RENEW,
                            self.port,
                            self._epoch,
                            self._epoch,
                            active.seq,
                            now_s,
                        ),
                    )
                )

    def _fail(
        self,
        out: list[Effect],
        flow: Flow,
        peer: Peer,
        reason: str,
        retry_after_s: float | None,
    ) -> None:
        self._counts["failed"] += 1
        out.append(Failed(flow, peer, reason, retry_after_s))

    def _let_go(self, now_s: float, out: list[Effect]) -> None:
        """Darken the laser, then send a RELEASE: a promise that this flow number is never lit again."""
        active = self.active
        assert active is not None
        self.active = None
        del self._unit.flows[active.flow]
        if active.phase != ASKING:
            out.append(Dark(self.port))
        life = (active, now_s) if active.phase == LIT else None
        retry_s = self._times.retry_s
        give_up_s = now_s + self._times.lease_s + self._times.guard_s
        self.leaving[active.seq] = _Leaving(
            active.peer, now_s + retry_s, retry_s, give_up_s, life
        )
        out.append(
            Send(
                active.peer,
                Message(RELEASE, self.port, self._epoch, self._epoch, active.seq),
            )
        )

    def _next(self, now_s: float, out: list[Effect]) -> None:
        if self.queue and self.active is None:
            flow, peer, wavelength, opened_s = self.queue.popleft()
            self._ask(now_s, out, flow, peer, wavelength, opened_s, True)

    def _drop_queued(self, flow: Flow) -> None:
        self.queue = deque(entry for entry in self.queue if entry[0] != flow)
        del self._unit.flows[flow]

    def _released(self, seq: int, now_s: float | None, out: list[Effect]) -> None:
        life = self.leaving.pop(seq).life
        if life is not None:
            flow, close_s = life
            out.append(
                Finished(
                    flow.flow,
                    flow.peer,
                    self.port,
                    flow.wavelength,
                    flow.opened_s,
                    flow.request_s,
                    flow.grant_s,
                    flow.lit_s,
                    close_s,
                    now_s,
                    flow.waited,
                )
            )
