"""What the fast path makes of a flow table, and of what Open vSwitch says, without the kernel."""

from __future__ import annotations

import errno
import itertools
import socket
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ringlight.controller.inventory import Inventory
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.extensions.fast_path import openflow
from ringlight.extensions.fast_path.carried import Carried
from ringlight.extensions.fast_path.datapath import SwitchMaps
from ringlight.extensions.fast_path.openflow import (
    Bucket,
    Group,
    Reader,
    TableFlow,
    Told,
)
from ringlight.extensions.fast_path.service import add_carried
from ringlight.extensions.fast_path.table import (
    SUBTABLES,
    Rule,
    TableAction,
    compile_table,
    read_instructions,
    read_match,
    select,
)
from ringlight.testbed.emulation.kernel.ebpf import EbpfError

IN_PORT, ETH_TYPE, IP_DST, ARP_OP, VLAN, TTL = 0, 5, 12, 21, 6, 44
IPV4 = (ETH_TYPE, b"\x08\x00")


def oxm(number: int, value: bytes, mask: bytes = b"") -> bytes:
    return (
        struct.pack("!HBB", 0x8000, number << 1 | bool(mask), len(value + mask))
        + value
        + mask
    )


def match(*fields: tuple[int, bytes] | tuple[int, bytes, bytes]) -> bytes:
    body = b"".join(oxm(*field) for field in fields)
    return (struct.pack("!HH", 1, 4 + len(body)) + body).ljust(
        (11 + len(body)) // 8 * 8, b"\0"
    )


def output(port: int) -> bytes:
    return struct.pack("!HHIH6x", 0, 16, port, 0)


def group(number: int) -> bytes:
    return struct.pack("!HHI", 22, 8, number)


def apply(*actions: bytes, kind: int = 4) -> bytes:
    body = b"".join(actions)
    return struct.pack("!HH4x", kind, 8 + len(body)) + body


def to(ip: str, prefix: int = 32) -> tuple[int, bytes, bytes]:
    mask = (0xFFFFFFFF << (32 - prefix) & 0xFFFFFFFF).to_bytes(4, "big")
    return IP_DST, socket.inet_aton(ip), mask


def rules(
    *flows: TableFlow,
    groups: tuple[Group, ...] = (),
    ports: tuple[int, ...] = (1, 2, 3),
) -> list[Rule]:
    return list(compile_table(flows, groups, ports).rules.values())


def test_a_match_says_which_bits_must_be_what() -> None:
    mask, value, exact, never = read_match(
        match((IN_PORT, struct.pack("!I", 3)), IPV4, to("10.0.3.7", 24))
    )
    assert exact
    assert not never
    assert mask[:4] == b"\xff" * 4
    assert value[:4] == struct.pack("=I", 3)
    assert (mask[16:18], value[16:18]) == (b"\xff\xff", b"\x08\x00")
    assert (mask[24:28], value[24:28]) == (b"\xff\xff\xff\x00", bytes([10, 0, 3, 0]))
    assert not any(mask[4:16] + mask[18:24] + mask[28:])


def test_what_the_programs_do_not_see_is_left() -> None:
    plain = match(IPV4, to("10.0.0.1"))
    narrow = match(IPV4, to("10.0.0.1"), (TTL, b"\x40"))
    assert read_match(narrow)[:2] == read_match(plain)[:2]
    assert not read_match(narrow).exact
    (rule,) = rules(TableFlow(0, 9, narrow, apply(output(1))))
    assert rule == Rule(None)
    # At one priority the two meet, and Open vSwitch alone knows which it is.
    assert rules(
        TableFlow(0, 9, narrow, apply(output(1))),
        TableFlow(0, 9, plain, apply(output(2))),
    ) == [Rule(None)]


def test_a_flow_for_tagged_packets_is_none_for_those_that_are_carried() -> None:
    assert read_match(match((VLAN, b"\x10\x05"))).never
    assert not read_match(match((VLAN, b"\x00\x00"))).never
    assert rules(TableFlow(0, 9, match((VLAN, b"\x10\x05")), apply(output(1)))) == []


def test_an_operation_of_arp_beyond_a_byte_is_left() -> None:
    arp = (ETH_TYPE, b"\x08\x06")
    assert read_match(match(arp, (ARP_OP, b"\x00\x02"))).value[18] == 2
    assert not read_match(match(arp, (ARP_OP, b"\x01\x02"))).exact


@pytest.mark.parametrize(
    ("instructions", "action"),
    [
        (b"", TableAction()),
        (apply(output(2), output(3)), TableAction((2, 3))),
        (apply(output(2), kind=3), TableAction((2,))),
        # Of a set only the last output counts.
        (apply(output(2), output(3), kind=3), None),
        (apply(group(7)), TableAction((), 7)),
        (apply(group(7), output(1)), None),
        (apply(struct.pack("!HHI", 21, 8, 1), output(2)), TableAction((2,))),
        # A meter, another table, another time to live.
        (struct.pack("!HHI", 6, 8, 1) + apply(output(2)), None),
        (struct.pack("!HHB3x", 1, 8, 1), None),
        (apply(struct.pack("!HH4x", 24, 8), output(2)), None),
        (apply(*[output(1)] * 9), None),
    ],
)
def test_what_a_flow_does(instructions: bytes, action: TableAction | None) -> None:
    assert read_instructions(instructions) == action


def test_ports_that_are_none_of_the_switchs_are_left() -> None:
    everything = match()
    assert rules(TableFlow(0, 1, everything, apply(output(2))))[
        0
    ].action == TableAction((2,))
    for port in (7, 0xFFFFFFFD, 0xFFFFFFFB):
        assert rules(TableFlow(0, 1, everything, apply(output(2), output(port)))) == [
            Rule(None)
        ]


def test_a_flow_that_ends_when_nothing_meets_it_is_left_and_other_tables_are_not_looked_at() -> (
    None
):
    assert rules(TableFlow(0, 1, match(), apply(output(2)), idle_s=5)) == [Rule(None)]
    assert rules(TableFlow(0, 1, match(), apply(output(2)), hard_s=5))[
        0
    ].action == TableAction((2,))
    assert rules(TableFlow(1, 1, match(), apply(output(2)))) == []


def test_priorities_fall_and_what_is_too_much_is_left() -> None:
    flows = [
        TableFlow(0, 100 + n, match(IPV4, to("10.0.0.1", n)), apply(output(1)))
        for n in range(1, 31)
    ]
    table = compile_table(flows, (), (1,))
    assert len(table.subtables) == SUBTABLES
    priorities = [priority for priority, _ in table.subtables]
    assert priorities == sorted(priorities, reverse=True)
    assert priorities[0] == 130
    last = table.rules[table.subtables[-1], bytes(32)]
    assert last == Rule(None)
    assert not any(table.subtables[-1][1])
    # Their counters stay all the same.
    assert len(table.flows) == 30


def test_buckets_get_values_of_the_hash_by_their_weights() -> None:
    def dealt(*weights: int) -> list[int] | None:
        slots = select(Bucket(weight, b"") for weight in weights)
        return None if slots is None else [slots.count(n) for n in range(len(weights))]

    assert dealt(1, 1) == [8, 8]
    assert dealt(1, 3) == [4, 12]
    assert dealt(0, 5) == [0, 16]
    # 101 values would be needed, more than Open vSwitch deals out by itself.
    assert dealt(1, 100) is None
    assert dealt(0) is None


def test_groups() -> None:
    def selecting(
        *buckets: Bucket, kind: int = 1, chosen: bool = False
    ) -> tuple[Group, ...]:
        return (Group(5, kind, buckets, chosen),)

    flow, two = (
        TableFlow(0, 1, match(), apply(group(5))),
        (Bucket(1, output(1)), Bucket(1, output(2))),
    )
    assert rules(flow, groups=selecting(*two)) == [
        Rule(TableAction((), 5), (1, match()))
    ]
    assert rules(flow, groups=selecting(two[0], kind=2))[0].action == TableAction((), 5)
    for left in (
        (),
        selecting(*two, kind=0),
        selecting(*two, kind=3),
        selecting(*two, chosen=True),
        selecting(two[0], Bucket(1, output(2), watched=True)),
        selecting(two[0], Bucket(1, output(9))),
        selecting(two[0], Bucket(1, group(6))),
    ):
        assert rules(flow, groups=left) == [Rule(None)]


def test_messages_come_in_pieces() -> None:
    flow = TableFlow(0, 7, match(IPV4, to("10.0.0.1")), apply(output(2)), 0, 30)

    def update(event: int, flow: TableFlow) -> bytes:
        body = flow.match + flow.instructions
        head = struct.pack(
            "!HHBBHHH4xQ", 24 + len(body), event, flow.table, 0, 0, 30, flow.priority, 5
        )
        return head + body

    def message(kind: int, body: bytes, xid: int = 4) -> bytes:
        return struct.pack("!BBHI", 6, kind, 8 + len(body), xid) + body

    changes = update(1, flow) + update(2, TableFlow(0, 8, flow.match, b"", 0, 30))
    stream = (
        message(19, struct.pack("!HH4x", 16, 0) + changes)
        + message(21, b"")
        + message(32, b"")
    )
    reader, found = Reader(), []
    for n in range(len(stream)):
        found += reader.feed(stream[n : n + 1])
    assert found == [
        Told("flows", 4, put=(flow,), removed=((0, 8, flow.match),)),
        Told("barrier", 4),
        Told("group changed", 4),
    ]


def test_nonsense_is_refused() -> None:
    for stream in (
        struct.pack("!BBHI", 6, 21, 4, 0),
        struct.pack("!BBHIHH4x", 6, 19, 20, 0, 16, 0) + bytes(4),
        struct.pack("!BBHIHH4x", 6, 19, 24, 0, 7, 0) + bytes(8),
    ):
        with pytest.raises(openflow.MalformedError):
            list(Reader().feed(stream))


class SmallMap(dict[bytes, bytes]):
    """A map of the kernel with room for so many elements."""

    room = 1000

    def update(self, key: bytes, value: bytes) -> None:  # type: ignore[override]
        if key not in self and len(self) >= self.room:
            raise EbpfError(errno.E2BIG, "full")
        self[key] = value

    def delete(self, key: bytes) -> None:
        del self[key]


def test_the_maps_say_what_the_table_says_also_after_they_were_full() -> None:
    maps = {
        name: SmallMap() for name in ("ports", "tables", "rules", "groups", "counters")
    }
    numbers = itertools.count(1)
    kernel = SimpleNamespace(maps=maps, number=lambda: next(numbers))
    switch, interfaces = SwitchMaps(cast(Any, kernel), 0), {1: 11, 2: 12}

    def write(out: int, *more: str) -> None:
        flows = [
            TableFlow(0, 9, match(IPV4, to(ip)), apply(output(out)))
            for ip in ("10.0.0.1", *more)
        ]
        switch.write(compile_table(flows, (), interfaces), interfaces)

    write(1)
    before = {name: dict(maps[name]) for name in ("tables", "rules")}
    maps["rules"].room = 1
    with pytest.raises(EbpfError):
        write(2, "10.0.0.2")
    write(1)
    assert {name: dict(maps[name]) for name in before} == before


def test_a_run_says_whether_it_was_on() -> None:
    assert EmulationBackend().facts()["fast_path"] is False
    assert EmulationBackend(devices=["fast_path"]).facts()["fast_path"] is True


def test_the_controller_counts_what_the_labs_fast_path_carries(tmp_path: Path) -> None:
    inventory = Inventory.model_validate(
        {"lab": "abcd", "fast_path": str(tmp_path / "fastpath.sock")}
    )
    plane = SimpleNamespace(carried=None)
    lab = SimpleNamespace(inventory=Inventory(lab="abcd"), plane=plane)
    add_carried(lab)  # type: ignore[arg-type]
    assert plane.carried is None
    lab = SimpleNamespace(inventory=inventory, plane=plane)
    add_carried(lab)  # type: ignore[arg-type]
    assert isinstance(plane.carried, Carried)
