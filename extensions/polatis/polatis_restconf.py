"""Polatis series 6000/7000 over RESTCONF (RFC 8040): JSON over HTTP, usually TCP port 8008.

The root is ``/api/data``, remote procedures are under ``/api/operations``; the model is the vendor's
``optical-switch``: ``cross-connects/pair[ingress]{egress}``, ``port-config/port[port-id]{status}``,
``opm-power/port{power}``, ``product-information``, and the procedure ``port-set-state``. The upper half
turns values into JSON and JSON into values, without I/O.

Writes, and why these:

- Pairs are added with one PATCH of the collection. It merges, so it would silently move a circuit that
  someone else has made meanwhile: it carries ``If-Match`` with the entity tag of the reading that showed
  the ports free (where the switch gives tags), and the switch refuses it if anything changed since.
- Pairs are removed one by one, ``DELETE …/pair=N``. A circuit that someone else has moved in the time
  between the reading and this is hit.
- Where everything else is to go anyway (REPLACE mode), the collection is PUT, with ``If-Match`` too.
- Nothing is ever POSTed: one user of a real switch saw pairs that were POSTed vanish after about 5 s, while
  those of a PUT stayed. What a PATCH does there is not known. So everything is read back a second time
  ``settle_s`` after the last write (`SETTLE_S` if the inventory entry does not say; 0 for a switch known to
  keep its word).

The vendor's model does not forbid two pairs with one egress, so the plan and the reading are checked for it
here.

Unverified: whether a switch without circuits answers a GET with an empty container or with 404 (404 is an
error here, never an empty switch), entity tags of a real switch. Before revision 2017-08-04 of the model the
list's name is ``pairs``; it is used from when a reading shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringlight.controller.optical import readings
from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import ProtocolError, StaleRevision
from ringlight.controller.optical.inventory import Entry, secrets_of
from ringlight.controller.optical.model import Capabilities, Identity, Snapshot
from ringlight.extensions.http.http_client import http_client
from ringlight.extensions.http.restconf import MEDIA_TYPE, check_write, headers_of
from ringlight.fabric.crossconnect import CrossConnect

#: Pairs per write; a line of about 30 bytes each.
MAX_BATCH = 1024
#: Longer than pairs were seen to stand that vanished then, seconds.
SETTLE_S = 6.0
MODULE = "optical-switch"
PAIRS = f"/api/data/{MODULE}:cross-connects"
PORTS = f"/api/data/{MODULE}:port-config"
POWER = f"/api/data/{MODULE}:opm-power"
PRODUCT = f"/api/data/{MODULE}:product-information"
SET_STATE = f"/api/operations/{MODULE}:port-set-state"

_STATUS = ("ENABLED", "DISABLED", "FAILED", "UNSUPPORTED")

# JSON and values


def _member(value: object, name: str) -> object:
    """Return a top-level node, named with or without its module's prefix. Raises ProtocolError."""
    if isinstance(value, dict):
        for key in (f"{MODULE}:{name}", name):
            if key in value:
                return value[key]
    raise ProtocolError(f"an answer without {name}", repr(value)[:200])


def _entries(container: object, *names: str) -> tuple[str, list[Mapping[str, Any]]]:
    """Return name and entries of a container's list under one of these names; the first name, empty, if there
    is none.

    Raises ProtocolError.
    """
    if not isinstance(container, dict):
        raise ProtocolError(f"not a container of {names[0]}", repr(container)[:200])
    for name in names:
        rows = container.get(name, container.get(f"{MODULE}:{name}"))
        if rows is not None:
            if not isinstance(rows, list) or not all(
                isinstance(row, dict) for row in rows
            ):
                raise ProtocolError(f"{name}: not a list of objects", repr(rows)[:200])
            return name, rows
    return names[0], []


def _port(entry: Mapping[str, Any], key: str) -> int:
    port = entry.get(key)
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 1 << 16:
        raise ProtocolError(f"{key}: not a port", repr(entry)[:200])
    return port


def parse_pairs(value: object) -> tuple[str, tuple[CrossConnect, ...]]:
    """Return the list's name (``pair``, ``pairs``) and its cross-connects. Raises ProtocolError."""
    name, entries = _entries(_member(value, "cross-connects"), "pair", "pairs")
    pairs = tuple(
        CrossConnect(_port(entry, "ingress"), _port(entry, "egress"))
        for entry in entries
    )
    return name, readings.checked_pairs(pairs)


def format_pairs(name: str, cross_connects: Iterable[CrossConnect]) -> bytes:
    """Return the body of a write of these cross-connects."""
    pairs = [{"ingress": xc.ingress, "egress": xc.egress} for xc in cross_connects]
    return json.dumps(
        {f"{MODULE}:cross-connects": {name: pairs}}, separators=(",", ":")
    ).encode()


def parse_port_states(value: object) -> dict[int, str]:
    """Return the status by port: ENABLED, DISABLED, FAILED or UNSUPPORTED. Raises ProtocolError."""
    _, entries = _entries(_member(value, "port-config"), "port")
    statuses = {}
    for entry in entries:
        status = entry.get("status")
        if status not in _STATUS:
            raise ProtocolError("not a port's status", repr(entry)[:200])
        statuses[_port(entry, "port-id")] = status
    if len(statuses) != len(entries):
        raise ProtocolError("a port is listed twice", str(entries[:4]))
    return statuses


def parse_powers(value: object) -> dict[int, float]:
    """Return the dBm by port; YANG's JSON gives a decimal as text. Raises ProtocolError."""
    _, entries = _entries(_member(value, "opm-power"), "port")
    powers = {}
    for entry in entries:
        reading = entry.get("power")
        try:
            if not isinstance(reading, str | int | float) or isinstance(reading, bool):
                raise ValueError
            power = float(reading)
        except (ValueError, OverflowError):
            raise ProtocolError("not an optical power", repr(entry)[:200]) from None
        if not -200.0 < power < 100.0:
            raise ProtocolError("not an optical power", repr(entry)[:200])
        powers[_port(entry, "port-id")] = power
    return powers


def parse_identity(value: object) -> Identity:
    """Return manufacturer, model, serial number and software version. Raises ProtocolError."""
    product = _member(value, "product-information")
    if not isinstance(product, dict):
        raise ProtocolError("not a product's description", repr(product)[:200])
    keys = ("manufacturer", "model-name", "serial-number", "software-version")
    return Identity(*(str(product.get(key, "")) for key in keys))


# The driver


class PolatisRestconfDriver(OpticalSwitchDriver):
    """A dual-sided N x N switch: ingress 1..N, egress N+1..2N, from the inventory entry ``{"address":
    "host:8008", "username": …, "password_env": …, "tls": …, "profile": {…}}``.

    ``settle_s``: seconds after the last write at which it is read back for the second time.
    """

    def __init__(
        self, name: str, keys: Mapping[str, Any], size: int, openflow: object = None
    ) -> None:
        entry = Entry(name, keys)
        try:
            settle_s = float(keys.get("settle_s", SETTLE_S))
            if not 0.0 <= settle_s <= 60.0:
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise entry.wrong(
                "settle_s", f"{keys['settle_s']!r} is not 0 to 60 seconds"
            ) from None
        can = Capabilities.dual_sided(
            size,
            MAX_BATCH,
            entry.profile,
            max_remove=1,
            max_replace=MAX_BATCH,
            port_admin=True,
        )
        credentials = entry.credentials()
        super().__init__(
            name,
            replace(can, timing=replace(can.timing, settle_s=settle_s)),
            secrets_of(credentials),
        )
        self._headers = headers_of(credentials)
        self._client = http_client(entry)
        #: Name of the list of pairs.
        self._list = "pair"
        #: Entity tag of the pairs as read last; empty once we have written, or where the switch gives none.
        self._tag = ""
        self._pairs: tuple[CrossConnect, ...] | None = None
        self._port_tag = ""
        self._port_states: dict[int, str] = {}

    def _open(self, deadline: Deadline) -> Identity:
        self._port_tag = ""
        identity = parse_identity(
            self._client.ask(PRODUCT, self._headers, deadline).json()
        )
        readings.check_model(identity.model, self.size)
        self._read_ports(deadline)
        return identity

    def _close(self) -> None:
        self._client.close()

    def _read(self, deadline: Deadline) -> Snapshot:
        pairs = self._read_pairs(deadline)
        return readings.snapshot(self.name, pairs, self._read_ports(deadline))

    def _read_pairs(self, deadline: Deadline) -> tuple[CrossConnect, ...]:
        self._pairs = None
        reply = self._client.ask(PAIRS, self._headers, deadline)
        name, pairs = parse_pairs(reply.json())
        if pairs:
            self._list = name
        self._tag, self._pairs = reply.header("etag"), pairs
        return pairs

    def _read_ports(self, deadline: Deadline) -> dict[int, str]:
        """Return the statuses by port.

        The statuses are transferred only if the switch reports that they have changed. Raises ProtocolError.
        """
        condition = {"if-none-match": self._port_tag} if self._port_tag else {}
        reply = self._client.read(PORTS, self._headers | condition, deadline)
        if reply.status == 304 and self._port_tag:
            return self._port_states
        self._port_tag = ""
        reply.check_read(PORTS)
        states = parse_port_states(reply.json())
        if states.keys() != self._capabilities.ports:
            odd = sorted(states.keys() ^ self._capabilities.ports)
            raise ProtocolError(
                f"the switch lists other ports than the fabric says: {odd[:8]}"
            )
        self._port_tag, self._port_states = reply.header("etag"), states
        return states

    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        for xc in batch:
            self._tell("DELETE", f"{PAIRS}/{self._list}={xc.ingress}", b"", deadline)

    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._merge("PATCH", batch, batch, deadline)

    def _replace(self, whole: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._merge("PUT", whole, (), deadline)

    def _merge(
        self,
        method: str,
        pairs: Sequence[CrossConnect],
        free: Sequence[CrossConnect],
        deadline: Deadline,
    ) -> None:
        """Write the collection, if it has not changed since it was read.

        ``free``: cross-connects whose ports must be free. Raises StaleRevision if one is not.
        """
        if self._pairs is None:
            self._read_pairs(deadline)
        used = {port for xc in self._pairs or () for port in (xc.ingress, xc.egress)}
        for xc in free:
            if {xc.ingress, xc.egress} & used:
                raise StaleRevision(
                    f"a port of {xc} was taken by someone else meanwhile"
                )
        condition = {"if-match": self._tag} if self._tag else {}
        self._tell(method, PAIRS, format_pairs(self._list, pairs), deadline, condition)

    def _set_port_enabled(self, port: int, enabled: bool, deadline: Deadline) -> None:
        self._port_tag = ""
        body = {f"{MODULE}:input": {"port-enab" if enabled else "port-disab": [port]}}
        self._tell("POST", SET_STATE, json.dumps(body).encode(), deadline)

    def _power(
        self, ports: Sequence[int], deadline: Deadline
    ) -> Mapping[int, float | None]:
        reply = self._client.read(POWER, self._headers, deadline)
        if reply.status == 404:
            # Some models have no power monitor.
            return {}
        reply.check_read(POWER)
        return parse_powers(reply.json())

    # Requests

    def _tell(
        self,
        method: str,
        target: str,
        body: bytes,
        deadline: Deadline,
        condition: Mapping[str, str] | None = None,
    ) -> None:
        headers = self._headers | dict(condition or {})
        if body:
            headers["content-type"] = MEDIA_TYPE
        # The last reading is outdated.
        self._tag, self._pairs = "", None
        reply = self._client.write(method, target, headers, body, deadline)
        check_write(reply, f"{method} {target}")
