"""Calient S-series over REST: JSON over HTTP, base ``/rest``; the device's side is described in
`testbed/emulation/optical/calient_rest.py`.

The upper half turns values into JSON and JSON into values, without I/O. A cross-connect is a one-way
circuit from the IN half of a port to the OUT half of another; ports are numbered 1..N (ingress) and N+1..2N
(egress) in the order of the names that the switch gives them (``1.1.1``, ``1.1.2``, … or plain numbers).

Circuits are made and deleted in bulk, each with a status of its own: status 200 of the whole says nothing.
Conflicts are resolved here, delete before add, since the switch needs up to 500 ms where it is left to
resolve them, and 200 ms where it is not (S320 hardware guide, p. 44). They are made with ``nolight``, so
that fibres without light are connected too. Of a two-way circuit, which others may have made, both halves
are removed together or none. ``deleteall`` is never sent.

Basic authentication is sent once; from then on the session cookie, until the switch does not know it any
more.

Unverified, and so written to bear more than one form: which word a status of success is (only ``0`` is a
failure), where powers are numbers, text or pairs, the keys of ``info`` and ``node``, and the state words
while mirrors move (anything that is not in service is waited for). The interface shows neither disabled nor
failed ports, so this driver cannot tell or set them.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringlight.controller.optical import calient
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
)
from ringlight.controller.optical.credentials import Credentials, read_credentials
from ringlight.controller.optical.errors import Indeterminate, ProtocolError, Refused
from ringlight.controller.optical.http import HttpClient, Reply, http_client
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, PortState

LIST = "/rest/crossconnects/?id=list"
BULK_ADD = "/rest/crossconnects/?id=badd"
BULK_DELETE = "/rest/crossconnects/?id=bdel"
PORTS = "/rest/ports/?id=summary"
VERSION = "/rest/info/?id=softwareversion"
NODE = "/rest/node/?id=summary&detail=SYSCFG"

_CONN = re.compile(r"([\d.]+)([>-])([\d.]+)")

# JSON and values


@dataclass(frozen=True)
class Half:
    """One direction of a circuit: its IN and OUT port by name; powers (dBm), -inf no light, None not told."""

    source: str
    destination: str
    state: CrossConnectState
    received: float | None
    sent: float | None


@dataclass(frozen=True)
class Circuit:
    """``conn`` is its identifier; ``halves`` are one or, two-way, two."""

    conn: str
    halves: tuple[Half, ...]


def _rows(value: object, what: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ProtocolError(f"{what}: not a list of objects", repr(value)[:200])
    return value


def parse_ports(value: object) -> tuple[str, ...]:
    """The names of the ports of ``ports/?id=summary``, in order. Raises ProtocolError."""
    names = []
    for row in _rows(value, "ports"):
        name = str(row.get("port", ""))
        if not PORT_NAME.fullmatch(name):
            raise ProtocolError("ports: not a port's name", name)
        names.append(name)
    if len(set(names)) != len(names):
        raise ProtocolError("ports: a port is listed twice", str(names[:8]))
    return in_order(names)


def parse_power(value: object) -> float | None:
    """dBm of ``-1.7`` or ``"-1.70"``; -inf of ``NONE``, None where nothing is told. Raises ProtocolError."""
    if value is None or value == "":
        return None
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        raise ProtocolError("not an optical power", repr(value))
    try:
        return calient.parse_power(str(value))
    except ValueError:
        raise ProtocolError("not an optical power", repr(value)[:200]) from None


def parse_port_powers(value: object) -> dict[str, tuple[float | None, float | None]]:
    """What comes in and goes out, by port, of ``ports/?id=summary``; one number is what comes in."""
    found = {}
    for row in _rows(value, "ports"):
        told = row.get("power")
        pair = re.split(r"[,/]", told) if isinstance(told, str) else [told]
        if len(pair) > 2:
            raise ProtocolError("not an optical power", repr(told))
        powers = [parse_power(part.strip() if isinstance(part, str) else part) for part in pair]
        found[str(row.get("port", ""))] = powers[0], powers[1] if len(powers) == 2 else None
    return found


def _state(half: Mapping[str, Any]) -> CrossConnectState:
    words = [half.get(key) for key in ("as", "os", "oc")]
    if not all(isinstance(word, str) for word in words):
        raise ProtocolError("a circuit without states", repr(half)[:200])
    return circuit_state(*map(str, words))


def parse_circuits(value: object) -> tuple[Circuit, ...]:
    """The circuits of ``crossconnects/?id=list``. Raises ProtocolError."""
    found = []
    for row in _rows(value, "crossconnects"):
        first, second = row.get("half1"), row.get("half2")
        if not isinstance(first, dict) or not (second is None or second == "" or isinstance(second, dict)):
            raise ProtocolError("a circuit without halves", repr(row)[:200])
        conn = first.get("conn")
        match = _CONN.fullmatch(conn) if isinstance(conn, str) else None
        if match is None or not PORT_NAME.fullmatch(match[1]) or not PORT_NAME.fullmatch(match[3]):
            raise ProtocolError("not a circuit", repr(conn)[:200])
        ends = match[1], match[3]
        told = [(ends, first)]
        if (match[2] == "-" or row.get("dir") == "bi") and ends[0] != ends[1]:
            told.append((ends[::-1], second or first))
        halves = [
            Half(*way, _state(half), parse_power(half.get("inp")), parse_power(half.get("outp")))
            for way, half in told
        ]
        found.append(Circuit(match[0], tuple(halves)))
    return tuple(found)


def parse_statuses(value: object, count: int) -> tuple[str, ...]:
    """What a bulk request says of its ``count`` items: empty where it is done, else why not.

    Raises ProtocolError.
    """
    rows = _rows(value, "bulk request")
    if len(rows) != count:
        raise ProtocolError(f"{len(rows)} statuses for {count} circuits")
    found = []
    for row in rows:
        response = row.get("response")
        status = response.get("status") if isinstance(response, dict) else None
        if not isinstance(status, str | int) or isinstance(status, bool):
            raise ProtocolError("not a status", repr(row)[:200])
        others = [str(text) for key, text in response.items() if key != "status"] if response else []
        refused = str(status).strip() == "0"
        found.append((", ".join(others) or "status 0") if refused else "")
    return tuple(found)


def _told(value: object, *keys: str) -> str:
    """The first of these keys that an answer has, however it is spelt; empty if none."""
    rows = value if isinstance(value, list) else [value]
    for key in keys:
        for row in rows:
            if isinstance(row, dict):
                spelt = {str(name).lower().replace("-", "").replace("_", ""): name for name in row}
                if key in spelt and isinstance(row[spelt[key]], str | int | float):
                    return str(row[spelt[key]])
    return value if isinstance(value, str) and keys else ""


# The driver


class CalientRestDriver(OpticalSwitchDriver):
    """A switch of N ports, each with an IN and an OUT half."""

    def __init__(
        self,
        name: str,
        client: HttpClient,
        size: int,
        timing: Timing = Timing(),
        credentials: Credentials | None = None,
        group: str = GROUP,
    ) -> None:
        ingress, egress = dual_sided(size)
        capabilities = Capabilities(ingress, egress, MAX_BATCH, timing, power=ingress | egress)
        self._login: dict[str, str] = {}
        secrets = []
        if credentials is not None:
            token = base64.b64encode(f"{credentials.username}:{credentials.password}".encode()).decode()
            self._login = {"authorization": f"Basic {token}"}
            secrets = [credentials.password, token]
        super().__init__(name, capabilities, secrets)
        self.size = size
        self._client, self._group = client, group
        self._cookies: dict[str, str] = {}
        self._names: tuple[str, ...] = ()
        self._numbers: dict[str, int] = {}
        #: By cross-connect: the circuit that it belongs to, as read last.
        self._circuits: dict[CrossConnect, str] = {}

    def _open(self, deadline: Deadline) -> Identity:
        self._learn_ports(deadline)
        version = _told(self._ask(VERSION, deadline), "version", "softwareversion", "swpackage")
        node = self._ask(NODE, deadline)
        model = _told(node, "chassistype", "model", "type") or "S-series"
        return Identity("Calient", model, _told(node, "serialnumber", "serial"), version or "unknown")

    def _close(self) -> None:
        self._client.close()

    def _learn_ports(self, deadline: Deadline) -> None:
        names = parse_ports(self._ask(PORTS, deadline))
        if len(names) != self.size:
            raise ProtocolError(f"the switch has {len(names)} ports, the fabric says {self.size}")
        self._names = names
        self._numbers = {name: number for number, name in enumerate(names, start=1)}

    def _read(self, deadline: Deadline) -> Snapshot:
        if not self._names:
            self._learn_ports(deadline)
        states: dict[CrossConnect, CrossConnectState] = {}
        circuits = {}
        for circuit in parse_circuits(self._ask(LIST, deadline)):
            for half in circuit.halves:
                xc = self._cross_connect(half)
                if xc in states:
                    raise ProtocolError(f"{xc} is listed twice", circuit.conn)
                states[xc] = half.state
                circuits[xc] = circuit.conn
        self._circuits = circuits
        ports = dict.fromkeys(range(1, 2 * self.size + 1), PortStatus(PortState.BLOCKED))
        for xc, state in states.items():
            if state in PORT_STATES:
                ports[xc.ingress] = ports[xc.egress] = PortStatus(PORT_STATES[state])
        return Snapshot(self.name, states, ports)

    def _cross_connect(self, half: Half) -> CrossConnect:
        try:
            return CrossConnect(self._numbers[half.source], self.size + self._numbers[half.destination])
        except KeyError as error:
            raise ProtocolError(f"a circuit of port {error.args[0]}, which is not among the ports") from None

    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        asked = set(batch)
        conns = list(dict.fromkeys(self._circuits.get(xc, "") for xc in batch))
        for xc, conn in self._circuits.items():
            if conn in conns and xc not in asked:
                raise Refused(f"{conn} is a two-way circuit; it can only be removed together with {xc}")
        if "" in conns:
            raise Refused("a circuit to be removed is not in the switch")
        self._bulk(BULK_DELETE, [{"conn": conn} for conn in conns], deadline)

    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        items = []
        for xc in batch:
            into, out = self._names[xc.ingress - 1], self._names[xc.egress - self.size - 1]
            conn = f"{into}>{out}"
            item = {"in": into, "out": out, "group": self._group, "conn": conn, "dir": "uni", "nolight": True}
            items.append(item)
        self._bulk(BULK_ADD, items, deadline)

    def _bulk(self, target: str, items: Sequence[Mapping[str, Any]], deadline: Deadline) -> None:
        reply = self._tell(target, json.dumps(items).encode(), deadline)
        try:
            statuses = parse_statuses(reply.json(), len(items))
        except ProtocolError as error:
            raise Indeterminate(f"{target}: {error}") from error
        refused = [(item["conn"], why) for item, why in zip(items, statuses, strict=True) if why]
        if refused:
            conn, why = refused[0]
            more = f" (and {len(refused) - 1} more of {len(items)})" if len(refused) > 1 else ""
            raise Refused(f"{conn}: {why}{more}")

    def _power(self, ports: Sequence[int], deadline: Deadline) -> Mapping[int, float | None]:
        powers = parse_port_powers(self._ask(PORTS, deadline))
        told: dict[int, float | None] = {}
        for name, (received, sent) in powers.items():
            if name in self._numbers:
                told[self._numbers[name]] = received
                told[self._numbers[name] + self.size] = sent
        # The list of circuits has both powers whatever the summary means by its one.
        for circuit in parse_circuits(self._ask(LIST, deadline)):
            told |= self._half_powers(circuit)
        return {port: None if told.get(port) == -math.inf else told.get(port) for port in ports}

    def _half_powers(self, circuit: Circuit) -> dict[int, float | None]:
        powers: dict[int, float | None] = {}
        for half in circuit.halves:
            xc = self._cross_connect(half)
            powers |= {xc.ingress: half.received, xc.egress: half.sent}
        return {port: power for port, power in powers.items() if power is not None}

    def _alarms(self, snapshot: Snapshot, deadline: Deadline) -> Iterable[Alarm]:
        powers: dict[int, float | None] = {}
        for circuit in parse_circuits(self._ask(LIST, deadline)):
            powers |= self._half_powers(circuit)
        return los_alarms(snapshot, powers)

    # Requests

    def _headers(self) -> dict[str, str]:
        """The cookies of this session, or who we are."""
        found = {"accept": "application/json"}
        if self._cookies:
            return found | {"cookie": "; ".join(f"{name}={value}" for name, value in self._cookies.items())}
        return found | self._login

    def _ask(self, target: str, deadline: Deadline) -> Any:
        reply = self._client.read(target, self._headers(), deadline)
        if self._forgot(reply):
            reply = self._client.read(target, self._headers(), deadline)
        self._keep_cookies(reply)
        reply.check_read(target)
        return reply.json()

    def _tell(self, target: str, body: bytes, deadline: Deadline) -> Reply:
        kind = {"content-type": "application/json"}
        reply = self._client.write("POST", target, self._headers() | kind, body, deadline)
        if self._forgot(reply):
            # It was not let in, so nothing was done.
            reply = self._client.write("POST", target, self._headers() | kind, body, deadline)
        self._keep_cookies(reply)
        reply.check_write(target)
        return reply

    def _forgot(self, reply: Reply) -> bool:
        """Whether the switch no longer knows our session; the next request logs in again."""
        if reply.status != 401 or not self._cookies:
            return False
        self._cookies = {}
        return True

    def _keep_cookies(self, reply: Reply) -> None:
        if reply.status == 401:
            return
        for name, value in reply.headers:
            if name == "set-cookie":
                key, _, rest = value.partition("=")
                self._cookies[key.strip()] = rest.partition(";")[0].strip()


def from_inventory(
    name: str, entry: Mapping[str, Any], size: int, openflow: object = None
) -> CalientRestDriver:
    """Make one from ``{"address": "host:port", "username": …, "password_env": …, "tls": …, "profile": {…}}``.

    ``group``: what circuits are filed under, ``SYSTEM`` if it is not said.
    """
    group = entry.get("group", GROUP)
    if not isinstance(group, str) or not group:
        raise ValueError(f"optical switch {name}: group: {group!r} is not a name")
    timing = Timing.from_profile(entry.get("profile", {}))
    credentials = read_credentials(name, entry)
    return CalientRestDriver(name, http_client(name, entry), size, timing, credentials, group)
