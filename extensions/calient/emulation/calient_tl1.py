"""TL1 dialect of Calient S-series switches, the device's side: TCP port 3083, prompt ``agent>``.

Verbs in any case; ``7`` is the client's ctag, 0 where it has none; a port is ``1.2.1`` or its number; a
circuit is ``1.1.1>1.2.1``, both ways ``1.1.1-1.2.1``:

    ACT-USER::user:7::password;                   CANC-USER::user:7;
    ENT-CRS::1.1.1,1.1.2:7::GROUP,1WAY,name;      or 2WAY; reserves two ports: AS=UMA OS=RDY OC=OK
    ACT-CRS::1.1.1,1.1.2:7::1.1.1>1.1.2,GROUP;    gives it light, IS IS OK once its mirrors stand
    CANC-CRS::1.1.1,1.1.2:7::,GROUP,name;         takes the light away
    DLT-CRS::1.1.1,1.1.2:7::,GROUP,name;          ends a circuit, with light or without
    DLT-CRS-ALL;                                  ends all
    ENT-CRS-BULK::1.1.1>1.1.2&1.1.3>1.1.4:7:;     reserves and lights what can be had; DLT-CRS-BULK likewise
    RTRV-SAVERECALL:::7:;                         "In progress", "Completed", "2 of 3 connections failed"
    RTRV-CRS:::7::ALL;                            or of one pair of ports, or one circuit: ::7::,1.1.1-1.1.2
    RTRV-PORT::0:7:;  RTRV-PORT-SUM::1.1.1:7:;    states, and powers and circuits, of all ports (0) or some
    RTRV-NE:::7:;  RTRV-NETYPE:::7:;              maker, model, type and software (GR-833)

Long listings come in pages of `PAGE_ROWS`, each with a COMPLD of its own, all but the last ended by ``>``.

Not known of a real switch, so chosen here: what separates the circuits of a bulk command, the words of
RTRV-SAVERECALL beyond those that clients look for, how a page ends, the form of reports, the states of a
port that is disabled (OOS-MA) or broken (OOS-AU, FAIL), and that circuits are aligned without waiting for
light.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ringlight.extensions.calient.emulation.calient_circuits import (
    GROUP,
    INVALID,
    SOFTWARE,
    CalientCircuit,
    CalientCircuits,
    CircuitError,
)
from ringlight.extensions.tl1.tl1_grammar import Command
from ringlight.extensions.tl1.tl1_session import (
    DONE,
    Answer,
    Denial,
    Handler,
    Tl1Session,
    Wait,
)
from ringlight.testbed.emulation.optical.commands import Admin, Ticket
from ringlight.testbed.emulation.optical.session import ManagementProtocol, Switch

PAGE_ROWS = 64
_NOTICE = "NOTICE This is an emulated switch. No light is hurt."


@dataclass
class _Bulk:
    """The bulk command that came last, of ``count`` circuits; the device does the ``fine`` ones."""

    circuits: CalientCircuits
    ticket: Ticket
    count: int
    fine: list[CalientCircuit]
    on: bool

    def state(self) -> str:
        if not self.ticket.done:
            return "In progress"
        failed = self.count - len(self.circuits.done(self.ticket, self.fine, self.on))
        if not failed:
            return "Completed"
        return (
            f"{failed} of {self.count} connections failed"
            if failed < self.count
            else "Failed"
        )


class Bulks:
    """Last bulk command that a switch received."""

    last: _Bulk | None = None


class CalientTl1Session(Tl1Session):
    """One client's conversation."""

    prompt = b"\r\nagent> "
    page_rows = PAGE_ROWS

    def __init__(self, switch: Switch, offset_ns: int | None = None) -> None:
        super().__init__(switch, offset_ns)
        self._circuits = CalientCircuits.of(switch)
        self._bulks = switch.shared(Bulks)

    def commands(self) -> Mapping[str, Handler]:
        return {
            "ENT-CRS": self._enter,
            "ACT-CRS": self._activate,
            "CANC-CRS": self._cancel,
            "DLT-CRS": self._delete,
            "DLT-CRS-ALL": self._delete_all,
            "ENT-CRS-BULK": self._enter_bulk,
            "DLT-CRS-BULK": self._delete_bulk,
            "RTRV-SAVERECALL": self._bulk_status,
            "RTRV-CRS": self._list,
            "RTRV-PORT": self._ports,
            "RTRV-PORT-SUM": self._port_sums,
            "RTRV-NE": self._element,
            "RTRV-NETYPE": lambda *_: Answer(
                (f"Calient,S{self.device.size},OCS,{SOFTWARE}",)
            ),
        }

    def port_name(self, port: int) -> str:
        size = self.device.size
        name = self._circuits.name
        return f"{name(port)}-IN" if port <= size else f"{name(port - size)}-OUT"

    def greeting(self, user: str) -> Answer:
        return Answer((f"{user}:{user},2",), (_NOTICE,))

    # Circuits

    def _one(self, command: Command) -> CalientCircuit:
        """The circuit that a command is about, by its ports or by its identifier. Raises Denial."""
        words = [
            part.strip()
            for block in command.blocks
            for part in block.split(",")
            if part.strip()
        ]
        conns = [part for part in words if ">" in part or "-" in part]
        ends = [part.strip() for part in command.aid.split(",") if part.strip()]
        if len(ends) == 2:
            conns += [f"{ends[0]}{way}{ends[1]}" for way in ">-"]
        for circuit in self._circuits.find(conns):
            if circuit is not None and (len(ends) != 2 or self._joins(circuit, ends)):
                return circuit
        raise Denial("IIAC", INVALID)

    def _joins(self, circuit: CalientCircuit, ends: Sequence[str]) -> bool:
        """Return whether these are a circuit's ports."""
        ports = [self._number(end) for end in ends]
        mine = [circuit.source, circuit.destination]
        return ports == mine or (circuit.two_way and ports == mine[::-1])

    def _number(self, text: str) -> int:
        try:
            return self._circuits.number(text.strip())
        except CircuitError as error:
            raise Denial("IIAC", str(error)) from None

    def _enter(self, command: Command, now_ns: int) -> Answer:
        ends = command.aid.split(",")
        group, way, name = (
            *(command.blocks[-1] if command.blocks else "").split(","),
            "",
            "",
            "",
        )[:3]
        if len(ends) != 2:
            raise Denial("IIAC", INVALID)
        if way.strip().upper() not in ("1WAY", "2WAY"):
            raise Denial("IDNV", "1WAY or 2WAY is wanted")
        two_way = way.strip().upper() == "2WAY"
        source, destination = (self._number(end) for end in ends)
        circuit = self._circuits.new(
            source, destination, two_way, group.strip() or GROUP, name.strip()
        )
        if not self._circuits.provision([circuit])[0]:
            raise Denial("IIAC", INVALID)
        return DONE

    def _activate(self, command: Command, now_ns: int) -> Wait:
        circuit = self._one(command)
        if circuit.active or circuit.ticket is not None:
            raise Denial("SNVS", INVALID)
        return Wait(self._circuits.activate(now_ns, [circuit]), light=False)

    def _cancel(self, command: Command, now_ns: int) -> Wait:
        circuit = self._one(command)
        if not circuit.active or circuit.ticket is not None:
            raise Denial("SNVS", INVALID)
        return Wait(self._circuits.deactivate(now_ns, [circuit]), light=False)

    def _delete(self, command: Command, now_ns: int) -> Wait:
        circuit = self._one(command)
        if circuit.ticket is not None:
            raise Denial("SNVS", INVALID)
        return Wait(self._circuits.delete(now_ns, [circuit]), light=False)

    def _delete_all(self, command: Command, now_ns: int) -> Wait:
        idle = self._circuits.idle(self._circuits.all())
        return Wait(self._circuits.delete(now_ns, idle), light=False)

    # Many at once

    def _conns(self, command: Command) -> list[str]:
        conns = [part for part in command.aid.replace(" ", "").split("&") if part]
        if not conns:
            raise Denial("IIAC", INVALID)
        if self._bulks.last is not None and not self._bulks.last.ticket.done:
            raise Denial("SNVS", "a bulk command is in progress")
        return conns

    def _enter_bulk(self, command: Command, now_ns: int) -> Answer:
        conns = self._conns(command)
        circuits: list[CalientCircuit] = []
        for conn in conns:
            with suppress(CircuitError):
                circuits.append(self._circuits.new(*self._circuits.read(conn)))
        done = self._circuits.provision(circuits)
        made = [circuit for circuit, fine in zip(circuits, done, strict=True) if fine]
        return self._begin_bulk(
            self._circuits.make(now_ns, made), len(conns), made, on=True
        )

    def _delete_bulk(self, command: Command, now_ns: int) -> Answer:
        conns = self._conns(command)
        circuits = self._circuits.idle(self._circuits.find(conns))
        return self._begin_bulk(
            self._circuits.delete(now_ns, circuits), len(conns), circuits, on=False
        )

    def _begin_bulk(
        self, ticket: Ticket, count: int, fine: list[CalientCircuit], *, on: bool
    ) -> Answer:
        self._bulks.last = _Bulk(self._circuits, ticket, count, fine, on)
        return DONE

    def _bulk_status(self, command: Command, now_ns: int) -> Answer:
        bulk = self._bulks.last
        return Answer(() if bulk is None else (bulk.state(),))

    # Reading

    def _list(self, command: Command, now_ns: int) -> Answer:
        named = [
            part
            for block in command.blocks
            for part in block.split(",")
            if part.strip()
        ]
        if not command.aid.replace(",", "").strip() and all(
            part.strip().upper() == "ALL" for part in named
        ):
            circuits: Iterable[CalientCircuit] = self._circuits.all()
        else:
            circuits = [self._one(command)]
        return Answer(tuple(self._row(circuit, now_ns) for circuit in circuits))

    def _row(self, circuit: CalientCircuit, now_ns: int) -> str:
        state = self._circuits.condition(circuit, now_ns)
        return (
            f"{circuit.conn}:SRCPORT={self._circuits.name(circuit.source)},DSTPORT={self._circuits.name(circuit.destination)},"
            f"GRPNAME={circuit.group},CONNNAME={circuit.name or circuit.conn},"
            f"CONNTYPE={'2WAY' if circuit.two_way else '1WAY'},"
            f"AS={state.admin},OS={state.operation},OC={state.capability},PS=UPR,AL=CL"
        )

    def _asked(self, command: Command) -> Iterable[int]:
        if command.aid.strip() == "0":
            return range(1, self.device.size + 1)
        return [self._number(part) for part in command.aid.split("&")]

    def _ports(self, command: Command, now_ns: int) -> Answer:
        used = dict.fromkeys(range(1, 2 * self.device.size + 1), False)
        for circuit in self._circuits.all():
            for wire in circuit.wires(self.device.size):
                used[wire.ingress] = used[wire.egress] = True
        rows = []
        for port in self._asked(command):
            halves = (("IN", port), ("OUT", port + self.device.size))
            states = ",".join(
                self._port_state(side, half, used[half]) for side, half in halves
            )
            rows.append(f"{self._circuits.name(port)}:WX,NONE,NONE:{states}")
        return Answer(tuple(rows))

    def _port_state(self, side: str, port: int, used: bool) -> str:
        words = {
            Admin.ENABLED: ("IS", "IS", "OK") if used else ("OOS-NP", "OOS", "OK"),
            Admin.DISABLED: ("OOS-MA", "OOS", "OK"),
            Admin.FAILED: ("OOS-AU", "OOS", "FAIL"),
        }[self.device.admin(port)]
        return ",".join(
            f"{side}{key}={word}"
            for key, word in zip(("AS", "OS", "OC"), words, strict=True)
        ) + (f",{side}RS=NPR")

    def _port_sums(self, command: Command, now_ns: int) -> Answer:
        ends = self._circuits.by_port()
        return Answer(
            tuple(
                self._port_sum(port, ends.get(port, []), now_ns)
                for port in self._asked(command)
            )
        )

    def _port_sum(
        self, port: int, circuits: Sequence[CalientCircuit], now_ns: int
    ) -> str:
        label = (
            self.device.label(port).translate(str.maketrans(",=:", "   ", '"'))
            or "NONE"
        )
        powers = (
            self._circuits.power(half, now_ns)
            for half in (port, port + self.device.size)
        )
        conns = [
            (circuit.conn, "ACT" if circuit.active else "NONE") for circuit in circuits
        ] + 2 * [("NONE", "NONE")]
        fields = [
            f"CONNNAME{i}={conn},CONNSTATE{i}={state}"
            for i, (conn, state) in enumerate(conns[:2], 1)
        ]
        received, sent = powers
        return f"{self._circuits.name(port)}:ALIAS={label},INPWR={received},OUTPWR={sent},{','.join(fields)}"

    def _element(self, command: Command, now_ns: int) -> Answer:
        fields = f"SERIALNUMBER={self.switch.name},SWPACKAGE={SOFTWARE},STATUS=OK,CHASSISTYPE=S{self.device.size}"
        return Answer((f"{self.sid}:{fields},PLATFORM=VERSION2",))


PROTOCOL = ManagementProtocol(
    CalientTl1Session,
    3083,
    "telnet {host} {port}   then ACT-USER::{user}:1::{password}; and RTRV-CRS:::2::ALL;",
    CalientCircuits.of,
)
