"""The light before and after it was moved: which GPU hangs on which packet switch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve

from experiments.record.runs import Pair, Run
from experiments.report.drawing import FACE, INK, LIGHT, QUIET, RULE, box, job_colours
from experiments.report.report import Draw
from experiments.report.sections.throughput import lit, pairs
from experiments.report.sheet import sheet
from experiments.report.view import View
from fabric.topology import Fabric, Port, optical_neighbour
from fabric.units import format_rate

ORDER = 28
NEEDS = ("fragmentation",)
#: Larger fabrics cannot be read in a picture of this size.
_MOST_GPUS, _MOST_SWITCHES, _MOST_PICTURES = 16, 6, 2
_WIDTH, _HIGH, _TOP, _BOTTOM, _LOW = 10.0, 6.4, 4.7, 3.3, 1.4
Spot = tuple[float, float]
#: A run and the circuits that are shown of it.
Shown = tuple[str, Run, Sequence[Pair]]


def wanted(view: View) -> bool:
    return bool(list(_pictures(view)))


def render(view: View, draw: Draw) -> str:
    figures = []
    for number, (before, after) in enumerate(itertools.islice(_pictures(view), _MOST_PICTURES), start=1):
        caption = (
            f"{after[1].plan.title}: the light before and after it was moved. Coloured lines are circuits of "
            "the job of that colour, a halo marks those that are new; the thicker the link between packet "
            "switches, the more edges of rings cross it. As read back at the end of the runs."
        )
        figures.append(draw(f"topology-{number}", caption, _figure(before, after)))
    return f"<h2>Light</h2>{''.join(figures)}"


def _pictures(view: View) -> Iterator[tuple[Shown, Shown]]:
    """What is worth showing, once: arms of a comparison, and runs in which light moved."""
    seen = set()
    moved = [(run, run, run.circuits_before) for arm in view.fixed if (run := view.first(arm)) is not None]
    compared = [(before, after, before.circuits) for _, _, (before, after) in pairs(view)]
    for before, after, circuits in (*compared, *moved):
        was = frozenset(frozenset(pair) for pair in circuits)
        key = was, lit(after), tuple((name, job.gpus) for name, job in after.jobs.items())
        if key in seen or was == lit(after) or not _readable(after.plan.setting.fabric):
            continue
        seen.add(key)
        yield ("before", before, circuits), ("after", after, after.circuits)


def _readable(fabric: Fabric) -> bool:
    switches = len(fabric.packet_switches)
    plain = bool(fabric.optical_switches) and not fabric.grids and not fabric.rings
    return plain and len(fabric.gpus) <= _MOST_GPUS and 0 < switches <= _MOST_SWITCHES


def _figure(before: Shown, after: Shown) -> Figure:
    figure, (axes,) = sheet(3.7, columns=2, left=0.05, right=0.05, top=0.28, bottom=0.05, gap=(0.2, 0))
    was = {frozenset(pair) for pair in before[2]}
    for axis, shown in zip(axes, (before, after), strict=True):
        _draw_fabric(axis, shown, was)
    return figure


def _spread(names: Sequence[str]) -> dict[str, float]:
    return {name: _WIDTH * (i + 0.5) / len(names) for i, name in enumerate(names)}


def _draw_fabric(axis: Axes, shown: Shown, was: set[frozenset[str]]) -> None:
    """GPUs below in their servers, optical switches in the middle, packet switches above."""
    title, run, circuits = shown
    fabric = run.plan.setting.fabric
    gpus, switches = _spread(list(fabric.gpus)), _spread(list(fabric.packet_switches))
    optical = _spread(list(fabric.optical_switches))
    half = _WIDTH / max(1, len(optical)) / 2 - 0.3
    ports = _faceplates(fabric, gpus, switches, optical, half)
    colours = job_colours(list(run.jobs))
    owner = {gpu: name for name, job in run.jobs.items() for gpu in job.gpus}

    for name, x in optical.items():
        box(axis, x - half, _BOTTOM, 2 * half, _TOP - _BOTTOM, FACE, RULE)
        axis.text(x - half + 0.2, (_TOP + _BOTTOM) / 2, name, color=QUIET, fontsize=8, va="center")
    spots = _spots(fabric, gpus, switches)
    heights = {port: (_BOTTOM if port.node in gpus else _TOP) for port in spots}
    for port, (x, y) in spots.items():
        face = optical_neighbour(fabric, port)
        if face is not None:
            axis.plot([x, ports[face]], [y, heights[port]], color=RULE, linewidth=0.9, zorder=1)
    for a, b in circuits:
        first, second = Port.parse(a), Port.parse(b)
        job = owner.get(first.node) or owner.get(second.node)
        near, far = optical_neighbour(fabric, first), optical_neighbour(fabric, second)
        if near is not None and far is not None and first in spots and second in spots:
            way = (
                spots[first],
                (ports[near], heights[first]),
                (ports[far], heights[second]),
                spots[second],
            )
            _light(axis, way, colours[job] if job else QUIET, frozenset((a, b)) not in was)
    _servers(axis, fabric, gpus)
    for gpu, x in gpus.items():
        colour = colours.get(owner.get(gpu, ""), QUIET)
        box(axis, x - 0.45, _LOW - 0.3, 0.9, 0.55, colour, colour)
        axis.text(x, _LOW - 0.04, gpu, color="white", ha="center", va="center", fontsize=9, weight="bold")
    _packet_switches(axis, run, circuits, switches)
    axis.set_title(f"{title}: {run.plan.title}" if title == "after" else title, fontsize=9)
    axis.set_xlim(-0.1, _WIDTH + 0.1)
    axis.set_ylim(-0.05, _HIGH + 0.9)
    axis.axis("off")


def _spots(fabric: Fabric, gpus: Mapping[str, float], switches: Mapping[str, float]) -> dict[Port, Spot]:
    """Where fibres begin: at GPUs and at the packet switches' ports that face an optical switch."""
    spots: dict[Port, Spot] = {Port(gpu, 0): (x, _LOW + 0.25) for gpu, x in gpus.items()}
    for name, switch in fabric.packet_switches.items():
        facing = [
            p for n in range(1, switch.ports + 1) if optical_neighbour(fabric, p := Port(name, n)) is not None
        ]
        for i, port in enumerate(facing):
            spots[port] = (switches[name] + (i - (len(facing) - 1) / 2) * 0.62, _HIGH - 0.3)
    return spots


def _packet_switches(axis: Axes, run: Run, circuits: Sequence[Pair], switches: Mapping[str, float]) -> None:
    setting, crossing = run.plan.setting, ring_edges_crossing(run, circuits)
    for link in setting.fabric.links:
        if link.a.node in switches and link.b.node in switches:
            x0, x1 = sorted((switches[link.a.node], switches[link.b.node]))
            axis.plot([x0, x1], [_HIGH] * 2, color=INK, linewidth=1 + 1.6 * crossing, zorder=2)
            rate = format_rate(link.rate_bps / setting.scale.rate)
            said = f"{crossing} ring edges each way" if crossing else "no ring crosses"
            axis.text((x0 + x1) / 2, _HIGH + 0.42, f"{rate}, {said}", ha="center", fontsize=8)
    for name, x in switches.items():
        box(axis, x - 1.35, _HIGH - 0.3, 2.7, 0.6, FACE, INK)
        axis.text(x, _HIGH, name, ha="center", va="center", fontsize=9)


def _faceplates(
    fabric: Fabric,
    gpus: Mapping[str, float],
    switches: Mapping[str, float],
    optical: Mapping[str, float],
    half: float,
) -> dict[Port, float]:
    """Horizontal place of every plugged faceplate port: GPU side and packet-switch side apart."""
    places: dict[Port, float] = {}
    for name, centre in optical.items():
        for side in (gpus, switches):
            faces = sorted(
                near
                for link in fabric.links
                for near, far in ((link.a, link.b), (link.b, link.a))
                if near.node == name and far.node in side
            )
            for i, face in enumerate(faces):
                # Room is left at one end for the switch's name.
                places[face] = centre - half + 0.9 + (2 * half - 0.9) * (i + 0.5) / len(faces)
    return places


def _light(axis: Axes, way: tuple[Spot, Spot, Spot, Spot], colour: str, new: bool) -> None:
    """One circuit: fibre, a curve through the optical switch, fibre; a moved one has a halo."""
    start, (x1, y1), (x2, y2), end = way
    middle = (y1 + y2) / 2
    curve = Curve(
        [start, (x1, y1), (x1, middle), (x2, middle), (x2, y2), end],
        [Curve.MOVETO, Curve.LINETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4, Curve.LINETO],
    )
    if new:
        axis.add_patch(PathPatch(curve, fill=False, edgecolor=LIGHT, linewidth=6.5, alpha=0.4, zorder=2.8))
    axis.add_patch(PathPatch(curve, fill=False, edgecolor=colour, linewidth=1.9, zorder=3))
    axis.plot([x1, x2], [y1, y2], linestyle="", marker="o", markersize=3.2, color=colour, zorder=4)


def _servers(axis: Axes, fabric: Fabric, gpus: Mapping[str, float]) -> None:
    servers: dict[str, list[float]] = {}
    for gpu in fabric.gpus.values():
        servers.setdefault(gpu.server, []).append(gpus[gpu.name])
    for name, xs in servers.items():
        box(axis, min(xs) - 0.62, _LOW - 1.02, max(xs) - min(xs) + 1.24, 1.42, "none", RULE)
        middle = (min(xs) + max(xs)) / 2
        axis.text(middle, _LOW - 0.72, name, ha="center", va="center", fontsize=8, color=QUIET)


def ring_edges_crossing(run: Run, circuits: Sequence[Pair]) -> int:
    """Ring edges of all jobs whose two GPUs hang on different packet switches, per direction (ceiling)."""
    switch_of = {}
    for a, b in circuits:
        first, second = Port.parse(a), Port.parse(b)
        switch_of[first.node], switch_of[second.node] = second.node, first.node
    crossing = 0
    for job in run.jobs.values():
        ring = [switch_of.get(gpu) for gpu in job.gpus]
        crossing += sum(a != b for a, b in zip(ring, ring[1:] + ring[:1], strict=True))
    return math.ceil(crossing / 2)
