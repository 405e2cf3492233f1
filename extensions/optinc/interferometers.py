"""Meshes of interferometers, drawn as what they are: waveguides that cross."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from ringlight.experiments.report.charts import centred
from ringlight.experiments.report.drawing import INK, QUIET, fits, narrow, width
from ringlight.extensions.optinc.unit.mesh import Mesh, there

#: Modes up to which interferometers are large enough for figures and dots.
WITH_FIGURES = 8
#: How phases of 0, of pi / 2 and of pi look: on white paper the ends of a map would be lost.
COLOURS = matplotlib.colormaps["viridis_r"]
#: In how many shades theta is drawn.
SHADES = 32
#: Columns of light before and after the mesh.
ENDS = 0.6
#: From where to where in its column, 0 to 1, an interferometer's arms cross.
CROSSES = (0.12, 0.88)
#: How far from pi a phase may be that is drawn as pi.
PI_WITHIN = 1e-6

Spot = tuple[float, float]
Line = tuple[Spot, Spot]


def interferometers(mesh: Mesh) -> Iterator[tuple[int, int, float, float]]:
    """Yield column, upper mode, theta and phi (radians) of each interferometer, in the order in which
    light passes."""
    for column, place in np.argwhere(there(mesh.modes)):
        theta, phi = mesh.theta[column, place], mesh.phi[column, place]
        yield int(column), int(column % 2 + 2 * place), float(theta), float(phi)


def draw(axis: Axes, mesh: Mesh) -> None:
    """A mesh from its inputs at the left to its outputs at the right, mode 0 at the top: waveguides grey, the
    arms of an interferometer in the colour of theta. Small meshes have theta in parts of pi written to them,
    and a dot where light gets a phase of pi (phi, or after the last column)."""
    modes = mesh.modes
    figures = modes <= WITH_FIGURES
    width = 3.0 if figures else 55 / modes
    begin, end = CROSSES if figures else (0.0, 1.0)
    busy = np.zeros((modes, modes), bool)
    crossings: dict[int, list[Line]] = {}
    straight: list[Line] = []
    dots: list[Spot] = []
    for column, mode, theta, phi in interferometers(mesh):
        busy[column, mode : mode + 2] = True
        for above, below in ((mode, mode + 1), (mode + 1, mode)):
            if figures:
                straight.append(((column, above), (column + begin, above)))
                straight.append(((column + end, below), (column + 1, below)))
            shade = min(SHADES - 1, int(SHADES * theta / math.pi))
            crossings.setdefault(shade, []).append(
                ((column + begin, above), (column + end, below))
            )
        if figures and is_pi(phi):
            dots.append((column + begin / 2, mode))
        if figures:
            centred(
                axis, column + 0.5, mode + 0.03, f"{theta / math.pi:.2f}π", 9, color=INK
            )
    straight += [
        ((column, mode), (column + 1, mode))
        for column, mode in np.argwhere(~busy).tolist()
    ]
    for mode in range(modes):
        straight += [((-ENDS, mode), (0, mode)), ((modes, mode), (modes + ENDS, mode))]
        if figures and is_pi(float(mesh.output[mode])):
            dots.append((modes + ENDS / 3, mode))
    _lines(axis, straight, QUIET, width / 3)
    for shade, lines in sorted(crossings.items()):
        _lines(axis, lines, to_hex(COLOURS((shade + 0.5) / SHADES)), width)
    if dots:
        along, across = zip(*dots, strict=True)
        axis.scatter(along, across, s=30, color=INK, zorder=3, linewidths=0)
    axis.set_xlim(-ENDS, modes + ENDS)
    axis.set_ylim(modes - 0.5, -0.5)
    axis.axis("off")


def _lines(axis: Axes, lines: list[Line], colour: str, width: float) -> None:
    """All lines of one look as one path: thousands of paths would make a page of megabytes."""
    spots = [spot for line in lines for spot in line]
    codes = [Path.MOVETO, Path.LINETO] * len(lines)
    axis.add_patch(
        PathPatch(
            Path(spots, codes),
            fill=False,
            edgecolor=colour,
            linewidth=width,
            capstyle="round",
        )
    )


def is_pi(phase: float) -> bool:
    """Return whether a phase (radians) is pi, plus any number of turns."""
    return abs(math.remainder(phase - math.pi, 2 * math.pi)) < PI_WITHIN


def pictured(small: Mesh, large: Mesh, titles: tuple[str, str]) -> Figure:
    """Return a figure of two meshes next to each other, with a key to their colours."""
    if narrow():
        figure = Figure(figsize=(width(), 7.6))
        left, right = figure.subplots(
            2, 1, height_ratios=(1, 1.4), gridspec_kw={"hspace": 0.14}
        )
        figure.subplots_adjust(left=0.01, right=0.99, top=0.95, bottom=0.16)
    else:
        figure = Figure(figsize=(width(), 6.2))
        left, right = figure.subplots(
            1, 2, width_ratios=(1, 1.55), gridspec_kw={"wspace": 0.06}
        )
        figure.subplots_adjust(left=0.01, right=0.99, top=0.93, bottom=0.17)
    for axis, mesh, title in ((left, small, titles[0]), (right, large, titles[1])):
        draw(axis, mesh)
        axis.set_title(title)
    bar = figure.add_axes((0.3, 0.1, 0.4, 0.022))
    colours = figure.colorbar(
        ScalarMappable(Normalize(0, 1), COLOURS), cax=bar, orientation="horizontal"
    )
    colours.set_ticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "π/4", "π/2", "3π/4", "π"])
    words = (
        "θ of an interferometer: at 0 light stays in its waveguide, at π it crosses over. It goes from left "
        f"to right; dot: a phase of π ({'upper' if narrow() else 'left'} mesh)"
    )
    bar.set_xlabel(textwrap.fill(words, fits(width() - 0.3, 8)) if narrow() else words)
    return figure
