"""Forwarding rules as flow-table entries, and the difference between what is there and what should be.

Pure: from rules to flow mods and from flow entries back to rules. Each rule is two flows, one for IPv4
and one for ARP about the same address; a priority-0 flow without actions drops everything else.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from controller.openflow.messages import FlowEntry, FlowMod
from fabric.routing import Rule

#: Marks the flows that this controller wrote ("RL" in the upper bytes); flows of others are left alone.
COOKIE = 0x524C_0000_0000_0001
PRIORITY = 1000

_IPV4 = 0x0800
_ARP = 0x0806

TABLE_MISS = FlowMod("add", 0, {}, (), COOKIE)


def matches(ip: str) -> tuple[Mapping[str, int | str], Mapping[str, int | str]]:
    """The two matches of an address: IPv4 to it, and ARP about it."""
    return {"eth_type": _IPV4, "ipv4_dst": ip}, {"eth_type": _ARP, "arp_tpa": ip}


def put(rule: Rule) -> list[FlowMod]:
    """Adds the rule, or replaces the one for its address in one step."""
    return [FlowMod("add", PRIORITY, match, (rule.out_port,), COOKIE) for match in matches(rule.ip)]


def forget(ip: str) -> list[FlowMod]:
    """Removes the rule of an address."""
    return [FlowMod("delete_strict", PRIORITY, match) for match in matches(ip)]


def has_table_miss(entries: Iterable[FlowEntry]) -> bool:
    """Whether the drop-everything-else flow is there as we write it."""
    return any(
        e.priority == 0 and not e.match and not e.out_ports and e.cookie == COOKIE and e.table_id == 0
        for e in entries
    )


def rules_of(switch: str, entries: Iterable[FlowEntry]) -> tuple[frozenset[Rule], list[FlowMod]]:
    """The complete rules among a switch's flows, and the deletes for flows of ours that are none.

    A rule is complete when its IPv4 and its ARP flow agree. Half a rule counts as none and is not in
    the deletes either when writing the rule again mends it; :func:`halves` names those addresses.
    """
    ports, strays = _ours(entries)
    whole = {
        Rule(switch, ip, seen[_IPV4])
        for ip, seen in ports.items()
        if len(set(seen.values())) == 1 < len(seen)
    }
    return frozenset(whole), strays


def halves(entries: Iterable[FlowEntry]) -> frozenset[str]:
    """Addresses of which only one of the two flows is there, or whose flows disagree."""
    ports, _ = _ours(entries)
    return frozenset(ip for ip, seen in ports.items() if len(seen) < 2 or len(set(seen.values())) > 1)


def _ours(entries: Iterable[FlowEntry]) -> tuple[dict[str, dict[int, int]], list[FlowMod]]:
    """Out port by ethertype by address for our flows, and deletes for those of ours that fit no rule."""
    ports: dict[str, dict[int, int]] = {}
    strays: list[FlowMod] = []
    for entry in entries:
        if entry.cookie != COOKIE or (entry.priority == 0 and not entry.match):
            continue
        kind = entry.match.get("eth_type")
        ip = entry.match.get("ipv4_dst" if kind == _IPV4 else "arp_tpa")
        if (
            entry.table_id == 0
            and entry.priority == PRIORITY
            and len(entry.match) == 2
            and kind in (_IPV4, _ARP)
            and isinstance(ip, str)
            and _is_address(ip)
            and len(entry.out_ports) == 1
        ):
            ports.setdefault(ip, {})[int(kind)] = entry.out_ports[0]
        else:
            strays.append(FlowMod("delete_strict", entry.priority, entry.match, table_id=entry.table_id))
    return ports, strays


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True
