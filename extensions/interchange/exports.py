"""Formats that a fabric is written in, by the name of the option ``--format``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ringlight.experiments.language.text import parse_document
from ringlight.extensions.interchange import pictures, topograph
from ringlight.extensions.interchange.infragraph_graph import graph_of
from ringlight.extensions.interchange.infragraph_writer import infragraph
from ringlight.extensions.interchange.node_trees import lost_in_tree, tree_of
from ringlight.extensions.interchange.slurm_topology import (
    NodeTopology,
    block_sizes,
    write_conf,
)
from ringlight.extensions.interchange.slurm_yaml import NamedTopology, write_yaml
from ringlight.extensions.interchange.snapshot import Exported, Snapshot


@dataclass(frozen=True)
class Form:
    """``write``: returns the text and what it lost. ``comment``: how a line begins that says so in the text, ""
    if no line can. ``validate``: raises ValueError for a text that the format's own program refuses."""

    write: Callable[[Snapshot], Exported]
    comment: str = ""
    validate: Callable[[str], object] | None = None

    def text(self, snapshot: Snapshot) -> Exported:
        """Return the text, which names what it lost where it can. Raises ValueError."""
        exported = self.write(snapshot)
        if not (self.comment and exported.lost):
            return exported
        lines = (f"{self.comment} not carried: {what}\n" for what in exported.lost)
        return replace(exported, text="".join(lines) + exported.text)


def _picture(draw: Callable[..., str]) -> Callable[[Snapshot], Exported]:
    def write(snapshot: Snapshot) -> Exported:
        return Exported(
            draw(pictures.plugged_graph(snapshot.fabric, snapshot.circuits))
        )

    return write


def _tree(snapshot: Snapshot) -> Exported:
    tree = tree_of(snapshot.fabric, snapshot.circuits)
    return Exported(write_conf(tree), tuple(lost_in_tree(snapshot.fabric)))


def _as_blocks(snapshot: Snapshot) -> NodeTopology:
    tree = NodeTopology(tree_of(snapshot.fabric, snapshot.circuits).leaves)
    return replace(tree, block_sizes=block_sizes(tree))


def _blocks(snapshot: Snapshot) -> Exported:
    lost = (*lost_in_tree(snapshot.fabric), "switches above blocks")
    return Exported(write_conf(_as_blocks(snapshot)), lost)


def _yaml(snapshot: Snapshot) -> Exported:
    topologies = [
        NamedTopology("lit", tree_of(snapshot.fabric, snapshot.circuits), True),
        NamedTopology("blocks", _as_blocks(snapshot)),
        NamedTopology("none", None),
    ]
    return Exported(write_yaml(topologies), tuple(lost_in_tree(snapshot.fabric)))


def _topograph(snapshot: Snapshot) -> Exported:
    text = topograph.write_graph(tree_of(snapshot.fabric, snapshot.circuits))
    return Exported(text, tuple(lost_in_tree(snapshot.fabric)))


def _validated(text: str) -> object:
    return graph_of(parse_document(text, "infragraph"), "infragraph")


FORMS: Mapping[str, Form] = {
    "mermaid": Form(_picture(pictures.mermaid)),
    "dot": Form(_picture(pictures.dot)),
    "graphml": Form(_picture(pictures.graphml)),
    "infragraph": Form(
        lambda snapshot: infragraph(snapshot, as_lit=False), "#", _validated
    ),
    "infragraph-lit": Form(
        lambda snapshot: infragraph(snapshot, as_lit=True), "#", _validated
    ),
    "slurm-tree": Form(_tree, "#"),
    "slurm-block": Form(_blocks, "#"),
    "slurm-yaml": Form(_yaml, "#"),
    "topograph": Form(_topograph),
}
