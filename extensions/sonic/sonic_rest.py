"""A SONiC optical circuit switch over REST: RESTCONF of SONiC's management framework, usually TCP port 443.

The models and their sources: `sonic`. What is asked: ``OCS_PORT`` and ``OCS_CROSS_CONNECT`` of
``/restconf/data/sonic-ocs:sonic-ocs`` and the ports of STATE_DB, from wherever a revision of the models has
them. Targets, bodies and statuses are those of the README of the platform ocs-molex; the design document has
no examples of REST.

Writes, and why these:

- Cross-connects are added with one PATCH of their container, which merges.
- They are removed with one POST of ``bulk-update``, which no revision but that of Molex' branch has; from a
  switch that says it has none they are removed one by one, ``DELETE …/OCS_CROSS_CONNECT_LIST=1A-2B``.
- In REPLACE mode the container is PUT.
- What STATE_DB shows and CONFIG_DB does not have cannot be deleted: it is added, then deleted. That is what
  Microsoft's testbed does (sonic-net/sonic-mgmt pull request 25425).

SONiC's REST gives no entity tags that we know of, so a write cannot say on which reading it is based: if
another client takes a port between our last reading and a PATCH, the switch decides. SAI wants a port's old
cross-connect removed before the new one; Molex' branch marks one of the two ``invalid``, and the reading
afterwards shows that.

No switch was at hand; this was tested against the emulated switch and against answers made of the sources.
Unverified: whether PUT of a container is taken (no example has one), whether an empty table is ``{}`` or 404
with the error ``invalid-value``, by which RFC 8040 says that there is no such instance (both are read as
empty, once the table of ports has been read; any other 404 is an error).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import ProtocolError, Refused, after_others
from ringlight.controller.optical.inventory import Entry, secrets_of
from ringlight.controller.optical.model import Capabilities, Identity, Snapshot
from ringlight.extensions.http.http_client import Reply, http_client
from ringlight.extensions.http.restconf import (
    MEDIA_TYPE,
    check_write,
    headers_of,
    parse_error,
)
from ringlight.extensions.sonic import databases as sonic
from ringlight.fabric.crossconnect import CrossConnect

DATA = "/restconf/data"
CONFIG = f"{DATA}/{sonic.CONFIG}:{sonic.CONFIG}"
WIRES, PORTS = f"{CONFIG}/{sonic.WIRES}", f"{CONFIG}/{sonic.PORTS}"
BULK = f"/restconf/operations/{sonic.BULK}"
#: A switch says with one of these that it does not have an operation.
_NO_SUCH_OPERATION = (404, 405, 501)


def parse_bulk(value: object) -> list[str]:
    """Return the keys that ``bulk-update`` reports as failed. Raises ProtocolError."""
    output = value.get(f"{sonic.CONFIG}:output") if isinstance(value, dict) else None
    if not isinstance(output, dict):
        raise ProtocolError("not an answer of bulk-update", repr(value)[:200])
    failed = output.get("failed_keys", [])
    if not isinstance(failed, list):
        raise ProtocolError("failed_keys is not a list", repr(failed)[:200])
    return [str(key) for key in failed]


class SonicRestDriver(OpticalSwitchDriver):
    """An N x N switch: ingress 1..N are 1A..NA, egress N+1..2N are 1B..NB, from the inventory entry
    ``{"address": "host:443", "username": …, "password_env": …, "tls": …, "profile": {…}}``."""

    def __init__(
        self, name: str, keys: Mapping[str, Any], size: int, openflow: object = None
    ) -> None:
        entry = Entry(name, keys)
        batch = sonic.MAX_BATCH
        can = Capabilities.dual_sided(
            size, batch, entry.profile, max_replace=batch, port_admin=True
        )
        credentials = entry.credentials()
        super().__init__(
            name, replace(can, power=frozenset(), light=False), secrets_of(credentials)
        )
        self._headers = headers_of(credentials)
        self._client = http_client(entry)
        #: Revision of the switch's models; None until it was read.
        self._states: sonic.States | None = None
        #: Ids of CONFIG_DB's cross-connects, as read last.
        self._ids: dict[CrossConnect, str] = {}
        self._has_bulk = True

    def _open(self, deadline: Deadline) -> Identity:
        self._states, self._has_bulk = None, True
        states, _ = self._read_ports(deadline)
        return sonic.identity(self.size, states)

    def _close(self) -> None:
        self._client.close()

    def _read(self, deadline: Deadline) -> Snapshot:
        blocked = sonic.parse_blocked(
            self._client.ask(PORTS, self._headers, deadline).json(), self.size
        )
        self._ids = sonic.parse_wires(self._table(WIRES, deadline), self.size)
        states, ports = self._read_ports(deadline)
        invalid: set[str] = set()
        if states.wires:
            answer = self._table(
                f"{DATA}/{states.module}:{states.module}/{states.wires}", deadline
            )
            invalid = sonic.parse_invalid(answer, states.wires)
        return sonic.snapshot(self.name, self._ids, blocked, ports, invalid)

    def _read_ports(
        self, deadline: Deadline
    ) -> tuple[sonic.States, dict[int, sonic.Port]]:
        """Return the revision of the models, and the ports in STATE_DB. Raises ProtocolError."""
        known = (self._states,) if self._states is not None else sonic.REVISIONS
        for states in known:
            target = f"{DATA}/{states.module}:{states.module}/{states.ports}"
            reply = self._client.read(target, self._headers, deadline)
            if reply.status in (400, 404) and self._states is None:
                continue
            reply.check_read(target)
            ports = sonic.parse_ports(reply.json(), states.ports, self.size)
            self._states = states
            return states, ports
        raise ProtocolError(
            f"no module of {', '.join(revision.module for revision in sonic.REVISIONS)} is there"
        )

    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        if stale := [xc for xc in batch if xc not in self._ids]:
            self._add(stale, deadline)
        names = [self._ids.get(xc, sonic.wire_id(xc, self.size)) for xc in batch]
        if self._has_bulk and len(names) > 1:
            body = {f"{sonic.CONFIG}:input": {"delete": names}}
            with after_others(bool(stale)):
                reply = self._write("POST", BULK, body, deadline)
            if reply.status not in _NO_SUCH_OPERATION:
                check_write(reply, f"POST {BULK}")
                if failed := parse_bulk(reply.json()):
                    raise Refused(
                        f"{len(failed)} of {len(names)} were not deleted, the first {failed[0]}"
                    )
                return
            self._has_bulk = False
        for done, name in enumerate(names):
            with after_others(bool(stale) or done > 0):
                self._tell(
                    "DELETE", f"{WIRES}/{sonic.WIRE_LIST}={name}", None, deadline
                )

    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._tell("PATCH", WIRES, self._wires(batch), deadline)

    def _replace(self, whole: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._tell("PUT", WIRES, self._wires(whole), deadline)

    def _set_port_enabled(self, port: int, enabled: bool, deadline: Deadline) -> None:
        name = sonic.port_name(port, self.size)
        row = {
            "simplex_port_id": name,
            "state": "normal" if enabled else "force_blocked",
        }
        body = {f"{sonic.CONFIG}:{sonic.PORT_LIST}": [row]}
        self._tell("PATCH", f"{PORTS}/{sonic.PORT_LIST}={name}", body, deadline)

    def _factory_loss(
        self, cross_connects: Sequence[CrossConnect], deadline: Deadline
    ) -> Mapping[CrossConnect, float]:
        states, _ = self._read_ports(deadline)
        answer = self._table(
            f"{DATA}/{states.module}:{states.module}/{states.losses}", deadline
        )
        return sonic.parse_losses(answer, states.losses, self.size)

    # Requests

    def _wires(self, cross_connects: Sequence[CrossConnect]) -> dict[str, Any]:
        """Return the container with these cross-connects, as it is written."""
        listed = [
            sonic.wire_row(
                xc, self._ids.get(xc, sonic.wire_id(xc, self.size)), self.size
            )
            for xc in cross_connects
        ]
        return {f"{sonic.CONFIG}:{sonic.WIRES}": {sonic.WIRE_LIST: listed}}

    def _table(self, target: str, deadline: Deadline) -> Any:
        """Return a table that may be empty; see the top of this file."""
        reply = self._client.read(target, self._headers, deadline)
        if reply.status == 404 and parse_error(reply.body).startswith("invalid-value:"):
            return {}
        reply.check_read(target)
        return reply.json()

    def _write(
        self, method: str, target: str, body: object, deadline: Deadline
    ) -> Reply:
        headers, content = self._headers, b""
        if body is not None:
            headers = headers | {"content-type": MEDIA_TYPE}
            content = json.dumps(body, separators=(",", ":")).encode()
        return self._client.write(method, target, headers, content, deadline)

    def _tell(self, method: str, target: str, body: object, deadline: Deadline) -> None:
        check_write(self._write(method, target, body, deadline), f"{method} {target}")
