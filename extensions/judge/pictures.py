"""Pictures of predicted beside published figures, for the pages of the judges."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatterMathtext, LogLocator, NullLocator
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ringlight.experiments.record.writing import writing
from ringlight.experiments.report.drawing import INK, PALETTE, QUIET, STYLE, WIDE
from ringlight.extensions.judge.contract import Comparison

#: The key of a picture's metadata with the SHA-256 of the predictions that it shows.
PREDICTIONS = "Predictions"
#: Colours of a picture's palette, and its resolution in dots per inch.
_COLOURS, _DOTS = 64, 100
_PREDICTED, _PUBLISHED = PALETTE[1], PALETTE[0]
_COLUMNS, _PANEL_HEIGHT = 4, 1.45

#: Return the place of a comparison on the horizontal axis.
Position = Callable[[Comparison], float]


def write_picture(figure: Figure, path: Path, sha256: str) -> None:
    """Write a figure as PNG, with the SHA-256 of its predictions. Raises WriteError."""
    drawn = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(drawn, format="png", dpi=_DOTS, facecolor="white")
    information = PngInfo()
    information.add_text(PREDICTIONS, sha256)
    with writing(path), Image.open(drawn) as image:
        path.parent.mkdir(parents=True, exist_ok=True)
        few = image.convert("RGB").quantize(_COLOURS)
        few.save(path, format="png", optimize=True, pnginfo=information)


def predictions_of(path: Path) -> str:
    """Return the SHA-256 of the predictions that a picture shows. Raises OSError, KeyError."""
    with Image.open(path) as image:
        return str(image.info[PREDICTIONS])


def curves(
    comparisons: Sequence[Comparison], position: Position, xlabel: str, ylabel: str
) -> Figure:
    """Return a small chart for each table: predicted as a line, published as dots, both axes logarithmic."""
    tables = _by_table(comparisons)
    rows = math.ceil(len(tables) / _COLUMNS)
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "both"}):
        figure = Figure((WIDE, rows * _PANEL_HEIGHT + 0.5), layout="constrained")
        grid = figure.subplots(rows, _COLUMNS, squeeze=False)
        for axis in grid.flat[len(tables) :]:
            axis.remove()
        for axis, (name, lines) in zip(grid.flat, tables.items(), strict=False):
            axis.set(xscale="log", yscale="log")
            _draw_pair(axis, lines, position, _PREDICTED)
            axis.set_title(name, fontsize=7)
            axis.tick_params(labelsize=7)
            _tick_decades(axis)
        figure.supxlabel(xlabel, fontsize=9)
        figure.supylabel(ylabel, fontsize=9)
        _explain(figure)
    return figure


def shares(
    comparisons: Sequence[Comparison],
    position: Position,
    group: Callable[[Comparison], str],
    labels: tuple[str, str],
) -> Figure:
    """Return a chart for each table with a colour for each group; the vertical axis is linear from 0."""
    tables = _by_table(comparisons)
    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDE, 3.0), layout="constrained")
        grid = figure.subplots(1, len(tables), sharey=True, squeeze=False)
        for axis, (name, lines) in zip(grid.flat, tables.items(), strict=True):
            axis.set(xscale="log", title=name, xlabel=labels[0])
            groups = dict.fromkeys(map(group, lines))
            for each, colour in zip(groups, PALETTE, strict=False):
                chosen = [line for line in lines if group(line) == each]
                _draw_pair(axis, chosen, position, colour, each)
        grid[0, 0].set(ylabel=labels[1], ylim=(0, 1))
        handles, _ = grid[0, 0].get_legend_handles_labels()
        _explain(figure, handles, QUIET)
    return figure


def scatter(comparisons: Sequence[Comparison], unit: str) -> Figure:
    """Return published against predicted figures, a colour for each table, and the line of equal ones."""
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "both"}):
        figure = Figure((5.4, 4.2), layout="constrained")
        axis = figure.subplots()
        axis.set(
            xscale="log",
            yscale="log",
            xlabel=f"predicted, {unit}",
            ylabel=f"published, {unit}",
        )
        for (name, lines), colour in zip(
            _by_table(comparisons).items(), PALETTE, strict=False
        ):
            axis.plot(
                [line.predicted for line in lines],
                [line.published for line in lines],
                linestyle="",
                marker="o",
                markersize=4.5,
                alpha=0.8,
                color=colour,
                label=name,
            )
        ends = [
            end(value for line in comparisons for value in _both(line))
            for end in (min, max)
        ]
        axis.plot(ends, ends, color=QUIET, linewidth=0.8, label="equal")
        axis.legend(loc="upper left")
    return figure


def _both(line: Comparison) -> tuple[float, float]:
    return line.predicted, line.published


def _by_table(comparisons: Sequence[Comparison]) -> Mapping[str, list[Comparison]]:
    return {
        name: list(lines)
        for name, lines in groupby(comparisons, lambda line: line.table)
    }


def _draw_pair(
    axis: Axes,
    lines: Sequence[Comparison],
    position: Position,
    colour: str,
    label: str = "",
) -> None:
    places = [position(line) for line in lines]
    predicted = [line.predicted for line in lines]
    axis.plot(places, predicted, color=colour, marker="_")
    dots = colour if label else _PUBLISHED
    published = [line.published for line in lines]
    axis.plot(places, published, "o", color=dots, label=label or None)


def _tick_decades(axis: Axes) -> None:
    """Set ticks at powers of ten, of which each axis shows two at least."""
    for side in (axis.xaxis, axis.yaxis):
        low, high = side.get_data_interval()
        bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high))
        side.set_view_interval(10**bottom, 10 ** max(top, bottom + 1), ignore=True)
        side.set_major_locator(LogLocator(numticks=5))
        side.set_major_formatter(LogFormatterMathtext())
        side.set_minor_locator(NullLocator())


def _explain(
    figure: Figure, groups: Sequence[Line2D] = (), colour: str | None = None
) -> None:
    """Add a legend: what lines and dots are, and the groups by colour."""
    kinds = [
        Line2D([], [], color=colour or _PREDICTED, label="predicted"),
        Line2D(
            [],
            [],
            color=colour or _PUBLISHED,
            linestyle="",
            marker="o",
            label="published",
        ),
    ]
    figure.legend(
        handles=[*kinds, *groups],
        loc="outside upper center",
        ncols=2 + len(groups),
        labelcolor=INK,
    )
