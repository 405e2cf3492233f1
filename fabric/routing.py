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
            unseen = [n for n in graph.predecessors(node) if n in fabric.packet_switches and n not in hops]
            for before in sorted(unseen):
                hops[before] = hops[node] + 1
                reached.append(before)
                yield before, node, hops[before]
        frontier = reached


class Router:
    """Paths that packets take under :func:`forwarding_rules`, one tree per destination worked out once."""

    def __init__(self, fabric: Fabric, graph: nx.DiGraph[str]) -> None:
        self._fabric = fabric
        self._graph = graph
        self._next_hops: dict[str, dict[str, str]] = {}

    def path(self, source: str, destination: str) -> list[str]:
        """The nodes from one GPU to another, both included. Raises ValueError naming both if none."""
        if destination not in self._next_hops:
            tree = _tree_towards(self._fabric, self._graph, destination)
            self._next_hops[destination] = {switch: next_hop for switch, next_hop, _ in tree}
        next_hops = self._next_hops[destination]
        path = [source]
        node = next(iter(self._graph.successors(source)), None)
        while node is not None:
            path.append(node)
            if node == destination:
                return path
            node = next_hops.get(node)
        dark = [gpu for gpu in (source, destination) if self._graph.degree(gpu) == 0]
        why = f": {dark[0]} is dark" if dark else ""
        raise ValueError(f"no path from {source} to {destination}{why}")


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


def walk(rules: Iterable[Rule], graph: nx.DiGraph[str], source: str, ip: str) -> list[str]:
    """The nodes that a packet from GPU ``source`` to ``ip`` visits under ``rules``.

    It ends at a GPU, or at the switch that drops it. Raises ValueError when it comes to a switch a
    second time (a loop).
    """
    out_port: Mapping[str, int] = {r.switch: r.out_port for r in rules if r.ip == ip}
    at = {
        (tail, port): head
        for tail, head, data in graph.edges(data=True)
        for port in (data["out_port"], *data.get("spare_out_ports", ()))
    }
    node = next(iter(graph.successors(source)), None)
    path = [source]
    while node is not None:
        if node in path[1:]:
            raise ValueError(f"a packet from {source} to {ip} loops: {' '.join([*path, node])}")
        path.append(node)
        port = out_port.get(node)
        node = None if port is None else at.get((node, port))
    return path
