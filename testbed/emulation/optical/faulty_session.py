"""A client's session of any management protocol with injected faults between it and its client."""

from __future__ import annotations

from collections import deque

from ringlight.testbed.emulation.optical.commands import Ticket
from ringlight.testbed.emulation.optical.session import Session
from ringlight.testbed.emulation.optical.switch_faults import Faults, Injected, Kind


class FaultySession:
    """The session ``inner``, with faults applied to what it does and says.

    A protocol that knows messages nobody asked for has a method ``interrupted(said, now_ns)``, which returns
    what it says with one of them in it.
    """

    def __init__(self, inner: Session, protocol: str, faults: Faults) -> None:
        self.inner = inner
        self.protocol = protocol
        self._faults = faults
        self._interrupted = getattr(inner, "interrupted", None)
        #: What is still to be said, and when.
        self._held: deque[tuple[int, bytes]] = deque()
        self._silenced: tuple[Ticket, int] | None = None
        self._ends_ns: int | None = None
        self._cut = False
        self._over = False

    @property
    def wants_bytes(self) -> bool:
        return self.inner.wants_bytes and not self._gone

    @property
    def idle(self) -> bool:
        return self.inner.idle and not self._held

    @property
    def over(self) -> bool:
        return self._over or (not self._held and (self._cut or self.inner.over))

    @property
    def established(self) -> bool:
        """Return whether the client has logged in, True if the protocol has no login."""
        return getattr(self.inner, "established", True)

    @property
    def keeps_time(self) -> bool:
        """Return whether the client has chosen how long it may be silent, and the protocol enforces that."""
        return getattr(self.inner, "keeps_time", False)

    @property
    def next_ns(self) -> int | None:
        if self._over:
            return None
        due = [
            self.inner.next_ns,
            self._ends_ns,
            self._held[0][0] if self._held else None,
        ]
        return min((due_ns for due_ns in due if due_ns is not None), default=None)

    @property
    def _gone(self) -> bool:
        return self._over or self._cut or self._silenced is not None

    def feed(self, data: bytes) -> None:
        if self._gone:
            return
        if data:
            self._faults.heard(self)
        self.inner.feed(data)

    def fall_silent(self, ticket: Ticket, after_ns: int) -> None:
        """Say nothing more; the connection ends so long after the command is done."""
        self._silenced = ticket, after_ns

    def advance(self, now_ns: int) -> bytes:
        if self._over:
            return b""
        # Commands that come meanwhile are this session's.
        self._faults.speaker = self
        try:
            reply = self.inner.advance(now_ns)
        finally:
            self._faults.speaker = None
        if self._silenced is not None:
            self._fade(*self._silenced, now_ns)
        elif reply and not self._cut:
            self._say(reply, now_ns)
        out = bytearray()
        while self._held and self._held[0][0] <= now_ns:
            out += self._held.popleft()[1]
        return bytes(out)

    def _fade(self, ticket: Ticket, after_ns: int, now_ns: int) -> None:
        self._held.clear()
        if ticket.done and self._ends_ns is None:
            self._ends_ns = now_ns + after_ns
        if self._ends_ns is not None and now_ns >= self._ends_ns:
            self._over, self._ends_ns = True, None

    def _say(self, reply: bytes, now_ns: int) -> None:
        at_ns, apart_ns = now_ns, 0
        for fault in self._faults.on_reply(self, self._can):
            match fault.spec.kind:
                case Kind.AUTONOMOUS if self._interrupted is not None:
                    reply = self._interrupted(reply, now_ns)
                case Kind.GARBAGE:
                    reply = _garbage(reply, fault)
                case Kind.TRUNCATE:
                    reply, self._cut = reply[: len(reply) // 2], True
                case Kind.SLOW_DRIP:
                    apart_ns = max(apart_ns, fault.delay_ns)
                case Kind.LATE:
                    at_ns = max(at_ns, now_ns + fault.delay_ns)
        # In order, whatever is held already.
        at_ns = max(at_ns, self._held[-1][0]) if self._held else at_ns
        if not apart_ns:
            self._held.append((at_ns, reply))
            return
        for number in range(len(reply)):
            self._held.append((at_ns + number * apart_ns, reply[number : number + 1]))

    def _can(self, kind: Kind) -> bool:
        return kind is not Kind.AUTONOMOUS or self._interrupted is not None


def _garbage(reply: bytes, fault: Injected) -> bytes:
    """Random bytes in place of a reply, as many, with the end of a line.

    Another fault may have left nothing of the reply.
    """
    return fault.dice.randbytes(len(reply) - 1) + b"\n" if reply else b""
