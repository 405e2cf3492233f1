"""Trees of nodes and switches, as schedulers know a fabric: from the fabric as lit, and to one."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable

import networkx as nx

from ringlight.extensions.interchange.draft import Defaults, Draft, rate_text
from ringlight.extensions.interchange.slurm_topology import NodeTopology
from ringlight.fabric.parts import Port
from ringlight.fabric.topology import (
    Fabric,
    circuit_cross_connects,
    electrical_graph,
)


def tree_of(fabric: Fabric, circuits: Iterable[tuple[Port, Port]]) -> NodeTopology:
    """Return the GPUs by the packet switch that they are on with these circuits lit, and what joins those.

    Switches without GPUs that stand side by side are one: those within the same number of links of a leaf
    that are connected, below their level, to the same leaves. GPUs without a packet switch are leaves of
    their own, with those that light joins to them. Raises ValueError for circuits that cannot be lit.
    """
    cross_connects = circuit_cross_connects(fabric, circuits)
    joins: nx.Graph[str] = nx.Graph()
    joins.add_nodes_from((*fabric.gpus, *fabric.packet_switches))
    edges = electrical_graph(fabric, cross_connects).edges
    joins.add_edges_from((edge.out.node, edge.into.node) for edge in edges)
    leaves = _leaves(fabric, joins)
    switches = joins.subgraph(fabric.packet_switches)
    tops = {leaf: leaf for leaf in leaves if leaf in switches}
    parents: dict[str, str] = {}
    taken = {*leaves, *fabric.gpus}
    within: set[str] = set()
    for layer in nx.bfs_layers(switches, list(tops)) if tops else ():
        within |= set(layer)
        for part in nx.connected_components(switches.subgraph(within)):
            below = dict.fromkeys(tops[leaf] for leaf in tops if leaf in part)
            if len(below) < 2:
                continue
            name = _name([switch for switch in layer if switch in part], taken)
            taken.add(name)
            parents |= dict.fromkeys(below, name)
            tops |= {leaf: name for leaf in tops if leaf in part}
    return NodeTopology(leaves, parents)


def _leaves(fabric: Fabric, joins: nx.Graph[str]) -> dict[str, tuple[str, ...]]:
    """Return the GPUs of each packet switch that has any, then those of no packet switch by the first GPU."""
    leaves: dict[str, list[str]] = {}
    for switch in fabric.packet_switches:
        gpus = [gpu for gpu in fabric.gpus if joins.has_edge(gpu, switch)]
        if gpus:
            leaves[switch] = gpus
    attached = {gpu for gpus in leaves.values() for gpu in gpus}
    alone = joins.subgraph(gpu for gpu in fabric.gpus if gpu not in attached)
    for gpu in fabric.gpus:
        if gpu in alone and gpu not in attached:
            together = nx.node_connected_component(alone, gpu)
            # As ringlight slurm follow names the leaf of a dark GPU.
            kind = "dark" if len(together) == 1 else "only"
            leaf = _name([f"{kind}-{gpu}"], joins)
            leaves[leaf] = [other for other in fabric.gpus if other in together]
            attached |= together
    return {leaf: tuple(gpus) for leaf, gpus in leaves.items()}


def _name(layer: Iterable[str], taken: Container[str]) -> str:
    """Return the first name of a layer of switches that is free, else core or core1, core2 …"""
    numbered = (f"core{number}" for number in itertools.count(1))
    return next(
        name
        for name in itertools.chain(layer, ("core",), numbered)
        if name not in taken
    )


def lost_in_tree(fabric: Fabric) -> list[str]:
    """Return what of a fabric a tree of nodes and switches cannot say."""
    lost = ["rates and ports"]
    if fabric.optical_switches:
        lost.append(f"optical switches ({', '.join(fabric.optical_switches)})")
    servers = {gpu.server for gpu in fabric.gpus.values()}
    if len(servers) < len(fabric.gpus):
        lost.append("which GPUs share a server")
    lost.append("models of GPUs")
    if len(fabric.packet_switches) > 1:
        lost.append("parallel links, and switches side by side")
    lost += (f"{key} of the fabric file" for key in fabric.parts)
    return lost


def fabric_of_tree(topology: NodeTopology, defaults: Defaults) -> Draft:
    """Return packet switches for the switches of a tree, and servers for its nodes.

    Rates, ports and GPUs are by default, and named in the draft.
    """
    draft = Draft()
    switches = (*topology.leaves, *topology.children())
    ours = {name: draft.names.take(name, "sw") for name in switches}
    for name in switches:
        draft.add_switch(ours[name])
    below_bps: dict[str, float] = dict.fromkeys(switches, 0.0)
    for leaf, nodes in topology.leaves.items():
        for node in nodes:
            for gpu in _gpus(draft, node, defaults):
                draft.plug(gpu, draft.next_port(ours[leaf]), defaults.rate_bps)
                below_bps[leaf] += defaults.rate_bps
    for parent, children in topology.upward().items():
        for child in children:
            share_bps = below_bps[child] / len(topology.above(child))
            ends = draft.next_port(ours[child]), draft.next_port(ours[parent])
            draft.plug(*ends, defaults.uplink_bps or share_bps)
            below_bps[parent] += share_bps
    rate = rate_text(defaults.rate_bps)
    gpus = "1 GPU" if defaults.gpus == 1 else f"{defaults.gpus} GPUs"
    draft.defaulted.append(f"{gpus} a node, {defaults.gpu}, at {rate}")
    if topology.parents:
        draft.defaulted.append(
            f"links between switches, {_uplinks(topology, defaults)}"
        )
    draft.defaulted.append("numbers of ports")
    return draft


def _gpus(draft: Draft, node: str, defaults: Defaults) -> list[str]:
    """Add a node's server and GPUs, one of which has its name if it is alone; return their names."""
    if defaults.gpus == 1:
        gpus = [draft.names.take(node, "g")]
        server = draft.names.numbered("s")
    else:
        server = draft.names.take(node, "s")
        gpus = [draft.names.numbered("g") for _ in range(defaults.gpus)]
    for gpu in gpus:
        draft.add_gpu(server, gpu, defaults.gpu)
    return gpus


def _uplinks(topology: NodeTopology, defaults: Defaults) -> str:
    if defaults.uplink_bps is None:
        ends = "all links of a switch to the next level" if topology.besides else "each"
        return f"{ends} as fast as all GPUs below it"
    return f"each {rate_text(defaults.uplink_bps)}"
