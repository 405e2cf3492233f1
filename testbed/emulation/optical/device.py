"""An optical switch as a state machine: no sockets, no clock, no kernel.

It is handed commands and the time (CLOCK_MONOTONIC nanoseconds) and gives back effects for a datapath.
Dual-sided numbering: a switch of size N has ingress ports 1..N and egress ports N+1..2N; faceplate port p
is the fibre pair of ingress p and egress N+p.

A wavelength-selective switch (WSS) is W such switches that share their ports: for each wavelength 0..W-1 its
cross-connects are a partial matching, and every cross-connect names its wavelength. It neither knows nor
cares what the transmitters at its ingresses send.

The device does one command at a time, in the order of arrival. A command is all or nothing: it is checked
against the state at its turn, takes the profile's command time, then changes the light at once. What an
injected fault makes of one (:mod:`.faults`) is its :class:`Mishap`.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from ringlight.fabric.crossconnect import PortState
from ringlight.fabric.light import received_dbm
from ringlight.fabric.optical_profiles import Profile

NS = 1_000_000_000
MAX_LABEL_BYTES = 63


class Admin(Enum):
    """Administrative state of a port."""

    ENABLED = 0
    DISABLED = 1
    FAILED = 2


class Recovery(Enum):
    """Handling of a switch's light when the switch is switched on again, in the words of the Open Compute
    Project's model (cold-boot-recovery)."""

    #: The mirrors stood while the switch was away, and light with them.
    MAINTAIN = "maintain"
    #: What stood is made again: dark until the mirrors have found their paths.
    RESTORE = "restore"
    #: The switch starts without a cross-connect.
    REMOVE = "remove"


class Fault(Enum):
    """Reason for a refused command."""

    RANGE = "no such port, or on the wrong side"
    CONFLICT = "at odds with what is set"
    HARDWARE = "a port has failed"


class DeviceError(Exception):
    """A command was refused and has changed nothing. ``fault`` tells why, the message which port."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class Wire(NamedTuple):
    """A cross-connect; ``wavelength`` is a channel of a WSS, None of any other switch."""

    ingress: int
    egress: int
    wavelength: int | None = None

    @property
    def spot(self) -> tuple[int, int | None]:
        """Return the ingress and the wavelength at which the light comes in."""
        return self.ingress, self.wavelength

    def __str__(self) -> str:
        colour = "" if self.wavelength is None else f" on wavelength {self.wavelength}"
        return f"{self.ingress}->{self.egress}{colour}"


#: Ingress and egress, and the wavelength where there are some.
Pairs = tuple[tuple[int, int] | tuple[int, int, int | None], ...]
#: Where light is, at an ingress or an egress: port and wavelength.
Spot = tuple[int, int | None]


class TunedEgress(NamedTuple):
    """Egress of light at an ingress, and when it begins to get through (nanoseconds). ``ghost``: it is shown,
    and there is none."""

    egress: int
    ready_ns: int
    ghost: bool = False


@dataclass(frozen=True)
class Stored:
    """State that a device keeps over a restart."""

    cross_connects: Mapping[Spot, TunedEgress] = field(default_factory=dict)
    admin: Mapping[int, Admin] = field(default_factory=dict)
    labels: Mapping[int, str] = field(default_factory=dict)
    recovery: Recovery = Recovery.MAINTAIN
    notes: Mapping[str, Any] = field(default_factory=dict)


# Commands


@dataclass(frozen=True)
class Rewire:
    """Removes exactly the cross-connects ``remove`` (with ``only`` everything but those of ``add``) and adds
    ``add``, in one; of these, what exists already is left untouched. Refused when one to be removed does not
    exist, or when one to be added has a disabled port, unless ``blocked``: then light waits for the port."""

    add: Pairs = ()
    remove: Pairs = ()
    only: bool = False
    blocked: bool = False


@dataclass(frozen=True)
class Clear:
    """Removes whatever these ports take part in, on every wavelength. ``ingress``: none may be an egress."""

    ports: tuple[int, ...]
    ingress: bool = False


@dataclass(frozen=True)
class SetAdmin:
    """Enables or disables ports; cross-connects stay as they are meant, only the light is blocked."""

    ports: tuple[int, ...]
    enabled: bool


@dataclass(frozen=True)
class SetLabel:
    port: int
    label: str


@dataclass(frozen=True)
class SetRecovery:
    """Effect that sets what the next start does with light."""

    recovery: Recovery


@dataclass(frozen=True)
class Together:
    """Carries out commands in this order, all of them or none."""

    commands: tuple[Rewire | SetAdmin | SetLabel, ...]


Command = Rewire | Clear | SetAdmin | SetLabel | SetRecovery | Together

# Effects, to be carried out in order


class Light(NamedTuple):
    """The ingress feeds the egress, less ``loss_db``; packets pass from ``ready_ns`` on."""

    ingress: int
    egress: int
    ready_ns: int
    wavelength: int | None = None
    loss_db: float = 0.0


class Dark(NamedTuple):
    """The ingress feeds nothing (on that wavelength)."""

    ingress: int
    wavelength: int | None = None


@dataclass(frozen=True)
class Gate:
    """The port is opened or blocked."""

    port: int
    admin: Admin


#: What a port is called, and what the next start does, is for the datapath to remember.
Effect = Light | Dark | Gate | SetLabel | SetRecovery


@dataclass(frozen=True)
class Mishap:
    """Fault of one command.

    ``share``: share of the command's changes that is still carried out, the removals first. With a share
    below 1 the command is refused. ``late_ns``: how much later than usual its light is tuned, nanoseconds.
    ``ghost``: the new cross-connects are shown like any other and have no light.
    """

    share: float = 1.0
    late_ns: int = 0
    ghost: bool = False


_NO_MISHAP = Mishap()


@dataclass
class Ticket:
    """A command on its way. When ``done``, either ``error`` is set or its light is tuned at ``tuned_ns``.

    ``made``: the new cross-connects. ``partly``: it was refused when some of it had been done.
    """

    done: bool = False
    error: DeviceError | None = None
    tuned_ns: int = 0
    made: tuple[Wire, ...] = ()
    partly: bool = False


@dataclass(frozen=True)
class Alarm:
    """``kind`` is LOS (loss of signal) or FAILED."""

    port: int
    kind: str
    reason: str


@dataclass
class _Turn:
    command: Command
    submitted_ns: int
    ticket: Ticket
    mishap: Mishap | None = None
    due_ns: int | None = None


class _Change(NamedTuple):
    remove: tuple[Spot, ...] = ()
    add: tuple[Wire, ...] = ()

    @property
    def touched(self) -> int:
        return len({*self.remove, *[wire.spot for wire in self.add]})

    def first(self, share: float) -> _Change:
        """Return the first part of the change, by share."""
        count = int((len(self.remove) + len(self.add)) * share)
        return _Change(self.remove[:count], self.add[: max(0, count - len(self.remove))])


class OpticalDevice:
    """One dual-sided optical switch. Same seed and same calls give the same behaviour.

    ``wavelengths``: how many a WSS tells apart; 0 for a switch that passes every colour alike.
    """

    def __init__(
        self,
        size: int,
        profile: Profile,
        seed: int = 0,
        stored: Stored | None = None,
        wavelengths: int = 0,
    ) -> None:
        stored = stored or Stored()
        self.size = size
        self.wavelengths = wavelengths
        self._colours: tuple[int | None, ...] = tuple(range(wavelengths)) or (None,)
        self.profile = profile
        self._seed = seed
        self._random = random.Random(seed)
        self._lit: dict[Spot, TunedEgress] = dict(stored.cross_connects)
        self._feeder: dict[Spot, int] = {
            (light.egress, colour): ingress for (ingress, colour), light in self._lit.items()
        }
        self._admin: dict[int, Admin] = dict(stored.admin)
        self._labels: dict[int, str] = dict(stored.labels)
        self.recovery = stored.recovery
        #: What is remembered besides light, as JSON, by whose it is: names and groups, say. ``memories`` give
        #: what it is now; of those who have none it is as it was.
        self.notes: dict[str, Any] = dict(stored.notes)
        self.memories: dict[str, Callable[[], Any]] = {}
        #: Grows whenever a port is enabled, disabled, labelled or breaks.
        self.ports_revision = 0
        self._received: dict[int, bool] = {}
        #: Power (dBm) that comes in at an ingress on a wavelength, None for none; told by who knows the lab.
        self.arriving_dbm: Callable[[int, int | None], float | None] = lambda *_: profile.launch_dbm
        #: Least power (dBm) that must leave an egress which leads to a receiver.
        self.least_dbm: Mapping[int, float] = {}
        self._queue: deque[_Turn] = deque()
        self._carried_out: list[Ticket] = []
        self._free_ns = 0
        #: Asked of each command, when it comes, what will go wrong with it.
        self.mishap: Callable[[int, Ticket], Mishap | None] = lambda *_: None
        #: How often each ingress was given a new direction, since the process began.
        self.moves: Counter[int] = Counter()

    # Commands

    def submit(self, now_ns: int, command: Command) -> Ticket:
        """Queue a command and return its ticket. :meth:`advance` carries the command out when its time has
        come."""
        ticket = Ticket()
        self._queue.append(_Turn(command, now_ns, ticket, self.mishap(now_ns, ticket)))
        return ticket

    def forgive(self, ticket: Ticket) -> None:
        """Remove the planned failure of a command whose turn has not come."""
        for turn in self._queue:
            if turn.ticket is ticket:
                turn.mishap = None

    def do(self, now_ns: int, command: Command) -> list[Effect]:
        """Carry out a command immediately, before all that wait. Return its effects. Raises DeviceError."""
        return self._carry_out(command, now_ns, Ticket())

    @property
    def next_ns(self) -> int | None:
        """Time at which :meth:`advance` has something to do; 0 for at once, None when idle."""
        if not self._queue:
            return None
        return self._queue[0].due_ns or 0

    def advance(self, now_ns: int) -> list[Effect]:
        """Carry out every command whose time has come. Return the effects, in order."""
        effects: list[Effect] = []
        self._carried_out = []
        while self._queue:
            turn = self._queue[0]
            if turn.due_ns is None:
                started = max(turn.submitted_ns, self._free_ns)
                turn.due_ns = started + self._duration_ns(turn.command)
            if turn.due_ns > now_ns:
                break
            self._queue.popleft()
            self._free_ns = now_ns
            try:
                effects += self._carry_out(turn.command, now_ns, turn.ticket, turn.mishap)
            except DeviceError as error:
                turn.ticket.error = error
            turn.ticket.done = True
            self._carried_out.append(turn.ticket)
        return effects

    def put_off(self, late_ns: int) -> None:
        """Delay the light that the last :meth:`advance` made: its ports went dark so much later."""
        if not late_ns:
            return
        for ticket in self._carried_out:
            if ticket.made:
                ticket.tuned_ns += late_ns
            for wire in ticket.made:
                light = self._find(wire)
                if light is not None:
                    self._lit[wire.spot] = light._replace(ready_ns=light.ready_ns + late_ns)

    def _duration_ns(self, command: Command) -> int:
        each_s, touched = self.profile.command_per_xc_s, 0
        if each_s:
            with contextlib.suppress(DeviceError):
                parts = command.commands if isinstance(command, Together) else (command,)
                touched = sum(self._change(part).touched for part in parts)
        return round((self.profile.command_s + each_s * touched) * NS)

    def _carry_out(
        self, command: Command, now_ns: int, ticket: Ticket, mishap: Mishap | None = None
    ) -> list[Effect]:
        """Raises DeviceError for a command that changes nothing; of one that broke off the ticket has it."""
        mishap = mishap or _NO_MISHAP
        if isinstance(command, Together):
            return self._carry_out_all(command.commands, now_ns, ticket, mishap)
        if isinstance(command, SetAdmin | SetLabel | SetRecovery):
            return self._set_up(command, now_ns, ticket, mishap)
        whole = self._change(command)
        change = whole
        if mishap.share < 1.0:
            change = whole.first(mishap.share)
            ticket.partly = bool(change.remove or change.add)
            ticket.error = _broke_off()
        effects: list[Effect] = [self._cut(spot) for spot in change.remove]
        ticket.tuned_ns = now_ns
        for wire in change.add:
            light, ready_ns = self._tune(wire, now_ns, mishap.late_ns, mishap.ghost)
            if not mishap.ghost:
                effects.append(light)
            ticket.tuned_ns = max(ticket.tuned_ns, ready_ns)
        ticket.made = change.add
        return effects

    def _carry_out_all(
        self, commands: Sequence[Rewire | SetAdmin | SetLabel], now_ns: int, ticket: Ticket, mishap: Mishap
    ) -> list[Effect]:
        for command in commands:
            match command:
                case SetAdmin():
                    self._check_admin(command)
                case SetLabel():
                    self._check_label(command)
                case Rewire():
                    self._change(command)
        if mishap.share < 1.0:
            commands = commands[: int(len(commands) * mishap.share)]
            ticket.partly, ticket.error = bool(commands), _broke_off()
        effects: list[Effect] = []
        ticket.tuned_ns = now_ns
        for command in commands:
            part = Ticket()
            effects += self._carry_out(command, now_ns, part, replace(mishap, share=1.0))
            ticket.tuned_ns = max(ticket.tuned_ns, part.tuned_ns)
            ticket.made = (*ticket.made, *part.made)
        return effects

    def _set_up(
        self, command: SetAdmin | SetLabel | SetRecovery, now_ns: int, ticket: Ticket, mishap: Mishap
    ) -> list[Effect]:
        ticket.tuned_ns = now_ns
        if mishap.share < 1.0:
            ticket.error = _broke_off()
            ports = command.ports if isinstance(command, SetAdmin) else ()
            some = ports[: int(len(ports) * mishap.share)]
            if not some or not isinstance(command, SetAdmin):
                return []
            ticket.partly = True
            command = replace(command, ports=some)
        if isinstance(command, SetLabel):
            return self._set_label(command)
        if isinstance(command, SetRecovery):
            self.recovery = command.recovery
            return [command]
        effects, ticket.tuned_ns = self._set_admin(command, now_ns)
        return effects

    def _tune(self, wire: Wire, now_ns: int, late_ns: int = 0, ghost: bool = False) -> tuple[Light, int]:
        profile = self.profile
        dark_s = profile.dark_s + profile.dark_jitter_s * self._random.random()
        tuned = now_ns + round(dark_s * NS) + late_ns
        self._lit[wire.spot] = TunedEgress(wire.egress, tuned + round(profile.retrain_s * NS), ghost)
        self._feeder[wire.egress, wire.wavelength] = wire.ingress
        self.moves[wire.ingress] += 1
        return self.light_of(wire), tuned

    def _cut(self, spot: Spot) -> Dark:
        """The cross-connect of an ingress ends."""
        del self._feeder[self._lit.pop(spot).egress, spot[1]]
        return Dark(*spot)

    def _change(self, command: Command) -> _Change:
        """Return how a command changes the cross-connects. Raises DeviceError."""
        match command:
            case Rewire(add, remove, only, blocked):
                gone = self._checked(remove)
                for wire in gone:
                    if self._find(wire) is None:
                        raise DeviceError(Fault.CONFLICT, f"{wire} is not connected")
                wires = self._checked(add)
                kept = set(wires)
                away = (wire for wire in self.cross_connects() if wire not in kept) if only else gone
                spots = tuple(wire.spot for wire in away)
                new = tuple(wire for wire in wires if self._find(wire) is None)
                self._check_free(new, set(spots), blocked)
                return _Change(spots, new)
            case Clear(ports, ingress):
                for port in ports:
                    self._check_ingress(port) if ingress else self._check_port(port)
                there = [wire for wire in self.cross_connects() if not {*wire[:2]}.isdisjoint(ports)]
                return _Change(remove=tuple(wire.spot for wire in there))
        return _Change()

    def _spots(self, ingress: int) -> list[Spot]:
        """Ingress and wavelength of each cross-connect of an ingress."""
        return [(ingress, colour) for colour in self._colours if (ingress, colour) in self._lit]

    def _find(self, wire: Wire) -> TunedEgress | None:
        """The light of a cross-connect, if there is such a one."""
        light = self._lit.get(wire.spot)
        return light if light is not None and light.egress == wire.egress else None

    def _check_ingress(self, port: int) -> None:
        if not 1 <= port <= self.size:
            raise DeviceError(Fault.RANGE, f"{port} is not an ingress port (1..{self.size})")

    def _check_port(self, port: int) -> None:
        if not 1 <= port <= 2 * self.size:
            raise DeviceError(Fault.RANGE, f"there is no port {port} (1..{2 * self.size})")

    def _checked(self, pairs: Pairs) -> tuple[Wire, ...]:
        """The cross-connects, if each could exist beside the others. Raises DeviceError."""
        wires = tuple([pair if isinstance(pair, Wire) else Wire(*pair) for pair in pairs])
        seen: set[Spot] = set()
        for ingress, egress, colour in wires:
            self._check_ingress(ingress)
            if not self.size < egress <= 2 * self.size:
                raise DeviceError(
                    Fault.RANGE, f"{egress} is not an egress port ({self.size + 1}..{2 * self.size})"
                )
            if colour is not None or self.wavelengths:
                self._check_wavelength(colour)
            for spot in ((ingress, colour), (egress, colour)):
                if spot in seen:
                    raise DeviceError(Fault.CONFLICT, f"{_named(spot)} is named twice")
                seen.add(spot)
        return wires

    def _check_wavelength(self, wavelength: int | None) -> None:
        if self.wavelengths and (wavelength is None or not 0 <= wavelength < self.wavelengths):
            raise DeviceError(Fault.RANGE, f"{wavelength} is not a wavelength (0..{self.wavelengths - 1})")
        if not self.wavelengths and wavelength is not None:
            raise DeviceError(Fault.RANGE, f"wavelength {wavelength}: the switch tells none apart")

    def _check_free(self, wires: Iterable[Wire], freed: Collection[Spot], blocked: bool = False) -> None:
        """Raises DeviceError for a port that cannot carry light, or does once all ``freed`` are gone.

        ``blocked``: a disabled port will do.
        """
        for ingress, egress, colour in wires:
            for port in (ingress, egress):
                admin = self._admin.get(port)
                if admin is Admin.FAILED:
                    raise DeviceError(Fault.HARDWARE, f"port {port} has failed")
                if admin is Admin.DISABLED and not blocked:
                    raise DeviceError(Fault.CONFLICT, f"port {port} is disabled")
            for port, source in ((ingress, ingress), (egress, self._feeder.get((egress, colour)))):
                light = None if source is None else self._lit.get((source, colour))
                if source is not None and light is not None and (source, colour) not in freed:
                    held = Wire(source, light.egress, colour)
                    raise DeviceError(Fault.CONFLICT, f"port {port} is busy with {held}")

    def _check_admin(self, command: SetAdmin) -> None:
        for port in command.ports:
            self._check_port(port)
            if self.admin(port) is Admin.FAILED:
                raise DeviceError(Fault.HARDWARE, f"port {port} has failed")

    def _set_admin(self, command: SetAdmin, now_ns: int) -> tuple[list[Effect], int]:
        self._check_admin(command)
        state = Admin.ENABLED if command.enabled else Admin.DISABLED
        changed = [port for port in dict.fromkeys(command.ports) if self.admin(port) is not state]
        effects: list[Effect] = []
        tuned = now_ns
        if command.enabled:
            # The mirrors find the path anew; dark first, then the gate opens.
            touched = {*changed}
            for wire in [w for w in self.cross_connects() if touched & {w.ingress, w.egress}]:
                light, ready_ns = self._tune(wire, now_ns)
                effects.append(light)
                tuned = max(tuned, ready_ns)
        self.ports_revision += 1
        for port in changed:
            self._admin[port] = state
            effects.append(Gate(port, state))
        return effects, tuned

    def _check_label(self, command: SetLabel) -> None:
        self._check_port(command.port)
        # JSON can write what is no text (half of a surrogate pair), and the end of a line would end a reply.
        if not command.label.isprintable():
            raise DeviceError(Fault.RANGE, f"label of port {command.port} is not one line of text")
        if len(command.label.encode()) > MAX_LABEL_BYTES:
            raise DeviceError(
                Fault.RANGE, f"label of port {command.port} is longer than {MAX_LABEL_BYTES} bytes"
            )

    def _set_label(self, command: SetLabel) -> list[Effect]:
        self._check_label(command)
        self._labels[command.port] = command.label
        self.ports_revision += 1
        return [command]

    # What happens to the device from outside

    def receive(self, faceplate: int, light: bool) -> None:
        """Note whether the fibre plugged into a faceplate port brings light in."""
        self._received[faceplate] = light

    def fail(self, port: int) -> list[Effect]:
        """Break a port for good. Return the effects. Raises DeviceError."""
        self._check_port(port)
        self._admin[port] = Admin.FAILED
        self.ports_revision += 1
        return [Gate(port, Admin.FAILED)]

    def repair(self, now_ns: int, port: int) -> list[Effect]:
        """Repair and enable a broken port. The mirrors find its paths again. Return the effects, none if the
        port was not broken. Raises DeviceError."""
        self._check_port(port)
        if self.admin(port) is not Admin.FAILED:
            return []
        self._admin[port] = Admin.DISABLED
        return self._set_admin(SetAdmin((port,), True), now_ns)[0]

    def lose(self, wire: Wire) -> list[Effect]:
        """Drop a cross-connect, as if it were lost by itself. Return the effects, none if there is no such
        cross-connect."""
        return [] if self._find(wire) is None else [self._cut(wire.spot)]

    def realign(self, now_ns: int, wire: Wire) -> list[Effect]:
        """Have the mirrors find a cross-connect's path again. Return the effects, none if there is no such
        cross-connect."""
        return [] if self._find(wire) is None else [self._tune(wire, now_ns)[0]]

    # Reading

    def remembered(self) -> dict[str, Any]:
        """Return the notes, brought up to date."""
        self.notes |= {whose: memory() for whose, memory in self.memories.items()}
        return dict(self.notes)

    def cross_connects(self) -> tuple[Wire, ...]:
        """Return every cross-connect, tuned or not, in order of ingress and wavelength."""
        return tuple([Wire(spot[0], light.egress, spot[1]) for spot, light in sorted(self._lit.items())])

    def since_ns(self, wire: Wire) -> int | None:
        """Return the time since which a cross-connect passes packets, nanoseconds, or None if it does not
        exist."""
        light = self._find(wire)
        return None if light is None else light.ready_ns

    def tuned_ns(self, wires: Iterable[Wire], now_ns: int) -> int:
        """Return the time at which the mirrors of all these cross-connects are tuned, nanoseconds, or
        ``now_ns`` if none exists."""
        ready = [self.since_ns(wire) for wire in wires]
        retrain_ns = round(self.profile.retrain_s * NS)
        return max((ready_ns - retrain_ns for ready_ns in ready if ready_ns is not None), default=now_ns)

    def is_ghost(self, wire: Wire) -> bool:
        """Return whether a cross-connect is shown but has no light."""
        light = self._find(wire)
        return light is not None and light.ghost

    def peer(self, port: int, wavelength: int | None = None) -> int | None:
        """Return the other end of a port's cross-connect, None without one. Raises DeviceError for a port or
        wavelength that does not exist."""
        self._check_port(port)
        self._check_wavelength(wavelength)
        light = self._lit.get((port, wavelength))
        return light.egress if light else self._feeder.get((port, wavelength))

    def admin(self, port: int) -> Admin:
        """Return the administrative state of a port. Raises DeviceError for a port that does not exist."""
        self._check_port(port)
        return self._admin.get(port, Admin.ENABLED)

    def label(self, port: int) -> str:
        self._check_port(port)
        return self._labels.get(port, "")

    def is_plugged(self, faceplate: int) -> bool:
        """Return whether a fibre is plugged into a faceplate port."""
        return faceplate in self._received

    def peers(self, port: int) -> list[int]:
        """Return the other ends of all of a port's cross-connects. Raises DeviceError for a port that does
        not exist."""
        self._check_port(port)
        return sorted({wire.egress if port <= self.size else wire.ingress for wire in self._wires(port)})

    def port_state(self, port: int, now_ns: int) -> PortState:
        """Return the state of a port: BLOCKED without a cross-connect, or if a port on its way is not
        enabled.

        A port with several wavelengths is TUNED if all that can carry light are. Raises DeviceError for a
        port that does not exist.
        """
        if self.admin(port) is Admin.FAILED:
            return PortState.FAILED
        wires = [wire for wire in self._wires(port) if not self._is_gated(wire)]
        if not wires:
            return PortState.BLOCKED
        return PortState.TUNED if all(self.is_tuned(w, now_ns) for w in wires) else PortState.TUNING

    def is_tuned(self, wire: Wire, now_ns: int) -> bool:
        """Return whether the mirrors of a cross-connect are tuned, False if it does not exist."""
        light = self._find(wire)
        return light is not None and now_ns >= light.ready_ns - round(self.profile.retrain_s * NS)

    def insertion_loss_db(self, ingress: int, egress: int) -> float:
        """Return the factory insertion loss of a path in dB: triangular between the profile's least, typical
        and greatest."""
        profile = self.profile
        if profile.loss_min_db == profile.loss_max_db:
            return profile.loss_min_db
        dice = random.Random(f"{self._seed}/{ingress}/{egress}")
        return dice.triangular(profile.loss_min_db, profile.loss_max_db, profile.loss_typ_db)

    def loss_db(self, wire: Wire) -> float:
        """Return the loss (dB) of a cross-connect since it was last tuned: the path's own loss and the
        mirrors' error."""
        loss_db, spread = self.insertion_loss_db(wire.ingress, wire.egress), self.profile.repeatability_db
        if spread:
            # Drawn from the moment of tuning, so that a restarted device reads the same.
            ready = self._lit[wire.spot].ready_ns
            dice = random.Random(f"{self._seed}/{wire.ingress}/{wire.egress}/{ready}")
            loss_db += dice.uniform(-spread, spread)
        return max(0.0, loss_db)

    def light_of(self, wire: Wire) -> Light:
        """Return the effect that makes an existing cross-connect."""
        ready_ns = self._lit[wire.spot].ready_ns
        return Light(wire.ingress, wire.egress, ready_ns, wire.wavelength, self.loss_db(wire))

    def wires(self) -> dict[Spot, tuple[int, float]]:
        """Return egress and loss (dB) of every cross-connect whose ports are enabled and that has light, by
        ingress and wavelength."""
        return {
            wire.spot: (wire.egress, self.loss_db(wire))
            for wire in self.cross_connects()
            if not self._is_gated(wire) and not self.is_ghost(wire)
        }

    def power_dbm(self, port: int, now_ns: int) -> float:
        """Return the power at the port's monitor in dBm: the received power at an ingress, the leaving power
        at an egress.

        Without light that is the profile's ``dark_dbm``, the monitor's floor. A fibre brings light while its
        far end is up. A WSS reads no single wavelength and takes the strongest of those that lead to the
        port. Raises DeviceError for a port that does not exist.
        """
        self._check_port(port)
        read = self.profile.dark_dbm
        if port <= self.size:
            power = self.arriving_dbm(port, None) if self._received.get(port) else None
            return read if power is None else max(read, power)
        for wire in self._wires(port):
            has_light = (
                self._received.get(wire.ingress) and not self._is_gated(wire) and not self.is_ghost(wire)
            )
            if has_light and self.is_tuned(wire, now_ns):
                power = self.arriving_dbm(wire.ingress, wire.wavelength)
                if power is not None:
                    read = max(read, received_dbm(power, [self.loss_db(wire)]))
        return read

    def alarms(self, now_ns: int) -> list[Alarm]:
        """Return an alarm for each failed port, ingress port without light, and tuned egress port below the
        power threshold."""
        alarms = [
            Alarm(port, "FAILED", "the port has failed")
            for port, admin in sorted(self._admin.items())
            if admin is Admin.FAILED
        ]
        for port in range(1, self.size + 1):
            if port not in self._received:
                alarms.append(Alarm(port, "LOS", "nothing is plugged in"))
            elif self.power_dbm(port, now_ns) < self.profile.los_dbm:
                alarms.append(Alarm(port, "LOS", "no light comes in"))
        for egress in sorted({port for port, _ in self._feeder}):
            tuned = self.port_state(egress, now_ns) is PortState.TUNED
            power, least = self.power_dbm(egress, now_ns), self.least_dbm.get(egress, self.profile.los_dbm)
            if tuned and power < max(least, self.profile.los_dbm):
                feeders = ", ".join(str(wire.ingress) for wire in self._wires(egress))
                weak = "too little" if power >= self.profile.los_dbm else "no"
                alarms.append(Alarm(egress, "LOS", f"{weak} light from port {feeders}"))
        return alarms

    def unplugged(self, faceplate: int) -> None:
        """Note that nothing is plugged into a faceplate port any more."""
        self._received.pop(faceplate, None)

    def _wires(self, port: int) -> list[Wire]:
        """The cross-connects that a port takes part in."""
        if port <= self.size:
            return [Wire(port, self._lit[spot].egress, spot[1]) for spot in self._spots(port)]
        fed = [(self._feeder.get((port, colour)), colour) for colour in self._colours]
        return [Wire(ingress, port, colour) for ingress, colour in fed if ingress is not None]

    def _is_gated(self, wire: Wire) -> bool:
        return any(self.admin(end) is not Admin.ENABLED for end in (wire.ingress, wire.egress))


def _broke_off() -> DeviceError:
    return DeviceError(Fault.HARDWARE, "the command could not be carried out")


def _named(spot: Spot) -> str:
    return f"port {spot[0]}" + ("" if spot[1] is None else f" on wavelength {spot[1]}")
