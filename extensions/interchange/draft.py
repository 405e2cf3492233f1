"""A fabric file in the making: what an import has read so far, and the scenario that it becomes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import networkx as nx
from pydantic import ValidationError

from ringlight.experiments.language.text import first_problem, plain_yaml
from ringlight.extensions.interchange.names import GivenNames
from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import (
    Fabric,
    circuit_cross_connects,
    electrical_graph,
)
from ringlight.fabric.units import parse_rate

#: One all-reduce, as a job for a fabric whose file has none.
_TRAINING = {
    "model": "resnet50",
    "batch": 64,
    "compute": "0 s",
    "iterations": 1,
    "gradient": "100 MB",
    "collective": "ring",
}


@dataclass(frozen=True)
class Defaults:
    """Values for what a file does not state.

    ``rate_bps``: of a GPU's link; ``uplink_bps``: of a link between switches, bits per second, None for the
    sum of the GPUs' below it. ``gpu``: the GPUs' model. ``gpus``: GPUs of a node. ``servers``: servers like
    the one that a file describes. ``topology``: name of one of a file's topologies, None for its default.
    """

    rate_bps: float = 100e9
    uplink_bps: float | None = None
    gpu: str = "gpu"
    gpus: int = 1
    servers: int = 2
    topology: str | None = None


@dataclass
class Draft:
    """Sections of a fabric file. ``defaulted``: what the file does not state; ``dropped``: what has no place
    here."""

    names: GivenNames = field(default_factory=GivenNames)
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    packet_switches: dict[str, dict[str, Any]] = field(default_factory=dict)
    optical_switches: dict[str, dict[str, Any]] = field(default_factory=dict)
    links: list[dict[str, Any]] = field(default_factory=list)
    circuits: list[list[str]] = field(default_factory=list)
    defaulted: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def add_gpu(self, server: str, gpu: str, model: str) -> None:
        """Add a GPU to a server; both names are ours."""
        entry = self.servers.setdefault(server, {"gpus": {}})
        entry["gpus"][gpu] = model

    def add_switch(self, name: str, ports: int = 0) -> None:
        """Add a packet switch, which gets a port more for each link that is plugged into it."""
        self.packet_switches[name] = {"ports": ports}

    def next_port(self, switch: str) -> str:
        """Return a new port of a packet switch."""
        self.packet_switches[switch]["ports"] += 1
        return f"{switch}:{self.packet_switches[switch]['ports']}"

    def plug(self, a: str, b: str, rate_bps: float, queue: str = "") -> None:
        """Add a link between two ports."""
        link: dict[str, Any] = {"ends": [a, b], "rate": rate_text(rate_bps)}
        self.links.append(link | ({"queue": queue} if queue else {}))

    def section(self) -> dict[str, Any]:
        """Return the section ``fabric`` of a scenario."""
        sections = {
            "servers": self.servers,
            "packet_switches": self.packet_switches,
            "optical_switches": self.optical_switches,
            "links": self.links,
            "circuits": self.circuits,
        }
        always = ("servers", "packet_switches", "links")
        return {key: v for key, v in sections.items() if v or key in always}


def rate_text(bits_per_second: float) -> str:
    """Return a rate, bits per second, as a fabric file has it, so that the same is read back."""
    short = f"{bits_per_second / 1e9:.12g} Gbit/s"
    return (
        short if parse_rate(short) == bits_per_second else f"{bits_per_second!r} bit/s"
    )


def fabric_of(draft: Draft) -> Fabric:
    """Return the fabric of a draft. Raises ValueError, one line that begins with a key of the fabric file."""
    section = draft.section()
    try:
        return build_fabric(FabricSpec.model_validate(section))
    except ValidationError as error:
        raise ValueError(first_problem(error, section, {}, "fabric")) from None


def scenario_text(draft: Draft, name: str, source: str) -> str:
    """Return the text of a scenario: the fabric, and one all-reduce of the GPUs that reach each other.

    ``source``: the file and format that it comes from. Raises ValueError as :func:`fabric_of`.
    """
    fabric = fabric_of(draft)
    joined = _joined_gpus(fabric)
    document: dict[str, Any] = {
        "name": _scenario_name(name),
        "description": f"Imported from {source}.",
        "scale": "auto",
        "fabric": draft.section(),
        "training": _TRAINING,
    }
    if len(joined) < len(fabric.gpus):
        document["jobs"] = {"train": {"ranks": joined}}
        apart = len(fabric.gpus) - len(joined)
        draft.defaulted.append(f"the job: {apart} GPUs do not reach the others")
    draft.defaulted.append("the job: one ring all-reduce of 100 MB")
    for ours, theirs in list(draft.names.renamed.items())[:1]:
        count = len(draft.names.renamed)
        draft.defaulted.append(f"{count} names, such as {ours} for {theirs}")
    comments = [f"Imported from {source}."]
    comments += (f"Chosen: {what}." for what in draft.defaulted)
    comments += (f"Left out: {what}." for what in draft.dropped)
    comments += (f"{ours} is {theirs} there." for ours, theirs in _sorted(draft.names))
    # A comment is one line, whatever a file's names have in them.
    lines = ("".join(c if c.isprintable() else "�" for c in text) for text in comments)
    return "".join(f"# {line}\n" for line in lines) + plain_yaml(document)


def _scenario_name(name: str) -> str:
    """Return a name as a scenario may have it."""
    cleaned = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:30]
    return cleaned if cleaned[:1].isalpha() else f"imported-{cleaned}".rstrip("-")


def _sorted(names: GivenNames) -> Iterable[tuple[str, str]]:
    return sorted(names.renamed.items())


def _joined_gpus(fabric: Fabric) -> list[str]:
    """Return the GPUs of the largest part in which all reach each other."""
    joins: nx.Graph[str] = nx.Graph()
    joins.add_nodes_from(fabric.gpus)
    cross_connects = circuit_cross_connects(fabric, fabric.circuits)
    edges = electrical_graph(fabric, cross_connects).edges
    joins.add_edges_from((edge.out.node, edge.into.node) for edge in edges)
    groups = [
        [gpu for gpu in fabric.gpus if gpu in part]
        for part in nx.connected_components(joins)
    ]
    return max(groups, key=len, default=[])
