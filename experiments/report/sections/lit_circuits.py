"""Draw the circuits before and after they were moved, and the packet switches of the GPUs."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve

from ringlight.experiments.record.runs import Pair, Run
from ringlight.experiments.report.charts import Spot, centred, key, legend, sheet
from ringlight.experiments.report.drawing import (
    FACE,
    INK,
    LIGHT,
    QUIET,
    RULE,
    box,
    job_colours,
)
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, View
from ringlight.fabric.parts import Port
from ringlight.fabric.topology import Fabric, circuit_switches, optical_neighbour
from ringlight.fabric.units import format_rate

#: Larger fabrics cannot be read in a picture of this size.
_MOST_GPUS, _MOST_SWITCHES, _MOST_PICTURES = 16, 6, 2


_WIDTH, _HIGH, _TOP, _BOTTOM, _LOW = 10.0, 6.4, 4.7, 3.3, 1.4


Places = Mapping[str, float]


#: A run and the circuits that are shown of it.
Shown = tuple[Run, Sequence[Pair]]


@section(2, "Light", needs=("fragmentation",))
def topology(view: View, draw: Draw) -> str:
    """Return HTML that shows the light before and after it was moved."""
    pictures = []
    for number, (before, after) in enumerate(_changes(view), start=1):
        caption = (
            f"{after[0].plan.title}: the light before and after it was moved. Coloured lines are circuits of "
            "the job of that colour, a halo marks those that are new; the thicker the link between packet "
            "switches, the more edges of rings cross it. As read back at the end of the runs."
        )
        pictures.append(
            draw(f"topology-{number}", caption, _before_and_after, before, after)
        )
    return "".join(pictures)


def _changes(view: View) -> list[tuple[Shown, Shown]]:
    """Pairs of runs to draw, each pair of circuits once: compared arms, and runs in which light moved."""
    changes: dict[object, tuple[Shown, Shown]] = {}
    compared = [
        (before, after, before.circuits) for _, _, (before, after) in relit_pairs(view)
    ]
    alone = [(run, run, run.circuits_before) for run in view.first.values()]
    for before, after, circuits in (*compared, *alone):
        was = frozenset(frozenset(pair) for pair in circuits)
        key = (
            was,
            _lit(after),
            tuple((name, job.gpus) for name, job in after.jobs.items()),
        )
        if was != _lit(after) and _readable(after.plan.setting.fabric):
            changes.setdefault(key, ((before, circuits), (after, after.circuits)))
    return list(changes.values())[:_MOST_PICTURES]


def _readable(fabric: Fabric) -> bool:
    switches = len(fabric.packet_switches)
    moved = bool(circuit_switches(fabric))
    return moved and len(fabric.gpus) <= _MOST_GPUS and 0 < switches <= _MOST_SWITCHES


def _before_and_after(before: Shown, after: Shown) -> Figure:
    figure, ((left, right),) = sheet(
        3.7, columns=2, left=0.05, right=0.05, top=0.28, bottom=0.05, gap=(0.2, 0)
    )
    was = {frozenset(pair) for pair in before[1]}
    for axis, (run, circuits) in ((left, before), (right, after)):
        _draw_fabric(axis, run, circuits, was)
    left.set_title(f"before: {before[0].plan.title}")
    right.set_title(f"after: {after[0].plan.title}")
    colours = job_colours(list(after[0].jobs))
    moved = Line2D([], [], color=LIGHT, linewidth=6.5, alpha=0.4, label="new circuit")
    legend(
        figure,
        "circuits by job",
        [*(key(c, name) for name, c in colours.items()), moved],
    )
    return figure


def _spread(names: Sequence[str]) -> dict[str, float]:
    return {name: _WIDTH * (i + 0.5) / len(names) for i, name in enumerate(names)}


def _draw_fabric(
    axis: Axes, run: Run, circuits: Sequence[Pair], was: set[frozenset[str]]
) -> None:
    """GPUs below in their servers, optical switches in the middle, packet switches above."""
    fabric = run.plan.setting.fabric
    gpus, switches = _spread(list(fabric.gpus)), _spread(list(fabric.packet_switches))
    optical = _spread(list(fabric.optical_switches))
    half = _WIDTH / max(1, len(optical)) / 2 - 0.3
    ports = _faceplates(fabric, gpus, switches, optical, half)
    colours = job_colours(list(run.jobs))
    owner = {gpu: name for name, job in run.jobs.items() for gpu in job.gpus}

    for name, x in optical.items():
        box(axis, x - half, _BOTTOM, 2 * half, _TOP - _BOTTOM, FACE, RULE)
        centred(
            axis, x - half + 0.2, (_TOP + _BOTTOM) / 2, name, 8, color=QUIET, ha="left"
        )
    ways: dict[Port, tuple[Spot, Spot]] = {}
    for port, (x, y) in _spots(fabric, gpus, switches).items():
        face = optical_neighbour(fabric, port)
        if face is not None:
            ways[port] = (x, y), (ports[face], _BOTTOM if port.node in gpus else _TOP)
    axis.add_collection(
        LineCollection(list(ways.values()), colors=RULE, linewidths=0.9, zorder=1)
    )
    for a, b in circuits:
        first, second = Port.parse(a), Port.parse(b)
        colour = colours.get(owner.get(first.node) or owner.get(second.node, ""), QUIET)
        if first in ways and second in ways:
            way = (*ways[first], *reversed(ways[second]))
            _light(axis, way, colour, frozenset((a, b)) not in was)
    _servers(axis, fabric, gpus)
    wide, size = (
        min(0.9, 0.9 * _WIDTH / len(gpus)),
        9 if len(gpus) <= _MOST_GPUS / 2 else 6.5,
    )
    for gpu, x in gpus.items():
        colour = colours.get(owner.get(gpu, ""), QUIET)
        box(axis, x - wide / 2, _LOW - 0.3, wide, 0.55, colour, colour)
        centred(axis, x, _LOW - 0.04, gpu, size, color="white", weight="bold")
    _packet_switches(axis, run, circuits, switches)
    axis.set(xlim=(-0.1, _WIDTH + 0.1), ylim=(-0.05, _HIGH + 0.9))
    axis.axis("off")


def _spots(fabric: Fabric, gpus: Places, switches: Places) -> dict[Port, Spot]:
    """Places where fibres begin: GPUs, and the packet switches' ports that face an optical switch."""
    spots: dict[Port, Spot] = {
        Port(gpu, 0): (x, _LOW + 0.25) for gpu, x in gpus.items()
    }
    for name, switch in fabric.packet_switches.items():
        every = [Port(name, number) for number in range(1, switch.ports + 1)]
        facing = [port for port in every if optical_neighbour(fabric, port) is not None]
        for i, port in enumerate(facing):
            spots[port] = (
                switches[name] + (i - (len(facing) - 1) / 2) * 0.62,
                _HIGH - 0.3,
            )
    return spots


def _packet_switches(
    axis: Axes, run: Run, circuits: Sequence[Pair], switches: Places
) -> None:
    setting, crossing = run.plan.setting, ring_edges_crossing(run, circuits)
    words = f"{crossing} ring edges each way" if crossing else "no ring crosses"
    middles: dict[str, list[float]] = {}
    for link in setting.fabric.links:
        if link.a.node in switches and link.b.node in switches:
            ends = sorted((switches[link.a.node], switches[link.b.node]))
            axis.plot(
                ends, [_HIGH] * 2, color=INK, linewidth=1 + 1.6 * crossing, zorder=2
            )
            middles.setdefault(
                format_rate(link.rate_bps / setting.scale.rate), []
            ).append(sum(ends) / 2)
    # Links that are alike say it once: beside each other their words would meet.
    for rate, y in middles.items():
        centred(
            axis, statistics.fmean(y), _HIGH + 0.42, f"{rate}, {words}", 8, va="bottom"
        )
    wide = min(2.7, 0.9 * _WIDTH / len(switches))
    for name, x in switches.items():
        box(axis, x - wide / 2, _HIGH - 0.3, wide, 0.6, FACE, INK)
        centred(axis, x, _HIGH, name, 9)


def _faceplates(
    fabric: Fabric, gpus: Places, switches: Places, optical: Places, half: float
) -> dict[Port, float]:
    """Horizontal place of every plugged faceplate port: GPU side and packet-switch side apart."""
    places: dict[Port, float] = {}
    ends = [
        ends for link in fabric.links for ends in ((link.a, link.b), (link.b, link.a))
    ]
    for (name, centre), side in itertools.product(optical.items(), (gpus, switches)):
        faces = sorted(
            near for near, far in ends if near.node == name and far.node in side
        )
        for i, face in enumerate(faces):
            # Room is left at one end for the switch's name.
            places[face] = (
                centre - half + 0.9 + (2 * half - 0.9) * (i + 0.5) / len(faces)
            )
    return places


def _light(axis: Axes, way: Sequence[Spot], colour: str, new: bool) -> None:
    """One circuit: fibre, a curve through the optical switch, fibre; a moved one has a halo."""
    start, (x1, y1), (x2, y2), end = way
    middle = (y1 + y2) / 2
    bend = [Curve.CURVE4] * 3
    corners = [start, (x1, y1), (x1, middle), (x2, middle), (x2, y2), end]
    curve = Curve(corners, [Curve.MOVETO, Curve.LINETO, *bend, Curve.LINETO])
    if new:
        axis.add_patch(
            PathPatch(
                curve, fill=False, edgecolor=LIGHT, linewidth=6.5, alpha=0.4, zorder=2.8
            )
        )
    axis.add_patch(
        PathPatch(curve, fill=False, edgecolor=colour, linewidth=1.9, zorder=3)
    )
    axis.plot(
        [x1, x2],
        [y1, y2],
        linestyle="",
        marker="o",
        markersize=3.2,
        color=colour,
        zorder=4,
    )


def _servers(axis: Axes, fabric: Fabric, gpus: Places) -> None:
    servers: dict[str, list[float]] = {}
    for gpu in fabric.gpus.values():
        servers.setdefault(gpu.server, []).append(gpus[gpu.name])
    for name, xs in servers.items():
        box(
            axis,
            min(xs) - 0.62,
            _LOW - 1.02,
            max(xs) - min(xs) + 1.24,
            1.42,
            "none",
            RULE,
        )
        centred(axis, (min(xs) + max(xs)) / 2, _LOW - 0.72, name, 8, color=QUIET)


def ring_edges_crossing(run: Run, circuits: Sequence[Pair]) -> int:
    """Return how many ring edges of all jobs join GPUs on different packet switches, per direction
    (ceiling)."""
    switch_of: dict[str, str] = {}
    for a, b in circuits:
        first, second = Port.parse(a).node, Port.parse(b).node
        switch_of |= {first: second, second: first}
    crossing = 0
    for job in run.jobs.values():
        ring = [switch_of.get(gpu) for gpu in job.gpus]
        crossing += sum(a != b for a, b in zip(ring, ring[1:] + ring[:1], strict=True))
    return math.ceil(crossing / 2)


#: A comparison's name, a job, and the first runs of baseline and arm.
Both = tuple[str | None, str, tuple[Run, Run]]


def relit_pairs(view: View) -> list[Both]:
    """Return the comparisons of arms that end with different circuits lit."""
    pairs: dict[tuple[str | None, str], Both] = {}
    for pair in view.comparisons:
        before, after = (view.first.get(arm) for arm in (pair.spec.baseline, pair.arm))
        if before is None or after is None:
            continue
        job = pair.spec.job or next(iter(before.jobs), "")
        if _lit(before) != _lit(after) and all(
            _has_circuits(run, job) for run in (before, after)
        ):
            pairs.setdefault(
                (pair.spec.name, pair.arm), (pair.spec.name, job, (before, after))
            )
    return list(pairs.values())


def _lit(run: Run) -> frozenset[frozenset[str]]:
    """Return the circuits that are lit at the end."""
    return frozenset(frozenset(pair) for pair in run.circuits)


def _has_circuits(run: Run, job: str) -> bool:
    fabric, mine = run.plan.setting.fabric, run.jobs.get(job)
    return bool(
        circuit_switches(fabric)
        and mine is not None
        and mine.end is not None
        and mine.iterations
    )
