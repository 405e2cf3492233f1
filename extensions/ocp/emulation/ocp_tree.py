"""An emulated switch as the Open Compute Project's model of an optical switch (0.8.0) shows it.

Data, without any protocol: the tree that can be read, paths in it, and what a change to it asks of the
device.

Port n (ingress 1..N, egress N+1..2N) is the component ``port-n`` with index n, of the group ``inputs`` or
``outputs``; a cross-connect is one direction of light (``bidirectional`` is false). Names of connections
live in this process, and in the folder of a switch that runs alone: after another restart, and where another
protocol has made the light, a connection is called ``port-a:port-b``. What a start does to light
(``cold-boot-recovery``) can be set. Times of changes (``last-updated``) are not told.

A change that the model does not let stand is refused as a whole, so no connection is ever ``INVALID``. One
change is about connections or about ports, not both: the device does one command at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringlight.extensions.gnmi.yang_tree import (
    Counter,
    Entries,
    Path,
    Step,
    TreeError,
    flatten,
    shown,
)
from ringlight.fabric.crossconnect import PortState
from ringlight.testbed.emulation.optical.commands import (
    Admin,
    Command,
    Recovery,
    Rewire,
    SetAdmin,
    SetLabel,
    SetRecovery,
    Wire,
)
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.monitors import power_dbm
from ringlight.testbed.emulation.optical.session import Switch

VERSION = "0.8.0"
#: Where a name of the tree belongs to another model than what holds it.
MODULES = {
    "components": "openconfig-platform",
    "optical-switch": "ocp-ocs-optical-switch",
    "connections": "ocp-ocs-optical-switch-connections",
    "ocp-ocs-port": "ocp-ocs-optical-switch-port",
}
MAX_NAME = 255
#: Whose the names are among what a switch remembers.
NOTES = "ocp-gnmi"
_PORT = re.compile(r"port-([1-9]\d{0,4})")


def port_name(port: int) -> str:
    return f"port-{port}"


def port_number(name: object, device: OpticalDevice) -> int:
    """Return the device's number of a named port. Raises TreeError."""
    match = _PORT.fullmatch(name) if isinstance(name, str) else None
    if match is None or not 1 <= int(match[1]) <= 2 * device.size:
        raise TreeError(f"there is no port {name!r}")
    return int(match[1])


class Names:
    """Names that clients have given to the cross-connects of one device."""

    def __init__(self, device: OpticalDevice) -> None:
        noted = device.notes.get(NOTES, [])
        self._given = {
            str(name): Wire(int(ingress), int(egress))
            for name, ingress, egress in noted
        }
        self._device = device
        device.memories[NOTES] = lambda: [
            [name, *wire[:2]] for name, wire in self.current().items()
        ]

    def current(self) -> dict[str, Wire]:
        """Return every existing cross-connect, by name."""
        wires = self._device.cross_connects()
        standing = set(wires)
        self._given = {
            name: wire for name, wire in self._given.items() if wire in standing
        }
        named = set(self._given.values())
        for wire in wires:
            if wire not in named:
                name = f"{port_name(wire.ingress)}:{port_name(wire.egress)}"
                while name in self._given:
                    name += "'"
                self._given[name] = wire
        return dict(self._given)

    def give(self, names: Mapping[str, Wire], removed: Sequence[str]) -> None:
        for name in removed:
            self._given.pop(name, None)
        for name, wire in names.items():
            self._given = {
                known: other for known, other in self._given.items() if other != wire
            }
            self._given[name] = wire


# Reading


def tree(
    switch: Switch, names: Names, now_ns: int, top: str | None = None
) -> dict[str, Any]:
    """Return everything that can be read, or only what is under ``top``."""
    device = switch.device
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "components": lambda: {
            "component": _components(device, switch.name, switch.model, now_ns)
        },
        "optical-switch": lambda: _switch(device),
        "connections": lambda: {"port-connection": _connections(device, names, now_ns)},
    }
    return {key: make() for key, make in makers.items() if top in (None, "*", key)}


def _switch(device: OpticalDevice) -> dict[str, Any]:
    setting = {"bidirectional": False, "cold-boot-recovery": device.recovery.name}
    groups = Entries()
    for group, direction, peer in (
        ("inputs", "INPUT-ONLY", "outputs"),
        ("outputs", "OUTPUT-ONLY", "inputs"),
    ):
        peers = Entries({peer: {"peer-name": peer}}, key="peer-name")
        groups[group] = {
            "name": group,
            "direction": direction,
            "connection-groups": peers,
        }
    state = setting | {
        "connection-recovery-capability": "MAINTAIN",
        "port-groups": groups,
    }
    return {"config": dict(setting), "state": state}


def _components(device: OpticalDevice, name: str, model: str, now_ns: int) -> Entries:
    chassis = {
        "type": "CHASSIS",
        "mfg-name": "Ringlight",
        "part-no": model,
        "serial-no": name,
    }
    components = Entries(
        {
            "chassis": {
                "name": "chassis",
                "config": {"name": "chassis"},
                "state": {"name": "chassis", "software-version": VERSION, **chassis},
            }
        }
    )
    for port in range(1, 2 * device.size + 1):
        components[port_name(port)] = {
            "name": port_name(port),
            "config": {"name": port_name(port)},
            "state": {"name": port_name(port), "type": "PORT"},
            "ocp-ocs-port": _port(device, port, now_ns),
        }
    return components


def _port(device: OpticalDevice, port: int, now_ns: int) -> dict[str, Any]:
    setting: dict[str, Any] = {"enabled": device.admin(port) is not Admin.DISABLED}
    if device.label(port):
        setting["alias"] = device.label(port)
    peer, status = device.peer(port), device.port_state(port, now_ns)
    ingress = port <= device.size
    none = {"correctable-error-count": Counter(0), "total-error-count": Counter(0)}
    connection: dict[str, Any] = {
        "connected": status is PortState.TUNED,
        "counters": dict(none),
    }
    if peer is not None:
        connection["peer"] = port_name(peer)
    state = setting | {
        "group": "inputs" if ingress else "outputs",
        "index": port,
        "status": str(status),
        "input-optical-power" if ingress else "output-optical-power": power_dbm(
            device, port, now_ns
        ),
        "connection": connection,
        "counters": none,
    }
    return {"config": setting, "state": state}


def _connections(device: OpticalDevice, names: Names, now_ns: int) -> Entries:
    connections = Entries()
    for name, wire in names.current().items():
        setting = {
            "name": name,
            "input-port-name": port_name(wire.ingress),
            "output-port-name": port_name(wire.egress),
        }
        connections[name] = {
            "name": name,
            "config": setting,
            "state": setting | _status(device, wire, now_ns),
        }
    return connections


def _status(device: OpticalDevice, wire: Wire, now_ns: int) -> dict[str, Any]:
    for port in (wire.ingress, wire.egress):
        if device.admin(port) is Admin.FAILED:
            return {
                "status": "FAILED",
                "status-reason": f"{port_name(port)} has failed",
            }
        if device.admin(port) is Admin.DISABLED:
            return {
                "status": "FAILED",
                "status-reason": f"{port_name(port)} is disabled",
            }
    return {
        "status": "CONNECTED"
        if device.mirrors.is_tuned(wire, now_ns)
        else "PENDING_CONNECTION"
    }


# Changing


@dataclass
class OcpTreeChange:
    """A change under way: assignments are collected, then turned into commands all at once. ``names``: what
    the device's connections are called."""

    device: OpticalDevice
    names: Names
    planned: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Connections that were named, if only to be deleted.
    connections: bool = False
    admin: dict[int, bool] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    recovery: Recovery | None = None

    def __post_init__(self) -> None:
        self._before = self.names.current()
        self.planned = {
            name: {
                "input-port-name": port_name(wire.ingress),
                "output-port-name": port_name(wire.egress),
            }
            for name, wire in self._before.items()
        }

    def delete(self, path: Path) -> None:
        """Delete one connection or all; that there is none is no error. Raises TreeError."""
        match path:
            case ():
                self._clear("*")
            case (Step("connections", ()),):
                self._clear("*")
            case (Step("connections", ()), Step("port-connection", keys)):
                self._clear(dict(keys).get("name", "*"))
            case (Step("connections", ()), Step("port-connection", keys), *_):
                raise TreeError("delete a connection as a whole")
            case _:
                raise TreeError(f"{shown(path)} cannot be deleted")

    def _clear(self, name: str) -> None:
        self.connections = True
        if name == "*":
            self.planned.clear()
        else:
            self.planned.pop(name, None)

    def update(self, path: Path, value: Any) -> None:
        """Raises TreeError."""
        if path[:1] == (Step("connections"),) and len(path) == 1:
            self.connections = True
        for place, leaf in flatten(path, value):
            self._assign(place, leaf)

    def _assign(self, path: Path, value: Any) -> None:
        match path:
            case (
                Step("connections", ()),
                Step("port-connection", (("name", name),)),
                *rest,
            ):
                self._connection(name, [step.name for step in rest], value)
            case (Step("components", ()), Step("component", (("name", name),)), *rest):
                self._component(name, [step.name for step in rest], value)
            case (
                Step("optical-switch", ()),
                Step("config", ()),
                Step("cold-boot-recovery", ()),
            ):
                if not isinstance(value, str) or value not in Recovery.__members__:
                    raise TreeError(
                        f"cold-boot-recovery: {value!r} is none of {', '.join(Recovery.__members__)}"
                    )
                self.recovery = Recovery[value]
            case (Step("optical-switch", ()), Step("config", ()), Step(leaf, ())):
                allowed = {"bidirectional": False}
                if (
                    leaf not in allowed
                    or allowed[leaf] != value
                    or type(value) is not type(allowed[leaf])
                ):
                    raise TreeError(
                        f"{leaf}: the switch can do {allowed.get(leaf)!r} only"
                    )
            case _:
                raise TreeError(f"{shown(path)} cannot be set")

    def _connection(self, name: str, rest: list[str], value: Any) -> None:
        if not 0 < len(name) <= MAX_NAME or not name.isprintable() or name == "*":
            raise TreeError(f"{name[:40]!r} is not a connection's name")
        self.connections = True
        match rest:
            case ["name"] | ["config", "name"]:
                if value != name:
                    raise TreeError(f"connection {name}: its name is {value!r} inside")
                self.planned.setdefault(name, {})
            case ["config", ("input-port-name" | "output-port-name") as leaf]:
                self.planned.setdefault(name, {})[leaf] = str(value)
            case _:
                raise TreeError(f"connection {name}: {'/'.join(rest)} cannot be set")

    def _component(self, name: str, rest: list[str], value: Any) -> None:
        if rest in (["name"], ["config", "name"]):
            if value != name:
                raise TreeError(f"component {name}: its name is {value!r} inside")
            return
        port = port_number(name, self.device)
        match rest:
            case ["ocp-ocs-port", "config", "enabled"] if isinstance(value, bool):
                self.admin[port] = value
            case ["ocp-ocs-port", "config", "alias"] if isinstance(value, str):
                self.labels[port] = value
            case _:
                raise TreeError(
                    f"{name}: {'/'.join(rest)} cannot be set to {str(value)[:40]!r}"
                )

    def commands(self) -> tuple[list[Command], dict[str, Wire], list[str]]:
        """Return the device's commands, the connections that are new or have moved, by name, and the names of
        removed connections. Raises TreeError."""
        after: dict[str, Wire] = {}
        for name, ends in self.planned.items():
            if len(ends) < 2:
                raise TreeError(f"connection {name} lacks one of its ports")
            wire = Wire(
                *(port_number(ends[leaf], self.device) for leaf in sorted(ends))
            )
            if wire.ingress > self.device.size:
                raise TreeError(
                    f"connection {name}: {port_name(wire.ingress)} is an output"
                )
            if wire.egress <= self.device.size:
                raise TreeError(
                    f"connection {name}: {port_name(wire.egress)} is an input"
                )
            after[name] = wire
        used: dict[int, str] = {}
        for name, wire in after.items():
            for port in wire[:2]:
                if port in used:
                    raise TreeError(
                        f"{port_name(port)} is wanted by both {used[port]} and {name}"
                    )
                used[port] = name
        if self.connections and (self.admin or self.labels):
            raise TreeError("one change is about connections or about ports, not both")
        commands: list[Command] = []
        # What stands and shall stand is left alone, whatever it is called.
        remove = set(self._before.values()) - set(after.values())
        add = set(after.values()) - set(self._before.values())
        if remove or add:
            commands.append(Rewire(tuple(sorted(add)), tuple(sorted(remove))))
        for enabled in (True, False):
            ports = tuple(
                sorted(port for port, state in self.admin.items() if state is enabled)
            )
            if ports:
                commands.append(SetAdmin(ports, enabled))
        commands.extend(
            SetLabel(port, label) for port, label in sorted(self.labels.items())
        )
        if self.recovery not in (None, self.device.recovery):
            commands.append(SetRecovery(self.recovery))
        if len(commands) > 1:
            raise TreeError(
                "one change is about connections, enables ports, disables ports, names one port or says what"
                " a start does, not several of these"
            )
        new = {
            name: wire for name, wire in after.items() if self._before.get(name) != wire
        }
        return commands, new, [name for name in self._before if name not in after]
