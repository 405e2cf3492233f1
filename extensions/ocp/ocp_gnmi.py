"""Any switch with the Open Compute Project's model of an optical circuit switch, 0.8.0, over gNMI.

The upper half turns JSON into values, without I/O. Needs ``pip install 'ringlight[gnmi]'``.

A Set is all or nothing by gNMI, and the model wants the switch to look at all of it before it does any. So
what goes is one Set of deletes, what comes one of updates, and in REPLACE mode the whole list is replaced
in one. The switch says of every connection how far it is (``PENDING_CONNECTION``, ``CONNECTED``,
``FAILED``, ``INVALID``), and the base class waits for its light by that. Names of connections are the
switch's own: what another client has called ``x`` keeps that name, what has none is called ``rl-a-b``
after its ports.

Which port is which. The model knows ports by name and by an index, and says of each group of ports whether
light goes in or out there. Ringlight counts ingress 1..N and egress N+1..2N: the k-th port by index in the
groups that light may enter is ingress k, the k-th of those that it may leave is egress N+k; where both are
the same groups (``ANY``), the first N ports are ingresses and the next N egresses. ``inputs`` and
``outputs`` in the inventory entry list the ports by name instead. Groups that cannot be joined are the
capabilities' ``reach``.

The model is a strawman and no product with it was at hand: this was tested against the emulated switch only.
So names are taken with and without the model's name before them, numbers as numbers or as text, and a leaf
that is missing is not a fault unless a decision needs it. A connection that is ``FAILED`` while one of its
ports is disabled counts as made: that is what other protocols say of it, and making it anew would not
help.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pygnmi.spec.v080 import gnmi_pb2 as gnmi

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import (
    ProtocolError,
    StaleRevision,
)
from ringlight.controller.optical.inventory import Entry, secrets_of
from ringlight.controller.optical.model import (
    Capabilities,
    Identity,
    PortStatus,
    Snapshot,
)
from ringlight.extensions.gnmi.gnmi_client import (
    GnmiClient,
    access_of,
    path_of,
    updates_of,
)
from ringlight.extensions.gnmi.yang import bare, branch, entries, number, text
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, PortState

log = logging.getLogger(__name__)

VERSION = "0.8.0"
CONNECTIONS = "ocp-ocs-optical-switch-connections"
#: Cross-connects per Set. The model has no limit; 1,024 are 150 kB.
MAX_BATCH = 1024
_MAX_PORTS = 1 << 14


# Values


@dataclass(frozen=True)
class OcpPort:
    """Port as the switch reports it. ``power_dbm``: received and sent power, None if not metered."""

    name: str
    group: str
    index: int
    status: PortStatus
    power_dbm: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True)
class OcpGroup:
    """Ports of one side; ``peers`` are the groups that they can be joined to."""

    name: str
    inward: bool
    outward: bool
    peers: frozenset[str]


@dataclass(frozen=True)
class OcpConnection:
    """Entry of the list of connections. ``reason``: reason for FAILED or INVALID."""

    name: str
    input: str
    output: str
    state: CrossConnectState
    reason: str = ""


def parse_ports(components: Any) -> dict[str, OcpPort]:
    """Return the ports among ``components``, by name. Raises ProtocolError."""
    ports: dict[str, OcpPort] = {}
    for entry in entries(branch(bare(components)), "component"):
        if "ocp-ocs-port" not in entry:
            continue
        name, state = (
            text(entry.get("name"), "a component"),
            branch(entry, "ocp-ocs-port", "state"),
        )
        if name in ports:
            raise ProtocolError(f"port {name[:60]} is told twice")
        word, enabled = state.get("status", "UNKNOWN"), state.get("enabled", True)
        if not isinstance(enabled, bool):
            raise ProtocolError(
                f"port {name[:60]}: enabled is not a truth", str(enabled)
            )
        known = word if word in PortState.__members__ else "UNKNOWN"
        powers = tuple(
            number(state[leaf], leaf) if leaf in state else None
            for leaf in ("input-optical-power", "output-optical-power")
        )
        index = int(number(state.get("index"), f"index of port {name[:60]}"))
        group = state.get("group", "")
        status = PortStatus(PortState[known], enabled)
        ports[name] = OcpPort(
            name,
            group if isinstance(group, str) else "",
            index,
            status,
            (powers[0], powers[1]),
        )
        if len(ports) > _MAX_PORTS:
            raise ProtocolError(f"more than {_MAX_PORTS} ports")
    return ports


def parse_groups(switch: Any) -> dict[str, OcpGroup]:
    """Return the groups of ports in ``optical-switch``, by name. Raises ProtocolError."""
    groups: dict[str, OcpGroup] = {}
    for entry in entries(branch(bare(switch), "state"), "port-groups"):
        name, direction = (
            text(entry.get("name"), "a group of ports"),
            entry.get("direction", "ANY"),
        )
        if direction not in ("INPUT-ONLY", "OUTPUT-ONLY", "ANY"):
            raise ProtocolError(f"group {name[:60]}: not a direction", str(direction))
        peers = frozenset(
            text(group.get("peer-name"), "a peer group")
            for group in entries(entry, "connection-groups")
        )
        groups[name] = OcpGroup(
            name, direction != "OUTPUT-ONLY", direction != "INPUT-ONLY", peers
        )
    return groups


def parse_connections(connections: Any) -> list[OcpConnection]:
    """Return the entries of ``connections``. Raises ProtocolError."""
    parsed: list[OcpConnection] = []
    for entry in entries(branch(bare(connections)), "port-connection"):
        state = branch(entry, "config") | branch(entry, "state")
        name = text(entry.get("name", state.get("name")), "a connection")
        ends = [
            text(state.get(leaf), f"{leaf} of connection {name[:60]}")
            for leaf in ("input-port-name", "output-port-name")
        ]
        word = state.get("status")
        if word not in (
            "CONNECTED",
            "PENDING_CONNECTION",
            "PENDING_DELETION",
            "FAILED",
            "INVALID",
        ):
            raise ProtocolError(f"connection {name[:60]}: not a status", str(word))
        reason = state.get("status-reason", "")
        parsed.append(
            OcpConnection(
                name,
                ends[0],
                ends[1],
                CrossConnectState[word],
                reason if isinstance(reason, str) else "",
            )
        )
    if len({connection.name for connection in parsed}) < len(parsed):
        raise ProtocolError("two connections with one name")
    return parsed


def parse_identity(components: Any) -> Identity:
    """Return the identity in the CHASSIS component; without that component, an unknown identity."""
    for entry in entries(branch(bare(components)), "component"):
        state = branch(entry, "state")
        if str(state.get("type", "")).rpartition(":")[2] != "CHASSIS":
            continue
        words = [
            next((str(state[leaf]) for leaf in leaves if state.get(leaf)), default)
            for leaves, default in (
                (("mfg-name",), "unknown"),
                (("part-no", "description", "name"), "optical circuit switch"),
                (("serial-no",), ""),
                (
                    ("software-version", "firmware-version", "hardware-version"),
                    f"model {VERSION}",
                ),
            )
        ]
        return Identity(*words)
    return Identity("unknown", "optical circuit switch", "", f"model {VERSION}")


@dataclass(frozen=True)
class Numbering:
    """Mapping between port names of the switch and port numbers.

    ``inputs``: names of ingress 1..N. ``outputs``: names of egress N+1..2N. ``reach``: egresses of each
    ingress that cannot reach all of them.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reach: Mapping[int, frozenset[int]]

    def name(self, port: int) -> str:
        size = len(self.inputs)
        return self.inputs[port - 1] if port <= size else self.outputs[port - size - 1]

    def ingress(self) -> dict[str, int]:
        return {name: port for port, name in enumerate(self.inputs, start=1)}

    def egress(self) -> dict[str, int]:
        return {
            name: port
            for port, name in enumerate(self.outputs, start=len(self.inputs) + 1)
        }


def number_ports(
    ports: Mapping[str, OcpPort],
    groups: Mapping[str, OcpGroup],
    size: int,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
) -> Numbering:
    """Return the numbers of the ports by the rules at the top of this file.

    Raises ProtocolError if the switch is not ``size`` x ``size`` or its ports cannot be numbered.
    """
    anything = OcpGroup("", True, True, frozenset(groups))
    of = {name: groups.get(port.group, anything) for name, port in ports.items()}
    order = sorted(ports, key=lambda name: (ports[name].index, name))
    if inputs or outputs:
        odd = [name for name in (*inputs, *outputs) if name not in ports]
        if odd:
            raise ProtocolError(f"the switch has no port {odd[0]!r}")
        into, out = list(inputs), list(outputs)
    else:
        either = [name for name in order if of[name].inward and of[name].outward]
        into = [name for name in order if not of[name].outward]
        out = [name for name in order if not of[name].inward]
        if either and not into and not out and len(either) == 2 * size:
            into, out = either[:size], either[size:]
        elif either:
            raise ProtocolError(
                f"{len(either)} ports are for light both ways: list them in the inventory, inputs and outputs"
            )
    if (len(into), len(out)) != (size, size):
        raise ProtocolError(
            f"the switch is {len(into)}x{len(out)}, the fabric says {size}x{size}"
        )
    egress = {name: port for port, name in enumerate(out, start=size + 1)}
    every = frozenset(egress.values())
    reach: dict[int, frozenset[int]] = {}
    to: dict[str, frozenset[int]] = {}
    for port, name in enumerate(into, start=1):
        group = of[name]
        if group.name and group.peers and group.name not in to:
            to[group.name] = frozenset(
                number
                for other, number in egress.items()
                if not of[other].name or of[other].name in group.peers
            )
        reached = to.get(group.name, every)
        if reached != every:
            reach[port] = reached
    return Numbering(tuple(into), tuple(out), reach)


# Reading


def read_tree(response: Any, tops: Sequence[str]) -> dict[str, Any]:
    """Return the JSON of a response to a Get, by the name of the requested container.

    Raises ProtocolError.
    """
    containers: dict[str, Any] = {}
    for note, names, _, value in updates_of(response):
        if note >= len(tops):
            break
        top = tops[note]
        if names not in ([top], []):
            raise ProtocolError(f"{top}: answered with /{'/'.join(names)[:100]}")
        if not names:
            value = bare(value).get(top) if isinstance(value, dict) else None
        if not isinstance(value, dict) or top in containers:
            raise ProtocolError(f"{top} is not one container", str(value))
        containers[top] = value
    missing = [top for top in tops if top not in containers]
    if missing:
        raise ProtocolError(f"{missing[0]} was not answered")
    return containers


# The driver


class GnmiDriver(OpticalSwitchDriver):
    """A switch of N inputs and N outputs, ingress 1..N and egress N+1..2N, from the inventory entry
    ``{"address": "host:port", "username": …, "password_env": …, "profile": {…}}``.

    ``ca_file``, ``cert_file``, ``key_file``, ``server_name`` and ``tls`` as in :class:`.gnmi.Access`;
    ``inputs`` and ``outputs``: names of the ports in our order.
    """

    def __init__(
        self, name: str, keys: Mapping[str, Any], size: int, openflow: object = None
    ) -> None:
        entry = Entry(name, keys)
        access = access_of(entry)
        can = Capabilities.dual_sided(
            size, MAX_BATCH, entry.profile, max_replace=MAX_BATCH, port_admin=True
        )
        super().__init__(name, can, secrets_of(access.credentials))
        self._sides = _sides(entry, size)
        self._client = GnmiClient(name, access)
        self._numbering: Numbering | None = None
        #: Names of the switch's connections, as last read.
        self._names: dict[tuple[int, int], str] = {}
        #: Reasons that the switch reports for the states of its connections, by name, as last read.
        self._reasons: dict[str, str] = {}

    def _open(self, deadline: Deadline) -> Identity:
        capabilities = self._client.capabilities(deadline)
        self._client.choose_encoding(capabilities)
        versions = {
            model.name: model.version for model in capabilities.supported_models
        }
        if versions.get(CONNECTIONS) != VERSION:
            log.warning(
                "%s: announces %s %s, not %s",
                self.name,
                CONNECTIONS,
                versions.get(CONNECTIONS),
                VERSION,
            )
        answer = self._get(["components", "optical-switch"], deadline)
        self._number(answer)
        return parse_identity(answer["components"])

    def _get(self, tops: Sequence[str], deadline: Deadline) -> dict[str, Any]:
        """Return the subtrees of these names at the top of the tree."""
        return read_tree(
            self._client.get([path_of([top]) for top in tops], deadline), tops
        )

    def _number(self, answer: Mapping[str, Any]) -> Numbering:
        ports, groups = (
            parse_ports(answer["components"]),
            parse_groups(answer["optical-switch"]),
        )
        self._numbering = number_ports(ports, groups, self.size, *self._sides)
        metered = frozenset(
            port
            for port in self._capabilities.ports
            if any(
                power is not None
                for power in ports[self._numbering.name(port)].power_dbm
            )
        )
        self._capabilities = replace(
            self._capabilities, reach=self._numbering.reach, power=metered
        )
        return self._numbering

    def _known(self, deadline: Deadline) -> Numbering:
        """Return the numbering.

        The numbering is read now if the switch could not be reached when it was opened.
        """
        if self._numbering is None:
            return self._number(self._get(["components", "optical-switch"], deadline))
        return self._numbering

    def _close(self) -> None:
        self._client.close()

    def _read(self, deadline: Deadline) -> Snapshot:
        numbering = self._known(deadline)
        answer = self._get(["connections", "components"], deadline)
        switch_ports = parse_ports(answer["components"])
        ports: dict[int, PortStatus] = {}
        for port in sorted(self._capabilities.ports):
            if (name := numbering.name(port)) not in switch_ports:
                raise ProtocolError(f"port {name[:60]} is not there any more")
            ports[port] = switch_ports[name].status
        ingress, egress = numbering.ingress(), numbering.egress()
        wires: dict[CrossConnect, CrossConnectState] = {}
        names: dict[tuple[int, int], str] = {}
        reasons: dict[str, str] = {}
        for connection in parse_connections(answer["connections"]):
            if connection.input not in ingress or connection.output not in egress:
                raise ProtocolError(
                    f"connection {connection.name[:60]} joins {connection.input[:60]} "
                    f"to {connection.output[:60]}"
                )
            pair = ingress[connection.input], egress[connection.output]
            if pair in names:
                raise ProtocolError(
                    f"connections {names[pair][:60]} and {connection.name[:60]} are the same"
                )
            names[pair] = connection.name
            state = connection.state
            if state is CrossConnectState.FAILED and not all(
                ports[port].enabled for port in pair
            ):
                state = CrossConnectState.CONNECTED
            elif connection.reason:
                reasons[connection.name] = connection.reason
                if self._reasons.get(connection.name) != connection.reason:
                    why = self.redact(connection.reason)
                    log.info(
                        "%s: connection %s is %s: %s",
                        self.name,
                        connection.name,
                        state,
                        why,
                    )
            given = None if connection.name == _own_name(pair) else connection.name
            wires[CrossConnect(*pair, name=given)] = state
        self._names, self._reasons = names, reasons
        return Snapshot(self.name, wires, ports)

    def _called(
        self, batch: Iterable[CrossConnect], taken: Iterable[str]
    ) -> Iterator[tuple[str, CrossConnect]]:
        """Yield (name, cross-connect) for new connections, adding "'" until each name is unused."""
        used = set(taken)
        for xc in batch:
            pair = xc.ingress, xc.egress
            name = first = self._names.get(pair) or xc.name or _own_name(pair)
            while name in used:
                name += "'"
            if name != first:
                log.info(
                    "%s: %s is called %s, the other name is taken", self.name, xc, name
                )
            used.add(name)
            yield name, xc

    def _entry(self, name: str, xc: CrossConnect) -> dict[str, Any]:
        assert self._numbering is not None
        ends = (self._numbering.name(xc.ingress), self._numbering.name(xc.egress))
        return {
            "name": name,
            "config": {
                "name": name,
                "input-port-name": ends[0],
                "output-port-name": ends[1],
            },
        }

    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        try:
            names = [self._names[xc.ingress, xc.egress] for xc in batch]
        except KeyError as error:
            raise StaleRevision(
                f"{error.args[0]} is not there any more; nothing was written"
            ) from None
        gone = [
            path_of(["connections", ("port-connection", {"name": name})])
            for name in names
        ]
        self._client.set(gnmi.SetRequest(delete=gone), deadline)
        for xc in batch:
            self._names.pop((xc.ingress, xc.egress), None)

    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._known(deadline)
        updates = [
            gnmi.Update(
                path=path_of(["connections", ("port-connection", {"name": name})]),
                val=self._client.value(self._entry(name, xc)),
            )
            for name, xc in self._called(batch, self._names.values())
        ]
        self._client.set(gnmi.SetRequest(update=updates), deadline)

    def _replace(self, whole: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._known(deadline)
        stays = [xc for xc in whole if (xc.ingress, xc.egress) in self._names]
        kept = list(self._called(stays, ()))
        comes = [xc for xc in whole if (xc.ingress, xc.egress) not in self._names]
        new = list(self._called(comes, [name for name, _ in kept]))
        model = f"{CONNECTIONS}:" if self._client.encoding == gnmi.JSON_IETF else ""
        value = {
            f"{model}port-connection": [
                self._entry(name, xc) for name, xc in (*kept, *new)
            ]
        }
        update = gnmi.Update(
            path=path_of(["connections"]), val=self._client.value(value)
        )
        self._client.set(gnmi.SetRequest(replace=[update]), deadline)

    def _set_port_enabled(self, port: int, enabled: bool, deadline: Deadline) -> None:
        name = self._known(deadline).name(port)
        path = path_of(
            [
                "components",
                ("component", {"name": name}),
                "ocp-ocs-port",
                "config",
                "enabled",
            ]
        )
        self._client.set(
            gnmi.SetRequest(
                update=[gnmi.Update(path=path, val=self._client.value(enabled))]
            ),
            deadline,
        )

    def _power(
        self, ports: Sequence[int], deadline: Deadline
    ) -> Mapping[int, float | None]:
        numbering = self._known(deadline)
        switch_ports = parse_ports(self._get(["components"], deadline)["components"])
        powers = {
            port: switch_ports[name].power_dbm
            if (name := numbering.name(port)) in switch_ports
            else (None, None)
            for port in ports
        }
        return {port: powers[port][0 if port <= self.size else 1] for port in ports}


def _own_name(pair: tuple[int, int]) -> str:
    return f"rl-{pair[0]}-{pair[1]}"


def _sides(entry: Entry, size: int) -> tuple[list[str], list[str]]:
    """Return the names of inputs and outputs that the entry lists, empty if none. Raises ValueError."""
    inputs, outputs = (entry.keys.get(key) or [] for key in ("inputs", "outputs"))
    for key, names in (("inputs", inputs), ("outputs", outputs)):
        if not isinstance(names, list) or any(
            not isinstance(item, str) for item in names
        ):
            raise entry.wrong(key, "is not a list of ports' names")
        if (len(inputs), len(outputs)) not in ((0, 0), (size, size)):
            raise entry.wrong(
                key, f"{size} inputs and {size} outputs are wanted, or none"
            )
    if len({*inputs, *outputs}) != len(inputs) + len(outputs):
        raise entry.wrong("outputs", "a port is listed twice")
    return inputs, outputs
