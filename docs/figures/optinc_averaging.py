"""Writes the ways of averaging of OptINC's training study as a table into a page, between its marks.

    .venv/bin/python -m docs.figures.optinc_averaging docs/optinc-training.md JSON [JSON ...]

Each file has what ``benchmarks optinc_training plain --bits 8`` printed, of one model and any ``--ranks``.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.optinc_training import MANY_WAYS, with_interval
from ringlight.experiments.analysis.statistics import half_width

#: What a way is called on the page, by its name in the JSON, in the page's order.
ON_PAGE = {
    "nearest": "nearest (the product)",
    "dithered": "dithered",
    "exact mean of the codes": "exact mean of the codes",
    "floor and a constant": "floor and a constant",
    "floor and a constant where codes differ": "floor and a constant for differing codes",
    "floor": "floor (the paper's)",
}
_WAYS_BLOCK = re.compile(r"(<!-- ways -->\n).*?(<!-- end of ways -->)", re.DOTALL)


def ways_table(outcomes: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of Markdown: for each model the ways of averaging by servers, and what the ring has itself.

    Raises ValueError for outcomes of one model with other seeds or iterations, KeyError for one that is not
    there.
    """
    lines: list[str] = []
    for model in dict.fromkeys(outcome["model"] for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome["model"] == model]
        if len(counts := {(outcome["seeds"], outcome["iterations"]) for outcome in own}) > 1:
            raise ValueError(f"{model}: of different seeds and iterations: {sorted(counts)}")
        ((seeds, iterations),) = counts
        rows = {(row["what"], row["ranks"]): row for outcome in own for row in outcome["plain"]}
        ranks = sorted({many for _, many in rows})
        heads = [f"{model}, averaged by", *(f"N = {n}: accuracy, points | loss" for n in ranks)]
        lines += [f"| {' | '.join(heads)} |", "|---" * (1 + 2 * len(ranks)) + "|"]
        for way, said in ON_PAGE.items():
            its = [rows[f"OptINC, {MANY_WAYS} bits, {way}", n] for n in ranks]
            cells = [
                f"{with_interval(row['accuracy_over_ring_points'], '+.2f')} | "
                f"{with_interval(row['loss_over_ring_nats'], '+.5f')}"
                for row in its
            ]
            lines.append(f"| {' | '.join((said, *cells))} |")
        apart = (
            f"{_apart(rows, n, 'of_seeds_points', '+.2f')} | {_apart(rows, n, 'of_seeds_nats', '+.5f')}"
            for n in ranks
        )
        lines.append(f"| dithered minus nearest, seed by seed | {' | '.join(apart)} |")
        rings = [(n, rows["ring, float32", n]) for n in ranks]
        said = "; ".join(
            f"{with_interval(row['accuracy_percent'], '.2f')} % and "
            f"{with_interval(row['loss_nats'], '.4f')} with N = {n}"
            for n, row in rings
        )
        lines += ["", f"The ring's accuracy and loss: {said}. {seeds} seeds, {iterations:,} iterations."]
        lines.append("")
    return [line.replace(" -", " −") for line in lines]


def _apart(rows: dict[tuple[str, int], dict[str, Any]], ranks: int, figure: str, form: str) -> str:
    """By how much dithering is above nearest: the mean over seeds, and half its interval."""
    dithered, nearest = (rows[f"OptINC, {MANY_WAYS} bits, {way}", ranks] for way in ("dithered", "nearest"))
    off = [a - b for a, b in zip(dithered[figure], nearest[figure], strict=True)]
    return with_interval((statistics.fmean(off), half_width(off)), form)


def write_ways(page: Path, files: Sequence[Path]) -> None:
    """Raises OSError, and ValueError for a page without the block or files without such outcomes."""
    lines = ways_table([json.loads(file.read_text(encoding="utf-8")) for file in files])
    text = page.read_text(encoding="utf-8")
    new, count = _WAYS_BLOCK.subn(lambda match: match[1] + "\n".join(lines) + match[2], text)
    if count != 1:
        raise ValueError(f"{page}: {count} blocks of ways, not one")
    page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    page, *outcomes = map(Path, sys.argv[1:])
    try:
        write_ways(page, outcomes)
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"{page}: {error}") from None
