"""Calient S-series over REST: JSON over HTTP, base ``/rest``; the device's side is described in
`extensions/calient/emulation/calient_rest.py`.

The upper half turns values into JSON and JSON into values, without I/O.

Circuits are made and deleted in bulk, each with a status of its own: status 200 of the whole says nothing.
They are made with ``nolight``, so that fibres without light are connected too. ``deleteall`` is never sent.

Basic authentication is sent once; from then on the session cookie, until the switch does not know it any
more.

Unverified, and so written to bear more than one form: which word a status of success is (only ``0`` is a
failure), where powers are numbers, text or pairs, the keys of ``info`` and ``node``, and the state words
while mirrors move (anything that is not in service is waited for). The interface shows neither disabled nor
failed ports, so this driver cannot tell or set them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import Indeterminate, ProtocolError, Refused
from ringlight.controller.optical.inventory import Entry, secrets_of
from ringlight.controller.optical.model import (
    Capabilities,
    Identity,
    PortStatus,
    Snapshot,
)
from ringlight.extensions.calient import calient_circuits as calient
from ringlight.extensions.calient.calient_circuits import (
    GROUP,
    MAX_BATCH,
    PORT_NAME,
    CalientDriver,
    Circuit,
    Half,
    circuit_state,
    in_order,
)
from ringlight.extensions.http.http_client import Reply, http_client
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, PortState

LIST = "/rest/crossconnects/?id=list"
BULK_ADD = "/rest/crossconnects/?id=badd"
BULK_DELETE = "/rest/crossconnects/?id=bdel"
PORTS = "/rest/ports/?id=summary"
VERSION = "/rest/info/?id=softwareversion"
NODE = "/rest/node/?id=summary&detail=SYSCFG"

_CONN = re.compile(r"([\d.]+)([>-])([\d.]+)")

# JSON and values


def _rows(value: object, what: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ProtocolError(f"{what}: not a list of objects", repr(value)[:200])
    return value


def parse_ports(value: object) -> tuple[str, ...]:
    """Return the names of the ports in ``ports/?id=summary``, in order. Raises ProtocolError."""
    names = []
    for row in _rows(value, "ports"):
        name = str(row.get("port", ""))
        if not PORT_NAME.fullmatch(name):
            raise ProtocolError("ports: not a port's name", name)
        names.append(name)
    return in_order(names)


def parse_power(value: object) -> float | None:
    """Return the dBm of ``-1.7`` or ``"-1.70"``; -inf for ``NONE``, None for an empty value.

    Raises ProtocolError.
    """
    if value is None or value == "":
        return None
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        raise ProtocolError("not an optical power", repr(value))
    return calient.parse_power(str(value))


def parse_port_powers(value: object) -> dict[str, tuple[float | None, float | None]]:
    """Return received and sent powers (dBm) in ``ports/?id=summary``, by port name; None if not reported.

    A single number is the received power. Raises ProtocolError.
    """
    by_port = {}
    for row in _rows(value, "ports"):
        reported = row.get("power")
        pair = re.split(r"[,/]", reported) if isinstance(reported, str) else [reported]
        if len(pair) > 2:
            raise ProtocolError("not an optical power", repr(reported))
        powers = [
            parse_power(part.strip() if isinstance(part, str) else part)
            for part in pair
        ]
        by_port[str(row.get("port", ""))] = (
            powers[0],
            powers[1] if len(powers) == 2 else None,
        )
    return by_port


def _state(half: Mapping[str, Any]) -> CrossConnectState:
    words = [half.get(key) for key in ("as", "os", "oc")]
    if not all(isinstance(word, str) for word in words):
        raise ProtocolError("a circuit without states", repr(half)[:200])
    return circuit_state(*map(str, words))


def parse_circuits(value: object) -> tuple[Circuit, ...]:
    """Return the circuits of ``crossconnects/?id=list``. Raises ProtocolError."""
    circuits = []
    for row in _rows(value, "crossconnects"):
        first, second = row.get("half1"), row.get("half2")
        if not isinstance(first, dict) or not (
            second is None or second == "" or isinstance(second, dict)
        ):
            raise ProtocolError("a circuit without halves", repr(row)[:200])
        conn = first.get("conn")
        match = _CONN.fullmatch(conn) if isinstance(conn, str) else None
        if (
            match is None
            or not PORT_NAME.fullmatch(match[1])
            or not PORT_NAME.fullmatch(match[3])
        ):
            raise ProtocolError("not a circuit", repr(conn)[:200])
        ends = match[1], match[3]
        directions = [(ends, first)]
        if (match[2] == "-" or row.get("dir") == "bi") and ends[0] != ends[1]:
            directions.append((ends[::-1], second or first))
        halves = [
            Half(
                *way,
                _state(half),
                parse_power(half.get("inp")),
                parse_power(half.get("outp")),
            )
            for way, half in directions
        ]
        circuits.append(Circuit(match[0], tuple(halves)))
    return tuple(circuits)


def parse_statuses(value: object, count: int) -> tuple[str, ...]:
    """Return the status of each of a bulk request's ``count`` items: empty for success, else the reason.

    Raises ProtocolError.
    """
    rows = _rows(value, "bulk request")
    if len(rows) != count:
        raise ProtocolError(f"{len(rows)} statuses for {count} circuits")
    statuses = []
    for row in rows:
        response = row.get("response")
        status = response.get("status") if isinstance(response, dict) else None
        if not isinstance(status, str | int) or isinstance(status, bool):
            raise ProtocolError("not a status", repr(row)[:200])
        reasons = (
            [str(text) for key, text in response.items() if key != "status"]
            if response
            else []
        )
        refused = str(status).strip() == "0"
        statuses.append((", ".join(reasons) or "status 0") if refused else "")
    return tuple(statuses)


def _told(value: object, *keys: str) -> str:
    """Return the value of the first of these keys that an answer has, in any spelling; empty if none."""
    rows = value if isinstance(value, list) else [value]
    for key in keys:
        for row in rows:
            if isinstance(row, dict):
                spelt = {
                    str(name).lower().replace("-", "").replace("_", ""): name
                    for name in row
                }
                if key in spelt and isinstance(row[spelt[key]], str | int | float):
                    return str(row[spelt[key]])
    return value if isinstance(value, str) and keys else ""


# The driver


class CalientRestDriver(CalientDriver):
    """Driver, from an inventory entry ``{"address": …, "username": …, "password_env": …, "tls": …, "profile":
    {…}}``.

    ``group``: group of the driver's circuits, default ``SYSTEM``.
    """

    def __init__(
        self, name: str, keys: Mapping[str, Any], size: int, openflow: object = None
    ) -> None:
        entry = Entry(name, keys)
        self._group = keys.get("group", GROUP)
        if not isinstance(self._group, str) or not self._group:
            raise entry.wrong("group", f"{self._group!r} is not a name")
        credentials = entry.credentials()
        self._login = (
            {"authorization": f"Basic {credentials.basic}"} if credentials else {}
        )
        super().__init__(
            name,
            Capabilities.dual_sided(size, MAX_BATCH, entry.profile),
            secrets_of(credentials),
        )
        self._client = http_client(entry)
        self._cookies: dict[str, str] = {}

    def _open(self, deadline: Deadline) -> Identity:
        self._learn(parse_ports(self._ask(PORTS, deadline)))
        version = _told(
            self._ask(VERSION, deadline), "version", "softwareversion", "swpackage"
        )
        node = self._ask(NODE, deadline)
        model = _told(node, "chassistype", "model", "type") or "S-series"
        return Identity(
            "Calient",
            model,
            _told(node, "serialnumber", "serial"),
            version or "unknown",
        )

    def _close(self) -> None:
        self._client.close()

    def _read(self, deadline: Deadline) -> Snapshot:
        if not self._names:
            self._learn(parse_ports(self._ask(PORTS, deadline)))
        circuits = parse_circuits(self._ask(LIST, deadline))
        return self._snapshot(
            circuits,
            dict.fromkeys(self._capabilities.ports, PortStatus(PortState.BLOCKED)),
        )

    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        conns = [circuit.conn for circuit in self._whole_circuits(batch)]
        self._bulk(BULK_DELETE, [{"conn": conn} for conn in conns], deadline)

    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        items = []
        for xc in batch:
            into, out = self._ends(xc)
            conn = f"{into}>{out}"
            item = {
                "in": into,
                "out": out,
                "group": self._group,
                "conn": conn,
                "dir": "uni",
                "nolight": True,
            }
            items.append(item)
        self._bulk(BULK_ADD, items, deadline)

    def _bulk(
        self, target: str, items: Sequence[Mapping[str, Any]], deadline: Deadline
    ) -> None:
        reply = self._tell(target, json.dumps(items).encode(), deadline)
        try:
            statuses = parse_statuses(reply.json(), len(items))
        except ProtocolError as error:
            raise Indeterminate(f"{target}: {error}") from error
        refused = [
            (item["conn"], why)
            for item, why in zip(items, statuses, strict=True)
            if why
        ]
        if refused:
            conn, why = refused[0]
            more = (
                f" (and {len(refused) - 1} more of {len(items)})"
                if len(refused) > 1
                else ""
            )
            raise Refused(f"{conn}: {why}{more}")

    def _power(
        self, ports: Sequence[int], deadline: Deadline
    ) -> Mapping[int, float | None]:
        powers = self._numbered(parse_port_powers(self._ask(PORTS, deadline)))
        # The list of circuits has both powers whatever the summary means by its one.
        for circuit in parse_circuits(self._ask(LIST, deadline)):
            for half in circuit.halves:
                xc = self._cross_connect(half)
                both = {xc.ingress: half.received, xc.egress: half.sent}
                powers |= {
                    port: power for port, power in both.items() if power is not None
                }
        return powers

    # Requests

    def _headers(self) -> dict[str, str]:
        """Return the headers with the cookies of this session or, without a session, the credentials."""
        headers = {"accept": "application/json"}
        if self._cookies:
            return headers | {
                "cookie": "; ".join(
                    f"{name}={value}" for name, value in self._cookies.items()
                )
            }
        return headers | self._login

    def _ask(self, target: str, deadline: Deadline) -> Any:
        reply = self._client.read(target, self._headers(), deadline)
        if self._forgot(reply):
            reply = self._client.read(target, self._headers(), deadline)
        self._keep_cookies(reply)
        reply.check_read(target)
        return reply.json()

    def _tell(self, target: str, body: bytes, deadline: Deadline) -> Reply:
        kind = {"content-type": "application/json"}
        reply = self._client.write(
            "POST", target, self._headers() | kind, body, deadline
        )
        if self._forgot(reply):
            # It was not let in, so nothing was done.
            reply = self._client.write(
                "POST", target, self._headers() | kind, body, deadline
            )
        self._keep_cookies(reply)
        reply.check_write(target)
        return reply

    def _forgot(self, reply: Reply) -> bool:
        """Return whether the switch has dropped this session. The next request then logs in again."""
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
