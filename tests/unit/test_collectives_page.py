"""The page of collectives: every algorithm of every kind has its row, with the figures of its schedule."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ringlight.fabric.kinds import KINDS, collective_steps, vector_bytes

PAGE = Path(__file__).parents[2] / "docs/collectives.md"
SIZES = (8, 12)


def figures(kind: str, name: str) -> list[str]:
    """Steps, and the most that a rank sends in sizes, each of 8 and of 12 ranks."""
    steps, most = [], []
    for n in SIZES:
        made = collective_steps(kind, name, n)
        sent = np.zeros(n)
        for step in made:
            np.add.at(sent, step.sources, step.count)
        steps.append(str(made.steps))
        most.append(f"{sent.max() * vector_bytes(kind, n, 1) / made.chunks:.3g}")
    return [*steps, *most]


def check_rows(page: Path) -> list[tuple[str, str]]:
    """Check the figures of a page's rows. Return of each the kind and the algorithm."""
    kind, rows = "", []
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 8 and cells[1].startswith("`"):
            kind = cells[0].strip("`") or kind
            rows.append((kind, cells[1].strip("`"), cells[4:]))
    for kind, name, said in rows:
        assert said == figures(kind, name), (kind, name)
    return [row[:2] for row in rows]


def test_the_table_has_every_algorithm_with_its_figures() -> None:
    # All-to-all-v has the schedules of all-to-all.
    there = [
        (kind, name)
        for kind, names in KINDS.items()
        if kind != "all-to-all-v"
        for name in names
    ]
    assert check_rows(PAGE) == there
