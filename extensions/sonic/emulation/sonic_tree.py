"""An emulated switch as SONiC's models of an optical circuit switch show it: CONFIG_DB and STATE_DB.

Data, without any protocol: the tree that can be read, and what a change to it asks of the device.

Sources, as read on 2026-11-26: the design document, revision 0.5 of 2026-04-20 (sonic-net/SONiC pull request
2269, doc/ocs/ocs_hld.md at be2dbec); `sonic-ocs.yang` and `sonic-ocs-state.yang`, revision 2024-11-21
(wni0812/sonic-ocs-sonic-buildimage at 602f810); SAI's proposal (opencomputeproject/SAI pull request 2229,
doc/OCS/SAI-Proposal-OCS.md at 2fbf74f). The design document calls the second module ``sonic-ocs-states``, the
file ``sonic-ocs-state``; here it is the document's.

    sonic-ocs:sonic-ocs                       CONFIG_DB
        OCS_PORT/OCS_PORT_LIST[simplex_port_id]                 label, state: normal or force_blocked
        OCS_CROSS_CONNECT/OCS_CROSS_CONNECT_LIST[cross_connect_id]                a_side, b_side
    sonic-device_metadata:sonic-device_metadata     CONFIG_DB, read only here
        DEVICE_METADATA/localhost                hostname, hwsku, switch_type: ocs, type
    sonic-ocs-states:sonic-ocs-states         STATE_DB, read only
        OCS_PORT/OCS_PORT_LIST        connector_type, connector_pin, target_simplex_port_id,
                                      status: blocked, tuning, tuned or failed
        OCS_CROSS_CONNECT/OCS_CROSS_CONNECT_LIST       a_side, b_side, a_side_status, b_side_status
        OCS_CROSS_CONNECT_PHYSICAL_PATH/…_LIST[cross_connect_id]                  physical_path
        OCS_FACTORY_INSERTION_LOSS/…_LIST[cross_connect_id frequency_THz temperature_C]
                                                                          loss_dB, accuracy_dB

Both databases are also in the tree as SONiC has them, ``CONFIG_DB`` and ``STATE_DB``, each with
``localhost``, tables, keys and fields: ``CONFIG_DB/localhost/OCS_CROSS_CONNECT/1A-16B/a_side``; a key with
several parts has ``|`` between them.

Port k of the A side (``kA``) is ingress k, of the B side (``kB``) egress N+k: the sample configuration of the
platform ocs-kvm labels them ``ingress_port1`` and ``egress_port1``. SAI joins A to B only, and a port is in
one cross-connect at most; whoever moves one removes it and makes another.

A cross-connect of a port that is ``force_blocked`` is configured like any other; both of its sides are
blocked (section 9.2.2 of the document).

Unverified, and chosen here: ``hwsku`` and ``type`` are those of the platform ocs-kvm; a cross-connect's id
says its sides (``1A-16B``), and leaves that say others are refused; so is, as a whole, a change that would
use a port twice. (Molex' branch of the software takes it and shows one of the two as ``invalid``, a word
that the design document does not have.) Connectors, pins, frequency, temperature and accuracy are those of
the document's examples; a physical path has only its two ends. Of a list of all possible cross-connects
more than `MAX_PATHS` are not told at once. ``powered_off``, which some revisions have, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ringlight.extensions.gnmi.yang_tree import (
    Entries,
    Path,
    Step,
    TreeError,
    flatten,
    shown,
)
from ringlight.testbed.emulation.optical.commands import (
    Admin,
    Command,
    Rewire,
    SetAdmin,
    SetLabel,
    Together,
    Wire,
)
from ringlight.testbed.emulation.optical.device import OpticalDevice

CONFIG, STATES = "sonic-ocs", "sonic-ocs-states"
#: Revision of the models.
REVISION = "2024-11-21"
METADATA, METADATA_TABLE = "sonic-device_metadata", "DEVICE_METADATA"
#: By name of node: the module that it is of, where it is not its parent's.
MODULES = {CONFIG: CONFIG, STATES: STATES, METADATA: METADATA}
#: Section 5 of the document: the switch's type is what SONiC starts its parts by.
_METADATA = {
    "hostname": "sonic",
    "hwsku": "OCS-V",
    "switch_type": "ocs",
    "type": "SonicOCS",
}
#: Databases as SONiC has them, and the module that says the same.
DATABASES = {"CONFIG_DB": CONFIG, "STATE_DB": STATES}
_HOST = "localhost"
#: Key leaves of lists.
WIRE_LIST, PORT_LIST = "OCS_CROSS_CONNECT_LIST", "OCS_PORT_LIST"
KEYS = {PORT_LIST: "simplex_port_id", WIRE_LIST: "cross_connect_id"}
LOSS_LIST, LOSS_KEYS = (
    "OCS_FACTORY_INSERTION_LOSS_LIST",
    "cross_connect_id,frequency_THz,temperature_C",
)
#: Most paths that a list of all of them is told of; 128 x 128 are 2 MB.
MAX_PATHS = 128 * 128
#: As in the design document's examples.
CONNECTOR, PINS = "LC UPC", {"A": "2", "B": "1"}
FREQUENCY_THZ, TEMPERATURE_C, ACCURACY_DB = "228.850", "28.00", "0.10"
_STATES = {"normal": True, "force_blocked": False}
_PORT = re.compile(r"([1-9]\d{0,4})([AB])")

ROOT = {module: (Step(module),) for module in (CONFIG, STATES, METADATA)}
WIRES, PORTS = (
    (*ROOT[CONFIG], Step("OCS_CROSS_CONNECT")),
    (*ROOT[CONFIG], Step("OCS_PORT")),
)


class TooBig(TreeError):
    """More than is told at once: the path must name a cross-connect."""


class InUse(TreeError):
    """A port would be in two cross-connects."""


def port_name(port: int, size: int) -> str:
    return f"{port}A" if port <= size else f"{port - size}B"


def port_number(name: object, side: str, size: int) -> int:
    """Return the device's number of a port of side ``A``, ``B`` or either (``AB``). Raises TreeError."""
    match = _PORT.fullmatch(name) if isinstance(name, str) else None
    if match is None or int(match[1]) > size:
        raise TreeError(f"there is no port {str(name)[:40]!r}")
    if match[2] not in side:
        raise TreeError(f"port {name} is not on side {side}")
    return int(match[1]) + (size if match[2] == "B" else 0)


def wire_id(wire: Wire, size: int) -> str:
    return f"{port_name(wire.ingress, size)}-{port_name(wire.egress, size)}"


def wire_of(name: str, size: int) -> Wire:
    """Return the cross-connect with an id. Raises TreeError."""
    a_side, separator, b_side = name.partition("-")
    if not separator:
        raise TreeError(f"{name[:40]!r} is not a cross-connect's id, such as 1A-2B")
    return Wire(port_number(a_side, "A", size), port_number(b_side, "B", size))


# Reading


def tree(device: OpticalDevice, now_ns: int, path: Path) -> dict[str, Any]:
    """Return the part of the tree to which the path leads. Raises TreeError (TooBig)."""
    size, steps = device.size, model_path(path)
    names = [port_name(port, size) for port in range(1, 2 * size + 1)]
    makers: dict[str, dict[str, Callable[[], Entries]]] = {
        CONFIG: {
            "OCS_PORT": lambda: _config_ports(device, names),
            "OCS_CROSS_CONNECT": lambda: _config_wires(device),
        },
        STATES: {
            "OCS_PORT": lambda: _state_ports(device, names, now_ns),
            "OCS_CROSS_CONNECT": lambda: _state_wires(device, now_ns),
            "OCS_CROSS_CONNECT_PHYSICAL_PATH": lambda: _physical_paths(device, steps),
            "OCS_FACTORY_INSERTION_LOSS": lambda: _factory_losses(device, steps),
        },
    }
    below = steps[1].name if len(steps) > 1 else "*"
    document: dict[str, Any] = {}
    for top, module in [*((name, name) for name in makers), *DATABASES.items()]:
        if path and path[0].name not in ("*", top):
            continue
        made = {
            name: make()
            for name, make in makers[module].items()
            if below in ("*", name)
        }
        if top == module:
            document[top] = {
                name: {f"{name}_LIST": entries} for name, entries in made.items()
            }
        else:
            document[top] = {
                _HOST: {name: _hashes(entries) for name, entries in made.items()}
            }
    if not path or path[0].name in ("*", METADATA):
        document[METADATA] = {METADATA_TABLE: {_HOST: dict(_METADATA)}}
    if "CONFIG_DB" in document and below in ("*", METADATA_TABLE):
        document["CONFIG_DB"][_HOST][METADATA_TABLE] = {_HOST: dict(_METADATA)}
    return document


def _hashes(entries: Entries) -> dict[str, Any]:
    """A table of a database: fields by key."""
    keys = entries.key.split(",")
    return {
        key.replace(",", "|"): {
            leaf: value for leaf, value in entry.items() if leaf not in keys
        }
        for key, entry in entries.items()
        if isinstance(entry, dict)
    }


def model_path(path: Path) -> Path:
    """Return a path in a database as a path in the models, and any other path unchanged. Raises TreeError."""
    if not path or path[0].name not in DATABASES:
        return path
    names = [step.name for step in path]
    if any(step.keys for step in path) or names[1:2] not in ([], [_HOST], ["*"]):
        raise TreeError(
            f"{shown(path)}: a path in a database is {names[0]}/{_HOST}/TABLE/KEY/FIELD"
        )
    steps = [Step(DATABASES[names[0]]), *(Step(name) for name in names[2:3])]
    if len(names) > 3:
        table = f"{names[2]}_LIST"
        leaves = LOSS_KEYS if table == LOSS_LIST else KEYS.get(table, KEYS[WIRE_LIST])
        keys = sorted(zip(leaves.split(","), names[3].split("|"), strict=False))
        steps.append(Step(table, tuple(keys)))
    return (*steps, *(Step(name) for name in names[4:]))


def model_value(path: Path, value: Any) -> Any:
    """Return a value at a path in a database in the form of the models, and any other value unchanged. Raises
    TreeError."""
    if not path or path[0].name not in DATABASES or len(path) > 3:
        return value
    listed = f"{path[2].name}_LIST" if len(path) == 3 else ""
    if listed not in KEYS or not isinstance(value, dict):
        raise TreeError(f"{shown(path)} cannot be set: name a table, and tell its rows")
    if not all(isinstance(fields, dict) for fields in value.values()):
        raise TreeError(f"{shown(path)}: a table is keys with fields")
    return {listed: [{KEYS[listed]: key} | fields for key, fields in value.items()]}


def _config_ports(device: OpticalDevice, names: list[str]) -> Entries:
    entries = Entries(key="simplex_port_id")
    for port, name in enumerate(names, start=1):
        row = {"simplex_port_id": name}
        if device.label(port):
            row["label"] = device.label(port)
        row["state"] = (
            "force_blocked" if device.admin(port) is Admin.DISABLED else "normal"
        )
        entries[name] = row
    return entries


def _config_wires(device: OpticalDevice) -> Entries:
    entries = Entries(key="cross_connect_id")
    for wire in device.cross_connects():
        a_side, b_side = (port_name(port, device.size) for port in wire[:2])
        name = f"{a_side}-{b_side}"
        entries[name] = {"cross_connect_id": name, "a_side": a_side, "b_side": b_side}
    return entries


def _statuses(device: OpticalDevice, now_ns: int) -> dict[int, str]:
    """Status of every port: `OpticalDevice.port_state` of all of them at once."""
    admin = {port: device.admin(port) for port in range(1, 2 * device.size + 1)}
    statuses = {
        port: "failed" if state is Admin.FAILED else "blocked"
        for port, state in admin.items()
    }
    for wire in device.cross_connects():
        if admin[wire.ingress] is admin[wire.egress] is Admin.ENABLED:
            statuses[wire.ingress] = statuses[wire.egress] = (
                "tuned" if device.mirrors.is_tuned(wire, now_ns) else "tuning"
            )
    return statuses


def _state_ports(device: OpticalDevice, names: list[str], now_ns: int) -> Entries:
    statuses, entries = _statuses(device, now_ns), Entries(key="simplex_port_id")
    for port, name in enumerate(names, start=1):
        row = {
            "simplex_port_id": name,
            "connector_type": CONNECTOR,
            "connector_pin": PINS[name[-1]],
        }
        if (peer := device.peer(port)) is not None:
            row["target_simplex_port_id"] = names[peer - 1]
        entries[name] = row | {"status": statuses[port]}
    return entries


def _state_wires(device: OpticalDevice, now_ns: int) -> Entries:
    statuses, entries = _statuses(device, now_ns), _config_wires(device)
    for wire, row in zip(device.cross_connects(), entries.values(), strict=True):
        assert isinstance(row, dict)
        row["a_side_status"] = statuses[wire.ingress]
        row["b_side_status"] = statuses[wire.egress]
    return entries


def _possible(device: OpticalDevice, path: Path) -> Iterator[tuple[str, Wire]]:
    """Every cross-connect that is possible, or only the one that the path names. Raises TooBig."""
    size = device.size
    named = dict(path[2].keys).get("cross_connect_id", "*") if len(path) > 2 else "*"
    if named != "*":
        try:
            yield named, wire_of(named, size)
        except TreeError:
            return
    elif len(path) < 2 or path[1].name == "*":
        # Who asks for everything gets what is, and not also what could be.
        return
    elif size * size > MAX_PATHS:
        raise TooBig(
            f"{path[1].name} of all {size * size} cross-connects is too long: name one"
        )
    else:
        for ingress in range(1, size + 1):
            for egress in range(size + 1, 2 * size + 1):
                wire = Wire(ingress, egress)
                yield wire_id(wire, size), wire


def _physical_paths(device: OpticalDevice, path: Path) -> Entries:
    entries = Entries(key="cross_connect_id")
    for name, wire in _possible(device, path):
        ends = [port_name(port, device.size) for port in wire[:2]]
        entries[name] = {"cross_connect_id": name, "physical_path": ends}
    return entries


def _factory_losses(device: OpticalDevice, path: Path) -> Entries:
    entries = Entries(key=LOSS_KEYS)
    for name, wire in _possible(device, path):
        entries[f"{name},{FREQUENCY_THZ},{TEMPERATURE_C}"] = {
            "cross_connect_id": name,
            "temperature_C": TEMPERATURE_C,
            "frequency_THz": FREQUENCY_THZ,
            "loss_dB": f"{device.mirrors.insertion_loss_db(wire.ingress, wire.egress):.2f}",
            "accuracy_dB": ACCURACY_DB,
        }
    return entries


def as_json(node: Any) -> Any:
    """Return the JSON of a container, an entry or a leaf. All leaves are text, so that rows of lists stay
    unchanged."""
    if isinstance(node, Entries):
        return list(node.values())
    if not isinstance(node, dict):
        return node
    return {
        name: as_json(child) if isinstance(child, dict) else child
        for name, child in node.items()
    }


# Changing


def _named_wire(path: Path) -> str | None:
    """The id of the cross-connect that a path leads to or into."""
    match path[: len(WIRES) + 1]:
        case (*place, Step(name, ((_, key),))) if (
            tuple(place) == WIRES and name == WIRE_LIST
        ):
            return key
    return None


@dataclass
class SonicTreeChange:
    """A change under way: deletions and assignments are collected, then turned into commands all at once."""

    device: OpticalDevice
    #: Cross-connects as they are to be, by id, each with the sides that leaves have said.
    planned: dict[str, dict[str, str]] = field(default_factory=dict)
    admin: dict[int, bool] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._before = {
            wire_id(wire, self.device.size): wire
            for wire in self.device.cross_connects()
        }
        self.planned = {name: {} for name in self._before}

    def exists(self, path: Path) -> bool:
        """Return whether the target of a path exists: the named cross-connect, or any if the path is the
        whole list. True for any other path."""
        name = _named_wire(path)
        if name is not None:
            return name in self.planned
        return path != WIRES or bool(self.planned)

    def delete(self, path: Path) -> None:
        """Delete one cross-connect or all; that there is none is no error. Raises TreeError."""
        name = _named_wire(path)
        if path in (WIRES, (*WIRES, Step(WIRE_LIST))):
            self.planned.clear()
        elif name is not None and len(path) == len(WIRES) + 1:
            self.planned.pop(name, None)
        else:
            raise TreeError(f"{shown(path)} cannot be deleted")

    def update(self, path: Path, value: Any) -> None:
        """Assign a container, an entry or a leaf. Raises TreeError."""
        if path[:1] not in ((), ROOT[CONFIG]):
            raise TreeError(f"{shown(path)} cannot be set")
        if (name := _named_wire(path)) is not None:
            # Without leaves its id says its sides.
            self.add(name, {})
        for place, leaf in flatten(path, value, KEYS):
            self._assign(place, leaf)

    def _assign(self, path: Path, value: Any) -> None:
        place, below = path[:2], path[2:]
        match below:
            case (Step(_, ((_, name),)), Step(leaf, ())) if place == WIRES:
                self._wire(name, leaf, value)
            case (Step(_, ((_, name),)), Step(leaf, ())) if place == PORTS:
                self._port(name, leaf, value)
            case _:
                raise TreeError(f"{shown(path)} cannot be set")

    def add(self, name: str, sides: Mapping[str, str]) -> None:
        """A cross-connect that is to be, and what is said of its sides."""
        self.planned.setdefault(name, {}).update(sides)

    def _wire(self, name: str, leaf: str, value: Any) -> None:
        if leaf not in ("cross_connect_id", "a_side", "b_side") or not isinstance(
            value, str
        ):
            raise TreeError(
                f"cross-connect {name[:40]}: {leaf} cannot be set to {str(value)[:40]!r}"
            )
        if leaf == "cross_connect_id" and value != name:
            raise TreeError(
                f"cross-connect {name[:40]}: its id is {value[:40]!r} inside"
            )
        self.add(name, {} if leaf == "cross_connect_id" else {leaf: value})

    def _port(self, name: str, leaf: str, value: Any) -> None:
        port = port_number(name, "AB", self.device.size)
        match leaf:
            case "simplex_port_id" if value == name:
                return
            case "state" if isinstance(value, str) and value in _STATES:
                self.admin[port] = _STATES[value]
            case "label" if isinstance(value, str):
                self.labels[port] = value
            case _:
                raise TreeError(
                    f"port {name}: {leaf} cannot be set to {str(value)[:40]!r}"
                )

    def commands(self) -> list[Command]:
        """Return the device's commands. Raises TreeError."""
        size = self.device.size
        after: dict[str, Wire] = {}
        used: dict[int, str] = {}
        for name, sides in self.planned.items():
            wire = self._before.get(name) or wire_of(name, size)
            own_sides = {
                "a_side": port_name(wire.ingress, size),
                "b_side": port_name(wire.egress, size),
            }
            if sides and {**own_sides, **sides} != own_sides:
                raise TreeError(f"cross-connect {name}: its sides are those of its id")
            for port in wire[:2]:
                if port in used:
                    raise InUse(
                        f"port {port_name(port, size)} is wanted by both {used[port]} and {name}"
                    )
                used[port] = name
            after[name] = wire
        remove = tuple(
            sorted(self._before[name] for name in self._before.keys() - after.keys())
        )
        add = tuple(sorted(after[name] for name in after.keys() - self._before.keys()))
        commands: list[Rewire | SetAdmin | SetLabel] = []
        if add or remove:
            commands.append(Rewire(add, remove, blocked=True))
        disabled = {
            port: enabled
            for port, enabled in self.admin.items()
            if (self.device.admin(port) is Admin.DISABLED) is enabled
        }
        for enabled in (True, False):
            ports = tuple(
                sorted(port for port, state in disabled.items() if state is enabled)
            )
            if ports:
                commands.append(SetAdmin(ports, enabled))
        labels = {
            port: label
            for port, label in self.labels.items()
            if self.device.label(port) != label
        }
        commands.extend(SetLabel(port, label) for port, label in sorted(labels.items()))
        return [Together(tuple(commands))] if len(commands) > 1 else [*commands]


def by_name(text: str, size: int) -> str:
    """Return a text of the device with the names of ports in place of their numbers."""

    def name(match: re.Match[str]) -> str:
        return f"{match[1]}{port_name(int(match[2]), size)}"

    return re.sub(r"(\bport )(\d+)\b(?!\.)", name, text)
