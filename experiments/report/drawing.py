"""Draw figures and save them, as PNG and as SVG for a page.

The SVG that goes into a report takes its ink from the page (light or dark): text, axes and rules are drawn in
the placeholder colours below, which :func:`page_svg` turns into CSS.
"""

from __future__ import annotations

import io
import itertools
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

INK, QUIET, RULE, FACE = "#1b2129", "#6a7381", "#c9ced6", "#f4f5f7"
_CSS = {
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    RULE: "var(--rule)",
    FACE: "var(--face)",
}
PALETTE = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
#: Where there are more to tell apart.
MORE = (
    "#7f8793",
    "#b5651d",
    "#5b7f2b",
    "#3b3f8f",
    "#d178b5",
    "#4aa3a3",
    "#9a3324",
    "#b8a13a",
)
#: Colours of jobs: Okabe and Ito's, which people with any kind of colour vision tell apart.
JOB_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#8c6d1f",
    "#5b4ea3",
)
JOB_NAMES = {
    "red": "#d55e00",
    "orange": "#e69f00",
    "blue": "#0072b2",
    "green": "#009e73",
    "purple": "#cc79a7",
    "sky": "#56b4e9",
}
LIGHT = "#e0a32e"
#: Digits behind the point that are too many.
_DIGITS = re.compile(r"(\.\d\d)\d+")

#: Inches: as wide as the page's text, and as the screen of a telephone.
WIDE, NARROW = 9.2, 4.3

STYLE: Any = {
    "figure.figsize": (WIDE, 3.0),
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    # Said here, it need not be found out from everything above the axes, which takes a sixth of the drawing.
    "axes.titley": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "legend.fontsize": 8,
    "legend.borderaxespad": 0.15,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.1,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
}


#: Inches that a character takes for each of its points, one with another, and a second line of a title.
_CHARACTER, _SECOND = 0.0082, 0.14


@dataclass(frozen=True)
class Plot:
    """A drawn figure: file ``name`` without suffix, its ``caption``, and SVG text fit for a page; ``narrow``:
    for narrow screens, ``cut`` out of the other or drawn once more."""

    name: str
    caption: str
    svg: str
    narrow: str = ""
    cut: bool = False


def job_colours(jobs: Sequence[str]) -> dict[str, str]:
    """Return one colour per job: that of its name if its name is a colour's, else that of its place among
    those that no name takes."""
    taken = {JOB_NAMES[job] for job in jobs if job in JOB_NAMES}
    free = [colour for colour in JOB_COLOURS if colour not in taken] or JOB_COLOURS
    return {
        job: JOB_NAMES.get(job) or free[place % len(free)]
        for place, job in enumerate(jobs)
    }


def wavelength_colours(wavelengths: int) -> list[str]:
    """Return one colour per channel."""
    if wavelengths <= len(PALETTE):
        return list(PALETTE[:wavelengths])
    wheel = matplotlib.colormaps["turbo"]
    return [
        matplotlib.colors.to_hex(wheel((k + 0.5) / wavelengths))
        for k in range(wavelengths)
    ]


class Sheet(Figure):
    """A figure that a narrow screen has in pieces below each other.

    ``cuts``: inches from the left at which it is cut; ``rows``: inches from the bottom at which its rows are
    cut apart before that; ``head``: inches at its top that go before all pieces, at the right and no wider
    than such a screen. Pieces in which nothing is drawn are left out.
    """

    def __init__(self, size: tuple[float, float], cuts: Sequence[float] = ()) -> None:
        super().__init__(figsize=size)
        self.cuts, self.rows, self.head = list(cuts), list[float](), 0.0

    def _repr_png_(self) -> bytes:
        """Return the figure as the bytes of a PNG file, which a notebook shows."""
        file = io.BytesIO()
        self.savefig(
            file, format="png", dpi=110, facecolor="white", bbox_inches="tight"
        )
        return file.getvalue()


def width() -> float:
    """Return the width of the picture that is being drawn, inches."""
    return float(matplotlib.rcParams["figure.figsize"][0])


def narrow() -> bool:
    """Return whether the picture that is being drawn is for a narrow screen."""
    return width() <= NARROW


def fits(inches: float, size: float) -> int:
    """Return how many characters of ``size`` points fit next to each other into a width of ``inches``."""
    return max(1, int(inches / (_CHARACTER * size)))


def grow(figure: Figure, above: float, below: float = 0.0) -> None:
    """Give a figure more room (inches), without changing what is drawn in it."""
    height = figure.get_figheight()
    whole = height + above + below
    for axis in figure.axes:
        place = axis.get_position(original=True)
        y, tall = (place.y0 * height + below) / whole, place.height * height / whole
        axis.set_position((place.x0, y, place.width, tall))
    figure.set_figheight(whole)


def fitted(figure: Figure) -> Figure:
    """Break titles and names of x axes into lines if the figure is too narrow for one line. Return the
    figure."""
    above = below = 0.0
    for axis in figure.axes:
        wide = axis.get_position(original=True).width * width()
        title, name = axis.get_title("left"), axis.get_xlabel()
        if len(title) > fits(wide, 9) and "\n" not in title:
            axis.set_title(textwrap.fill(title, fits(wide, 8)), fontsize=8)
            above = _SECOND
        if len(name) > fits(wide, 9) and "\n" not in name:
            axis.set_xlabel(textwrap.fill(name, fits(wide, 8)), fontsize=8)
            below = _SECOND
    grow(figure, above, below)
    return figure


def drawn(
    folder: Path,
    name: str,
    caption: str,
    png: bool,
    figure: Callable[..., Figure],
    *args: Any,
) -> Plot:
    """Return the plot that ``figure(…)`` draws, for wide and for narrow screens.

    The wide drawing is saved as by :func:`save`. The narrow one is cut from it if possible, because that
    takes neither time nor bytes; otherwise it is drawn separately.
    """
    broad = fitted(figure(*args))
    wide = save(broad, folder, name, caption, png=png)
    if isinstance(broad, Sheet) and broad.cuts:
        return replace(wide, narrow=_pieces(broad, name), cut=True)
    with matplotlib.rc_context(
        {"figure.figsize": (NARROW, 3.0), "svg.hashsalt": f"{name}-narrow"}
    ):
        small = io.StringIO()
        fitted(figure(*args)).savefig(
            small, format="svg", transparent=True, metadata={"Date": None}
        )
    return replace(wide, narrow=page_svg(small.getvalue(), f"{name}-narrow"))


def _pieces(sheet: Sheet, name: str) -> str:
    """Return the pieces of a sheet that is on the page as ``name``, as SVG."""
    points = 72.0
    wide, tall = sheet.get_figwidth(), sheet.get_figheight()
    across = list(itertools.pairwise([0.0, *sheet.cuts, wide]))
    boxes = [(wide - NARROW, 0.0, NARROW, sheet.head)] if sheet.head else []
    places = [
        axis.get_position(original=True) for axis in sheet.axes if axis.has_data()
    ]
    middles = [
        (wide * (p.x0 + p.x1) / 2, tall * (1 - (p.y0 + p.y1) / 2)) for p in places
    ]
    for y, below in itertools.pairwise(
        [sheet.head, *(tall - row for row in sheet.rows), tall]
    ):
        for x, end in across:
            if any(x < at_x < end and y < at_y < below for at_x, at_y in middles):
                boxes.append((x, y, end - x, below - y))
    views = (" ".join(f"{points * number:.1f}" for number in box) for box in boxes)
    return "".join(
        f'<svg viewBox="{view}"><use href="#{name}-figure_1"/></svg>' for view in views
    )


def save(
    figure: Figure, folder: Path, name: str, caption: str, *, png: bool = True
) -> Plot:
    # Laid out once: each of the two files would draw everything once more to do it for itself.
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)
    # Level 6, the default, takes twice as long for a sixth less.
    if png:
        figure.savefig(
            folder / f"{name}.png",
            dpi=160,
            facecolor="white",
            pil_kwargs={"compress_level": 2},
        )
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(
            folder / f"{name}.svg", transparent=True, metadata={"Date": None}
        )
    return Plot(
        name,
        caption,
        page_svg((folder / f"{name}.svg").read_text(encoding="utf-8"), name),
    )


def page_svg(svg: str, prefix: str) -> str:
    """Return the ``<svg>`` element alone, ids made unique with ``prefix``, colours and font left to the page.

    Lines are as exact as an eye can tell, a hundredth of a point, because a page has each picture twice.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r">\s+<", "><", svg)
    svg = re.sub(r'(?<= d=")[^"]+', lambda path: _DIGITS.sub(r"\1", path[0]), svg)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for colour, variable in _CSS.items():
        svg = svg.replace(colour, variable)
    # Text that was given no colour is black in SVG; the page's ink is wanted.
    svg = re.sub(r"font: ([0-9.]+)px [^;\"]*", r"font: \1px var(--sans)", svg)
    return re.sub(r"(<text style=\")(?![^\"]*fill)", r"\1fill: var(--ink); ", svg)


def box(
    axis: Axes, x: float, y: float, w: float, h: float, face: str, edge: str
) -> None:
    style = "round,pad=0,rounding_size=0.12"
    axis.add_patch(
        FancyBboxPatch(
            (x, y), w, h, boxstyle=style, facecolor=face, edgecolor=edge, zorder=2.5
        )
    )
