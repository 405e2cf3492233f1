"""Blocks of fabrics with more than one path."""

from __future__ import annotations

from collections.abc import Mapping

from docs.figures.parts import Block, Cell, Table, of, simulated
from docs.figures.words import seconds


def all_reduces(titles: Mapping[str, str]) -> list[list[Cell]]:
    """All-reduce time of each arm, with the arm's title."""
    return [[title, of(seconds, simulated(arm, "allreduce", "job train"))] for arm, title in titles.items()]


BLOCKS: dict[str, Block] = {
    "two-cables": Table(
        "examples/two_cables",
        "ring among sixteen GPUs | all-reduce",
        all_reduces({"one": "one cable", "two": "two cables"}),
    ),
    "fat-tree": Table(
        "examples/fat_tree_4",
        "fat tree, k = 4, sixteen GPUs | all-reduce",
        all_reduces({"ring": "ring", "doubling": "halving and doubling"}),
    ),
}
