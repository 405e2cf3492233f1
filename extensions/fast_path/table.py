"""Makes of a switch's flow table what the kernel's programs look up. Pure.

A table becomes subtables: the rules of one priority that look at the same bits, each a hash of what these
bits must be. A packet is looked up in one after the other by falling priority, and the first hit is its rule.
What the programs cannot do is left to Open vSwitch, packet by packet: a flow that matches other fields
becomes a rule for all packets that it might match, and one that does something else a rule for its own, which
both say "leave it". So a packet is carried only where every flow of a higher priority is known not to match.

Not carried, but left: flows with an idle timeout (Open vSwitch must see what keeps them alive), meters, other
tables, rewritten packets, ports that are none of the switch's (the controller, flooding), groups but those
that select by Open vSwitch's default hash and those with one bucket, liveness. To set a queue does nothing in
the userspace datapath, and nothing here.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ringlight.extensions.fast_path.openflow import Bucket, Group, TableFlow

#: As in ``fastpath.c``.
SUBTABLES, OUTPUTS, BUCKETS, SLOTS, WORDS = 24, 8, 16, 64, 8
LEAVE, OUTPUT, GROUP = 0, 1, 2
KEY = struct.Struct(f"=I{4 * WORDS}s")
SUBTABLE = struct.Struct(f"=I{4 * WORDS}s")
OUTPUTS_VALUE = struct.Struct(f"=II{OUTPUTS}I")
RULE_HEAD = struct.Struct("=II")
GROUP_HEAD = struct.Struct(f"=II{SLOTS}s")
TABLE_SIZE = 4 + SUBTABLES * SUBTABLE.size
RULE_SIZE = RULE_HEAD.size + OUTPUTS_VALUE.size
GROUP_SIZE = GROUP_HEAD.size + BUCKETS * OUTPUTS_VALUE.size

_OPENFLOW_BASIC = 0x8000
_VLAN_VID = 6
#: Place of a match field (7.2.3.8) among the packet's fields, and how many bytes of it OpenFlow has.
_FIELDS = {
    3: (4, 6),  # Ethernet destination
    4: (10, 6),  # Ethernet source
    5: (16, 2),  # ethertype
    10: (18, 1),  # IP protocol
    11: (20, 4),  # IPv4 source
    12: (24, 4),  # IPv4 destination
    13: (28, 2),  # ports of TCP
    14: (30, 2),
    15: (28, 2),  # of UDP
    16: (30, 2),
    17: (28, 2),  # of SCTP
    18: (30, 2),
    22: (20, 4),  # ARP's sender
    23: (24, 4),  # and target
}
_IN_PORT, _ARP_OPERATION, _ICMP_TYPE, _ICMP_CODE = 0, 21, 19, 20
#: Numbers of instructions and actions (7.2.4, 7.2.5).
_WRITE_ACTIONS, _APPLY_ACTIONS = 3, 4
_TO_PORT, _SET_QUEUE, _TO_GROUP = 0, 21, 22
_SELECT, _INDIRECT = 1, 2
#: Open vSwitch has at least so many values of the hash of a group that selects.
_LEAST_SLOTS = 16

Place = tuple[int, bytes]
#: Of a flow: priority and match. Of a group or a bucket: its number, and that of the bucket or None.
FlowName = tuple[int, bytes]
GroupName = tuple[int, int | None]


class Match(NamedTuple):
    """The bits of a packet that must be so. ``exact``: nothing else must; ``never``: no packet that may be
    carried can match."""

    mask: bytes
    value: bytes
    exact: bool
    never: bool


@dataclass(frozen=True)
class TableAction:
    """Action of a flow or a bucket: output to ports, in order, or processing by a group."""

    ports: tuple[int, ...] = ()
    group: int | None = None


@dataclass(frozen=True)
class Rule:
    """Handling of a packet. ``action``: None leaves the packet to Open vSwitch. ``flow``: the flow that
    counts the packet."""

    action: TableAction | None
    flow: FlowName | None = None


@dataclass(frozen=True)
class Selection:
    """A group: the bucket of each value of the hash, and the ports of each bucket."""

    slots: tuple[int, ...]
    buckets: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class CompiledTable:
    """A switch's table, compiled: rules by subtable (priority and mask) and value, the subtables in the order
    in which they are looked at, and the groups that rules hand packets to.

    ``flows`` and ``described``: everything that is there, carried or left, so that counters stay with it.
    """

    subtables: tuple[Place, ...]
    rules: Mapping[tuple[Place, bytes], Rule]
    groups: Mapping[int, Selection]
    flows: frozenset[FlowName]
    described: Mapping[int, Group]


@functools.lru_cache(maxsize=65536)
def read_match(data: bytes) -> Match:
    """Parse a match as it is on the wire (type, length, fields, padding) and return it."""
    mask, value = bytearray(4 * WORDS), bytearray(4 * WORDS)
    exact, never = True, False
    offset, end = 4, struct.unpack_from("!H", data, 2)[0]
    while offset < end:
        kind, number, length = struct.unpack_from("!HBB", data, offset)
        masked, number = number & 1, number >> 1
        body = data[offset + 4 : offset + 4 + length]
        offset += 4 + length
        size = length // 2 if masked else length
        field, bits = body[:size], body[size:] if masked else b"\xff" * size
        place = _place(number, field, bits) if kind == _OPENFLOW_BASIC else None
        if kind == _OPENFLOW_BASIC and number == _VLAN_VID:
            # What is carried has no tag, which reads as 0 here.
            never = never or any(field)
        elif place is None:
            exact = False
        else:
            start, field, bits = place
            mask[start : start + len(bits)] = bits
            value[start : start + len(bits)] = field
    masked_value = bytes(v & m for v, m in zip(value, mask, strict=True))
    return Match(bytes(mask), masked_value, exact, never)


def _place(number: int, value: bytes, bits: bytes) -> tuple[int, bytes, bytes] | None:
    """Return the position of a field among a packet's fields, with value and mask as the kernel has them.
    Return None for a field that the programs do not know."""
    if number == _IN_PORT:
        # In the machine's own byte order.
        return 0, struct.pack("=I", int.from_bytes(value, "big")), b"\xff" * 4
    if number == _ARP_OPERATION:
        # Open vSwitch has the low byte.
        return (18, value[1:], bits[1:]) if not value[0] and bits[0] == 0xFF else None
    if number in (_ICMP_TYPE, _ICMP_CODE):
        return (28 if number == _ICMP_TYPE else 30), b"\0" + value, b"\xff" + bits
    known = _FIELDS.get(number)
    return (known[0], value, bits) if known and known[1] == len(value) else None


@functools.lru_cache(maxsize=65536)
def read_instructions(data: bytes) -> TableAction | None:
    """Return the action of a flow's instructions, None if the programs cannot perform it."""
    if not data:
        return TableAction()
    kind, length = struct.unpack_from("!HH", data)
    if length != len(data) or kind not in (_WRITE_ACTIONS, _APPLY_ACTIONS):
        return None
    action = read_actions(data[8:])
    if kind == _WRITE_ACTIONS and action is not None and len(action.ports) > 1:
        # Of the actions of a set the last output counts.
        return None
    return action


def read_actions(data: bytes) -> TableAction | None:
    """Return the action of a list of OpenFlow actions, None if the programs cannot perform it."""
    ports: list[int] = []
    groups: list[int] = []
    offset = 0
    while offset < len(data):
        kind, length = struct.unpack_from("!HH", data, offset)
        if kind == _TO_PORT:
            ports.append(struct.unpack_from("!I", data, offset + 4)[0])
        elif kind == _TO_GROUP:
            groups.append(struct.unpack_from("!I", data, offset + 4)[0])
        elif kind != _SET_QUEUE:
            return None
        offset += max(length, 8)
    if len(ports) > OUTPUTS or (groups and (ports or len(groups) > 1)):
        return None
    return TableAction(tuple(ports), groups[0] if groups else None)


def select(buckets: Iterable[Bucket]) -> tuple[int, ...] | None:
    """Return the bucket of each value of the hash, as Open vSwitch deals them out, None if Open vSwitch
    hashes in another way.

    By Webster's method (ofproto/ofproto-dpif.c): each value goes to the bucket of the largest quotient of its
    weight and the odd number that comes next for it.
    """
    weights = [bucket.weight for bucket in buckets]
    heavy = [weight for weight in weights if weight]
    if not heavy or len(weights) > BUCKETS:
        return None
    least = -(-sum(weights) // min(heavy))
    size = max(_LEAST_SLOTS, 1 << (least - 1).bit_length())
    if size > SLOTS:
        return None
    divisors = [1] * len(weights)
    slots = []
    for _ in range(size):
        winner = max(range(len(weights)), key=lambda i: (weights[i] / divisors[i], -i))
        slots.append(winner)
        divisors[winner] += 2
    return tuple(slots)


def selection(group: Group, ports: Iterable[int]) -> Selection | None:
    """Return a group in the form that the programs use, None if they cannot perform what the group does."""
    if (
        group.kind not in (_SELECT, _INDIRECT)
        or group.chosen
        or any(b.watched for b in group.buckets)
    ):
        return None
    actions = [read_actions(bucket.actions) for bucket in group.buckets]
    known = set(ports)
    if not all(
        a is not None and a.group is None and known.issuperset(a.ports) for a in actions
    ):
        return None
    slots = (
        select(group.buckets) if group.kind == _SELECT else (0,) * len(group.buckets)
    )
    if not slots or (group.kind == _INDIRECT and len(group.buckets) != 1):
        return None
    return Selection(
        slots, tuple(action.ports for action in actions if action is not None)
    )


def compile_table(
    flows: Iterable[TableFlow], groups: Iterable[Group], ports: Iterable[int]
) -> CompiledTable:
    """Compile a switch's flows and return the table. Packets meet the flows of table 0 first.

    ``ports``: numbers of the ports that packets may leave by; ``groups``: all groups of the switch.
    """
    known = frozenset(ports)
    described = {group.number: group for group in groups}
    selections = {
        number: selection(group, known) for number, group in described.items()
    }
    flows = [flow for flow in flows if flow.table == 0]
    rules: dict[tuple[Place, bytes], Rule] = {}
    used: dict[int, Selection] = {}
    for flow in flows:
        match = read_match(flow.match)
        if match.never:
            continue
        action = (
            None
            if flow.idle_s or not match.exact
            else read_instructions(flow.instructions)
        )
        if action is not None:
            chosen = None if action.group is None else selections.get(action.group)
            if not known.issuperset(action.ports) or (
                action.group is not None and chosen is None
            ):
                action = None
            elif action.group is not None and chosen is not None:
                used[action.group] = chosen
        place = (flow.priority, match.mask), match.value
        # Two flows meet here only where one matches more than the programs see.
        met = place in rules
        rules[place] = (
            Rule(None)
            if action is None or met
            else Rule(action, (flow.priority, flow.match))
        )
    order = sorted({place for place, _ in rules}, key=lambda place: -place[0])
    if len(order) > SUBTABLES:
        # What is looked at too late to be found is left.
        kept = set(order[: SUBTABLES - 1])
        last = order[SUBTABLES - 1][0], bytes(4 * WORDS)
        rules = {place: rule for place, rule in rules.items() if place[0] in kept}
        rules[last, bytes(4 * WORDS)] = Rule(None)
        order = [*order[: SUBTABLES - 1], last]
        needed = {rule.action.group for rule in rules.values() if rule.action}
        used = {number: group for number, group in used.items() if number in needed}
    there = frozenset((flow.priority, flow.match) for flow in flows)
    return CompiledTable(tuple(order), rules, used, there, described)
