"""Slurm's topology.yaml (25.05 and newer), with trees, blocks and flat topologies: read and written.

If it exists, Slurm ignores topology.conf. The format: topology.yaml(5) of Slurm 25.05. Rings and tori (26.05)
are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError

from ringlight.experiments.language.text import (
    first_problem,
    parse_document,
    plain_yaml,
)
from ringlight.extensions.interchange.hostlists import Hostlists, fold
from ringlight.extensions.interchange.slurm_topology import (
    NodeTopology,
    TopologyFileError,
    check,
)
from ringlight.fabric.values import Strict


@dataclass(frozen=True)
class NamedTopology:
    """A topology of the cluster, which a partition asks for by ``Topology=NAME``.

    ``nodes``: None for a flat one.
    """

    name: str
    nodes: NodeTopology | None
    cluster_default: bool = False


class _Switch(Strict):
    switch: str
    children: str = ""
    nodes: str = ""


class _Tree(Strict):
    switches: tuple[_Switch, ...] = Field(min_length=1)


class _Block(Strict):
    block: str
    nodes: str


class _Blocks(Strict):
    block_sizes: tuple[int, ...] = Field(min_length=1)
    blocks: tuple[_Block, ...] = Field(min_length=1)


class _Entry(Strict):
    topology: str = Field(min_length=1)
    cluster_default: bool = False
    tree: _Tree | None = None
    block: _Blocks | None = None
    flat: bool | None = None


def write_yaml(
    topologies: Iterable[NamedTopology], comments: Iterable[str] = ()
) -> str:
    """Return the text of a topology.yaml. Raises ValueError as :func:`.slurm_topology.check`."""
    entries = [_written(topology) for topology in topologies]
    return "".join(f"# {comment}\n" for comment in comments) + plain_yaml(entries)


def _written(topology: NamedTopology) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "topology": topology.name,
        "cluster_default": topology.cluster_default,
    }
    nodes = topology.nodes
    if nodes is None:
        return {**entry, "flat": True}
    check(nodes)
    if nodes.block_sizes:
        blocks = [{"block": b, "nodes": fold(n)} for b, n in nodes.leaves.items()]
        sizes = list(nodes.block_sizes)
        return {**entry, "block": {"block_sizes": sizes, "blocks": blocks}}
    upper = nodes.children().items()
    switches = [{"switch": name, "children": fold(below)} for name, below in upper]
    switches += [{"switch": leaf, "nodes": fold(n)} for leaf, n in nodes.leaves.items()]
    return {**entry, "tree": {"switches": switches}}


def read_yaml(text: str, file: str = "topology.yaml") -> list[NamedTopology]:
    """Return the topologies of a topology.yaml. Raises TopologyFileError."""
    try:
        document = parse_document(text, file)
    except ValueError as error:
        raise TopologyFileError(str(error)) from None
    if not isinstance(document, list) or not document:
        raise TopologyFileError(f"{file}: it should be a list of topologies")
    hostlists = Hostlists()
    topologies = [
        _read(f"{file}: [{place}]", entry, hostlists)
        for place, entry in enumerate(document)
    ]
    for name, count in Counter(topology.name for topology in topologies).items():
        if count > 1:
            raise TopologyFileError(f"{file}: topology: two are called {name}")
    if sum(topology.cluster_default for topology in topologies) > 1:
        raise TopologyFileError(f"{file}: cluster_default: two topologies are")
    return topologies


def _read(where: str, document: object, hostlists: Hostlists) -> NamedTopology:
    if not isinstance(document, dict):
        raise TopologyFileError(f"{where}: it should be a mapping")
    if next(iter(document), "") != "topology":
        raise TopologyFileError(f"{where}: topology: it must be the first key")
    for later in ("ring", "torus3d"):
        if later in document:
            raise TopologyFileError(f"{where}.{later}: rings and tori are not read")
    try:
        entry = _Entry.model_validate(document)
    except ValidationError as error:
        problem = first_problem(error, document, {})
        raise TopologyFileError(f"{where}.{problem}") from None
    kinds = [k for k in ("tree", "block", "flat") if getattr(entry, k) is not None]
    if len(kinds) != 1:
        raise TopologyFileError(f"{where}: it needs one of tree, block and flat")
    if entry.tree is not None:
        nodes = _tree(f"{where}.tree.switches", entry.tree.switches, hostlists)
    elif entry.block is not None:
        nodes = _blocks(f"{where}.block", entry.block, hostlists)
    elif not entry.flat:
        raise TopologyFileError(f"{where}.flat: it should be true")
    else:
        return NamedTopology(entry.topology, None, entry.cluster_default)
    _checked(where, nodes)
    return NamedTopology(entry.topology, nodes, entry.cluster_default)


def _checked(where: str, nodes: NodeTopology) -> None:
    try:
        check(nodes)
    except ValueError as error:
        text = str(error).replace("BlockSizes", "block_sizes")
        raise TopologyFileError(f"{where}: {text}") from None


def _tree(
    where: str, switches: Sequence[_Switch], hostlists: Hostlists
) -> NodeTopology:
    leaves: dict[str, tuple[str, ...]] = {}
    parents: dict[str, str] = {}
    names = {entry.switch for entry in switches}
    seen: set[str] = set()
    for place, entry in enumerate(switches):
        here = f"{where}[{place}]"
        if bool(entry.children) == bool(entry.nodes):
            raise TopologyFileError(f"{here}: it needs either children or nodes")
        if entry.switch in seen:
            raise TopologyFileError(f"{here}.switch: there is a {entry.switch} already")
        seen.add(entry.switch)
        if entry.nodes:
            leaves[entry.switch] = _hostlist(f"{here}.nodes", entry.nodes, hostlists)
            continue
        for child in _hostlist(f"{here}.children", entry.children, hostlists):
            if child not in names:
                raise TopologyFileError(f"{here}.children: there is no switch {child}")
            if child in parents:
                other = f"{child} is below {parents[child]}, too"
                raise TopologyFileError(f"{here}.children: {other}")
            parents[child] = entry.switch
    return NodeTopology(leaves, parents)


def _blocks(where: str, document: _Blocks, hostlists: Hostlists) -> NodeTopology:
    leaves: dict[str, tuple[str, ...]] = {}
    for place, entry in enumerate(document.blocks):
        here = f"{where}.blocks[{place}]"
        if entry.block in leaves:
            raise TopologyFileError(f"{here}.block: there is a {entry.block} already")
        leaves[entry.block] = _hostlist(f"{here}.nodes", entry.nodes, hostlists)
    return NodeTopology(leaves, {}, document.block_sizes)


def _hostlist(where: str, text: str, hostlists: Hostlists) -> tuple[str, ...]:
    try:
        return tuple(hostlists.expand(text))
    except ValueError as error:
        raise TopologyFileError(f"{where}: {error}") from None
