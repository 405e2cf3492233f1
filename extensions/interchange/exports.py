"""Formats that a fabric is written in, by the name of the option ``--format``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ringlight.experiments.language.text import parse_document
from ringlight.extensions.interchange import pictures, topograph
from ringlight.extensions.interchange.infragraph_graph import graph_of
from ringlight.extensions.interchange.infragraph_writer import infragraph
from ringlight.extensions.interchange.lit import Exported, LitFabric
from ringlight.extensions.interchange.node_trees import lost_in_tree, tree_of
from ringlight.extensions.interchange.slurm_topology import (
    NodeTopology,
    block_sizes,
    write_conf,
)
from ringlight.extensions.interchange.slurm_yaml import NamedTopology, write_yaml


@dataclass(frozen=True)
class Form:
    """``write``: returns the text and what it lost. ``comment``: how a line begins that says so in the text, ""
    if no line can. ``validate``: raises ValueError for a text that the format's own program refuses."""

    write: Callable[[LitFabric], Exported]
    comment: str = ""
    validate: Callable[[str], object] | None = None

    def text(self, lit: LitFabric) -> Exported:
        """Return the text, which names what it lost where it can. Raises ValueError."""
        exported = self.write(lit)
        if not (self.comment and exported.lost):
            return exported
        lines = (f"{self.comment} not carried: {what}\n" for what in exported.lost)
        return replace(exported, text="".join(lines) + exported.text)


def _picture(draw: Callable[..., str]) -> Callable[[LitFabric], Exported]:
    def write(lit: LitFabric) -> Exported:
        return Exported(draw(pictures.plugged_graph(lit.fabric, lit.circuits)))

    return write


def _tree(lit: LitFabric) -> Exported:
    tree = tree_of(lit.fabric, lit.circuits)
    return Exported(write_conf(tree), tuple(lost_in_tree(lit.fabric)))


def _as_blocks(lit: LitFabric) -> NodeTopology:
    tree = NodeTopology(tree_of(lit.fabric, lit.circuits).leaves)
    return replace(tree, block_sizes=block_sizes(tree))


def _blocks(lit: LitFabric) -> Exported:
    lost = (*lost_in_tree(lit.fabric), "switches above blocks")
    return Exported(write_conf(_as_blocks(lit)), lost)


def _yaml(lit: LitFabric) -> Exported:
    topologies = [
        NamedTopology("lit", tree_of(lit.fabric, lit.circuits), True),
        NamedTopology("blocks", _as_blocks(lit)),
        NamedTopology("none", None),
    ]
    return Exported(write_yaml(topologies), tuple(lost_in_tree(lit.fabric)))


def _topograph(lit: LitFabric) -> Exported:
    text = topograph.write_graph(tree_of(lit.fabric, lit.circuits))
    return Exported(text, tuple(lost_in_tree(lit.fabric)))


def _validated(text: str) -> object:
    return graph_of(parse_document(text, "infragraph"), "infragraph")


FORMS: Mapping[str, Form] = {
    "mermaid": Form(_picture(pictures.mermaid)),
    "dot": Form(_picture(pictures.dot)),
    "graphml": Form(_picture(pictures.graphml)),
    "infragraph": Form(lambda lit: infragraph(lit, as_lit=False), "#", _validated),
    "infragraph-lit": Form(lambda lit: infragraph(lit, as_lit=True), "#", _validated),
    "slurm-tree": Form(_tree, "#"),
    "slurm-block": Form(_blocks, "#"),
    "slurm-yaml": Form(_yaml, "#"),
    "topograph": Form(_topograph),
}
