"""Slurm's topology and drained nodes by a lab's light and lost GPUs: from documents to commands, without I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from ringlight.extensions.interchange.slurm_topology import NodeTopology

#: Begins the reason of each node that the follower drains. A node with another reason is not resumed.
REASON = "ringlight: "
#: Name of the switch above the leaves, and of the leaf with the nodes whose light follows Slurm.
TOP, FLAT = "core", "flat"
#: Begins the name of the leaf of a node without light.
DARK = "dark-"

#: Arguments of one call of ``scontrol``.
Command = tuple[str, ...]


@dataclass(frozen=True)
class Attachments:
    """The packet switches that GPUs reach by light or cable.

    ``generation``: of the light. ``switch_of``: packet switch of each GPU that reaches one; of several, the
    first by name. ``islands``: packet switches that reach one another, by groups.
    """

    generation: int
    switch_of: Mapping[str, str]
    islands: Sequence[Collection[str]]


def attachments_of(
    fabric: Mapping[str, Any], circuits: Mapping[str, Any]
) -> Attachments:
    """Return the attachments by the documents ``/v1/fabric`` and ``/v1/circuits``."""
    switches = {switch["name"] for switch in fabric["packet_switches"]}
    gpus = {gpu["name"] for gpu in fabric["gpus"]}
    pairs = [link["ends"] for link in fabric["links"]]
    pairs += [c["ends"] for c in circuits["circuits"] if c["duplex"]]
    between, switch_of = nx.Graph(), dict[str, str]()
    between.add_nodes_from(sorted(switches))
    for pair in pairs:
        ends = [port.partition(":")[0] for port in pair]
        if switches.issuperset(ends):
            between.add_edge(*ends)
        for end, other in (ends, reversed(ends)):
            if end in gpus and other in switches:
                switch_of[end] = min(other, switch_of.get(end, other))
    islands = [frozenset(island) for island in nx.connected_components(between)]
    return Attachments(circuits["generation"], switch_of, islands)


def topology_of(
    attachments: Attachments, follow: Iterable[str], lead: Iterable[str] = ()
) -> NodeTopology:
    """Return the topology that Slurm sees.

    ``follow``: nodes placed by light, a leaf for each packet switch, below one switch for each island. A node
    without light is a leaf of its own without a switch above, so that no job spans it. ``lead``: nodes whose
    light follows Slurm, all on one leaf, as light can join any of them.
    """
    leaves: dict[str, list[str]] = {}
    for node in follow:
        switch = attachments.switch_of.get(node, f"{DARK}{node}")
        leaves.setdefault(switch, []).append(node)
    if nodes := list(lead):
        leaves[fresh(FLAT, leaves)] = nodes
    parents: dict[str, str] = {}
    for island in sorted(attachments.islands, key=min):
        below = sorted(leaves.keys() & island)
        if len(below) > 1:
            top = fresh(TOP, {*leaves, *parents.values()})
            parents |= dict.fromkeys(below, top)
    return NodeTopology({s: tuple(leaves[s]) for s in sorted(leaves)}, parents)


def fresh(name: str, taken: Collection[str]) -> str:
    """Return a name that is not taken: this one, or with the first number that makes it so."""
    number, chosen = 0, name
    while chosen in taken:
        number += 1
        chosen = f"{name}{number}"
    return chosen


# --- Slurm's topology


_ENTRY = re.compile(r"(\w+)=(\S*)")


def shown_topology(text: str, expand: Any) -> NodeTopology:
    """Return the topology of ``scontrol show topology``, of trees or blocks. ``expand``: names of a hostlist."""
    leaves: dict[str, tuple[str, ...]] = {}
    parents: dict[str, str] = {}
    for line in text.splitlines():
        entry = dict(_ENTRY.findall(line))
        name = entry.get("SwitchName") or entry.get("BlockName")
        if name is None:
            continue
        if entry.get("Switches"):
            parents |= dict.fromkeys(expand(entry["Switches"]), name)
        elif entry.get("Nodes"):
            leaves[name] = tuple(expand(entry["Nodes"]))
    return NodeTopology(leaves, parents)


def is_same(a: NodeTopology, b: NodeTopology) -> bool:
    """Return whether two topologies join the same nodes. Order and sizes of blocks are not compared."""
    return a.parents == b.parents and _sets(a) == _sets(b)


def _sets(topology: NodeTopology) -> dict[str, frozenset[str]]:
    return {leaf: frozenset(nodes) for leaf, nodes in topology.leaves.items()}


def topology_commands(
    present: NodeTopology, target: NodeTopology, dynamic: str | None
) -> list[Command]:
    """Return the commands after which Slurm has a topology whose file is written.

    ``present``: what Slurm has. ``dynamic``: name of the topology where Slurm moves single nodes (25.05 and
    newer, scontrol(1), ``Topology=``), None elsewhere. New or removed switches need all of the file.
    """
    if is_same(present, target):
        return []
    if dynamic is None or _switches(present) != _switches(target):
        return [("reconfigure",)]
    before, after = _leaf_of(present), _leaf_of(target)
    if before.keys() != after.keys():
        return [("reconfigure",)]
    return [
        ("update", f"NodeName={node}", f"Topology={dynamic}:{_path(target, leaf)}")
        for node, leaf in after.items()
        if before[node] != leaf
    ]


def _switches(topology: NodeTopology) -> tuple[set[str], dict[str, str]]:
    return set(topology.leaves), dict(topology.parents)


def _leaf_of(topology: NodeTopology) -> dict[str, str]:
    return {node: leaf for leaf, nodes in topology.leaves.items() for node in nodes}


def _path(topology: NodeTopology, leaf: str) -> str:
    """Return the switches from the top to a leaf, as scontrol has them: ``core:tor0``."""
    path = [leaf]
    while path[0] in topology.parents:
        path.insert(0, topology.parents[path[0]])
    return ":".join(path)


# --- nodes and jobs


@dataclass(frozen=True)
class Node:
    """A node of Slurm. ``flags``: its state's words, such as IDLE and DRAIN."""

    flags: frozenset[str]
    reason: str = ""

    @property
    def is_ours(self) -> bool:
        """True if the follower has drained it."""
        return "DRAIN" in self.flags and self.reason.startswith(REASON)


_STATE = re.compile(r"NodeName=(\S+) .*? State=(\S+)(?:.*? Reason=(.*))?")
#: Who gave the reason, and when; other fields may follow.
_WHO = re.compile(r" \[\S+@\S+\].*")


def shown_nodes(text: str) -> dict[str, Node]:
    """Return the nodes of ``scontrol --oneliner show nodes``, by name."""
    nodes: dict[str, Node] = {}
    for line in text.splitlines():
        if (match := _STATE.match(line.strip())) is not None:
            name, state, reason = match.groups()
            words = frozenset(word.rstrip("*~#$@+!%^-") for word in state.split("+"))
            nodes[name] = Node(words, _WHO.sub("", reason or "").strip())
    return nodes


#: States in which Slurm starts no job on a node.
_CLOSED = {"DRAIN", "DOWN", "FAIL"}


def node_commands(nodes: Mapping[str, Node], lost: Collection[str]) -> list[Command]:
    """Return the commands that drain the nodes of lost GPUs, and resume those that came back.

    A node that somebody else has drained, or that is down, is left to them. A node that is down as well as
    drained by the follower stays down.
    """
    commands: list[Command] = []
    for name, node in nodes.items():
        if name in lost and not node.flags & _CLOSED:
            reason = f"Reason={REASON}GPU {name} is lost"
            commands.append(("update", f"NodeName={name}", "State=DRAIN", reason))
        elif name not in lost and node.is_ours:
            state = "UNDRAIN" if "DOWN" in node.flags else "RESUME"
            commands.append(("update", f"NodeName={name}", f"State={state}"))
    return commands


def requeue_commands(jobs: Iterable[str], refused: Collection[str]) -> list[Command]:
    """Return the commands that requeue jobs. ``refused``: jobs that Slurm does not requeue, such as srun's."""
    return [("requeue", job) for job in jobs if job not in refused]
