"""Values of SONiC's models of an optical circuit switch, for REST and gNMI. No I/O.

Sources, as read on 2026-11-26. **Design document**: revision 0.5 of 2026-04-20, sonic-net/SONiC pull request
2269, doc/ocs/ocs_hld.md at be2dbec. **Models**: `sonic-ocs.yang` and `sonic-ocs-state.yang`, revision
2024-11-21, in wni0812/sonic-ocs-sonic-buildimage at 602f810 (as the document has them) and, with other names
and words, in sonic-molex/sonic-mgmt-common at 3f45a1f and abe2bb2 (also the platforms ocs-molex and ocs-kvm).
**Testbed**: ansible/library/ocs_cross_connect.py, sonic-net/sonic-mgmt pull request 25425.

CONFIG_DB says what is wanted, STATE_DB what is. Port ``kA`` is ingress k, ``kB`` egress N+k: the sample
configuration of ocs-kvm labels ``1A`` ``ingress_port1`` and ``1B`` ``egress_port1``.

What a cross-connect of CONFIG_DB is, by STATE_DB's words for its two ports: both ``tuned``: CONNECTED; one
``failed``: FAILED; else PENDING_CONNECTION (``tuning``: mirrors move; ``blocked``, or another target: the
software has not come to it), unless one of the ports is meant to be blocked, when it counts as made.
CONFIG_DB may hold two cross-connects with one port; then the one that STATE_DB does not show is INVALID. One
that only STATE_DB shows is PENDING_DELETION. Molex' branch has words of its own for that: ``invalid``.

Unverified: how long STATE_DB is behind CONFIG_DB; whether a port that nothing was ever said of is in
CONFIG_DB (it counts as enabled where it is not). Ports of switches of several modules (``1-1A``) are not
known here. Nothing in these models tells optical power.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from ringlight.controller.optical.errors import ProtocolError
from ringlight.controller.optical.model import Identity, PortStatus, Snapshot
from ringlight.extensions.gnmi.yang import bare_keys, number, text
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, PortState

#: Cross-connects per write; 70 bytes each.
MAX_BATCH = 1024
CONFIG = "sonic-ocs"
WIRES, PORTS = "OCS_CROSS_CONNECT", "OCS_PORT"
WIRE_LIST, PORT_LIST = f"{WIRES}_LIST", f"{PORTS}_LIST"
LOSSES = "OCS_FACTORY_INSERTION_LOSS"
BULK = f"{CONFIG}:bulk-update"


@dataclass(frozen=True)
class States:
    """Names of a revision's parts of STATE_DB.

    ``module``: name of the YANG module. ``ports`` and ``losses``: containers of ports and of losses.
    ``wires``: container of cross-connects, empty if the revision reports no status of them.
    """

    module: str
    ports: str = PORTS
    wires: str = ""
    losses: str = LOSSES


#: The design document's first; the others are what branches of the software have.
REVISIONS = (
    States("sonic-ocs-states"),
    States("sonic-ocs-state"),
    States("sonic-ocs-state", "OCS_PORT_TABLE"),
    States("sonic-ocs", "OCS_PORT_TABLE", "OCS_CROSS_CONNECT_TABLE", f"{LOSSES}_TABLE"),
)

_PORT_STATES = {
    "blocked": PortState.BLOCKED,
    "powered_off": PortState.BLOCKED,
    "tuning": PortState.TUNING,
    "tuned": PortState.TUNED,
    "connected": PortState.TUNED,
    "failed": PortState.FAILED,
}
_ENABLED = {"normal": True, "force_blocked": False, "powered_off": False}
_PORT = re.compile(r"([1-9]\d{0,4})([AB])", re.ASCII)


def port_name(port: int, size: int) -> str:
    return f"{port}A" if port <= size else f"{port - size}B"


def port_number(name: object, side: str, size: int) -> int:
    """Return the number of a port of side ``A``, ``B`` or either (``AB``). Raises ProtocolError."""
    match = _PORT.fullmatch(name) if isinstance(name, str) else None
    if match is None or match[2] not in side or int(match[1]) > size:
        raise ProtocolError(f"not a port of side {side} of {size}", str(name))
    return int(match[1]) + (size if match[2] == "B" else 0)


def wire_id(xc: CrossConnect, size: int) -> str:
    return f"{port_name(xc.ingress, size)}-{port_name(xc.egress, size)}"


def wire_row(xc: CrossConnect, name: str, size: int) -> dict[str, str]:
    """Return a cross-connect as a row of CONFIG_DB."""
    a_side, b_side = port_name(xc.ingress, size), port_name(xc.egress, size)
    return {"cross_connect_id": name, "a_side": a_side, "b_side": b_side}


def rows(answer: Any, container: str) -> list[dict[str, Any]]:
    """Return the entries of a container's list, whatever the list is called; empty for an empty answer.

    Raises ProtocolError.
    """
    if not isinstance(answer, dict):
        raise ProtocolError(f"{container} is not a container", str(answer))
    value = bare_keys(answer).get(container, {})
    if not isinstance(value, dict) or len(value) > 1:
        raise ProtocolError(f"{container} is not a container of one list", str(value))
    entries: Any = next(iter(value.values()), [])
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) for entry in entries
    ):
        raise ProtocolError(f"{container}: not a list of objects", str(entries))
    return [bare_keys(entry) for entry in entries]


def _word(
    row: Mapping[str, Any],
    leaves: Iterable[str],
    words: Mapping[str, Any],
    default: Any,
) -> Any:
    """Return the meaning of the first of these leaves that a row has; ``default`` if it has none.

    Raises ProtocolError for an unknown word.
    """
    for leaf in leaves:
        if leaf in row:
            if not isinstance(row[leaf], str) or row[leaf] not in words:
                raise ProtocolError(f"{leaf}: not a word that is known", str(row[leaf]))
            return words[row[leaf]]
    return default


def parse_wires(answer: Any, size: int) -> dict[CrossConnect, str]:
    """Return the cross-connects in CONFIG_DB with their ids.

    Ingress and egress are parsed from the id if the entry has no such leaves. Raises ProtocolError.
    """
    ids: dict[CrossConnect, str] = {}
    for row in rows(answer, WIRES):
        name = text(row.get("cross_connect_id"), "a cross-connect")
        a_side, _, b_side = name.partition("-")
        ends = row.get("a_side", a_side), row.get("b_side", b_side)
        xc = CrossConnect(
            port_number(ends[0], "A", size), port_number(ends[1], "B", size)
        )
        if xc in ids:
            raise ProtocolError(
                f"cross-connects {ids[xc][:60]} and {name[:60]} are the same"
            )
        ids[xc] = name
    return ids


def parse_blocked(answer: Any, size: int) -> set[int]:
    """Return the ports that CONFIG_DB blocks. Raises ProtocolError."""
    return {
        port_number(row.get("simplex_port_id"), "AB", size)
        for row in rows(answer, PORTS)
        if not _word(row, ("state", "config_status"), _ENABLED, True)
    }


@dataclass(frozen=True)
class Port:
    """A port of STATE_DB; ``target``: the other end of its cross-connect."""

    state: PortState
    target: int | None = None


def parse_ports(answer: Any, container: str, size: int) -> dict[int, Port]:
    """Return the ports in STATE_DB by number. Raises ProtocolError."""
    ports: dict[int, Port] = {}
    for row in rows(answer, container):
        name = row.get("simplex_port_id")
        port = port_number(name, "AB", size)
        if port in ports:
            raise ProtocolError(f"port {name} is told twice")
        other = row.get("target_simplex_port_id") or None
        target = (
            None
            if other is None
            else port_number(other, "B" if port <= size else "A", size)
        )
        ports[port] = Port(
            _word(row, ("status", "oper_status"), _PORT_STATES, PortState.UNKNOWN),
            target,
        )
    if ports.keys() != set(range(1, 2 * size + 1)):
        raise ProtocolError(
            f"the switch tells of {len(ports)} ports, the fabric says {size} on each side"
        )
    return ports


def parse_losses(answer: Any, container: str, size: int) -> dict[CrossConnect, float]:
    """Return the factory insertion loss (dB) of each path, the maximum over all frequencies and temperatures.

    Raises ProtocolError.
    """
    losses: dict[CrossConnect, float] = {}
    for row in rows(answer, container):
        # In a database, frequency and temperature are parts of the key.
        name = text(row.get("cross_connect_id"), "a cross-connect").partition("|")[0]
        a_side, _, b_side = name.partition("-")
        xc = CrossConnect(
            port_number(a_side, "A", size), port_number(b_side, "B", size)
        )
        loss = number(row.get("loss_dB"), f"loss of {name[:60]}")
        losses[xc] = max(loss, losses.get(xc, loss))
    return losses


def parse_invalid(answer: Any, container: str) -> set[str]:
    """Return the ids of the cross-connects that STATE_DB calls ``invalid``. Raises ProtocolError."""
    words = {"disabled": False, "enabled": False, "invalid": True}
    return {
        text(row.get("cross_connect_id"), "a cross-connect")
        for row in rows(answer, container)
        if _word(row, ("status",), words, False)
    }


def snapshot(
    name: str,
    wires: Mapping[CrossConnect, str],
    blocked: Set[int],
    ports: Mapping[int, Port],
    invalid: Set[str] = frozenset(),
) -> Snapshot:
    """Return a reading made of the contents of both databases."""
    size = len(ports) // 2
    used: dict[int, int] = {}
    for xc in wires:
        for port in (xc.ingress, xc.egress):
            used[port] = used.get(port, 0) + 1
    states: dict[CrossConnect, CrossConnectState] = {}
    for xc, called in wires.items():
        ends = ports[xc.ingress], ports[xc.egress]
        stands = ends[0].target == xc.egress
        named = None if called == wire_id(xc, size) else called
        shared = used[xc.ingress] > 1 or used[xc.egress] > 1
        if called in invalid or (shared and not stands):
            state = CrossConnectState.INVALID
        elif any(end.state is PortState.FAILED for end in ends):
            state = CrossConnectState.FAILED
        elif blocked & {xc.ingress, xc.egress} or (
            stands and all(e.state is PortState.TUNED for e in ends)
        ):
            state = CrossConnectState.CONNECTED
        else:
            state = CrossConnectState.PENDING_CONNECTION
        states[CrossConnect(xc.ingress, xc.egress, name=named)] = state
    for port in range(1, size + 1):
        target = ports[port].target
        if target is not None and (xc := CrossConnect(port, target)) not in wires:
            states[xc] = CrossConnectState.PENDING_DELETION
    statuses = {
        port: PortStatus(reading.state, port not in blocked)
        for port, reading in ports.items()
    }
    return Snapshot(name, states, statuses)


def identity(size: int, states: States) -> Identity:
    """Return the switch's identity as far as the models have it: no manufacturer, no serial number."""
    return Identity("SONiC", f"{size}x{size} optical circuit switch", "", states.module)
