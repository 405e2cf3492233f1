"""The kernel's side of the fast path: its programs and maps, and what of each switch is in them."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ringlight.extensions.fast_path.openflow import Group
from ringlight.extensions.fast_path.table import (
    BUCKETS,
    GROUP,
    GROUP_HEAD,
    GROUP_SIZE,
    KEY,
    LEAVE,
    OUTPUT,
    OUTPUTS,
    OUTPUTS_VALUE,
    RULE_HEAD,
    RULE_SIZE,
    SLOTS,
    SUBTABLE,
    TABLE_SIZE,
    CompiledTable,
    FlowName,
    GroupName,
    Place,
    Rule,
    Selection,
)
from ringlight.testbed.emulation.kernel import ebpf
from ringlight.testbed.emulation.kernel.build import build_object

SOURCE = Path(__file__).with_name("fastpath.c")
CLAIM, CARRY, SMOOTH = "claim", "carry", "smooth"

_U32 = struct.Struct("=I")
_PORT = struct.Struct("=IIQQQQ")
_COUNT = struct.Struct("=QQ")
_SIZES = {
    "ports": (_U32.size, _PORT.size),
    "tables": (_U32.size, TABLE_SIZE),
    "rules": (KEY.size, RULE_SIZE),
    "groups": (_U32.size, GROUP_SIZE),
    "counters": (_U32.size, _COUNT.size),
    "smoother": (_U32.size, _U32.size),
}
#: Packets and bytes.
Count = tuple[int, int]


class Datapath:
    """The programs and maps of one lab. Raises EbpfError, BuildError."""

    def __init__(self) -> None:
        programs, self.maps = ebpf.load(
            build_object(SOURCE), [CLAIM, CARRY, SMOOTH], _SIZES, {}
        )
        self.claim, self.carry, self._smooth = (
            programs[CLAIM],
            programs[CARRY],
            programs[SMOOTH],
        )
        numbers = itertools.count(1)
        #: Of subtables, groups and counters: never given twice.
        self.number: Callable[[], int] = lambda: next(numbers)

    def smooth(self, near: int, far: int) -> None:
        """Have what is left to Open vSwitch cut up and completed by a pair of interfaces, by index."""
        ebpf.attach_ingress(far, self._smooth)
        self.maps["smoother"].update(_U32.pack(0), _U32.pack(near))

    def close(self) -> None:
        """Let go of the descriptors. What is attached stays until its interface or socket goes."""
        for program in (self.claim, self.carry, self._smooth):
            os.close(program)
        for table in self.maps.values():
            table.close()


class SwitchMaps:
    """Entries of one switch in the maps. ``index``: the switch's number in the lab."""

    def __init__(self, datapath: Datapath, index: int) -> None:
        self._maps, self._number, self._index = datapath.maps, datapath.number, index
        self._ports: dict[int, int] = {}
        self._subtables: dict[Place, int] = {}
        self._groups: dict[int, int] = {}
        self._counters: dict[FlowName | GroupName, int] = {}
        self._described: Mapping[int, Group] = {}
        #: Contents by map, without the ports and the counters, which the kernel changes.
        self._contents: dict[str, dict[bytes, bytes]] = {
            "groups": {},
            "rules": {},
            "tables": {},
        }

    def write(self, table: CompiledTable, interfaces: Mapping[int, int]) -> None:
        """Make the maps say what a table says; what is in both is not touched.

        ``interfaces``: index of the interface of each port. New things come before what refers to them, and
        old ones go after it, so that a packet never meets half a rule.
        """
        # A group that is written again counts from nothing, as Open vSwitch has it.
        old = {
            number
            for number, group in self._described.items()
            if table.described.get(number) != group
        }
        outdated = [
            self._counters.pop(name)
            for name in list(self._counters)
            if (
                name not in table.flows
                if isinstance(name[1], bytes)
                else name[0] in old
            )
        ]
        self._described = table.described
        for counted in _counted(table):
            if counted not in self._counters:
                self._counters[counted] = number = self._number()
                self._maps["counters"].update(_U32.pack(number), _COUNT.pack(0, 0))
        for place in table.subtables:
            self._subtables.setdefault(place, self._number())
        for group in table.groups:
            self._groups.setdefault(group, self._number())
        contents = {
            "groups": {
                _U32.pack(self._groups[group]): self._group_value(
                    group, selection, interfaces
                )
                for group, selection in table.groups.items()
            },
            "rules": {
                KEY.pack(self._subtables[place], value): self._rule_value(
                    rule, interfaces
                )
                for (place, value), rule in table.rules.items()
            },
            "tables": {_U32.pack(self._index): self._table_value(table.subtables)},
        }
        for name, entries in contents.items():
            there = self._contents[name]
            for key, value in entries.items():
                if there.get(key) != value:
                    self._maps[name].update(key, value)
                    there[key] = value
        for name in ("rules", "groups"):
            there = self._contents[name]
            for key in there.keys() - contents[name].keys():
                self._maps[name].delete(key)
                del there[key]
        self._subtables = {place: self._subtables[place] for place in table.subtables}
        self._groups = {group: self._groups[group] for group in table.groups}
        for number in outdated:
            self._maps["counters"].delete(_U32.pack(number))

    def open_ports(self, interfaces: Mapping[int, int]) -> None:
        """Look up what comes in at these ports, and at no others; ``interfaces`` as for :meth:`write`."""
        for number, interface in self._ports.items():
            if interfaces.get(number) != interface:
                self._maps["ports"].delete(_U32.pack(interface))
        for number, interface in interfaces.items():
            if self._ports.get(number) != interface:
                value = _PORT.pack(self._index, number, 0, 0, 0, 0)
                self._maps["ports"].update(_U32.pack(interface), value)
        self._ports = dict(interfaces)

    def counts(self) -> tuple[dict[FlowName, Count], dict[GroupName, Count]]:
        """Return the packets and bytes carried by each flow, and by each group and each of its buckets."""
        flows: dict[FlowName, Count] = {}
        groups: dict[GroupName, Count] = {}
        for name, number in self._counters.items():
            value = self._maps["counters"].lookup(_U32.pack(number))
            packets, size = _COUNT.unpack(value) if value else (0, 0)
            if isinstance(name[1], bytes):
                flows[name[0], name[1]] = packets, size
            else:
                groups[name[0], name[1]] = packets, size
        return flows, groups

    def extras(self) -> dict[int, tuple[int, int, int, int]]:
        """Return what is missing in the kernel's counters of each port, only for ports at which something is
        missing: packets and bytes received, then packets and bytes sent."""
        extras = {}
        for number, interface in self._ports.items():
            value = self._maps["ports"].lookup(_U32.pack(interface))
            if value is not None and any(extra := _PORT.unpack(value)[2:]):
                extras[number] = extra
        return extras

    def _outputs(
        self,
        counter: FlowName | GroupName | None,
        ports: Iterable[int],
        interfaces: Mapping[int, int],
    ) -> bytes:
        indexes = [interfaces[port] for port in ports]
        number = self._counters[counter] if counter else 0
        return OUTPUTS_VALUE.pack(
            number, len(indexes), *indexes, *[0] * (OUTPUTS - len(indexes))
        )

    def _rule_value(self, rule: Rule, interfaces: Mapping[int, int]) -> bytes:
        if rule.action is None:
            return RULE_HEAD.pack(LEAVE, 0) + self._outputs(None, (), interfaces)
        group = rule.action.group
        head = (
            RULE_HEAD.pack(OUTPUT, 0)
            if group is None
            else RULE_HEAD.pack(GROUP, self._groups[group])
        )
        return head + self._outputs(rule.flow, rule.action.ports, interfaces)

    def _group_value(
        self, group: int, selection: Selection, interfaces: Mapping[int, int]
    ) -> bytes:
        slots = bytes(selection.slots) + bytes(SLOTS - len(selection.slots))
        buckets = [
            self._outputs((group, index), ports, interfaces)
            for index, ports in enumerate(selection.buckets)
        ]
        buckets += [bytes(OUTPUTS_VALUE.size)] * (BUCKETS - len(buckets))
        head = GROUP_HEAD.pack(
            self._counters[group, None], len(selection.slots) - 1, slots
        )
        return head + b"".join(buckets)

    def _table_value(self, subtables: Iterable[Place]) -> bytes:
        packed = [
            SUBTABLE.pack(self._subtables[place], place[1]) for place in subtables
        ]
        return (_U32.pack(len(packed)) + b"".join(packed)).ljust(TABLE_SIZE, b"\0")


def _counted(table: CompiledTable) -> Iterable[FlowName | GroupName]:
    for rule in table.rules.values():
        if rule.flow is not None:
            yield rule.flow
    for group, selection in table.groups.items():
        yield group, None
        for index in range(len(selection.buckets)):
            yield group, index
