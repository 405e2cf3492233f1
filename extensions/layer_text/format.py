"""Workload texts as a format of workloads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ringlight.workloads.formats.contract import Format, Options, Setting

if TYPE_CHECKING:
    from ringlight.workloads.graph import Workload


def is_layer_text(path: Path, beginning: bytes) -> bool:
    """Return whether a file begins as such a text."""
    from ringlight.extensions.layer_text.text import looks_like

    return looks_like(beginning.decode("utf-8-sig", errors="replace"))


def read(paths: Sequence[Path], options: Options) -> Workload:
    """Return the workload of a text."""
    from ringlight.extensions.layer_text import reader

    return reader.read(paths[0], options.ranks, options.settings.get("model_ranks"))


LAYER_TEXT = Format(
    name="layer_text",
    title="workload text",
    files="workload texts of ASTRA-sim and SimAI",
    recognises=is_layer_text,
    read=read,
    settings=(
        Setting(
            "model_ranks",
            "count",
            "Ranks of a model-parallel group, if the text does not state them.",
        ),
    ),
)
