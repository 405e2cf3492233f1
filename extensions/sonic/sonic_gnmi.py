"""A SONiC optical circuit switch over gNMI, as sonic-gnmi serves it.

The models and their sources: `sonic`; the client: `gnmi`. ``schema`` in the inventory entry says how the
switch is spoken to:

- ``yang`` (the default): the models, through SONiC's translib, with the prefix target ``OC-YANG``
  (doc/gNMI_usage_examples.md of sonic-net/sonic-telemetry at 1074593): ``/sonic-ocs:sonic-ocs/OCS_PORT``.
- ``db``: the databases, origin ``sonic-db``: ``/CONFIG_DB/localhost/OCS_PORT`` and
  ``/STATE_DB/localhost/OCS_PORT`` (SONiC_GNMI_Server_Interface_Design.md, revision 0.1, sonic-net/SONiC at
  18b9ca5, and tests/gnmi of sonic-net/sonic-mgmt).

What goes is one Set of deletes, what comes one update of ``OCS_CROSS_CONNECT``, and in REPLACE mode its
replacement. The design document has sonic-gnmi commit the cross-connects of a Set to CONFIG_DB all at once,
for a switch to move its mirrors once. What only STATE_DB has is added before it is deleted, as over REST.

No switch was at hand; this was tested against the emulated switch. Unverified: which of the two schemas a
switch serves for these models, and what it says of a table that is empty: an empty object, or NOT_FOUND,
which is read as empty once the table of ports has been read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pygnmi.spec.v080 import gnmi_pb2 as gnmi

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import ProtocolError, Refused, after_others
from ringlight.controller.optical.inventory import Entry, secrets_of
from ringlight.controller.optical.model import Capabilities, Identity, Snapshot
from ringlight.extensions.gnmi.gnmi_client import (
    Elem,
    GnmiClient,
    NotThere,
    access_of,
    path_of,
    updates_of,
)
from ringlight.extensions.gnmi.yang import bare_keys
from ringlight.extensions.sonic import databases as sonic
from ringlight.fabric.crossconnect import CrossConnect

SCHEMAS = ("yang", "db")
_HOST, _ORIGIN, _TARGET = "localhost", "sonic-db", "OC-YANG"
_KEYS = {sonic.PORTS: "simplex_port_id", sonic.WIRES: "cross_connect_id"}


def parse_table(response: Any, table: str, key: str) -> dict[str, Any]:
    """Return a table in the models' form, ``{table: {…_LIST: […]}}``.

    The answer may be in either schema, and whole or row by row. Raises ProtocolError.
    """
    table_rows: list[Any] = []
    for _, names, keys, value in updates_of(response):
        if table not in names:
            raise ProtocolError(f"{table}: answered with /{'/'.join(names)[:100]}")
        below = names[names.index(table) + 1 :]
        if names[0] in ("CONFIG_DB", "STATE_DB"):
            rows_by_key = value if not below else {below[0]: value}
            if len(below) > 1 or not isinstance(rows_by_key, dict):
                raise ProtocolError(f"{table}: not a table of a database", str(value))
            if not all(isinstance(fields, dict) for fields in rows_by_key.values()):
                raise ProtocolError(f"{table}: a row without fields", str(value))
            table_rows.extend(
                {key: name} | fields for name, fields in rows_by_key.items()
            )
        elif not below:
            inner = bare_keys(value) if isinstance(value, dict) else {}
            table_rows.extend(
                sonic.rows(
                    value if table in inner or value == {} else {table: value}, table
                )
            )
        elif keys and len(below) == 1:
            inner = bare_keys(value) if isinstance(value, dict) else {}
            entry = inner.get(below[0], inner)
            table_rows.extend(entry if isinstance(entry, list) else [entry])
        else:
            raise ProtocolError(f"{table}: answered with /{'/'.join(names)[:100]}")
    return {table: {f"{table}_LIST": table_rows}}


class SonicGnmiDriver(OpticalSwitchDriver):
    """An N x N switch: ingress 1..N are 1A..NA, egress N+1..2N are 1B..NB, from the inventory entry
    ``{"address": "host:port", "username": …, "password_env": …, "profile": {…}}``; ``schema`` as at the top,
    ``tls`` and files of certificates as in :class:`.gnmi.Access`."""

    def __init__(
        self, name: str, keys: Mapping[str, Any], size: int, openflow: object = None
    ) -> None:
        entry = Entry(name, keys)
        schema = keys.get("schema", SCHEMAS[0])
        if schema not in SCHEMAS:
            raise entry.wrong("schema", f"{schema!r} is none of {', '.join(SCHEMAS)}")
        access, batch = access_of(entry), sonic.MAX_BATCH
        can = Capabilities.dual_sided(
            size, batch, entry.profile, max_replace=batch, port_admin=True
        )
        super().__init__(
            name,
            replace(can, power=frozenset(), light=False),
            secrets_of(access.credentials),
        )
        self._client = GnmiClient(name, access)
        self._in_db = schema == "db"
        self._target = "" if self._in_db else _TARGET
        #: Revision of the switch's models; None until it was read.
        self._states: sonic.States | None = None
        #: Ids of CONFIG_DB's cross-connects, as read last.
        self._ids: dict[CrossConnect, str] = {}

    def _open(self, deadline: Deadline) -> Identity:
        self._states = None
        self._client.choose_encoding(self._client.capabilities(deadline))
        states, _ = self._read_ports(deadline)
        return sonic.identity(self.size, states)

    def _close(self) -> None:
        self._client.close()

    def _read(self, deadline: Deadline) -> Snapshot:
        blocked = sonic.parse_blocked(
            self._table(sonic.CONFIG, sonic.PORTS, deadline), self.size
        )
        self._ids = sonic.parse_wires(
            self._maybe(sonic.CONFIG, sonic.WIRES, deadline), self.size
        )
        states, ports = self._read_ports(deadline)
        invalid: set[str] = set()
        if states.wires:
            invalid = sonic.parse_invalid(
                self._maybe(states.module, states.wires, deadline), states.wires
            )
        return sonic.snapshot(self.name, self._ids, blocked, ports, invalid)

    def _read_ports(
        self, deadline: Deadline
    ) -> tuple[sonic.States, dict[int, sonic.Port]]:
        """Return the revision of the models, and the ports in STATE_DB. Raises ProtocolError."""
        known = (self._states,) if self._states is not None else sonic.REVISIONS
        for states in known:
            try:
                answer = self._table(states.module, states.ports, deadline)
            except Refused:
                if self._states is not None:
                    raise
                continue
            ports = sonic.parse_ports(answer, states.ports, self.size)
            self._states = states
            return states, ports
        raise ProtocolError(
            f"no module of {', '.join(revision.module for revision in sonic.REVISIONS)} is there"
        )

    def _table(self, module: str, table: str, deadline: Deadline) -> dict[str, Any]:
        """Return a table. Raises NotThere in addition to the errors of a read."""
        response = self._client.get([self._path(module, table)], deadline, self._target)
        return parse_table(response, table, _KEYS.get(table.removesuffix("_TABLE"), ""))

    def _maybe(self, module: str, table: str, deadline: Deadline) -> dict[str, Any]:
        """Return a table that may be empty; see the top of this file."""
        try:
            return self._table(module, table, deadline)
        except NotThere:
            return {}

    def _factory_loss(
        self, cross_connects: Sequence[CrossConnect], deadline: Deadline
    ) -> Mapping[CrossConnect, float]:
        states, _ = self._read_ports(deadline)
        paths = [self._path(states.module, states.losses)]
        if not self._in_db:
            # All paths of a large switch would be a million rows.
            ids = [sonic.wire_id(xc, self.size) for xc in cross_connects]
            paths = [self._path(states.module, states.losses, name) for name in ids]
        try:
            response = self._client.get(paths, deadline, self._target)
        except NotThere:
            return {}
        answer = parse_table(response, states.losses, "cross_connect_id")
        return sonic.parse_losses(answer, states.losses, self.size)

    def _path(self, module: str, table: str, key: str = "", leaf: str = "") -> Any:
        elems: list[Elem]
        if self._in_db:
            database = "CONFIG_DB" if module == sonic.CONFIG else "STATE_DB"
            return path_of(
                [database, _HOST, *filter(None, (table, key, leaf))], _ORIGIN
            )
        elems = [f"{module}:{module}", table]
        if key:
            elems.append((f"{table}_LIST", {_KEYS.get(table, "cross_connect_id"): key}))
        return path_of([*elems, leaf] if leaf else elems)

    def _wires(self, cross_connects: Sequence[CrossConnect]) -> Any:
        """Return the update of the table of cross-connects with these cross-connects."""
        listed = [
            sonic.wire_row(
                xc, self._ids.get(xc, sonic.wire_id(xc, self.size)), self.size
            )
            for xc in cross_connects
        ]
        content: dict[str, Any]
        if self._in_db:
            content = {row.pop("cross_connect_id"): row for row in listed}
        else:
            content = {f"{sonic.CONFIG}:{sonic.WIRES}": {sonic.WIRE_LIST: listed}}
        return gnmi.Update(
            path=self._path(sonic.CONFIG, sonic.WIRES), val=self._client.value(content)
        )

    def _set(self, deadline: Deadline, **changes: Sequence[Any]) -> None:
        prefix = gnmi.Path(target=self._target) if self._target else None
        self._client.set(gnmi.SetRequest(prefix=prefix, **changes), deadline)

    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        if stale := [xc for xc in batch if xc not in self._ids]:
            self._add(stale, deadline)
        names = [self._ids.get(xc, sonic.wire_id(xc, self.size)) for xc in batch]
        with after_others(bool(stale)):
            self._set(
                deadline,
                delete=[self._path(sonic.CONFIG, sonic.WIRES, name) for name in names],
            )

    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._set(deadline, update=[self._wires(batch)])

    def _replace(self, whole: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._set(deadline, replace=[self._wires(whole)])

    def _set_port_enabled(self, port: int, enabled: bool, deadline: Deadline) -> None:
        word, name = (
            "normal" if enabled else "force_blocked",
            sonic.port_name(port, self.size),
        )
        path = self._path(sonic.CONFIG, sonic.PORTS, name, "state")
        content = word if self._in_db else {f"{sonic.CONFIG}:state": word}
        self._set(
            deadline, update=[gnmi.Update(path=path, val=self._client.value(content))]
        )
