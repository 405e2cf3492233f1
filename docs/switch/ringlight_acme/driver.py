"""The driver of Acme's switches. :mod:`.emulated` has the commands of their protocol, which has no login.

Requests and replies are lines. An error ends the connection, lest replies be confused. No write is sent twice.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ringlight.controller.optical import errors
from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.connection import Connection, ask_again
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.inventory import Entry
from ringlight.controller.optical.model import Capabilities, Identity, PortStatus, Snapshot
from ringlight.controller.optical.readings import check_size, checked_pairs
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, PortState

MAX_BATCH = 64  # cross-connects of one write
REPLY_S = 5.0  # longest wait for a reply, seconds
NO_LIGHT_DBM = -60.0

_STATES = {"": CrossConnectState.CONNECTED, "*": CrossConnectState.PENDING_CONNECTION}
_PORTS = {
    "T": PortStatus(PortState.TUNED),
    "M": PortStatus(PortState.TUNING),
    "B": PortStatus(PortState.BLOCKED),
    "D": PortStatus(PortState.BLOCKED, enabled=False),
    "F": PortStatus(PortState.FAILED),
}


def parse_identity(text: str) -> tuple[Identity, int]:
    """Return identity and size in ``Acme P8 A0001 1.0 8``. Raises ProtocolError."""
    match = re.fullmatch(r"(\S+) (\S+) (\S+) (\S+) (\d{1,5})", text)
    if match is None:
        raise errors.ProtocolError("not an identity", text)
    return Identity(*match.groups()[:4]), int(match[5])


def parse_reading(name: str, size: int, text: str) -> Snapshot:
    """Return the reading in ``2 1-9 2-10* TMBB…``, with a letter for every port. Raises ProtocolError."""
    match = re.fullmatch(r"(\d+)((?: \d{1,5}-\d{1,5}\*?)*) ([TMBDF]+)", text)
    found = re.findall(r"(\d+)-(\d+)(\*?)", match[2]) if match else []
    if match is None or len(found) != int(match[1]) or len(match[3]) != 2 * size:
        raise errors.ProtocolError("not a reading", text)
    standing = {CrossConnect(int(a), int(b)): _STATES[moving] for a, b, moving in found}
    checked_pairs(standing)
    return Snapshot(name, standing, {port: _PORTS[letter] for port, letter in enumerate(match[3], 1)})


def parse_powers(ports: Sequence[int], text: str) -> dict[int, float | None]:
    """Return the dBm of ports in ``-1.2 -60.0``, -inf for no light. Raises ProtocolError."""
    if not re.fullmatch(r"-?\d+\.\d+( -?\d+\.\d+)*", text) or text.count(" ") != len(ports) - 1:
        raise errors.ProtocolError(f"not {len(ports)} powers", text)
    powers = [float(word) for word in text.split()]
    return {p: dbm if dbm > NO_LIGHT_DBM else -float("inf") for p, dbm in zip(ports, powers, strict=True)}


class AcmeDriver(OpticalSwitchDriver):
    """A dual-sided switch, from the inventory entry ``{"address": "host:port", "profile": {…}}``."""

    def __init__(self, name: str, keys: Mapping[str, Any], size: int, openflow: object = None) -> None:
        entry = Entry(name, keys)
        super().__init__(name, Capabilities.dual_sided(size, MAX_BATCH, entry.profile, port_admin=True))
        self._connection = Connection(*entry.address())

    def _open(self, deadline: Deadline) -> Identity:
        identity, size = parse_identity(self._ask("ID", deadline))
        check_size((size, size), self.size)
        return identity

    def _close(self) -> None:
        self._connection.close()

    def _read(self, deadline: Deadline) -> Snapshot:
        return parse_reading(self.name, self.size, self._ask("SHOW", deadline))

    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._write(f"CLEAR {_pairs(batch)}", deadline)

    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._write(f"CONNECT {_pairs(batch)}", deadline)

    def _set_port_enabled(self, port: int, enabled: bool, deadline: Deadline) -> None:
        self._write(f"{'ENABLE' if enabled else 'DISABLE'} {port}", deadline)

    def _power(self, ports: Sequence[int], deadline: Deadline) -> Mapping[int, float | None]:
        return parse_powers(ports, self._ask(f"POWER {' '.join(map(str, ports))}", deadline))

    def _ask(self, question: str, deadline: Deadline) -> str:
        """Return the answer to a question. Raises Unreachable, DeadlineExceeded, ProtocolError."""
        reply = ask_again(self._is_usable(), lambda: self._exchange(question, deadline))
        if not reply.startswith("OK "):
            raise errors.ProtocolError(f"no answer to {question.split()[0]}", reply)
        return reply.removeprefix("OK ")

    def _write(self, command: str, deadline: Deadline) -> None:
        """Have the switch change. Raises as `_remove`."""
        self._is_usable()
        self._connection.open(deadline)
        deadline.check()
        # From here on the switch may have done it, whatever becomes of the reply.
        try:
            reply = self._exchange(command, deadline)
        except errors.OpticalError as error:
            raise errors.Indeterminate(f"{command}: {error}") from None
        if reply.startswith("ERR "):
            raise errors.Refused(reply.removeprefix("ERR "))
        if reply != "OK":
            raise errors.Indeterminate(f"{command}: unexpected reply")

    def _is_usable(self) -> bool:
        """Return whether the connection is open, after closing one on which anything unexpected came."""
        if not (usable := self._connection.is_quiet()):
            self._connection.close()
        return usable

    def _exchange(self, line: str, deadline: Deadline) -> str:
        """Return the line that answers a line. Raises Unreachable, DeadlineExceeded."""
        limit, what = deadline.within(REPLY_S), line.split()[0]
        try:
            self._connection.open(limit)
            self._connection.send(f"{line}\n".encode(), limit, what)
            reply = b""
            while not reply.endswith(b"\n"):
                data = self._connection.receive(limit, what)
                if not data:
                    raise errors.Unreachable(f"{what}: the switch has ended the connection")
                reply += data
        except errors.OpticalError:
            self._connection.close()
            raise
        return reply.decode("ascii", "replace").rstrip("\n")


def _pairs(batch: Sequence[CrossConnect]) -> str:
    return " ".join(f"{xc.ingress} {xc.egress}" for xc in batch)
