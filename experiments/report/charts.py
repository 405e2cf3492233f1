"""Parts of charts. Axes are placed by position: laying a figure out would take the longest."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator

from ringlight.experiments.language.spec import quantity
from ringlight.experiments.report.drawing import (
    FACE,
    INK,
    NARROW,
    PALETTE,
    QUIET,
    Sheet,
    fits,
    grow,
    narrow,
    width,
)

Spot = tuple[float, float]
#: A span of a row of a chart: row, from, to.
Span = tuple[float, float, float]
#: Dash and colour of lines that are to be told apart, the plainest first.
LOOKS = tuple(itertools.product(("-", (0, (4, 2)), (0, (1, 1.5))), PALETTE))
#: Inches that a line of a legend takes, and that the last tick's words have beside their axis.
_LINE, _SPARE = 0.17, 0.15
#: More columns than these are drawn two in a row on a narrow screen.
_THIRDS = 3
#: On a narrow screen no more of the width is left of the axes, and there are no more ticks.
_MOST_LEFT, _FEW_TICKS = 1.45, 4


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
) -> tuple[Sheet, list[list[Axes]]]:
    """Return a figure with ``rows`` × ``columns`` axes.

    Margins, and the gaps between columns and between rows, are in inches. ``heights``: heights of the rows,
    in proportion.
    """
    left = min(left, _MOST_LEFT) if narrow() else left
    wide = (width() - left - right - gap[0] * (columns - 1)) / columns
    shares = heights or [1.0] * rows
    tall = [
        (height - top - bottom - gap[1] * (rows - 1)) * share / sum(shares)
        for share in shares
    ]
    begins = [left + (wide + gap[0]) * column for column in range(columns)]
    # Halves of it, or thirds, are as wide as a narrow screen.
    pieces = begins[1:] if columns <= _THIRDS else begins[columns // 2 :][:1]
    figure = Sheet(
        (width(), height),
        [begin - gap[0] + min(_SPARE, gap[0] / 2) for begin in pieces],
    )
    axes = []
    for row in range(rows):
        y = height - top - sum(tall[: row + 1]) - gap[1] * row
        places = [
            (x / width(), y / height, wide / width(), tall[row] / height)
            for x in begins
        ]
        axes.append([figure.add_axes(place) for place in places])
    for axis in figure.axes:
        # Every tick is two texts and three lines; how many there is room for takes measuring texts.
        axis.xaxis.set_major_locator(
            MaxNLocator(
                _FEW_TICKS if narrow() else 8 // columns + 2, steps=[1, 2, 2.5, 5, 10]
            )
        )
        axis.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    return figure, axes


def chart(height: float, **margins: Any) -> tuple[Sheet, Axes]:
    """Return a figure with one axes object, as :func:`sheet` makes it."""
    figure, ((axis,),) = sheet(height, **margins)
    return figure, axis


def pictures(
    count: int, columns: int, height: float, draw: Callable[[Axes, int], str]
) -> Sheet:
    """Return a figure of pictures without axes in rows, each ``height`` inches high.

    ``draw(axis, number)`` draws a picture and returns its title.
    """
    rows = math.ceil(count / columns)
    margins: Any = {"left": 0.05, "right": 0.05, "top": 0.25, "bottom": 0.05}
    figure, axes = sheet(
        height * rows + 0.3, rows=rows, columns=columns, gap=(0.1, 0.3), **margins
    )
    # They are read row by row.
    figure.rows = [
        line[0].get_position(original=True).y0 * figure.get_figheight()
        for line in axes[:-1]
    ]
    for number, axis in enumerate(axis for line in axes for axis in line):
        axis.axis("off")
        if number < count:
            axis.set_title(draw(axis, number), pad=2)
    return figure


def legend(
    figure: Sheet, title: str, handles: Sequence[Any] | None = None, columns: int = 5
) -> None:
    """Above the axes at the right, with a title that says what is told apart; the figure grows by what it
    takes. ``handles``: in place of what has a label; ``columns``: no more of them."""
    if handles is None:
        handle_of = {
            label: handle for axis in figure.axes for handle, label in _labelled(axis)
        }
        handles, names = list(handle_of.values()), list(handle_of)
    else:
        names = [str(handle.get_label()) for handle in handles]
    if not handles:
        return
    # A handle and the space around it take as much as six characters.
    room = fits(NARROW if figure.cuts else width(), 8)
    longest = min(max(map(len, names)), room - 6)
    columns = max(1, min(columns, len(names), room // (longest + 6)))
    named = [textwrap.fill(name, room - 6) for name in names]
    lines = (
        math.ceil(len(names) / columns) + sum(name.count("\n") for name in named) + 1
    )
    highest = max(figure.axes, key=lambda axis: axis.get_position(original=True).y1)
    margin = (1 - highest.get_position(original=True).y1) * figure.get_figheight()
    titled = 0.22 if any(axis.get_title("left") for axis in figure.axes) else 0.0
    figure.head = _LINE * lines + 0.08
    grow(figure, max(0.0, figure.head + titled - margin))
    look: Any = {
        "loc": "upper right",
        "bbox_to_anchor": (1.0, 1.0),
        "alignment": "left",
    }
    figure.legend(handles, named, ncols=columns, title=title, title_fontsize=8, **look)


def _labelled(axis: Axes) -> Iterable[tuple[Any, str]]:
    return zip(*axis.get_legend_handles_labels(), strict=True)


def key(colour: str, label: str, width: float = 2) -> Line2D:
    """Return an entry of a legend."""
    return Line2D([], [], color=colour, linewidth=width, label=label)


def named_rows(axis: Axes, names: Sequence[str]) -> None:
    """Name the rows of a chart, row 0 at the top; a narrow picture breaks long names into two lines."""
    axis.set_yticks(
        range(len(names)), _beside(axis, names), fontsize=7 if narrow() else 8
    )
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)
    axis.grid(axis="x", visible=True)


def _beside(axis: Axes, names: Sequence[str]) -> list[str]:
    """Names of rows; a narrow picture breaks those into two lines that do not fit left of its axes."""
    if not narrow():
        return list(names)
    room = fits(axis.get_position(original=True).x0 * width() - 0.08, 7)
    return [textwrap.fill(name, room, max_lines=2, placeholder=" …") for name in names]


def spans(
    axis: Axes, colour: str, intervals: Iterable[Span], height: float = 0.5, **look: Any
) -> None:
    """Draw spans of one colour as one collection."""
    boxes = [
        Rectangle((begin, y - height / 2), end - begin, height)
        for y, begin, end in intervals
    ]
    axis.add_collection(
        PatchCollection(boxes, **{"facecolor": colour, "linewidth": 0, **look})
    )


def note(axis: Axes, x: float, y: float, words: str, **look: Any) -> None:
    """Write a few words in small print, to the right of a point and level with it."""
    usual = {"xytext": (4, 0), "fontsize": 7.5, "color": QUIET, "va": "center"}
    axis.annotate(words, (x, y), textcoords="offset points", **{**usual, **look})


def end_with_room(axis: Axes, last: float, inches: float) -> float:
    """Return the end of an x axis from 0, in units of ``last``, that leaves room for words at the right.

    ``inches``: width of this room.
    """
    wide = axis.get_position(original=True).width * width()
    return last / (1 - min(inches / wide, 0.6))


def centred(
    axis: Axes, x: float, y: float, words: str, size: float = 7.5, **look: Any
) -> None:
    axis.text(
        x,
        y,
        words,
        **{"ha": "center", "va": "center", "fontsize": size, "zorder": 5, **look},
    )


def arrow(axis: Axes, start: Spot, end: Spot, colour: str, **look: Any) -> None:
    """Draw a line from spot to spot with a head."""
    axis.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", color=colour, zorder=3, **look)
    )


def curves(
    axis: Axes,
    at_x: Sequence[float],
    lines: Iterable[tuple[str, Sequence[float | None]]],
) -> None:
    """Draw a line with dots for each label, in ``LOOKS``; the line has a gap for a value that is None."""
    for (label, values), (dash, colour) in zip(
        lines, itertools.cycle(LOOKS), strict=False
    ):
        ys = [math.nan if value is None else value for value in values]
        axis.plot(
            at_x,
            ys,
            color=colour,
            linestyle=dash,
            marker="o",
            markersize=2.5,
            label=label,
        )


def plain_ticks(axis: Any, lowest: float, highest: float, most: int = 10) -> None:
    """Ticks of a logarithmic axis (``axes.xaxis`` or ``yaxis``) at 1, 2, 5, … written as plain numbers; where
    these are more than ``most``, at powers of ten."""
    most = min(most, _FEW_TICKS) if narrow() else most
    ticks = [m * 10.0**e for e in range(-9, 9) for m in (1, 2, 5)]
    inside = [t for t in ticks if lowest * 0.7 <= t <= highest * 1.4]
    axis.set_ticks(
        inside
        if len(inside) <= most
        else [t for t in inside if f"{t:e}".startswith("1")]
    )
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


_PREFIXES = {
    "s": ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")),
    "bit/s": ((1e9, "G"), (1e6, "M"), (1e3, "k")),
    "bytes": ((1e9, "G"), (1e6, "M"), (1e3, "k")),
}


def scaled(values: Sequence[Any]) -> tuple[list[float], str] | None:
    """Return swept values as numbers that are short to write, and their unit after a comma.

    None if a value is not a number, or if there are no values.
    """
    quantities = [quantity(value) for value in values]
    known = [number for number in quantities if number is not None]
    if len(known) < len(quantities) or not known:
        return None
    unit = known[0][1]
    most = max(value for value, _ in known)
    fits = (
        (factor, prefix) for factor, prefix in _PREFIXES.get(unit, ()) if most >= factor
    )
    factor, prefix = next(fits, (1.0, ""))
    symbol = {"bytes": "B", "1": ""}.get(unit, unit)
    return [
        value / factor for value, _ in known
    ], f", {prefix}{symbol}" if symbol else ""


#: So few values have ticks of their own.
_FEW = 3
#: Beyond so many between an axis' ends, prefixes of units are easier to read than numbers.
_MUCH = 1e4


def along(
    axis: Axes, values: Sequence[Any], words: Sequence[str], name: str, most: int = 10
) -> list[float]:
    """Set the x axis to swept values called ``name``, logarithmic if they span much. Return the position of
    each.

    If a value is not a number, the values are at equal distances and labelled with ``words``.
    """
    numbers, most = scaled(values), min(most, _FEW_TICKS) if narrow() else most
    if numbers is None:
        turned: Any = (
            {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
            if len(values) > 4
            else {}
        )
        axis.set_xticks(
            range(len(values)),
            [label.replace(", ", ",\n") for label in words],
            fontsize=7,
            **turned,
        )
        axis.set_xlabel(name)
        return [float(k) for k in range(len(values))]
    positions, unit = numbers
    if 0 < _MUCH * min(positions) < max(positions):
        known = [each for each in map(quantity, values) if each is not None]
        positions, unit = [value for value, _ in known], ""
        axis.set_xscale("log")
        prefixed(axis.xaxis, known[0][1])
    elif 0 < 15 * min(positions) < max(positions):
        axis.set_xscale("log")
        plain_ticks(axis.xaxis, min(positions), max(positions), most)
        if len(positions) <= most + 1:
            axis.set_xticks(positions, [f"{value:g}" for value in positions])
    if len(positions) <= _FEW:
        axis.set_xticks(positions, [f"{value:g}" for value in positions])
    axis.set_xlabel(f"{name}{unit}")
    return positions


def prefixed(axis: Any, unit: str) -> None:
    """Write the ticks of an axis (``axes.xaxis`` or ``yaxis``) as numbers with their unit and its prefix."""
    axis.set_major_formatter(
        EngFormatter({"bytes": "B", "1": "", "count": ""}.get(unit, unit), sep="\u00a0")
    )
    axis.set_minor_locator(NullLocator())


def shaded(
    axis: Axes,
    columns: Sequence[str],
    rows: Sequence[str],
    cells: Any,
    words: Sequence[Sequence[str]],
    bar: str = "",
) -> None:
    """A map with a cell for each row, the first at the bottom, and column, and words in it. ``cells``: by
    row numbers, of which shades are made, or colours as red, green and blue (0..1). ``bar``: what the
    numbers are, where shades are to be explained."""
    mesh = axis.pcolormesh(cells, cmap="viridis", edgecolors="none")
    for y, line in enumerate(words):
        for x, label in enumerate(line):
            box = {"facecolor": FACE, "alpha": 0.7, "linewidth": 0, "pad": 1}
            centred(axis, x + 0.5, y + 0.5, label, color=INK, bbox=box)
    axis.set_xticks([k + 0.5 for k in range(len(columns))], columns, fontsize=7.5)
    size = 7 if narrow() else 7.5
    axis.set_yticks(
        [k + 0.5 for k in range(len(rows))], _beside(axis, rows), fontsize=size
    )
    axis.grid(visible=False)
    if bar:
        figure: Any = axis.figure
        # Not as pixels, which would be a file within the page.
        figure.colorbar(mesh, ax=axis, label=bar).solids.set_rasterized(False)
