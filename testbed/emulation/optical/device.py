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
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ringlight.fabric.crossconnect import PortState
from ringlight.fabric.optical_profiles import Profile
from ringlight.testbed.emulation.optical.changes import Checks
from ringlight.testbed.emulation.optical.commands import (
    NS,
    Admin,
    Command,
    DeviceError,
    Effect,
    Fault,
    Gate,
    Mishap,
    Rewire,
    SetAdmin,
    SetLabel,
    SetRecovery,
    Spot,
    Stored,
    Ticket,
    Together,
    Wire,
)
from ringlight.testbed.emulation.optical.mirrors import Mirrors

MAX_LABEL_BYTES = 63
_NO_MISHAP = Mishap()


@dataclass
class _Turn:
    command: Command
    submitted_ns: int
    ticket: Ticket
    mishap: Mishap | None = None
    due_ns: int | None = None


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
        self.profile = profile
        self.mirrors = Mirrors(size, wavelengths, profile, seed, stored.cross_connects)
        self._admin: dict[int, Admin] = dict(stored.admin)
        self.checks = Checks(size, wavelengths, self._admin, self.mirrors)
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
        self.arriving_dbm: Callable[[int, int | None], float | None] = lambda *_: (
            profile.launch_dbm
        )
        #: Least power (dBm) that must leave an egress which leads to a receiver.
        self.least_dbm: Mapping[int, float] = {}
        self._queue: deque[_Turn] = deque()
        self._carried_out: list[Ticket] = []
        self._free_ns = 0
        #: Asked of each command, when it comes, what will go wrong with it.
        self.mishap: Callable[[int, Ticket], Mishap | None] = lambda *_: None

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
                effects += self._carry_out(
                    turn.command, now_ns, turn.ticket, turn.mishap
                )
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
                self.mirrors.put_off(wire, late_ns)

    def _duration_ns(self, command: Command) -> int:
        each_s, touched = self.profile.command_per_xc_s, 0
        if each_s:
            with contextlib.suppress(DeviceError):
                parts = (
                    command.commands if isinstance(command, Together) else (command,)
                )
                touched = sum(self.checks.change(part).touched for part in parts)
        return round((self.profile.command_s + each_s * touched) * NS)

    def _carry_out(
        self,
        command: Command,
        now_ns: int,
        ticket: Ticket,
        mishap: Mishap | None = None,
    ) -> list[Effect]:
        """Raises DeviceError for a command that changes nothing; of one that broke off the ticket has it."""
        mishap = mishap or _NO_MISHAP
        if isinstance(command, Together):
            return self._carry_out_all(command.commands, now_ns, ticket, mishap)
        if isinstance(command, SetAdmin | SetLabel | SetRecovery):
            return self._set_up(command, now_ns, ticket, mishap)
        whole = self.checks.change(command)
        change = whole
        if mishap.share < 1.0:
            change = whole.first(mishap.share)
            ticket.partly = bool(change.remove or change.add)
            ticket.error = _broke_off()
        effects: list[Effect] = [self.mirrors.cut(spot) for spot in change.remove]
        ticket.tuned_ns = now_ns
        for wire in change.add:
            light, ready_ns = self.mirrors.tune(
                wire, now_ns, mishap.late_ns, mishap.ghost
            )
            if not mishap.ghost:
                effects.append(light)
            ticket.tuned_ns = max(ticket.tuned_ns, ready_ns)
        ticket.made = change.add
        return effects

    def _carry_out_all(
        self,
        commands: Sequence[Rewire | SetAdmin | SetLabel],
        now_ns: int,
        ticket: Ticket,
        mishap: Mishap,
    ) -> list[Effect]:
        for command in commands:
            match command:
                case SetAdmin():
                    self._check_admin(command)
                case SetLabel():
                    self._check_label(command)
                case Rewire():
                    self.checks.change(command)
        if mishap.share < 1.0:
            commands = commands[: int(len(commands) * mishap.share)]
            ticket.partly, ticket.error = bool(commands), _broke_off()
        effects: list[Effect] = []
        ticket.tuned_ns = now_ns
        for command in commands:
            part = Ticket()
            effects += self._carry_out(
                command, now_ns, part, replace(mishap, share=1.0)
            )
            ticket.tuned_ns = max(ticket.tuned_ns, part.tuned_ns)
            ticket.made = (*ticket.made, *part.made)
        return effects

    def _set_up(
        self,
        command: SetAdmin | SetLabel | SetRecovery,
        now_ns: int,
        ticket: Ticket,
        mishap: Mishap,
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

    def _check_admin(self, command: SetAdmin) -> None:
        for port in command.ports:
            self.checks.check_port(port)
            if self.admin(port) is Admin.FAILED:
                raise DeviceError(Fault.HARDWARE, f"port {port} has failed")

    def _set_admin(self, command: SetAdmin, now_ns: int) -> tuple[list[Effect], int]:
        self._check_admin(command)
        state = Admin.ENABLED if command.enabled else Admin.DISABLED
        changed = [
            port
            for port in dict.fromkeys(command.ports)
            if self.admin(port) is not state
        ]
        effects: list[Effect] = []
        tuned = now_ns
        if command.enabled:
            # The mirrors find the path anew; dark first, then the gate opens.
            touched = {*changed}
            for wire in [
                w for w in self.cross_connects() if touched & {w.ingress, w.egress}
            ]:
                light, ready_ns = self.mirrors.tune(wire, now_ns)
                effects.append(light)
                tuned = max(tuned, ready_ns)
        self.ports_revision += 1
        for port in changed:
            self._admin[port] = state
            effects.append(Gate(port, state))
        return effects, tuned

    def _check_label(self, command: SetLabel) -> None:
        self.checks.check_port(command.port)
        # JSON can write what is no text (half of a surrogate pair), and the end of a line would end a reply.
        if not command.label.isprintable():
            raise DeviceError(
                Fault.RANGE, f"label of port {command.port} is not one line of text"
            )
        if len(command.label.encode()) > MAX_LABEL_BYTES:
            raise DeviceError(
                Fault.RANGE,
                f"label of port {command.port} is longer than {MAX_LABEL_BYTES} bytes",
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
        self.checks.check_port(port)
        self._admin[port] = Admin.FAILED
        self.ports_revision += 1
        return [Gate(port, Admin.FAILED)]

    def repair(self, now_ns: int, port: int) -> list[Effect]:
        """Repair and enable a broken port. The mirrors find its paths again. Return the effects, none if the
        port was not broken. Raises DeviceError."""
        self.checks.check_port(port)
        if self.admin(port) is not Admin.FAILED:
            return []
        self._admin[port] = Admin.DISABLED
        return self._set_admin(SetAdmin((port,), True), now_ns)[0]

    def lose(self, wire: Wire) -> list[Effect]:
        """Drop a cross-connect, as if it were lost by itself. Return the effects, none if there is no such
        cross-connect."""
        return [] if self.mirrors.find(wire) is None else [self.mirrors.cut(wire.spot)]

    def realign(self, now_ns: int, wire: Wire) -> list[Effect]:
        """Have the mirrors find a cross-connect's path again. Return the effects, none if there is no such
        cross-connect."""
        return (
            []
            if self.mirrors.find(wire) is None
            else [self.mirrors.tune(wire, now_ns)[0]]
        )

    # Reading

    def remembered(self) -> dict[str, Any]:
        """Return the notes, brought up to date."""
        self.notes |= {whose: memory() for whose, memory in self.memories.items()}
        return dict(self.notes)

    def cross_connects(self) -> tuple[Wire, ...]:
        """Return every cross-connect, tuned or not, in order of ingress and wavelength."""
        return self.mirrors.wires()

    def peer(self, port: int, wavelength: int | None = None) -> int | None:
        """Return the other end of a port's cross-connect, None without one. Raises DeviceError for a port or
        wavelength that does not exist."""
        self.checks.check_port(port)
        self.checks.check_wavelength(wavelength)
        wire = self.mirrors.wire_at(port, wavelength)
        if wire is None:
            return None
        return wire.egress if port <= self.size else wire.ingress

    def admin(self, port: int) -> Admin:
        """Return the administrative state of a port. Raises DeviceError for a port that does not exist."""
        self.checks.check_port(port)
        return self._admin.get(port, Admin.ENABLED)

    def label(self, port: int) -> str:
        self.checks.check_port(port)
        return self._labels.get(port, "")

    def receives(self, faceplate: int) -> bool:
        """Return whether light comes in at a faceplate port."""
        return self._received.get(faceplate, False)

    def is_plugged(self, faceplate: int) -> bool:
        """Return whether a fibre is plugged into a faceplate port."""
        return faceplate in self._received

    def peers(self, port: int) -> list[int]:
        """Return the other ends of all of a port's cross-connects. Raises DeviceError for a port that does
        not exist."""
        self.checks.check_port(port)
        return sorted(
            {
                wire.egress if port <= self.size else wire.ingress
                for wire in self.mirrors.wires_at(port)
            }
        )

    def port_state(self, port: int, now_ns: int) -> PortState:
        """Return the state of a port: BLOCKED without a cross-connect, or if a port on its way is not
        enabled.

        A port with several wavelengths is TUNED if all that can carry light are. Raises DeviceError for a
        port that does not exist.
        """
        if self.admin(port) is Admin.FAILED:
            return PortState.FAILED
        wires = [
            wire for wire in self.mirrors.wires_at(port) if not self.is_gated(wire)
        ]
        if not wires:
            return PortState.BLOCKED
        return (
            PortState.TUNED
            if all(self.mirrors.is_tuned(w, now_ns) for w in wires)
            else PortState.TUNING
        )

    def wires(self) -> dict[Spot, tuple[int, float]]:
        """Return egress and loss (dB) of every cross-connect whose ports are enabled and that has light, by
        ingress and wavelength."""
        return {
            wire.spot: (wire.egress, self.mirrors.loss_db(wire))
            for wire in self.cross_connects()
            if not self.is_gated(wire) and not self.mirrors.is_ghost(wire)
        }

    def unplugged(self, faceplate: int) -> None:
        """Note that nothing is plugged into a faceplate port any more."""
        self._received.pop(faceplate, None)

    def is_gated(self, wire: Wire) -> bool:
        """Return whether a port at an end of a cross-connect is not enabled."""
        return any(
            self.admin(end) is not Admin.ENABLED for end in (wire.ingress, wire.egress)
        )


def _broke_off() -> DeviceError:
    return DeviceError(Fault.HARDWARE, "the command could not be carried out")
