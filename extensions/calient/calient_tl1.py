"""Calient S-series (S160, S320) over TL1, TCP port 3083; the device's side is described in
`extensions/calient/emulation/calient_tl1.py`.

A circuit is made in two phases, reserved by ``ENT-CRS`` and given light by
``ACT-CRS``; if the second is denied, the first is undone. It ends in two phases too, ``CANC-CRS`` and
``DLT-CRS``. More than one at a time go by ``ENT-CRS-BULK`` and ``DLT-CRS-BULK``, whose end is asked for with
``RTRV-SAVERECALL``. A circuit that is reserved and has no light is reported INVALID and made anew where it
is wanted. ``DLT-CRS-ALL`` is never sent.

The commands and replies are those of public client code and of replies recorded there; nothing here has met
a real switch. What is not known, and what is done about it:

- How the circuits of a bulk command are told apart: ``&`` as in all TL1. ``bulk: false`` in the inventory
  entry does without them.
- The words of RTRV-SAVERECALL beyond *progress*, *Completed*, *Failed* and *connections failed*: an outcome
  in any other is unknown.
- Why a circuit is denied: ``Invalid Connection`` is all that is known to be said.
- The states of a port: one is taken for disabled when its AS is ``OOS-MA``, for broken when it is out of
  service and its OC is ``FAIL``. Ports cannot be disabled by what is known of the dialect.
- The state words while mirrors move: what is neither in service nor failed is waited for.
- Whether an empty switch answers RTRV-CRS with COMPLD: a denial is never taken for emptiness.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import (
    Indeterminate,
    OpticalError,
    ProtocolError,
    Refused,
    after_others,
)
from ringlight.controller.optical.inventory import Entry, secrets_of
from ringlight.controller.optical.model import (
    Capabilities,
    Identity,
    PortStatus,
    Snapshot,
)
from ringlight.extensions.calient.calient_circuits import (
    GROUP,
    MAX_BATCH,
    PORT_NAME,
    CalientDriver,
    Circuit,
    Half,
    circuit_state,
    parse_power,
)
from ringlight.extensions.tl1.tl1_client import Denied, Tl1Client
from ringlight.extensions.tl1.tl1_grammar import Command, Tl1Error, parse_values, quoted
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, PortState

#: Circuits per write that are not made in bulk, each with two commands.
MAX_SINGLES = 32
#: Least and most time between two questions after the end of a bulk command, seconds.
POLL_S, POLL_MOST_S = 0.002, 0.25

#: Rows whose meaning is remembered: from one reading to the next, most are the same.
MAX_KNOWN_ROWS = 4096

# Rows


def _values(row: str) -> tuple[str, dict[str, str]]:
    """Return a row's subject and its ``NAME=value`` pairs. Raises ProtocolError."""
    about, _, rest = row.partition(":")
    try:
        return about.strip(), parse_values(rest.rpartition(":")[2])
    except Tl1Error as error:
        raise ProtocolError(str(error), row) from None


def _value(values: Mapping[str, str], key: str, row: str) -> str:
    if key not in values:
        raise ProtocolError(f"a row without {key}", row)
    return values[key]


def _port(name: str, row: str) -> str:
    if not PORT_NAME.fullmatch(name):
        raise ProtocolError("not a port", row)
    return name


@lru_cache(MAX_KNOWN_ROWS)
def parse_circuit(row: str) -> Circuit:
    """Return the circuit in a row of RTRV-CRS. Raises ProtocolError."""
    conn, values = _values(row)
    source, destination = (
        _port(_value(values, key, row), row) for key in ("SRCPORT", "DSTPORT")
    )
    way = _value(values, "CONNTYPE", row).upper()
    if way not in ("1WAY", "2WAY"):
        raise ProtocolError("neither 1WAY nor 2WAY", row)
    state = circuit_state(*[_value(values, key, row) for key in ("AS", "OS", "OC")])
    halves = [Half(source, destination, state)]
    if way == "2WAY" and source != destination:
        halves.append(Half(destination, source, state))
    return Circuit(
        conn, tuple(halves), values.get("GRPNAME", ""), values.get("CONNNAME", conn)
    )


@lru_cache(MAX_KNOWN_ROWS)
def parse_port(row: str) -> tuple[str, PortStatus, PortStatus]:
    """Return a port's name and the states of its IN and OUT halves, from a row of RTRV-PORT.

    Raises ProtocolError.
    """
    name, values = _values(row)
    halves = []
    for side in ("IN", "OUT"):
        admin, operation, capability = (
            _value(values, f"{side}{key}", row).upper() for key in ("AS", "OS", "OC")
        )
        broken = capability.startswith("FAIL") and operation.startswith("OOS")
        state = PortState.FAILED if broken else PortState.BLOCKED
        halves.append(PortStatus(state, enabled=not admin.startswith("OOS-MA")))
    return _port(name, row), halves[0], halves[1]


def parse_powers(row: str) -> tuple[str, float, float]:
    """Return a port's name, and its received and sent power (dBm), from a row of RTRV-PORT-SUM.

    Raises ProtocolError.
    """
    name, values = _values(row)
    received, sent = (
        parse_power(_value(values, key, row)) for key in ("INPWR", "OUTPWR")
    )
    return _port(name, row), received, sent


def bulk_outcome(rows: Iterable[str]) -> str | None:
    """Return the outcome in RTRV-SAVERECALL: empty for success, None while in progress, else the error.

    Raises ProtocolError.
    """
    outcome = " ".join(rows)
    words = outcome.lower()
    if "progress" in words:
        return None
    if "fail" in words:
        return outcome.strip()
    if "completed" in words:
        return ""
    raise ProtocolError("not the outcome of a bulk command", outcome)


# The driver


class CalientTl1Driver(CalientDriver):
    """Driver for Calient switches over TL1.

    Built from an inventory entry ``{"address": "host:port", "username": …, "password_env": …, "profile":
    {…}}``. ``group``: group of the driver's circuits, default ``SYSTEM``. ``bulk``: false to use none of the
    bulk commands.
    """

    def __init__(
        self, name: str, keys: Mapping[str, Any], size: int, openflow: object = None
    ) -> None:
        entry = Entry(name, keys)
        host, port = entry.address()
        credentials = entry.credentials()
        self._group, self._bulk = keys.get("group", GROUP), entry.flag("bulk", True)
        if not isinstance(self._group, str) or not re.fullmatch(
            r"[A-Za-z0-9_.]{1,40}", self._group
        ):
            raise entry.wrong("group", f"{self._group!r} is not a group's name")
        capabilities = Capabilities.dual_sided(
            size, MAX_BATCH if self._bulk else MAX_SINGLES, entry.profile
        )
        super().__init__(name, capabilities, secrets_of(credentials))
        self._client = Tl1Client(name, host, port, credentials, self.redact)

    def _open(self, deadline: Deadline) -> Identity:
        (element,) = self._client.ask([Command("RTRV-NE")], deadline, 1)
        if not element:
            raise ProtocolError("the switch does not say what it is")
        _, values = _values(element[0])
        self._read(deadline)
        details = (
            values.get(key, "") for key in ("CHASSISTYPE", "SERIALNUMBER", "SWPACKAGE")
        )
        model, serial, version = details
        return Identity("Calient", model or "S-series", serial, version or "unknown")

    def _close(self) -> None:
        self._client.close()

    def _read(self, deadline: Deadline) -> Snapshot:
        listed, port_rows = self._client.ask(
            [Command("RTRV-CRS", blocks=("", "ALL")), Command("RTRV-PORT", "0")],
            deadline,
            self.size,
        )
        rows = [parse_port(row) for row in port_rows]
        self._learn(name for name, _, _ in rows)
        ports = {self._numbers[name]: into for name, into, _ in rows}
        ports |= {self.size + self._numbers[name]: out for name, _, out in rows}
        return self._snapshot(map(parse_circuit, listed), ports)

    # Writing

    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        circuits = self._whole_circuits(batch)
        if self._bulk and len(circuits) > 1:
            self._in_bulk(
                "DLT-CRS-BULK", [circuit.conn for circuit in circuits], deadline
            )
            return
        for done, circuit in enumerate(circuits):
            half = circuit.halves[0]
            ends = f"{half.source},{half.destination}"
            try:
                what = ("", f",{quoted(circuit.group)},{quoted(circuit.name)}")
            except Tl1Error:
                raise Refused(
                    f"{circuit.conn}: group or name cannot be said in TL1"
                ) from None
            is_lit = half.state is not CrossConnectState.INVALID
            if is_lit:
                self._tell(Command("CANC-CRS", ends, what), deadline, done > 0)
            self._tell(Command("DLT-CRS", ends, what), deadline, is_lit or done > 0)

    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        ends = [self._ends(xc) for xc in batch]
        if self._bulk and len(batch) > 1:
            self._in_bulk(
                "ENT-CRS-BULK", [f"{into}>{out}" for into, out in ends], deadline
            )
            return
        group = quoted(self._group)
        for done, (into, out) in enumerate(ends):
            pair, conn = f"{into},{out}", f"{into}>{out}"
            self._tell(
                Command("ENT-CRS", pair, ("", f"{group},1WAY")), deadline, done > 0
            )
            try:
                self._tell(
                    Command("ACT-CRS", pair, ("", f"{conn},{group}")), deadline, True
                )
            except Denied:
                # Reserved ports that cannot have light are released; the read-back shows it if they are not.
                with suppress(Denied):
                    self._tell(
                        Command("DLT-CRS", pair, ("", f",{group},{conn}")),
                        deadline,
                        True,
                    )
                raise

    def _tell(self, command: Command, deadline: Deadline, begun: bool) -> None:
        """Send a command of a write. ``begun``: earlier commands of the write have been carried out."""
        with after_others(begun):
            self._client.tell(command, deadline)

    def _in_bulk(self, verb: str, conns: Sequence[str], deadline: Deadline) -> None:
        self._client.tell(Command(verb, "&".join(conns)), deadline)
        pause = POLL_S
        while True:
            try:
                (rows,) = self._client.ask([Command("RTRV-SAVERECALL")], deadline, 1)
                outcome = bulk_outcome(rows)
                if outcome is None:
                    deadline.sleep_until(time.monotonic() + pause)
                    pause = min(1.5 * pause, POLL_MOST_S)
            except OpticalError as error:
                raise Indeterminate(f"no end of {verb} seen: {error}") from error
            if outcome:
                raise Refused(f"{verb} of {len(conns)}: {outcome}")
            if outcome is not None:
                return

    def _power(
        self, ports: Sequence[int], deadline: Deadline
    ) -> Mapping[int, float | None]:
        (rows,) = self._client.ask([Command("RTRV-PORT-SUM", "0")], deadline, self.size)
        return self._numbered(
            {name: (received, sent) for name, received, sent in map(parse_powers, rows)}
        )
