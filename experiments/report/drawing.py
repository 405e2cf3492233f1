"""How figures are drawn and saved, as PNG and as SVG for a page.

The SVG that goes into a report takes its ink from the page (light or dark): text, axes and rules are
drawn in the placeholder colours below, which :func:`page_svg` turns into CSS.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

INK, QUIET, RULE, FACE = "#1b2129", "#6a7381", "#c9ced6", "#f4f5f7"
_CSS = {INK: "var(--ink)", QUIET: "var(--quiet)", RULE: "var(--rule)", FACE: "var(--face)"}
PALETTE = ("#c8425a", "#2f7ec0", "#2e9c6d", "#c98a1b", "#8a5cc2", "#1f9ea6")
_NAMED = {"red": PALETTE[0], "blue": PALETTE[1], "green": PALETTE[2]}
LIGHT = "#e0a32e"

STYLE: Any = {
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


@dataclass(frozen=True)
class Plot:
    """A drawn figure: file ``name`` without suffix, its ``caption``, and SVG text fit for a page."""

    name: str
    caption: str
    svg: str


def job_colours(jobs: Sequence[str]) -> dict[str, str]:
    """One colour per job: its own where it is called after one, else the next of the palette."""
    free = [c for c in PALETTE if c not in {_NAMED.get(job) for job in jobs}]
    return {job: _NAMED.get(job) or free.pop(0) if free else QUIET for job in jobs}


def wavelength_colours(wavelengths: int) -> list[str]:
    """One colour per channel."""
    if wavelengths <= len(PALETTE):
        return list(PALETTE[:wavelengths])
    wheel = matplotlib.colormaps["turbo"]
    return [matplotlib.colors.to_hex(wheel((k + 0.5) / wavelengths)) for k in range(wavelengths)]


def save(figure: Figure, folder: Path, name: str, caption: str, *, png: bool = True) -> Plot:
    # Laid out once: each of the two files would draw everything once more to do it for itself.
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)
    # Level 6, the default, takes twice as long for a sixth less.
    if png:
        figure.savefig(folder / f"{name}.png", dpi=160, facecolor="white", pil_kwargs={"compress_level": 2})
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(folder / f"{name}.svg", transparent=True, metadata={"Date": None})
    return Plot(name, caption, page_svg((folder / f"{name}.svg").read_text(encoding="utf-8"), name))


def page_svg(svg: str, prefix: str) -> str:
    """The ``<svg>`` element alone, ids made unique with ``prefix``, colours and font left to the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
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


def box(axis: Axes, x: float, y: float, w: float, h: float, face: str, edge: str) -> None:
    style = "round,pad=0,rounding_size=0.12"
    axis.add_patch(FancyBboxPatch((x, y), w, h, boxstyle=style, facecolor=face, edgecolor=edge, zorder=2.5))
