"""Formats that a fabric is read from, and which of them a text has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ringlight.experiments.language.text import parse_document
from ringlight.extensions.interchange import topograph
from ringlight.extensions.interchange.draft import Defaults, Draft
from ringlight.extensions.interchange.infragraph_reader import read_infragraph
from ringlight.extensions.interchange.nccl_topology import read_dump
from ringlight.extensions.interchange.node_trees import fabric_of_tree
from ringlight.extensions.interchange.nvidia_smi import has_matrix, read_matrix
from ringlight.extensions.interchange.servers import fabric_of_servers
from ringlight.extensions.interchange.slurm_topology import (
    NodeTopology,
    ReadTopology,
    read_conf,
)
from ringlight.extensions.interchange.slurm_yaml import UNREAD, NamedTopology, read_yaml

#: Bytes of a file to import.
IMPORT_BYTES = 64 << 20
#: Reads a text of a file: ``(text, file, defaults)``. Raises ValueError that names file and key or line.
Reader = Callable[[str, str, Defaults], Draft]


def _slurm_conf(text: str, file: str, defaults: Defaults) -> Draft:
    return _scheduled(read_conf(text, file), defaults)


def _slurm_yaml(text: str, file: str, defaults: Defaults) -> Draft:
    topologies = read_yaml(text, file)
    chosen = _chosen(topologies, file, defaults.topology)
    if chosen.nodes is None:
        why = "is not read" if chosen.kind in UNREAD else "names no nodes"
        raise ValueError(f"{file}: topology {chosen.name}: {chosen.kind}, it {why}")
    left = [t.name for t in topologies if t.name != chosen.name]
    dropped = [f"topologies {', '.join(left)}"] if left else []
    return _scheduled(ReadTopology(chosen.nodes, (*chosen.dropped, *dropped)), defaults)


def _chosen(
    topologies: list[NamedTopology], file: str, name: str | None
) -> NamedTopology:
    """Return the topology of a name; without one the default, else the first. Raises ValueError."""
    if name is None:
        default = next((t for t in topologies if t.cluster_default), None)
        return default or topologies[0]
    for topology in topologies:
        if topology.name == name:
            return topology
    there = ", ".join(topology.name for topology in topologies)
    raise ValueError(f"{file}: topology: there is no {name}; there are {there}")


def _scheduled(read: ReadTopology, defaults: Defaults) -> Draft:
    """Return the fabric of a scheduler's topology; blocks are joined by one switch above them."""
    topology = read.nodes
    joined = topology
    if topology.block_sizes and len(topology.leaves) > 1:
        above = "core" + "-" * ("core" in topology.leaves)
        joined = NodeTopology(topology.leaves, dict.fromkeys(topology.leaves, above))
    draft = fabric_of_tree(joined, defaults)
    if topology.block_sizes:
        draft.dropped.append("sizes of blocks")
        draft.defaulted.append("a switch above the blocks")
    draft.dropped += read.dropped
    return draft


def _topograph_model(text: str, file: str, defaults: Defaults) -> Draft:
    return _scheduled(topograph.read_model(parse_document(text, file), file), defaults)


def _topograph_graph(text: str, file: str, defaults: Defaults) -> Draft:
    return _scheduled(topograph.read_graph(parse_document(text, file), file), defaults)


def _infragraph(text: str, file: str, defaults: Defaults) -> Draft:
    return read_infragraph(parse_document(text, file), file, defaults)


def _nccl(text: str, file: str, defaults: Defaults) -> Draft:
    return fabric_of_servers(read_dump(text, file), defaults)


def _nvidia_smi(text: str, file: str, defaults: Defaults) -> Draft:
    return fabric_of_servers([read_matrix(text, file)], defaults)


READERS: Mapping[str, Reader] = {
    "infragraph": _infragraph,
    "slurm-conf": _slurm_conf,
    "slurm-yaml": _slurm_yaml,
    "topograph-model": _topograph_model,
    "topograph-graph": _topograph_graph,
    "nccl": _nccl,
    "nvidia-smi": _nvidia_smi,
}
#: Keys of a mapping by which a format is known.
_KEYS = {
    "infrastructure": "infragraph",
    "devices": "infragraph",
    "instances": "topograph-graph",
    "blocks": "topograph-model",
    "capacity_blocks": "topograph-model",
    "switches": "topograph-model",
}


def format_of(text: str, file: str) -> str:
    """Return the name of the format that a text has. Raises ValueError if it has none of them."""
    if text.lstrip().startswith("<"):
        return "nccl"
    if has_matrix(text):
        return "nvidia-smi"
    if re.search(
        r"^[ \t]*(Switch|Block|Ring)Name[ \t]*=", text, re.MULTILINE | re.IGNORECASE
    ):
        return "slurm-conf"
    there = f"name one by --format: {', '.join(READERS)}"
    try:
        document: Any = parse_document(text, file)
    except ValueError as error:
        raise ValueError(f"{error}; if it is not YAML or JSON, {there}") from None
    if isinstance(document, list):
        entry = document[0] if document else None
        if isinstance(entry, dict) and "topology" in entry:
            return "slurm-yaml"
    if isinstance(document, dict):
        for key, form in _KEYS.items():
            if key in document:
                return form
    raise ValueError(f"{file}: its format is not known; {there}")
