"""State of a Calient S-series switch besides the light: port names, circuits and their groups.

One :class:`CalientCircuits` per switch, shared by all sessions of whatever protocol speaks of circuits. A
circuit is first provisioned (it holds its ports) and then activated (it has light); both may be one command.
Port p of the faceplate is the halves IN (ingress p) and OUT (egress N+p); a two-way circuit is two
cross-connects.

Light that another protocol has set shows up as a one-way circuit of the group ``SYSTEM``, and a circuit
whose light another protocol takes away is gone. Names and groups live in this process, and in the folder of
a switch that runs alone: after another restart all that has light is such a one-way circuit.

Unverified, so chosen here: which shelf a port is in (the profile's ``port_names``); a port that is busy,
unknown, disabled or broken is refused with the one text ``Invalid Connection`` that public client code looks
for; the state words while mirrors move (:class:`Condition`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ringlight.fabric.optical_profiles import PortNames
from ringlight.testbed.emulation.optical.commands import (
    Admin,
    DeviceError,
    Rewire,
    Ticket,
    Wire,
)
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.monitors import power_dbm
from ringlight.testbed.emulation.optical.session import Switch

PORTS_PER_MODULE = 8
MODULES_PER_SHELF = 8
GROUP = "SYSTEM"
#: The software version that is told.
SOFTWARE = "6.0-3"
#: Whose circuits are among what a switch remembers.
NOTES = "calient"
MAX_NAME = 80
INVALID = "Invalid Connection"
#: What names of circuits and groups are made of: a comma, a colon or a quote would end them in a row of TL1.
_NAME = re.compile(r'[^",:]*')
_TRIPLET = re.compile(r"([1-9]\d{0,3})\.([1-9]\d{0,3})\.([1-8])")


class CircuitError(Exception):
    """A circuit is refused, and nothing has changed. The message is what the switch says."""


def port_name(port: int, names: PortNames = "1.module.port") -> str:
    """Return the name of a faceplate port, such as ``1.2.1`` (shelf, module, port) for port 9, or ``9`` if
    ports are named by number."""
    if names == "number":
        return str(port)
    module, place = divmod(port - 1, PORTS_PER_MODULE)
    shelf, module = (
        divmod(module, MODULES_PER_SHELF)
        if names == "shelf.module.port"
        else (0, module)
    )
    return f"{shelf + 1}.{module + 1}.{place + 1}"


def port_number(text: str, size: int, names: PortNames = "1.module.port") -> int:
    """Return the faceplate port for its name or for a plain number. Raises CircuitError."""
    match = _TRIPLET.fullmatch(text)
    if match is not None:
        shelf, module, place = (int(part) for part in match.groups())
        if names == "shelf.module.port":
            module += (shelf - 1) * MODULES_PER_SHELF
        port = (module - 1) * PORTS_PER_MODULE + place
        if port_name(port, names) != text:
            raise CircuitError(INVALID)
    elif re.fullmatch(r"[1-9]\d{0,4}", text):
        port = int(text)
    else:
        raise CircuitError(INVALID)
    if port > size:
        raise CircuitError(INVALID)
    return port


def _is_name(text: str) -> bool:
    return (
        len(text) <= MAX_NAME
        and text.isprintable()
        and _NAME.fullmatch(text) is not None
    )


@dataclass(frozen=True)
class Condition:
    """Administrative state, operational state, operational capability: the words of a circuit or a port."""

    admin: str
    operation: str
    capability: str


RESERVED = Condition("UMA", "RDY", "OK")
TUNING = Condition("IS", "RDY", "OK")
IN_SERVICE = Condition("IS", "IS", "OK")
FAILED = Condition("IS", "OOS", "FAIL")


Phase = Literal["reserved", "active", "gone"]


@dataclass(eq=False)
class CalientCircuit:
    """Circuit from the IN half of ``source`` to the OUT half of ``destination`` (faceplate ports), and back
    if ``two_way``. ``active``: it has light; ``nolight``: it was aligned without waiting for some."""

    source: int
    destination: int
    two_way: bool = False
    group: str = GROUP
    name: str = ""
    nolight: bool = True
    active: bool = False
    ticket: Ticket | None = None
    #: What it is once the command under way is done, and if that is refused.
    after: Phase = "reserved"
    otherwise: Phase = "reserved"
    names: PortNames = "1.module.port"

    @property
    def conn(self) -> str:
        """Connection identifier, ``1.1.1>1.2.1`` or, two-way, ``1.1.1-1.2.1``."""
        source, destination = (
            port_name(port, self.names) for port in (self.source, self.destination)
        )
        return f"{source}{'-' if self.two_way else '>'}{destination}"

    def halves(self) -> list[tuple[int, int]]:
        """Return the IN and OUT port of each direction."""
        there = (self.source, self.destination)
        return (
            [there, there[::-1]]
            if self.two_way and self.source != self.destination
            else [there]
        )

    def wires(self, size: int) -> list[Wire]:
        return [Wire(into, size + out) for into, out in self.halves()]


#: What is remembered of a circuit.
_KEPT = ("source", "destination", "two_way", "group", "name", "nolight", "active")


class CalientCircuits:
    """The circuits of one switch."""

    def __init__(self, device: OpticalDevice) -> None:
        self._device = device
        self._size = device.size
        self.names = device.profile.port_names
        self._known = [self._remembered(row) for row in device.notes.get(NOTES, [])]
        device.memories[NOTES] = lambda: [
            {key: getattr(circuit, key) for key in _KEPT}
            for circuit in self.all()
            if circuit.ticket is None
        ]

    def new(
        self,
        source: int,
        destination: int,
        two_way: bool,
        group: str = GROUP,
        name: str = "",
        nolight: bool = True,
        active: bool = False,
    ) -> CalientCircuit:
        """Return a circuit that is not provisioned yet, or a remembered circuit."""
        return CalientCircuit(
            source, destination, two_way, group, name, nolight, active, names=self.names
        )

    def _remembered(self, row: Mapping[str, Any]) -> CalientCircuit:
        """Raises ValueError and, for what it does not know, TypeError."""
        if missing := [key for key in _KEPT if key not in row]:
            raise ValueError(f"{missing[0]} is missing")
        circuit = self.new(**row)
        if (
            not 1 <= circuit.source <= self._size
            or not 1 <= circuit.destination <= self._size
        ):
            raise ValueError(
                f"there is no circuit {circuit.source}>{circuit.destination}"
            )
        return circuit

    @classmethod
    def of(cls, switch: Switch) -> CalientCircuits:
        """Return the circuits of a switch, one object for all its sessions, loaded from the switch's notes.
        Raises ValueError or TypeError if the notes are damaged."""
        return switch.shared(cls, switch.device)

    def number(self, text: str) -> int:
        """Return the faceplate port for a name. Raises CircuitError."""
        return port_number(text, self._size, self.names)

    def name(self, port: int) -> str:
        """Return the name of a faceplate port."""
        return port_name(port, self.names)

    def read(self, conn: str) -> tuple[int, int, bool]:
        """Return the faceplate ports of ``1.1.1>1.2.1``, or of the two-way ``1.1.1-1.2.1``, and whether it is
        two-way. Raises CircuitError."""
        source, way, destination = (
            conn.partition("-") if "-" in conn else conn.partition(">")
        )
        return self.number(source), self.number(destination), way == "-"

    def power(self, port: int, now_ns: int) -> str:
        """Return the power at the monitor of a device's port in dBm as text, ``NONE`` without light."""
        power = power_dbm(self._device, port, now_ns)
        return f"{power:.2f}" if power >= self._device.profile.los_dbm else "NONE"

    def by_port(self) -> dict[int, list[CalientCircuit]]:
        """Return the circuits of each faceplate port that has any."""
        circuits: dict[int, list[CalientCircuit]] = {}
        for circuit in self.all():
            for port in {circuit.source, circuit.destination}:
                circuits.setdefault(port, []).append(circuit)
        return circuits

    def idle(self, circuits: Iterable[CalientCircuit | None]) -> list[CalientCircuit]:
        """Return the circuits without repetition, and without those that another command is changing."""
        return list(
            {
                id(circuit): circuit
                for circuit in circuits
                if circuit is not None and circuit.ticket is None
            }.values()
        )

    def all(self) -> list[CalientCircuit]:
        """Return every circuit according to the light now, in order of ports."""
        wires = {
            Wire(wire.ingress, wire.egress) for wire in self._device.cross_connects()
        }
        kept = []
        for circuit in self._known:
            ticket = circuit.ticket
            if ticket is not None and ticket.done:
                circuit.ticket = None
                phase = circuit.after if ticket.error is None else circuit.otherwise
                circuit.active = phase == "active"
                if phase == "gone":
                    continue
            has_light = wires.issuperset(circuit.wires(self._size))
            if circuit.ticket is None and circuit.active and not has_light:
                continue
            if circuit.ticket is None and has_light:
                circuit.active = True
            kept.append(circuit)
        explained = {wire for circuit in kept for wire in circuit.wires(self._size)}
        for wire in sorted(wires - explained):
            ends = wire.ingress, wire.egress - self._size
            kept.append(CalientCircuit(*ends, active=True, names=self.names))
        self._known = kept
        return sorted(kept, key=lambda circuit: (circuit.source, circuit.destination))

    def find(self, conns: Iterable[str]) -> list[CalientCircuit | None]:
        """Return the circuit of each identifier, None for an identifier without a circuit. A two-way circuit
        may be named from either end."""
        index = {}
        for circuit in self.all():
            ends = (circuit.source, circuit.destination)
            index[ends, circuit.two_way] = circuit
            if circuit.two_way:
                index[ends[::-1], True] = circuit
        circuits: list[CalientCircuit | None] = []
        for conn in conns:
            try:
                source, destination, two_way = self.read(conn)
            except CircuitError:
                circuits.append(None)
            else:
                circuits.append(index.get(((source, destination), two_way)))
        return circuits

    def provision(self, circuits: Sequence[CalientCircuit]) -> list[bool]:
        """Provision circuits in order. Return for each whether it now holds its ports. The others changed
        nothing."""
        taken = {half for circuit in self.all() for half in self._ports(circuit)}
        done = []
        for circuit in circuits:
            ports = self._ports(circuit)
            fine = taken.isdisjoint(ports) and self._usable(ports)
            fine = fine and all(
                _is_name(text) for text in (circuit.name, circuit.group)
            )
            done.append(fine)
            if fine:
                taken.update(ports)
                self._known.append(circuit)
        return done

    def make(self, now_ns: int, provisioned: Iterable[CalientCircuit]) -> Ticket:
        """Give new circuits light, all or none. Circuits that get no light are removed. Return the command's
        ticket."""
        return self._command(now_ns, provisioned, True, "active", "gone")

    def activate(self, now_ns: int, circuits: Iterable[CalientCircuit]) -> Ticket:
        """Give circuits light, all or none. Return the ticket of the command, which the device carries out in
        its turn."""
        return self._command(now_ns, circuits, True, "active", "reserved")

    def deactivate(self, now_ns: int, circuits: Iterable[CalientCircuit]) -> Ticket:
        """Take the light from active circuits, all or none. The circuits keep their ports. Return the
        command's ticket."""
        return self._command(now_ns, circuits, False, "reserved", "active")

    def delete(self, now_ns: int, circuits: Iterable[CalientCircuit]) -> Ticket:
        """Delete circuits, those with light all or none. Return the command's ticket."""
        circuits = list(circuits)
        dark = {id(circuit) for circuit in circuits if not circuit.active}
        self._known = [circuit for circuit in self._known if id(circuit) not in dark]
        return self._command(
            now_ns,
            [lit_circuit for lit_circuit in circuits if lit_circuit.active],
            False,
            "gone",
            "active",
        )

    def done(
        self, ticket: Ticket, circuits: Iterable[CalientCircuit], on: bool
    ) -> list[CalientCircuit]:
        """Return the circuits whose light a finished command has switched on or off."""
        if ticket.error is None:
            return list(circuits)
        if not ticket.partly:
            return []
        wires = set(self._device.cross_connects())
        as_wanted = wires.issuperset if on else wires.isdisjoint
        return [circuit for circuit in circuits if as_wanted(circuit.wires(self._size))]

    def condition(self, circuit: CalientCircuit, now_ns: int) -> Condition:
        """Return the state words of a circuit now."""
        if not circuit.active:
            return TUNING if circuit.ticket is not None else RESERVED
        ports = [
            port
            for wire in circuit.wires(self._size)
            for port in (wire.ingress, wire.egress)
        ]
        if any(self._device.admin(port) is not Admin.ENABLED for port in ports):
            return FAILED
        if not all(
            self._device.mirrors.is_tuned(wire, now_ns)
            for wire in circuit.wires(self._size)
        ):
            return TUNING
        dark = any(
            power_dbm(self._device, into, now_ns) < self._device.profile.los_dbm
            for into, _ in circuit.halves()
        )
        return FAILED if dark and not circuit.nolight else IN_SERVICE

    def _command(
        self,
        now_ns: int,
        circuits: Iterable[CalientCircuit],
        on: bool,
        after: Phase,
        otherwise: Phase,
    ) -> Ticket:
        circuits = list(circuits)
        wires = tuple(
            wire for circuit in circuits for wire in circuit.wires(self._size)
        )
        if not wires:
            return Ticket(done=True)
        ticket = self._device.submit(
            now_ns, Rewire(wires) if on else Rewire(remove=wires)
        )
        for circuit in circuits:
            circuit.ticket, circuit.after, circuit.otherwise = ticket, after, otherwise
        return ticket

    def _ports(self, circuit: CalientCircuit) -> list[int]:
        """Device ports that it holds."""
        return [
            port
            for wire in circuit.wires(self._size)
            for port in (wire.ingress, wire.egress)
        ]

    def _usable(self, ports: Iterable[int]) -> bool:
        try:
            return all(self._device.admin(port) is Admin.ENABLED for port in ports)
        except DeviceError:
            return False
