"""Figures whose axes stand where they are put: nothing has to be laid out, which takes longest in drawing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

#: Inches; as wide as the page's text.
WIDTH = 9.2


def sheet(
    height: float,
    *,
    rows: int = 1,
    columns: int = 1,
    left: float = 0.62,
    right: float = 0.12,
    top: float = 0.3,
    bottom: float = 0.46,
    gap: tuple[float, float] = (0.55, 0.55),
    heights: Sequence[float] | None = None,
    share: bool = False,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with ``rows`` × ``columns`` axes. Margins, and the gaps between columns and between rows, are
    inches; ``heights``: of the rows, in proportion; ``share``: all have one scale, x and y."""
    figure = Figure(figsize=(WIDTH, height))
    width_of_one = (WIDTH - left - right - gap[0] * (columns - 1)) / columns
    height_of_one = (height - top - bottom - gap[1] * (rows - 1)) / rows
    axes = figure.subplots(
        rows,
        columns,
        squeeze=False,
        sharex=share,
        sharey=share,
        height_ratios=heights,
        gridspec_kw={
            "left": left / WIDTH,
            "right": 1 - right / WIDTH,
            "top": 1 - top / height,
            "bottom": bottom / height,
            "wspace": gap[0] / width_of_one,
            "hspace": gap[1] / height_of_one,
        },
    )
    return figure, [list(row) for row in axes]


def legend(figure: Figure, handles: Sequence[Any] | None = None, columns: int = 5) -> None:
    """At the top right, in the margin."""
    given = {} if handles is None else {"handles": list(handles)}
    count = len(handles) if handles is not None else columns
    figure.legend(
        **given,
        loc="upper right",
        bbox_to_anchor=(1.0, 1.0),
        borderaxespad=0.15,
        fontsize=8,
        ncols=max(1, min(columns, count)),
        handlelength=1.4,
        columnspacing=1.1,
    )


def vertical_grid(axis: Axes) -> None:
    axis.grid(axis="y", visible=False)
    axis.grid(axis="x", visible=True)


def plain_ticks(axis: Any, lowest: float, highest: float) -> None:
    """Ticks of a logarithmic axis (``axes.xaxis`` or ``yaxis``) at 1, 2, 5, … written as plain numbers."""
    ticks = [m * 10.0**e for e in range(-9, 9) for m in (1, 2, 5)]
    inside = [t for t in ticks if lowest * 0.7 <= t <= highest * 1.4]
    axis.set_ticks(inside if len(inside) <= 10 else [t for t in inside if f"{t:e}".startswith("1")])
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())
