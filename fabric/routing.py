"""Forwarding rules of the packet switches, computed from the electrical graph.

Every GPU address gets one rule on every switch that can reach it: out of the port on the shortest path.
The rules towards one GPU form a tree, so they cannot loop; nothing is learnt and nothing is flooded
(an ARP request for an address is sent along the same tree).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import networkx as nx

from fabric.topology import Fabric


@dataclass(frozen=True, order=True)
class Rule:
    """On packet switch ``switch``: frames to ``ip`` (IPv4, and ARP for it) leave by port ``out_port``."""

    switch: str
    ip: str
    out_port: int


@dataclass(frozen=True)
class RuleBatch:
    """Rules to write and addresses to forget, all of which may be done at once."""

    put: tuple[Rule, ...]
    delete: tuple[tuple[str, str], ...] = ()


def forwarding_rules(fabric: Fabric, graph: nx.DiGraph[str]) -> frozenset[Rule]:
    """Shortest-path rules for every GPU that is lit; ties go to the lowest next hop's name.

    ``graph`` is :func:`fabric.topology.electrical_graph`. A GPU whose circuit is dark gets no rules.
    """
    rules = set()
    for gpu in fabric.gpus.values():
        for switch, next_hop, _ in _tree_towards(fabric, graph, gpu.name):
            rules.add(Rule(switch, gpu.ip, graph.edges[switch, next_hop]["out_port"]))
    return frozenset(rules)


def _tree_towards(fabric: Fabric, graph: nx.DiGraph[str], gpu: str) -> Iterable[tuple[str, str, int]]:
    """(switch, next hop, hops to go) for every packet switch that reaches the GPU; nearest first."""
    hops = {gpu: 0}
    frontier = [gpu]
    while frontier:
        reached = []
        for node in sorted(frontier):
            for before in sorted(graph.predecessors(node)):
                if before in fabric.packet_switches and before not in hops:
                    hops[before] = hops[node] + 1
                    reached.append(before)
                    yield before, node, hops[before]
        frontier = reached


def rule_batches(
    fabric: Fabric, old: frozenset[Rule], new: frozenset[Rule], graph: nx.DiGraph[str]
) -> list[RuleBatch]:
    """The change from ``old`` to ``new`` in an order that never makes a loop.

    ``graph`` is the new electrical graph. Batch k holds the switches k + 1 hops from the destination, so
    a switch is pointed along the new tree only after all switches further down already are; rules that
    have no successor go last. Each batch must have taken effect (a barrier) before the next is sent.
    """
    depth: dict[tuple[str, str], int] = {}
    for gpu in fabric.gpus.values():
        for switch, _, hops in _tree_towards(fabric, graph, gpu.name):
            depth[switch, gpu.ip] = hops
    layers: dict[int, list[Rule]] = {}
    for rule in new - old:
        layers.setdefault(depth[rule.switch, rule.ip], []).append(rule)
    kept = {(rule.switch, rule.ip) for rule in new}
    stale = sorted({(r.switch, r.ip) for r in old} - kept)
    batches = [RuleBatch(tuple(sorted(layers[hops]))) for hops in sorted(layers)]
    if stale:
        batches.append(RuleBatch((), tuple(stale)))
    return batches


def walk(rules: Iterable[Rule], graph: nx.DiGraph[str], source: str, ip: str, limit: int = 64) -> list[str]:
    """The nodes that a packet from GPU ``source`` to ``ip`` visits under ``rules``.

    It ends at a GPU, or at the switch that drops it. Raises ValueError when it is still going after
    ``limit`` hops (a loop).
    """
    out_port: Mapping[tuple[str, str], int] = {(r.switch, r.ip): r.out_port for r in rules}
    at = {(tail, data["out_port"]): head for tail, head, data in graph.edges(data=True)}
    node = next(iter(graph.successors(source)), None)
    path = [source]
    while node is not None:
        path.append(node)
        if len(path) > limit:
            raise ValueError(f"a packet from {source} to {ip} loops: {' '.join(path[-6:])}")
        port = out_port.get((node, ip))
        node = None if port is None else at.get((node, port))
    return path
