"""Forwarding rules of the packet switches, computed from the electrical graph.

Every GPU address gets one rule on every switch that can reach it: out of the first link on a shortest path.
Where there are several, a rule for one sender's address stands before it for each pair of GPUs whose path
(``fabric.paths``) takes another. Every rule leads one link nearer to its destination, so they cannot loop,
whichever a packet meets; nothing is learnt and nothing is flooded (an ARP request for an address is sent
along the rules without a sender).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ringlight.fabric.paths import Router
from ringlight.fabric.topology import ElectricalGraph, Fabric

#: What a rule is about: switch, destination's address, sender's (or empty).
RuleKey = tuple[str, str, str]


@dataclass(frozen=True, order=True)
class Rule:
    """On packet switch ``switch``: frames to ``ip`` (IPv4, and ARP for it) leave by port ``out_port``.

    ``source``: only IPv4 frames from that address, before the rule for any; empty for any.
    """

    switch: str
    ip: str
    out_port: int
    source: str = ""

    @property
    def key(self) -> RuleKey:
        return (self.switch, self.ip, self.source)


@dataclass(frozen=True)
class RuleBatch:
    """Rules to write and rules to forget, all of which may be done at once."""

    put: tuple[Rule, ...]
    delete: tuple[RuleKey, ...] = ()


def forwarding_rules(fabric: Fabric, graph: ElectricalGraph) -> frozenset[Rule]:
    """Return the rules under which packets take the paths of :class:`fabric.paths.Router`.

    ``graph`` is :func:`fabric.topology.electrical_graph`. A GPU whose circuit is dark gets no rules.
    """
    router = Router(fabric, graph)
    rules = set()
    for gpu in fabric.gpus.values():
        several = False
        for switch in router.distances(gpu.name):
            options = router.options(switch, gpu.name)
            rules.add(Rule(switch, gpu.ip, options[0].out.number))
            several = several or len(options) > 1
        if several:
            rules.update(_rules_by_sender(fabric, router, gpu.name))
    return frozenset(rules)


def _rules_by_sender(
    fabric: Fabric, router: Router, destination: str
) -> Iterable[Rule]:
    for source in fabric.gpus.values():
        try:
            path = (
                router.path(source.name, destination)
                if source.name != destination
                else ()
            )
        except ValueError:
            continue
        for hop in path[1:]:
            if hop != router.options(hop.out.node, destination)[0]:
                yield Rule(
                    hop.out.node, fabric.gpus[destination].ip, hop.out.number, source.ip
                )


def rule_batches(
    fabric: Fabric, old: frozenset[Rule], new: frozenset[Rule], graph: ElectricalGraph
) -> list[RuleBatch]:
    """Return the change from ``old`` to ``new`` in an order that never makes a loop.

    ``graph`` is the new electrical graph. Batch k holds what changes on the switches k + 1 links from the
    destination, so a switch is pointed along new paths only after all switches further down already are;
    rules of switches that no longer reach it go last. Each batch must have taken effect (a barrier) before
    the next is sent.
    """
    router = Router(fabric, graph)
    depth = {
        (switch, gpu.ip): links
        for gpu in fabric.gpus.values()
        for switch, links in router.distances(gpu.name).items()
    }
    put: dict[int, list[Rule]] = {}
    for rule in new - old:
        put.setdefault(depth[rule.switch, rule.ip], []).append(rule)
    last = max(depth.values(), default=0) + 1
    delete: dict[int, list[RuleKey]] = {}
    for key in {rule.key for rule in old} - {rule.key for rule in new}:
        delete.setdefault(depth.get(key[:2], last), []).append(key)
    return [
        RuleBatch(
            tuple(sorted(put.get(links, ()))), tuple(sorted(delete.get(links, ())))
        )
        for links in sorted(put.keys() | delete.keys())
    ]


def out_port(
    rules: Mapping[RuleKey, int], switch: str, ip: str, source_ip: str = ""
) -> int | None:
    """Return the port by which a switch sends a packet; None when it drops it.

    ``rules``: port by rule's key.
    """
    port = rules.get((switch, ip, source_ip))
    return rules.get((switch, ip, "")) if port is None else port
