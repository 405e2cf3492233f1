"""Forwarding rules as flow-table entries, and the difference between present and intended entries.

Pure: from rules to flow mods and from flow entries back to rules. A rule for any sender is two flows, one for
IPv4 and one for ARP about the same address; a rule for one sender is one flow of higher priority, for IPv4. A
priority-0 flow without actions drops everything else.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping

from ringlight.controller.openflow.messages import FlowEntry, FlowMod
from ringlight.fabric.routing import Rule

#: Marks the flows that this controller wrote ("RL" in the upper bytes).
COOKIE = 0x524C_0000_0000_0001
PRIORITY = 1000
#: Priority of rules that match a sender's address too.
SENDER_PRIORITY = 2000

#: Stands for the port of a rule whose action is not an output to one port.
NO_PORT = -1
_IPV4 = 0x0800
_ARP = 0x0806

TABLE_MISS = FlowMod("add", 0, {}, (), COOKIE)


def flows(ip: str, source: str = "") -> list[tuple[int, Mapping[str, int | str]]]:
    """Return priority and match of each flow of a rule.

    The flows are IPv4 to the address and ARP about it, or IPv4 from one sender to it.
    """
    if source:
        return [
            (SENDER_PRIORITY, {"eth_type": _IPV4, "ipv4_src": source, "ipv4_dst": ip})
        ]
    return [
        (PRIORITY, {"eth_type": _IPV4, "ipv4_dst": ip}),
        (PRIORITY, {"eth_type": _ARP, "arp_tpa": ip}),
    ]


def put(rule: Rule) -> list[FlowMod]:
    """Return the changes that add the rule, or replace the rule for its addresses in one step."""
    return [
        FlowMod("add", priority, match, (rule.out_port,), COOKIE)
        for priority, match in flows(rule.ip, rule.source)
    ]


def forget(ip: str, source: str = "") -> list[FlowMod]:
    """Return the changes that remove the rule of an address, or of one sender to it."""
    return [
        FlowMod("delete_strict", priority, match)
        for priority, match in flows(ip, source)
    ]


def has_table_miss(entries: Iterable[FlowEntry]) -> bool:
    """Return whether the flow that drops everything else is present as the controller writes it."""
    return any(
        e.priority == 0
        and not e.match
        and not e.out_ports
        and e.cookie == COOKIE
        and e.table_id == 0
        for e in entries
    )


def rules_of(
    switch: str, entries: Iterable[FlowEntry]
) -> tuple[frozenset[Rule], list[FlowMod]]:
    """Return the complete rules among a switch's flows, and the deletes for own flows that belong to no rule.

    A rule for any sender is complete if its IPv4 and its ARP flow agree. Half a rule does not count as a
    rule; its deletes are left out if writing the rule again repairs it. :func:`halves` returns the addresses
    of half rules.
    """
    ports, by_sender, strays = _ours(entries)
    whole = {
        Rule(switch, ip, seen[_IPV4])
        for ip, seen in ports.items()
        if len(set(seen.values())) == 1 < len(seen)
    }
    whole |= {
        Rule(switch, ip, port, source) for (ip, source), port in by_sender.items()
    }
    return frozenset(whole), strays


def halves(entries: Iterable[FlowEntry]) -> frozenset[str]:
    """Return the addresses of which only one of the two flows is present, or whose flows disagree."""
    ports, _, _ = _ours(entries)
    return frozenset(
        ip for ip, seen in ports.items() if len(seen) < 2 or len(set(seen.values())) > 1
    )


def _ours(
    entries: Iterable[FlowEntry],
) -> tuple[dict[str, dict[int, int]], dict[tuple[str, str], int], list[FlowMod]]:
    """Return the controller's own flows, sorted by kind.

    The parts are the output port by address and ethertype, the output port by address and sender, and deletes
    for flows that fit no rule.
    """
    ports: dict[str, dict[int, int]] = {}
    by_sender: dict[tuple[str, str], int] = {}
    strays: list[FlowMod] = []
    for entry in entries:
        if entry.cookie != COOKIE or (entry.priority == 0 and not entry.match):
            continue
        kind = entry.match.get("eth_type")
        ip = str(entry.match.get("ipv4_dst" if kind == _IPV4 else "arp_tpa"))
        source = str(entry.match.get("ipv4_src", ""))
        if (
            entry.table_id == 0
            and (entry.priority, dict(entry.match)) in flows(ip, source)
            and _is_address(ip)
            and (not source or _is_address(source))
        ):
            # A flow whose actions somebody has changed must be written again, or removed, and is no stray.
            port = (
                entry.out_ports[0]
                if entry.plain and len(entry.out_ports) == 1
                else NO_PORT
            )
            if source:
                by_sender[ip, source] = port
            else:
                ports.setdefault(ip, {})[_IPV4 if kind == _IPV4 else _ARP] = port
        else:
            strays.append(
                FlowMod(
                    "delete_strict",
                    entry.priority,
                    entry.match,
                    table_id=entry.table_id,
                )
            )
    return ports, by_sender, strays


def _is_address(text: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET, text)
    except (OSError, ValueError):
        return False
    return True
