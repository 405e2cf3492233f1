"""Slurm's topology.yaml (25.05 and newer), with trees, blocks and flat topologies: read and written.

If it exists, Slurm ignores topology.conf. The format: topology.yaml(5) of Slurm 26.11. Of rings and tori
(26.05) the names are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    blocks_of,
    check,
    joined_by,
    with_nodes,
)
from ringlight.fabric.values import Strict


@dataclass(frozen=True)
class NamedTopology:
    """A topology of the cluster, which a partition asks for by ``Topology=NAME``.

    ``nodes``: None for one without nodes, or whose nodes are not read; ``kind`` is that topology's key.
    ``dropped``: lines that name what was not read. ``entry``: the topology as the file has it, which is written
    again unchanged; None if it was not read.
    """

    name: str
    nodes: NodeTopology | None
    cluster_default: bool = False
    kind: str = "flat"
    dropped: tuple[str, ...] = ()
    entry: Mapping[str, Any] | None = field(default=None, compare=False)


class _Switch(Strict):
    switch: str
    children: str = ""
    nodes: str = ""


class _Tree(Strict):
    switches: tuple[_Switch, ...] = Field(min_length=1)


class _Block(Strict):
    block: str
    nodes: str = ""


class _Blocks(Strict):
    block_sizes: tuple[int, ...] = ()
    blocks: tuple[_Block, ...] = Field(min_length=1)


class _Entry(Strict):
    topology: str = Field(min_length=1)
    cluster_default: bool = False
    tree: _Tree | None = None
    block: _Blocks | None = None
    flat: bool | dict[str, Any] | None = None


#: Kinds of topologies, each a key of an entry.
_KINDS = ("tree", "block", "flat", "ring", "torus3d")
#: Kinds of which the nodes are not read.
UNREAD = ("ring", "torus3d")


def write_yaml(
    topologies: Iterable[NamedTopology], comments: Iterable[str] = ()
) -> str:
    """Return the text of a topology.yaml. Raises ValueError as :func:`.slurm_topology.check`."""
    entries = [_written(topology) for topology in topologies]
    return "".join(f"# {comment}\n" for comment in comments) + plain_yaml(entries)


def _written(topology: NamedTopology) -> dict[str, Any]:
    if topology.entry is not None:
        return dict(topology.entry)
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
    return topologies


def _read(where: str, document: object, hostlists: Hostlists) -> NamedTopology:
    if not isinstance(document, dict):
        raise TopologyFileError(f"{where}: it should be a mapping")
    if next(iter(document), "") != "topology":
        raise TopologyFileError(f"{where}: topology: it must be the first key")
    kinds = [k for k in _KINDS if document.get(k) is not None]
    if len(kinds) != 1:
        raise TopologyFileError(f"{where}: it needs one of {', '.join(_KINDS)}")
    (kind,) = kinds
    unread = kind if kind in UNREAD else ""
    try:
        entry = _Entry.model_validate(
            {k: v for k, v in document.items() if k != unread}
        )
    except ValidationError as error:
        problem = first_problem(error, document, {})
        raise TopologyFileError(f"{where}.{problem}") from None
    named = NamedTopology(
        entry.topology, None, entry.cluster_default, kind, entry=document
    )
    if entry.flat is False:
        raise TopologyFileError(f"{where}.flat: it should be true")
    if entry.tree is not None:
        nodes = _tree(f"{where}.tree.switches", entry.tree.switches, hostlists)
    elif entry.block is not None:
        nodes = _blocks(f"{where}.block", entry.block, hostlists)
    else:
        return named
    _check(where, nodes)
    if not any(nodes.leaves.values()):
        return named
    read = with_nodes(nodes)
    return replace(named, nodes=read.nodes, kind="flat", dropped=read.dropped)


def _check(where: str, nodes: NodeTopology) -> None:
    try:
        check(nodes, empty=True)
    except ValueError as error:
        text = str(error).replace("BlockSizes", "block_sizes")
        raise TopologyFileError(f"{where}: {text}") from None


def _tree(
    where: str, switches: Sequence[_Switch], hostlists: Hostlists
) -> NodeTopology:
    leaves: dict[str, tuple[str, ...]] = {}
    above: dict[str, list[str]] = {}
    names = {entry.switch for entry in switches}
    seen: set[str] = set()
    for place, entry in enumerate(switches):
        here = f"{where}[{place}]"
        if entry.children and entry.nodes:
            raise TopologyFileError(f"{here}: children and nodes exclude each other")
        if entry.switch in seen:
            raise TopologyFileError(f"{here}.switch: there is a {entry.switch} already")
        seen.add(entry.switch)
        if not entry.children:
            leaves[entry.switch] = _hostlist(f"{here}.nodes", entry.nodes, hostlists)
            continue
        for child in _hostlist(f"{here}.children", entry.children, hostlists):
            if child not in names:
                raise TopologyFileError(f"{here}.children: there is no switch {child}")
            if entry.switch in above.setdefault(child, []):
                raise TopologyFileError(f"{here}.children: {child} is twice")
            above[child].append(entry.switch)
    return joined_by(leaves, above)


def _blocks(where: str, document: _Blocks, hostlists: Hostlists) -> NodeTopology:
    leaves: dict[str, tuple[str, ...]] = {}
    for place, entry in enumerate(document.blocks):
        here = f"{where}.blocks[{place}]"
        if entry.block in leaves:
            raise TopologyFileError(f"{here}.block: there is a {entry.block} already")
        leaves[entry.block] = _hostlist(f"{here}.nodes", entry.nodes, hostlists)
    return blocks_of(leaves, document.block_sizes)


def _hostlist(where: str, text: str, hostlists: Hostlists) -> tuple[str, ...]:
    """Return the names of a hostlist, none if the file has none. Raises TopologyFileError."""
    try:
        return tuple(hostlists.expand(text)) if text else ()
    except ValueError as error:
        raise TopologyFileError(f"{where}: {error}") from None
