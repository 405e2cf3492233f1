"""Draws the shares of inputs that an imperfect OptINC unit answers wrongly.

    .venv/bin/python -m docs.figures.optinc_imperfect JSON docs/images/optinc-physics.png

The file has what ``benchmarks optinc physics`` printed, of every quantity.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.optinc import QUANTITIES
from ringlight.experiments.report.charts import legend, plain_ticks, sheet
from ringlight.experiments.report.drawing import PALETTE, QUIET, STYLE

#: Looks of lines: where one lies on another, both are seen.
LOOKS: tuple[dict[str, Any], ...] = (
    {"color": PALETTE[0], "marker": "o", "markersize": 6, "linewidth": 2.4},
    {"color": PALETTE[1], "marker": "s", "markersize": 3, "linewidth": 1.2, "linestyle": "--"},
)


def draw_shares(physics: Mapping[str, Any], file: Path) -> None:
    """Draw the shares of wrong answers of each quantity into ``file``."""
    results, inputs = physics["weights"], physics["inputs"]
    figure, axes = sheet(11.0, rows=4, columns=2, top=0.45, gap=(0.7, 0.75))
    flat = [axis for row in axes for axis in row]
    one = 100 / inputs
    for axis, (title, quantity) in zip(flat, QUANTITIES.items(), strict=True):
        for look, found in zip(LOOKS, results.values(), strict=False):
            values = [shares["value"] for shares in found[title]]
            shares = [
                [100 * shares[part] for part in ("minimum", "median", "maximum")] for shares in found[title]
            ]
            low, middle, high = zip(*shares, strict=True)
            axis.fill_between(values, low, high, color=look["color"], alpha=0.2, linewidth=0)
            axis.plot(values, middle, **look)
        # below one input there is only none: straight from there to 0
        axis.set_yscale("symlog", linthresh=one, linscale=0.5)
        axis.set_ylim(-one / 3, 200)
        ticks = [0.0, *(10.0**power for power in range(-6, 3) if 10.0**power > one)]
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_yticks([], minor=True)
        if title == "phase_bits":
            axis.invert_xaxis()
            axis.set_xticks(range(24, 5, -2))
        else:
            axis.set_xscale("log")
            if quantity.values[-1] / quantity.values[0] < 100:
                plain_ticks(axis.xaxis, quantity.values[0], quantity.values[-1])
        axis.set_title(f"{quantity.title[0].upper()}{quantity.title[1:]}")
        axis.set_ylabel("inputs wrong, %")
    handles = [
        Line2D([], [], **look, label=f"{name} weights") for look, name in zip(LOOKS, results, strict=False)
    ]
    legend(
        figure,
        "network",
        [*handles, Patch(color=QUIET, alpha=0.2, label="of seeds, smallest to largest (line: median)")],
    )
    figure.savefig(file, dpi=160, facecolor="white")


if __name__ == "__main__":
    with rc_context(STYLE):
        document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        draw_shares(document["physics"], Path(sys.argv[2]))
