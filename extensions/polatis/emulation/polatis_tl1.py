"""The TL1 dialect of Polatis 6000/7000 switches, from the device's side: TCP port 3082.

Verbs in any case; ``123`` is the client's ctag; a list is ``1&2&&5``; nothing means all ports:

    ACT-USER::user:123::password;   CANC-USER::user:123:;
    ENT-PATCH::1&2,17&18:123:;      refuses a busy port, all or nothing; an existing pair is left untouched
    DLT-PATCH::1&17:123:;           each cross-connect that one of these ports is in; ALL or nothing for every
                                    one
    RTRV-PATCH::1&4:123:;           "1,17" for each cross-connect that one of these ports is in
    OPR-PORT-SHUTTER::1:123:;       blocks ports;   RLS-PORT-SHUTTER::1:123:; opens them
    RTRV-PORT-SHUTTER::1&&32:123:;  "5:OPEN", "5:CLOSED"; a port that has failed is CLOSED too
    RTRV-PORT-POWER::1&&32:123:;    "5:-12.3" dBm, -60.0 is no light
    RTRV-PORT-PMON::1&&32:123:;     "5:1550.0,0.0,4"
    ED-PORT-LABEL::2:123:::LABEL=text;   RTRV-PORT-LABEL::2:123:; "2:text"   DLT-PORT-LABEL::2:123:;
    RTRV-EQPT::SYSTEM:123:::PARAMETER=SIZE;   "SYSTEM:SIZE=16x16"
    RTRV-EQPT::PMON:123:::PARAMETER=CONFIG;   "PMON:CONFIG=1&&32"
    ED-EQPT::BOOT:123:::MODE=DARK;      or RESTORE: what a start does;   RTRV-EQPT::BOOT:123:::PARAMETER=MODE;
    RTRV-NETYPE:::123:;   RTRV-INV::OCS:123:;   RTRV-HDR:::123:;
    ED-EQPT::TIMEOUT:123:::ADMIN=10;    minutes of silence after which this client is logged out, 0 for never
    OPR-ARC-EQPT::REPMGR:123::IND;  no reports to this client;   RLS-ARC-EQPT::REPMGR:123:; again

Not known of a real switch, so chosen here: codes and texts of denials, the form of reports and of the PMON
row of RTRV-EQPT, the unit of TIMEOUT, that DLT-PATCH of a port that is in none is done, that a busy port is
refused, and that ENT-PATCH is answered when the light is tuned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ringlight.extensions.tl1.tl1_grammar import Command, Tl1Error, parse_numbers
from ringlight.extensions.tl1.tl1_session import (
    DONE,
    Answer,
    Denial,
    Handler,
    Tl1Session,
    Wait,
    values,
)
from ringlight.testbed.emulation.optical.commands import (
    NS,
    Admin,
    Clear,
    Recovery,
    Rewire,
    SetAdmin,
    SetLabel,
    SetRecovery,
    Ticket,
    Wire,
)
from ringlight.testbed.emulation.optical.device import MAX_LABEL_BYTES
from ringlight.testbed.emulation.optical.monitors import power_dbm
from ringlight.testbed.emulation.optical.session import VERSION, ManagementProtocol

#: Longest silence that a client may set, minutes.
MAX_TIMEOUT_MIN = 100_000


class PolatisTl1Session(Tl1Session):
    """One client's conversation."""

    def commands(self) -> Mapping[str, Handler]:
        device = self.device
        shutter = {
            Admin.ENABLED: "OPEN",
            Admin.DISABLED: "CLOSED",
            Admin.FAILED: "CLOSED",
        }
        return {
            "ENT-PATCH": self._connect,
            "DLT-PATCH": self._disconnect,
            "RTRV-PATCH": self._patches,
            "OPR-PORT-SHUTTER": self._shutter(False),
            "RLS-PORT-SHUTTER": self._shutter(True),
            "RTRV-PORT-SHUTTER": self._of_each(
                lambda port, _: shutter[device.admin(port)]
            ),
            "RTRV-PORT-POWER": self._of_each(
                lambda port, now_ns: f"{power_dbm(device, port, now_ns):.1f}"
            ),
            "RTRV-PORT-PMON": self._of_each(lambda *_: "1550.0,0.0,4"),
            "RTRV-PORT-LABEL": self._of_each(
                lambda port, _: device.label(port).replace('"', "'")
            ),
            "ED-PORT-LABEL": lambda command, now_ns: self._label(
                command, now_ns, values(command).get("LABEL")
            ),
            "DLT-PORT-LABEL": lambda command, now_ns: self._label(command, now_ns, ""),
            "RTRV-EQPT": self._equipment,
            "ED-EQPT": self._edit_equipment,
            "RTRV-NETYPE": lambda *_: Answer(
                (f"Polatis,{self.switch.model},OCS,{VERSION}",)
            ),
            "RTRV-INV": lambda *_: Answer((f"OCS:SN={self.switch.name}",)),
            "RTRV-HDR": lambda *_: DONE,
            "OPR-ARC-EQPT": lambda command, _: self._hush(command, True),
            "RLS-ARC-EQPT": lambda command, _: self._hush(command, False),
        }

    def port_name(self, port: int) -> str:
        return str(port)

    def _ports(self, text: str) -> tuple[int, ...]:
        """The ports of a list; all of an empty one. Raises Denial."""
        try:
            ports = parse_numbers(text)
        except Tl1Error as error:
            raise Denial("IIAC", str(error)) from None
        for port in ports:
            self.device.admin(port)
        return ports or tuple(range(1, 2 * self.device.size + 1))

    def _connect(self, command: Command, now_ns: int) -> Wait:
        sides = command.aid.split(",")
        if len(sides) != 2 or not all(side.strip() for side in sides):
            raise Denial("IIAC", "two lists of ports are wanted: ingress,egress")
        ingress, egress = (self._ports(side) for side in sides)
        if len(ingress) != len(egress):
            raise Denial(
                "IIAC", f"{len(ingress)} ingress and {len(egress)} egress ports"
            )
        wires = tuple(
            Wire(into, out) for into, out in zip(ingress, egress, strict=True)
        )
        return Wait(self.device.submit(now_ns, Rewire(wires)))

    def _disconnect(self, command: Command, now_ns: int) -> Wait:
        if command.aid.strip().upper() in ("", "ALL"):
            return Wait(self.device.submit(now_ns, Rewire(only=True)))
        return Wait(self.device.submit(now_ns, Clear(self._ports(command.aid))))

    def _patches(self, command: Command, now_ns: int) -> Answer:
        ports = set(self._ports(command.aid))
        wires = self.device.cross_connects()
        return Answer(
            tuple(
                f"{w.ingress},{w.egress}"
                for w in wires
                if w.ingress in ports or w.egress in ports
            )
        )

    def _shutter(self, enabled: bool) -> Handler:
        def handle(command: Command, now_ns: int) -> Wait:
            return Wait(
                self.device.submit(now_ns, SetAdmin(self._ports(command.aid), enabled))
            )

        return handle

    def _of_each(self, tell: Callable[[int, int], str]) -> Handler:
        def handle(command: Command, now_ns: int) -> Answer:
            return Answer(
                tuple(
                    f"{port}:{tell(port, now_ns)}" for port in self._ports(command.aid)
                )
            )

        return handle

    def _label(self, command: Command, now_ns: int, label: str | None) -> Wait:
        if label is None or len(label.encode()) > MAX_LABEL_BYTES:
            raise Denial("IDNV", f"a label has at most {MAX_LABEL_BYTES} bytes")
        ticket = Ticket(done=True)
        for port in self._ports(command.aid):
            ticket = self.device.submit(now_ns, SetLabel(port, label))
        return Wait(ticket)

    def _equipment(self, command: Command, now_ns: int) -> Answer:
        size = self.device.size
        match command.aid.upper(), values(command).get("PARAMETER", "").upper():
            case "SYSTEM", "SIZE":
                return Answer((f"SYSTEM:SIZE={size}x{size}",))
            case "PMON", "CONFIG":
                return Answer((f"PMON:CONFIG=1&&{2 * size}",))
            case "BOOT", "MODE":
                dark = self.device.recovery is Recovery.REMOVE
                return Answer((f"BOOT:MODE={'DARK' if dark else 'RESTORE'}",))
        raise Denial("IIAC")

    def _edit_equipment(self, command: Command, now_ns: int) -> Answer | Wait:
        if command.aid.upper() == "BOOT":
            modes = {"DARK": Recovery.REMOVE, "RESTORE": Recovery.RESTORE}
            recovery = modes.get(values(command).get("MODE", "").upper())
            if recovery is None:
                raise Denial("IDNV")
            return Wait(self.device.submit(now_ns, SetRecovery(recovery)))
        minutes = values(command).get("ADMIN", "")
        if command.aid.upper() != "TIMEOUT":
            raise Denial("IIAC")
        if not minutes.isdigit() or int(minutes) > MAX_TIMEOUT_MIN:
            raise Denial("IDNV")
        self.idle_ns = int(minutes) * 60 * NS or None
        self.keeps_time = True
        return DONE

    def _hush(self, command: Command, silent: bool) -> Answer:
        if command.aid.upper() != "REPMGR":
            raise Denial("IIAC")
        self.silent = silent
        return DONE


PROTOCOL = ManagementProtocol(
    PolatisTl1Session,
    3082,
    "telnet {host} {port}   then ACT-USER::{user}:1::{password}; and RTRV-PATCH:::2:;",
)
