"""Faults of an emulated switch, injected while it runs: pure, handed time and seeds.

What a fault does it does in two places that all management protocols share: to commands on their way to the
one device, and to the bytes of a client's session (:mod:`.faulty_session`), so no protocol knows of faults.

Whenever a fault could act it does so with its ``probability``, drawn from its own ``seed``, at most ``count``
times, until it is cleared. One with a ``protocol`` acts on that one's clients alone.

    kind            when            what
    deny            a write         is refused, and nothing has changed
    half            a write         the first half of its changes is made, then it is refused
    lose-reply      a write         is carried out; no word of it, and after `seconds` (0) the connection ends
    drop            a write         its first half is made; no word of it, and the connection ends
    slow            a write         the light that it makes is tuned `seconds` (2) later than usual
    never-tunes     a write         the light that it makes is not tuned until the fault is cleared
    ghost           a write         what it makes is shown, and has no light until the fault is cleared
    vanish          a write         what it makes is gone `seconds` (5) after it was tuned
    foreign-writer  a client speaks another writer, just before, makes, moves or removes a cross-connect: that
                                    from `ingress` to `egress`, or one that is drawn
    autonomous      a reply         comes after a message that nobody asked for; SCPI knows none
    garbage         a reply         is as many other bytes
    truncate        a reply         ends in its middle, and so does the connection
    slow-drip       a reply         comes byte by byte, `seconds` (0.05) apart
    late            a reply         comes `seconds` (1) later
    port-failed     at once         `port` is broken until the fault is cleared

A write is a command that changes the switch; a reply is whatever bytes a session has to say, greetings
included.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Protocol

from ringlight.testbed.emulation.optical.commands import (
    NS,
    Admin,
    Effect,
    Mishap,
    Rewire,
    Ticket,
    Wire,
)
from ringlight.testbed.emulation.optical.device import OpticalDevice

#: Most faults at a time.
MAX_FAULTS = 64
#: A mirror that does not find its path looks for it so long: longer than any lab lives, nanoseconds.
_NEVER_NS = 1 << 60


class Kind(StrEnum):
    """Kind of an injected fault."""

    DENY = "deny"
    HALF = "half"
    LOSE_REPLY = "lose-reply"
    DROP = "drop"
    SLOW = "slow"
    NEVER_TUNES = "never-tunes"
    GHOST = "ghost"
    VANISH = "vanish"
    FOREIGN_WRITER = "foreign-writer"
    AUTONOMOUS = "autonomous"
    GARBAGE = "garbage"
    TRUNCATE = "truncate"
    SLOW_DRIP = "slow-drip"
    LATE = "late"
    PORT_FAILED = "port-failed"


#: Default duration in seconds of the kinds that have one.
SECONDS = {
    Kind.LOSE_REPLY: 0.0,
    Kind.SLOW: 2.0,
    Kind.VANISH: 5.0,
    Kind.SLOW_DRIP: 0.05,
    Kind.LATE: 1.0,
}
_ON_WRITES = (
    Kind.DENY,
    Kind.HALF,
    Kind.LOSE_REPLY,
    Kind.DROP,
    Kind.SLOW,
    Kind.NEVER_TUNES,
    Kind.GHOST,
    Kind.VANISH,
)
ON_REPLIES = (Kind.AUTONOMOUS, Kind.GARBAGE, Kind.TRUNCATE, Kind.SLOW_DRIP, Kind.LATE)


class FaultError(ValueError):
    """Fault that cannot be injected; one line says why."""


class TooManyFaults(FaultError):
    """Fault beyond the limit: others must be cleared first."""


class Speaker(Protocol):
    """A client's session, as faults see it."""

    protocol: str

    def fall_silent(self, ticket: Ticket, delay_ns: int) -> None:
        """Delay the reply to a command; 0 for ever."""


@dataclass(frozen=True)
class FaultSpec:
    """A fault that is asked for. ``count``: how often it acts at most; None: until it is cleared.

    ``protocol``: whose clients meet it; None: all. ``seconds`` is what the kind says of it, None for its
    usual. ``port``: the device's number of a port that fails. ``ingress``, ``egress``, ``wavelength``: what a
    foreign writer makes.
    """

    kind: Kind
    protocol: str | None = None
    count: int | None = None
    probability: float = 1.0
    seed: int = 0
    seconds: float | None = None
    port: int | None = None
    ingress: int | None = None
    egress: int | None = None
    wavelength: int | None = None


@dataclass
class Injected:
    """A fault in force. ``hits``: how often it has acted."""

    id: int
    spec: FaultSpec
    dice: random.Random
    hits: int = 0
    #: The commands that it has left without light.
    stuck: list[Ticket] = field(default_factory=list)

    @property
    def left(self) -> int | None:
        """Return how often the fault may still act, None if it acts until it is cleared."""
        return None if self.spec.count is None else self.spec.count - self.hits

    @property
    def delay_ns(self) -> int:
        seconds = self.spec.seconds
        return round(
            (SECONDS.get(self.spec.kind, 0.0) if seconds is None else seconds) * NS
        )


@dataclass(frozen=True)
class _Vanishing:
    """Cross-connect that is lost at ``at_ns``, unless it was made again and so passes packets since another
    time than ``since_ns``."""

    fault: Injected
    wire: Wire
    at_ns: int
    since_ns: int | None


class Faults:
    """The faults of one device."""

    def __init__(self, device: OpticalDevice, protocols: Sequence[str] = ()) -> None:
        """``protocols``: those that the switch serves."""
        self._device = device
        self._protocols = tuple(protocols)
        self._faults: dict[int, Injected] = {}
        self._numbers = count(1)
        #: Whose commands are submitted now, if they are a client's.
        self.speaker: Speaker | None = None
        #: Commands under way whose light will be stuck or vanish.
        self._watched: list[tuple[Injected, Ticket]] = []
        self._vanishing: list[_Vanishing] = []
        self._writers: list[Injected] = []
        device.mishap = self._mishap

    # What is injected

    def add(self, now_ns: int, spec: FaultSpec) -> tuple[Injected, list[Effect]]:
        """Add a fault. Return the fault and its immediate effects. Raises FaultError."""
        self._check(spec)
        made = Injected(next(self._numbers), spec, random.Random(spec.seed))
        self._faults[made.id] = made
        effects: list[Effect] = []
        if spec.kind is Kind.PORT_FAILED and spec.port is not None:
            made.hits = 1
            effects = self._device.fail(spec.port)
        return made, effects

    def clear(self, now_ns: int, number: int) -> list[Effect]:
        """End a fault, and return the effects that repair what it has broken or left without light. Raises
        KeyError."""
        gone = self._faults.pop(number)
        effects: list[Effect] = []
        if gone.spec.kind is Kind.PORT_FAILED and gone.spec.port is not None:
            failed_ports = [
                other.spec.port
                for other in self._faults.values()
                if other.spec.kind is Kind.PORT_FAILED
            ]
            if gone.spec.port not in failed_ports:
                effects += self._device.repair(now_ns, gone.spec.port)
        for ticket in (ticket for fault, ticket in self._watched if fault is gone):
            self._device.forgive(ticket)
            if ticket.done and gone.spec.kind is not Kind.VANISH:
                gone.stuck.append(ticket)
        for ticket in gone.stuck:
            for wire in ticket.made:
                if self._device.mirrors.is_ghost(
                    wire
                ) or not self._device.mirrors.is_tuned(wire, now_ns):
                    effects += self._device.realign(now_ns, wire)
            # Whose reply waits for the light has it now.
            ticket.tuned_ns = min(
                ticket.tuned_ns, self._device.mirrors.tuned_ns(ticket.made, now_ns)
            )
        self._watched = [
            (fault, ticket) for fault, ticket in self._watched if fault is not gone
        ]
        self._writers = [fault for fault in self._writers if fault is not gone]
        self._vanishing = [
            other for other in self._vanishing if other.fault is not gone
        ]
        return effects

    def all(self) -> list[Injected]:
        """Return the faults in force, including faults that have acted as often as they may."""
        return list(self._faults.values())

    def get(self, number: int) -> Injected:
        """Return the fault with this number. Raises KeyError."""
        return self._faults[number]

    def _check(self, spec: FaultSpec) -> None:
        kind, device = spec.kind, self._device
        if len(self._faults) >= MAX_FAULTS:
            raise TooManyFaults(
                f"there are {MAX_FAULTS} faults already; clear some first"
            )
        if (
            spec.protocol is not None
            and self._protocols
            and spec.protocol not in self._protocols
        ):
            raise FaultError(
                f"protocol: {spec.protocol}; the switch speaks {', '.join(self._protocols)}"
            )
        if not 0.0 <= spec.probability <= 1.0:
            raise FaultError(f"probability: {spec.probability} is not between 0 and 1")
        if spec.count is not None and spec.count < 1:
            raise FaultError(f"count: {spec.count} is less than 1")
        if spec.seconds is not None and kind not in SECONDS:
            raise FaultError(f"seconds: {kind} knows none")
        if spec.seconds is not None and not 0.0 <= spec.seconds <= 3600.0:
            raise FaultError(f"seconds: {spec.seconds:g} is not between 0 and 3600")
        if (spec.port is not None) != (kind is Kind.PORT_FAILED):
            raise FaultError("port: a port-failed names one, and no other kind does")
        if spec.port is not None:
            if not 1 <= spec.port <= 2 * device.size:
                raise FaultError(
                    f"port: there is no port {spec.port} (1..{2 * device.size})"
                )
            if (
                spec.protocol is not None
                or spec.count is not None
                or spec.probability != 1.0
            ):
                raise FaultError(
                    "protocol, count, probability: a port fails at once, and for all"
                )
        ends = [spec.ingress, spec.egress, spec.wavelength]
        if kind is not Kind.FOREIGN_WRITER and ends != [None, None, None]:
            raise FaultError("ingress, egress, wavelength: of a foreign-writer only")
        if (spec.ingress is None) != (spec.egress is None):
            raise FaultError("ingress, egress: both or none")
        if spec.ingress is None and spec.wavelength is not None:
            raise FaultError("wavelength: goes with ingress and egress")
        if spec.ingress is not None and spec.egress is not None:
            self._check_wire(Wire(spec.ingress, spec.egress, spec.wavelength))
        if kind is Kind.AUTONOMOUS and (spec.protocol or "") == "scpi":
            raise FaultError("autonomous: scpi knows no message that was not asked for")
        if kind is Kind.AUTONOMOUS and self._protocols == ("scpi",):
            raise FaultError(
                "autonomous: the switch speaks only scpi, which knows no such message"
            )

    def _check_wire(self, wire: Wire) -> None:
        size, colours = self._device.size, self._device.wavelengths
        if not 1 <= wire.ingress <= size:
            raise FaultError(
                f"ingress: {wire.ingress} is not an ingress port (1..{size})"
            )
        if not size < wire.egress <= 2 * size:
            raise FaultError(
                f"egress: {wire.egress} is not an egress port ({size + 1}..{2 * size})"
            )
        if (wire.wavelength is None) != (colours == 0) or not 0 <= (
            wire.wavelength or 0
        ) < max(1, colours):
            allowed = (
                f"0..{colours - 1}" if colours else "none: the switch tells none apart"
            )
            raise FaultError(f"wavelength: {wire.wavelength}; it is {allowed}")

    # What happens

    @property
    def next_ns(self) -> int | None:
        """Time at which :meth:`advance` has something to do; 0 for at once."""
        if self._writers or any(ticket.done for _, ticket in self._watched):
            return 0
        return min((vanishing.at_ns for vanishing in self._vanishing), default=None)

    def advance(self, now_ns: int) -> list[Effect]:
        """Return the effects of foreign writers, and of cross-connects that vanish by now."""
        if not (self._writers or self._watched or self._vanishing):
            return []
        writers, self._writers = self._writers, []
        effects = [
            effect for fault in writers for effect in self._foreign(fault, now_ns)
        ]
        watched, self._watched = self._watched, []
        for fault, ticket in watched:
            if not ticket.done:
                self._watched.append((fault, ticket))
            elif fault.spec.kind is Kind.VANISH:
                at_ns = ticket.tuned_ns + fault.delay_ns
                for wire in ticket.made:
                    self._vanishing.append(
                        _Vanishing(
                            fault, wire, at_ns, self._device.mirrors.since_ns(wire)
                        )
                    )
            else:
                fault.stuck.append(ticket)
        due = [vanishing for vanishing in self._vanishing if vanishing.at_ns <= now_ns]
        self._vanishing = [
            vanishing for vanishing in self._vanishing if vanishing.at_ns > now_ns
        ]
        for vanishing in due:
            if self._device.mirrors.since_ns(vanishing.wire) == vanishing.since_ns:
                effects += self._device.lose(vanishing.wire)
        return effects

    def heard(self, speaker: Speaker) -> None:
        """A client has said something."""
        if self._faults:
            self._writers += self._acting((Kind.FOREIGN_WRITER,), speaker)

    def on_reply(self, speaker: Speaker, can: Callable[[Kind], bool]) -> list[Injected]:
        """Return the faults that act on the session's present reply, of the kinds that it ``can`` express."""
        return (
            self._acting([kind for kind in ON_REPLIES if can(kind)], speaker)
            if self._faults
            else []
        )

    def _acting(self, kinds: Sequence[Kind], speaker: Speaker) -> list[Injected]:
        """The faults of these kinds that act on the session now, in the order in which they were added."""
        acting = []
        for fault in self._faults.values():
            spec = fault.spec
            if (
                spec.kind not in kinds
                or spec.protocol not in (None, speaker.protocol)
                or fault.left == 0
            ):
                continue
            if spec.probability >= 1.0 or fault.dice.random() < spec.probability:
                fault.hits += 1
                acting.append(fault)
        return acting

    def _mishap(self, now_ns: int, ticket: Ticket) -> Mishap | None:
        """Return the mishap of a command that has just arrived, None without one."""
        speaker = self.speaker
        if speaker is None or not self._faults:
            return None
        share, late_ns, ghost = 1.0, 0, False
        for fault in self._acting(_ON_WRITES, speaker):
            match fault.spec.kind:
                case Kind.DENY:
                    share = 0.0
                case Kind.HALF:
                    share = min(share, 0.5)
                case Kind.DROP:
                    share = min(share, 0.5)
                    speaker.fall_silent(ticket, 0)
                case Kind.LOSE_REPLY:
                    speaker.fall_silent(ticket, fault.delay_ns)
                case Kind.SLOW:
                    late_ns = max(late_ns, fault.delay_ns)
                case Kind.NEVER_TUNES:
                    late_ns = _NEVER_NS
                    self._watched.append((fault, ticket))
                case Kind.GHOST:
                    ghost = True
                    self._watched.append((fault, ticket))
                case Kind.VANISH:
                    self._watched.append((fault, ticket))
        return Mishap(share, late_ns, ghost)

    # Another writer

    def _foreign(self, fault: Injected, now_ns: int) -> list[Effect]:
        spec, device = fault.spec, self._device
        wires = device.cross_connects()
        if spec.ingress is not None and spec.egress is not None:
            target = Wire(spec.ingress, spec.egress, spec.wavelength)
            return self._make(now_ns, target) if self._usable(target) else []
        colour = (
            fault.dice.randrange(device.wavelengths) if device.wavelengths else None
        )
        here = [wire for wire in wires if wire.wavelength == colour]
        into = _others(range(1, device.size + 1), [wire.ingress for wire in here])
        out = _others(
            range(device.size + 1, 2 * device.size + 1), [wire.egress for wire in here]
        )
        can = [
            *(["make"] if into and out else []),
            *(["move"] if here and out else []),
            *here[:1],
        ]
        if not can:
            return []
        chosen = fault.dice.choice(can)
        if chosen == "make":
            target = Wire(fault.dice.choice(into), fault.dice.choice(out), colour)
        else:
            old = fault.dice.choice(here)
            if chosen != "move":
                return device.do(now_ns, Rewire(remove=(old,)))
            target = Wire(old.ingress, fault.dice.choice(out), colour)
        return self._make(now_ns, target) if self._usable(target) else []

    def _make(self, now_ns: int, target: Wire) -> list[Effect]:
        """Makes it, whatever is in the way."""
        wires = self._device.cross_connects()
        if target in wires:
            return []
        away = tuple(
            wire
            for wire in wires
            if wire.wavelength == target.wavelength
            and (wire.ingress == target.ingress or wire.egress == target.egress)
        )
        return self._device.do(now_ns, Rewire((target,), away))

    def _usable(self, wire: Wire) -> bool:
        return all(
            self._device.admin(port) is Admin.ENABLED
            for port in (wire.ingress, wire.egress)
        )


def _others(ports: Sequence[int], taken: Sequence[int]) -> list[int]:
    return [port for port in ports if port not in set(taken)]
