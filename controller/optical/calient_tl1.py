"""Calient S-series (S160, S320) over TL1, TCP port 3083; the device's side is described in
`testbed/emulation/optical/calient_tl1.py`.

A cross-connect is a one-way circuit from the IN half of a port to the OUT half of another; ports are
numbered 1..N (ingress) and N+1..2N (egress) in the order of the names that the switch gives them (``1.1.1``,
``1.1.2``, … or plain numbers). A circuit is made in two phases, reserved by ``ENT-CRS`` and given light by
``ACT-CRS``; if the second is denied, the first is undone. It ends in two phases too, ``CANC-CRS`` and
``DLT-CRS``. More than one at a time go by ``ENT-CRS-BULK`` and ``DLT-CRS-BULK``, whose end is asked for with
``RTRV-SAVERECALL``. A circuit that is reserved and has no light is reported INVALID and made anew where it
is wanted. Of a two-way circuit, which others may have made, both directions are removed together or none.
``DLT-CRS-ALL`` is never sent.

Conflicts are resolved here, delete before add, since the switch needs up to 500 ms where it is left to
resolve them, and 200 ms where it is not (S320 hardware guide, p. 44).

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

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ringlight.controller.optical.address import read_address
from ringlight.controller.optical.base import (
    Alarm,
    Capabilities,
    Deadline,
    Identity,
    OpticalSwitchDriver,
    PortStatus,
    Snapshot,
    Timing,
    dual_sided,
    los_alarms,
)
from ringlight.controller.optical.calient import (
    GROUP,
    MAX_BATCH,
    PORT_NAME,
    PORT_STATES,
    circuit_state,
    in_order,
    parse_power,
)
from ringlight.controller.optical.credentials import Credentials, read_credentials
from ringlight.controller.optical.errors import Indeterminate, OpticalError, ProtocolError, Refused
from ringlight.controller.optical.tl1 import Command, Tl1Error, parse_values, quoted
from ringlight.controller.optical.tl1_client import Denied, Tl1Client
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, PortState

#: Circuits per write that are not made in bulk, each with two commands.
MAX_SINGLES = 32
#: Least and most time between two questions after the end of a bulk command, seconds.
POLL_S, POLL_MOST_S = 0.002, 0.25

#: Rows whose meaning is remembered: from one reading to the next, most are the same.
MAX_KNOWN_ROWS = 4096

# Rows


@dataclass(frozen=True)
class Circuit:
    """``conn`` is its identifier, ``name`` what it is called, in ``group``."""

    conn: str
    source: str
    destination: str
    two_way: bool
    group: str
    name: str
    state: CrossConnectState

    def halves(self) -> list[tuple[str, str]]:
        """IN and OUT port of each direction."""
        there = (self.source, self.destination)
        return [there, there[::-1]] if self.two_way and self.source != self.destination else [there]


def _values(row: str) -> tuple[str, dict[str, str]]:
    """What a row is about, and its ``NAME=value``. Raises ProtocolError."""
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
    """A row of RTRV-CRS. Raises ProtocolError."""
    conn, values = _values(row)
    source, destination = (_port(_value(values, key, row), row) for key in ("SRCPORT", "DSTPORT"))
    way = _value(values, "CONNTYPE", row).upper()
    if way not in ("1WAY", "2WAY"):
        raise ProtocolError("neither 1WAY nor 2WAY", row)
    state = circuit_state(*[_value(values, key, row) for key in ("AS", "OS", "OC")])
    group, name = values.get("GRPNAME", ""), values.get("CONNNAME", conn)
    return Circuit(conn, source, destination, way == "2WAY", group, name, state)


@lru_cache(MAX_KNOWN_ROWS)
def parse_port(row: str) -> tuple[str, PortStatus, PortStatus]:
    """Name of a port, and how its IN and its OUT half are, of a row of RTRV-PORT. Raises ProtocolError."""
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
    """Name of a port, what comes in at it and what goes out (dBm), of a row of RTRV-PORT-SUM."""
    name, values = _values(row)
    received, sent = (parse_power(_value(values, key, row)) for key in ("INPWR", "OUTPWR"))
    return _port(name, row), received, sent


def bulk_outcome(rows: Iterable[str]) -> str | None:
    """What RTRV-SAVERECALL says: empty for done, None for not yet, else what went wrong. Raises
    ProtocolError."""
    told = " ".join(rows)
    words = told.lower()
    if "progress" in words:
        return None
    if "fail" in words:
        return told.strip()
    if "completed" in words:
        return ""
    raise ProtocolError("not the outcome of a bulk command", told)


# The driver


class CalientTl1Driver(OpticalSwitchDriver):
    """A switch of N ports, each with an IN and an OUT half."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        size: int,
        timing: Timing = Timing(),
        credentials: Credentials | None = None,
        group: str = GROUP,
        bulk: bool = True,
    ) -> None:
        ingress, egress = dual_sided(size)
        most = MAX_BATCH if bulk else MAX_SINGLES
        capabilities = Capabilities(ingress, egress, most, timing, power=ingress | egress)
        super().__init__(name, capabilities, secrets=[credentials.password] if credentials else [])
        self.size = size
        self._group, self._bulk = group, bulk
        self._client = Tl1Client(name, host, port, credentials, self.redact)
        #: Names of the ports, in order, and their numbers.
        self._names: tuple[str, ...] = ()
        self._numbers: dict[str, int] = {}
        #: By cross-connect: the circuit that it belongs to, as read last.
        self._circuits: dict[CrossConnect, Circuit] = {}

    def _open(self, deadline: Deadline) -> Identity:
        (element,) = self._client.ask([Command("RTRV-NE")], deadline, 1)
        if not element:
            raise ProtocolError("the switch does not say what it is")
        _, values = _values(element[0])
        self._read(deadline)
        told = (values.get(key, "") for key in ("CHASSISTYPE", "SERIALNUMBER", "SWPACKAGE"))
        model, serial, version = told
        return Identity("Calient", model or "S-series", serial, version or "unknown")

    def _close(self) -> None:
        self._client.close()

    def _read(self, deadline: Deadline) -> Snapshot:
        listed, told = self._client.ask(
            [Command("RTRV-CRS", blocks=("", "ALL")), Command("RTRV-PORT", "0")], deadline, self.size
        )
        ports = self._know_ports(told)
        states: dict[CrossConnect, CrossConnectState] = {}
        circuits: dict[CrossConnect, Circuit] = {}
        for row in listed:
            circuit = parse_circuit(row)
            for source, destination in circuit.halves():
                xc = self._cross_connect(source, destination)
                if xc in states:
                    raise ProtocolError(f"{xc} is listed twice", row)
                states[xc], circuits[xc] = circuit.state, circuit
        self._circuits = circuits
        for xc, state in states.items():
            for port in (xc.ingress, xc.egress):
                usable = ports[port].state is not PortState.FAILED and ports[port].enabled
                if usable and state in PORT_STATES:
                    ports[port] = PortStatus(PORT_STATES[state])
        return Snapshot(self.name, states, ports)

    def _know_ports(self, rows: Sequence[str]) -> dict[int, PortStatus]:
        """State of each port by number, from the rows of RTRV-PORT."""
        halves = {name: (into, out) for name, into, out in map(parse_port, rows)}
        if len(halves) != len(rows):
            raise ProtocolError("a port is listed twice")
        if len(halves) != self.size:
            raise ProtocolError(f"the switch has {len(halves)} ports, the fabric says {self.size}")
        self._names = in_order(halves)
        self._numbers = {name: number for number, name in enumerate(self._names, start=1)}
        ports = {self._numbers[name]: into for name, (into, _) in halves.items()}
        return ports | {self.size + self._numbers[name]: out for name, (_, out) in halves.items()}

    def _cross_connect(self, source: str, destination: str) -> CrossConnect:
        try:
            return CrossConnect(self._numbers[source], self.size + self._numbers[destination])
        except KeyError as error:
            raise ProtocolError(f"a circuit of port {error.args[0]}, which is not among the ports") from None

    # Writing

    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        asked = set(batch)
        circuits = [self._circuits[xc] for xc in batch if xc in self._circuits]
        if len(circuits) != len(batch):
            raise Refused("a circuit to be removed is not in the switch")
        circuits = list({circuit.conn: circuit for circuit in circuits}.values())
        conns = {circuit.conn for circuit in circuits}
        for xc, circuit in self._circuits.items():
            if circuit.conn in conns and xc not in asked:
                raise Refused(
                    f"{circuit.conn} is a two-way circuit; it can only be removed together with {xc}"
                )
        if self._bulk and len(circuits) > 1:
            self._in_bulk("DLT-CRS-BULK", [circuit.conn for circuit in circuits], deadline)
            return
        for done, circuit in enumerate(circuits):
            ends = f"{circuit.source},{circuit.destination}"
            try:
                what = ("", f",{quoted(circuit.group)},{quoted(circuit.name)}")
            except Tl1Error:
                raise Refused(f"{circuit.conn}: group or name cannot be said in TL1") from None
            if circuit.state is not CrossConnectState.INVALID:
                self._tell(Command("CANC-CRS", ends, what), deadline, done > 0)
                self._tell(Command("DLT-CRS", ends, what), deadline, True)
            else:
                self._tell(Command("DLT-CRS", ends, what), deadline, done > 0)

    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        ends = [(self._names[xc.ingress - 1], self._names[xc.egress - self.size - 1]) for xc in batch]
        if self._bulk and len(batch) > 1:
            self._in_bulk("ENT-CRS-BULK", [f"{into}>{out}" for into, out in ends], deadline)
            return
        group = quoted(self._group)
        for done, (into, out) in enumerate(ends):
            pair, conn = f"{into},{out}", f"{into}>{out}"
            self._tell(Command("ENT-CRS", pair, ("", f"{group},1WAY")), deadline, done > 0)
            try:
                self._tell(Command("ACT-CRS", pair, ("", f"{conn},{group}")), deadline, True)
            except Denied:
                # What was reserved and cannot have light is given back; the read-back tells if not.
                with suppress(Denied):
                    self._tell(Command("DLT-CRS", pair, ("", f",{group},{conn}")), deadline, True)
                raise

    def _tell(self, command: Command, deadline: Deadline, begun: bool) -> None:
        """One command of a write; ``begun``: others of it have been carried out."""
        try:
            self._client.tell(command, deadline)
        except (Refused, Indeterminate):
            raise
        except OpticalError as error:
            if begun:
                raise Indeterminate(f"{command.verb} after others: {error}") from error
            raise

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

    # Light

    def _powers(self, deadline: Deadline) -> dict[int, float]:
        (rows,) = self._client.ask([Command("RTRV-PORT-SUM", "0")], deadline, self.size)
        found = {}
        for name, received, sent in map(parse_powers, rows):
            if name not in self._numbers:
                raise ProtocolError(f"the power of port {name}, which is not among the ports")
            found[self._numbers[name]], found[self._numbers[name] + self.size] = received, sent
        return found

    def _power(self, ports: Sequence[int], deadline: Deadline) -> Mapping[int, float | None]:
        powers = self._powers(deadline)
        return {port: None if powers.get(port) == -math.inf else powers.get(port) for port in ports}

    def _alarms(self, snapshot: Snapshot, deadline: Deadline) -> Iterable[Alarm]:
        return los_alarms(snapshot, self._powers(deadline)) if snapshot.cross_connects else ()


def from_inventory(
    name: str, entry: Mapping[str, Any], size: int, openflow: object = None
) -> CalientTl1Driver:
    """Make one from ``{"address": "host:port", "username": …, "password_env": …, "profile": {…}}``.

    ``group``: what circuits are filed under, ``SYSTEM`` if it is not said; ``bulk``: false for none of the
    bulk commands.
    """
    host, port = read_address(name, entry)
    group, bulk = entry.get("group", GROUP), entry.get("bulk", True)
    if not isinstance(group, str) or not re.fullmatch(r"[A-Za-z0-9_.]{1,40}", group):
        raise ValueError(f"optical switch {name}: group: {group!r} is not a group's name")
    if not isinstance(bulk, bool):
        raise ValueError(f"optical switch {name}: bulk: {bulk!r} is neither true nor false")
    timing = Timing.from_profile(entry.get("profile", {}))
    credentials = read_credentials(name, entry)
    return CalientTl1Driver(name, host, port, size, timing, credentials, group, bulk)
