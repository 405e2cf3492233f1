"""Files of NVIDIA's topograph: its model of a cluster (YAML) read, the JSON of its engine ``graph`` both ways.

The formats: docs/modeling.md, pkg/models/model.go and pkg/engines of NVIDIA/topograph at e2b62507.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from pydantic import Field, ValidationError

from ringlight.experiments.language.text import first_problem
from ringlight.extensions.interchange.hostlists import Hostlists
from ringlight.extensions.interchange.slurm_topology import (
    NodeTopology,
    ReadTopology,
    TopologyFileError,
    check,
    with_nodes,
)
from ringlight.fabric.values import Strict


class _ModelSwitch(Strict):
    name: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    switches: tuple[str, ...] = ()


class _ModelBlock(Strict):
    switch: str | None = None
    nodes: tuple[str, ...] = Field(min_length=1)
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class _Model(Strict):
    switches: dict[str, _ModelSwitch] = Field(default_factory=dict)
    blocks: tuple[_ModelBlock, ...] = Field(min_length=1)


class _Instance(Strict):
    id: str = Field(min_length=1)
    # Go writes null for a list that is not there.
    network_layers: tuple[str, ...] | None = None
    labels: dict[str, str] = Field(default_factory=dict)


class _Instances(Strict):
    instances: tuple[_Instance, ...] = Field(min_length=1)


def read_model(document: object, file: str) -> ReadTopology:
    """Return the nodes and switches of a model. Raises TopologyFileError."""
    if isinstance(document, dict):
        _check_older(document, file)
    try:
        model = _Model.model_validate(document)
    except ValidationError as error:
        raise TopologyFileError(
            f"{file}: {first_problem(error, document, {})}"
        ) from None
    parents: dict[str, str] = {}
    for name, switch in model.switches.items():
        if switch.name not in ("", name):
            what = f"{switch.name:.60} is not the switch's key"
            raise TopologyFileError(f"{file}: switches.{name}.name: {what}")
        for child in switch.switches:
            if child in parents:
                what = f"{child} has two parent switches, {parents[child]} and {name}"
                raise TopologyFileError(f"{file}: switches.{name}.switches: {what}")
            parents[child] = name
    known = {*model.switches, *parents}
    leaves: dict[str, tuple[str, ...]] = {}
    alone, hostlists = 0, Hostlists()
    for place, block in enumerate(model.blocks):
        where = f"{file}: blocks[{place}]"
        if block.switch is None:
            leaf = f"block{place}" + "-" * (f"block{place}" in known)
            alone += 1
        elif block.switch not in known:
            raise TopologyFileError(
                f"{where}.switch: there is no switch {block.switch}"
            )
        else:
            leaf = block.switch
        nodes = _nodes(f"{where}.nodes", block.nodes, hostlists)
        leaves[leaf] = leaves.get(leaf, ()) + nodes
    leaves |= {name: () for name in known if name not in {*leaves, *parents.values()}}
    read = _checked(NodeTopology(leaves, parents), file)
    dropped = list(read.dropped)
    if any(block.annotations or block.labels for block in model.blocks):
        dropped.append("labels and annotations of blocks (accelerator domains)")
    if any(switch.labels or switch.annotations for switch in model.switches.values()):
        dropped.append("labels and annotations of switches")
    if alone:
        dropped.append(f"that {alone} blocks are on no switch: each has its own here")
    return ReadTopology(read.nodes, tuple(dropped))


def _check_older(document: Mapping[Any, Any], file: str) -> None:
    """Raise TopologyFileError for a model of older versions, and for an empty definition."""
    if "capacity_blocks" in document:
        what = "a model of an older topograph; write blocks, each with its nodes"
        raise TopologyFileError(f"{file}: capacity_blocks: {what}")
    switches = document.get("switches")
    for name, switch in switches.items() if isinstance(switches, dict) else ():
        if switch is None:
            raise TopologyFileError(f"{file}: switches.{name}: empty definition")


def _nodes(where: str, texts: tuple[str, ...], hostlists: Hostlists) -> tuple[str, ...]:
    try:
        return tuple(node for text in texts for node in hostlists.expand(text))
    except ValueError as error:
        raise TopologyFileError(f"{where}: {error}") from None


def _checked(topology: NodeTopology, file: str) -> ReadTopology:
    try:
        check(topology, empty=True)
        return with_nodes(topology)
    except ValueError as error:
        raise TopologyFileError(f"{file}: {error}") from None


def write_graph(topology: NodeTopology) -> str:
    """Return the JSON of topograph's engine ``graph``: each node with its switches, the nearest first."""
    instances: list[dict[str, object]] = []
    for leaf, nodes in topology.leaves.items():
        layers = [leaf]
        while layers[-1] in topology.parents:
            layers.append(topology.parents[layers[-1]])
        instances += (
            {"id": node, "network_layers": layers, "labels": {}} for node in nodes
        )
    return json.dumps({"instances": instances}, indent=2) + "\n"


def read_graph(document: object, file: str) -> ReadTopology:
    """Return the nodes and switches of a JSON of the engine ``graph``. Raises TopologyFileError."""
    try:
        graph = _Instances.model_validate(document)
    except ValidationError as error:
        raise TopologyFileError(
            f"{file}: {first_problem(error, document, {})}"
        ) from None
    leaves: dict[str, list[str]] = {}
    parents: dict[str, str] = {}
    alone = 0
    for place, instance in enumerate(graph.instances):
        where = f"{file}: instances[{place}].network_layers"
        layers = instance.network_layers or (f"only-{instance.id}",)
        alone += not instance.network_layers
        leaves.setdefault(layers[0], []).append(instance.id)
        for below, above in pairwise(layers):
            if parents.setdefault(below, above) != above:
                what = f"{below} is below {parents[below]}, too"
                raise TopologyFileError(f"{where}: {what}")
    topology = NodeTopology({k: tuple(v) for k, v in leaves.items()}, parents)
    read = _checked(topology, file)
    dropped = list(read.dropped)
    if any(instance.labels for instance in graph.instances):
        dropped.append("labels of nodes (accelerator domains)")
    if alone:
        dropped.append(f"that {alone} nodes are on no switch: each has its own here")
    return ReadTopology(read.nodes, tuple(dropped))
