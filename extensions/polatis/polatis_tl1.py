"""Polatis (HUBER+SUHNER) series 6000/7000 over TL1, TCP port 3082.

The commands and replies are those of public client code, among it the vendor's test suite; nothing here has
met a real switch. What is not known, and what is done about it:

- The codes of denials: the text is passed on, and only GR-831's own codes are told apart.
- Whether a port has failed: a shutter is ``OPEN`` or ``CLOSED``. Any other word makes the port's state
  unknown.
- Which cross-connect ``DLT-PATCH`` finds: it names an ingress alone, so it removes whatever stands there.
  The base class reads before and after. A list is never sent empty, which would mean all; nor is ``ALL``.
- How long a list may be: at most `MAX_BATCH` pairs are sent in a command.
- Whether ``ENT-PATCH`` takes a busy port: it is never asked to, removals come first.

Cross-connects and shutters are two questions, and between them another client may change something; a write
by another shows in the next reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ringlight.controller.optical import readings
from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import ProtocolError
from ringlight.controller.optical.inventory import Entry, secrets_of
from ringlight.controller.optical.model import Capabilities, Identity, Snapshot
from ringlight.extensions.tl1.tl1_client import Tl1Client
from ringlight.extensions.tl1.tl1_grammar import Command, format_numbers
from ringlight.fabric.crossconnect import CrossConnect

#: Cross-connects per command; 128 pairs are a line of about 1 kB.
MAX_BATCH = 128

_PATCH = re.compile(r"(\d{1,6}),(\d{1,6})")
_PORT = re.compile(r"(\d{1,6}):\s*(\S.*)")
_SIZE = re.compile(r"SYSTEM:SIZE=(\d{1,5})x(\d{1,5})", re.IGNORECASE)
_SERIAL = re.compile(r"SN=([^,\"]*)", re.IGNORECASE)


def parse_patches(rows: Iterable[str]) -> tuple[CrossConnect, ...]:
    """Return the cross-connects of rows such as ``1,17``. Raises ProtocolError."""
    patches = []
    for row in rows:
        match = _PATCH.fullmatch(row.replace(" ", ""))
        if match is None:
            raise ProtocolError("not a cross-connect", row)
        patches.append(CrossConnect(int(match[1]), int(match[2])))
    return readings.checked_pairs(patches)


def parse_ports(rows: Iterable[str]) -> dict[int, str]:
    """Return each port's text in rows such as ``5:OPEN`` and ``5:-12.3``. Raises ProtocolError."""
    texts: dict[int, str] = {}
    for row in rows:
        match = _PORT.fullmatch(row.strip())
        if match is None or int(match[1]) in texts:
            raise ProtocolError("not what one port says", row)
        texts[int(match[1])] = match[2].strip()
    return texts


def parse_power(text: str) -> float | None:
    """Return the dBm of ``-12.3``; None for a word, by which the switch reports that nothing is measured.

    Raises ProtocolError.
    """
    try:
        return float(text)
    except ValueError:
        if re.fullmatch(r"[A-Za-z/-]+", text):
            return None
        raise ProtocolError("not an optical power", text) from None


class PolatisTl1Driver(OpticalSwitchDriver):
    """A dual-sided N x N switch: ingress 1..N, egress N+1..2N, from the inventory entry ``{"address":
    "host:port", "username": …, "password_env": …, "profile": {…}}``."""

    def __init__(
        self, name: str, keys: Mapping[str, Any], size: int, openflow: object = None
    ) -> None:
        entry = Entry(name, keys)
        host, port = entry.address()
        credentials = entry.credentials()
        capabilities = Capabilities.dual_sided(
            size, MAX_BATCH, entry.profile, port_admin=True
        )
        super().__init__(name, capabilities, secrets_of(credentials))
        self._client = Tl1Client(name, host, port, credentials, self.redact)

    def _open(self, deadline: Deadline) -> Identity:
        size_rows, kind, inventory = self._client.ask(
            [
                Command("RTRV-EQPT", "SYSTEM", ("", "", "PARAMETER=SIZE")),
                Command("RTRV-NETYPE"),
                Command("RTRV-INV", "OCS"),
            ],
            deadline,
            rows_of_last=1,
        )
        match = _SIZE.search(" ".join(size_rows))
        if match is None:
            raise ProtocolError("not the switch's size", str(size_rows))
        readings.check_size((int(match[1]), int(match[2])), self.size)
        parts = [part.strip() for part in ",".join(kind).split(",")]
        if len(parts) != 4:
            raise ProtocolError("not vendor, model, type and version", str(kind))
        serial = _SERIAL.search(" ".join(inventory))
        return Identity(
            parts[0], parts[1], serial[1].strip() if serial else "", parts[3]
        )

    def _close(self) -> None:
        self._client.close()

    def _read(self, deadline: Deadline) -> Snapshot:
        every = f"1&&{2 * self.size}"
        patches, shutters = self._client.ask(
            [Command("RTRV-PATCH"), Command("RTRV-PORT-SHUTTER", every)],
            deadline,
            2 * self.size,
        )
        words = {port: word.upper() for port, word in parse_ports(shutters).items()}
        return readings.snapshot(self.name, parse_patches(patches), words)

    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        assert batch, "an empty list would mean all"
        self._client.tell(
            Command("DLT-PATCH", format_numbers([xc.ingress for xc in batch])), deadline
        )

    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        # Both lists in the same form, a number each: how a range is paired with a list is not known.
        ingress = "&".join(str(xc.ingress) for xc in batch)
        egress = "&".join(str(xc.egress) for xc in batch)
        self._client.tell(Command("ENT-PATCH", f"{ingress},{egress}"), deadline)

    def _set_port_enabled(self, port: int, enabled: bool, deadline: Deadline) -> None:
        verb = "RLS-PORT-SHUTTER" if enabled else "OPR-PORT-SHUTTER"
        self._client.tell(Command(verb, str(port)), deadline)

    def _power(
        self, ports: Sequence[int], deadline: Deadline
    ) -> Mapping[int, float | None]:
        question = Command("RTRV-PORT-POWER", format_numbers(sorted(ports)))
        (rows,) = self._client.ask([question], deadline, len(ports))
        powers = {port: parse_power(text) for port, text in parse_ports(rows).items()}
        if powers.keys() != set(ports):
            raise ProtocolError(f"{len(powers)} powers for {len(ports)} ports")
        return powers
