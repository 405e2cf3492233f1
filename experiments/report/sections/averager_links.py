"""Averagers between their servers, with the bytes that every link carries in an all-reduce."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringlight.experiments.record.runs import JobRun, Run
from ringlight.experiments.report.charts import centred, sheet
from ringlight.experiments.report.drawing import FACE, INK, PALETTE, RULE, box
from ringlight.experiments.report.page import NOTHING, Columns, table_of, tag, text
from ringlight.experiments.report.view import Draw, View
from ringlight.fabric.planes.averagers.averaging import Averaging, averaging_of
from ringlight.fabric.planes.averagers.photonics import Carried, carried
from ringlight.fabric.planes.base import Plane
from ringlight.fabric.units import format_size

ORDER = 3
TITLE = "Averagers and their servers"
#: More servers cannot be read in a picture.
_MOST_SERVERS = 16
_WIDTH, _TOP, _MIDDLE, _GPUS, _PACKETS = 10.0, 5.4, 4.0, 2.2, 0.4
#: Points that the widest line has; others in proportion to their bytes, but not thinner than the least.
_WIDEST, _THINNEST = 5.0, 0.5


@dataclass(frozen=True)
class _Shown:
    """A job that averages and one that does not on the same fabric, with ``sent``: what each of its ranks
    sends over the packet switches."""

    name: str
    averaging: Averaging
    bytes_of: Carried
    titles: tuple[str, str]
    sent: float | None


def wanted(view: View) -> Sequence[_Shown]:
    """One for each number of levels, of the fewest servers."""
    found: dict[bool, _Shown] = {}
    for run, job in _jobs(view):
        if not _plane(run, job).sums:
            continue
        averaging = averaging_of(run.plan.setting.fabric, job.gpus)
        two = averaging.above is not None
        known = found.get(two)
        if len(averaging.servers) > _MOST_SERVERS or (
            known is not None and len(known.averaging.servers) <= len(averaging.servers)
        ):
            continue
        other = _beside(view, run)
        titles = run.plan.title.split(" · ")[0], other[0] if other else ""
        bytes_of = carried(averaging, job.plan.loop.gradient_bytes)
        name = "two-levels" if two else "one-level"
        found[two] = _Shown(name, averaging, bytes_of, titles, other[1] if other else None)
    return list(found.values())


def _jobs(view: View) -> Iterator[tuple[Run, JobRun]]:
    return ((run, job) for run in view.runs for job in run.jobs.values() if job.gpus)


def _plane(run: Run, job: JobRun) -> Plane:
    return job.plan.plane(run.plan.setting.fabric, job.gpus)


def _beside(view: View, run: Run) -> tuple[str, float] | None:
    """The first arm on the same fabric that sends over packet switches alone: its title, and what a port
    sends."""
    for other, job in _jobs(view):
        same = other.plan.setting.fabric == run.plan.setting.fabric
        if same and job.plan.training and not _plane(other, job).sums:
            figures = view.at(other.plan.arm, f"job {job.name}", other.plan.point)
            sent = figures.number("port_sent")
            if sent is not None:
                return view.title(other.plan.arm), sent
    return None


def render(view: View, draw: Draw) -> str:
    parts = []
    for shown in wanted(view):
        caption = (
            "What each link carries in an all-reduce, each way and without packets' headers; the wider the "
            f"line, the more. Left: {shown.titles[0]}."
            + (f" Right: {shown.titles[1]}, on the same servers." if shown.sent is not None else "")
        )
        parts += [draw(f"averagers-{shown.name}", caption, _figure, shown), _table(shown)]
    return "".join(parts)


@dataclass(frozen=True)
class _Kind:
    """Links that are all alike: how many, bytes each way (up and down) with averagers, and without."""

    words: str
    count: int
    up: float
    down: float
    beside: float | None


def _kinds(shown: _Shown) -> list[_Kind]:
    servers, bytes_of = len(shown.averaging.servers), shown.bytes_of
    none = 0.0 if shown.sent is not None else None
    found = [_Kind("server and averager", servers, bytes_of.nic, bytes_of.nic, none)]
    if bytes_of.up is not None and bytes_of.down is not None:
        count = len(shown.averaging.first)
        found.append(_Kind("averager and the one above it", count, bytes_of.up, bytes_of.down, none))
    found.append(_Kind("server and packet switch", servers, bytes_of.scales, bytes_of.scales, shown.sent))
    return found


def _table(shown: _Shown) -> str:
    def beside(one: _Kind) -> str:
        return NOTHING if one.beside is None else format_size(one.beside)

    columns: Columns[_Kind] = [
        ("link between", lambda one: one.words),
        ("links", lambda one: str(one.count)),
        (f"{text(shown.titles[0])}: up {tag('analytic')}", lambda one: format_size(one.up)),
        ("down", lambda one: format_size(one.down)),
        (f"{text(shown.titles[1])}: each way {tag('analytic')}", beside),
    ]
    return table_of(_kinds(shown), columns, 1)


def _figure(shown: _Shown) -> Figure:
    panels = 1 if shown.sent is None else 2
    margins: Any = {"left": 0.05, "right": 0.05, "top": 0.28, "bottom": 0.05}
    figure, (axes,) = sheet(3.6, columns=panels, gap=(0.2, 0), **margins)
    kinds = _kinds(shown)
    most = max(max(one.up, one.down, one.beside or 0.0) for one in kinds)
    for number, axis in enumerate(axes):
        _draw(axis, shown, [(one.up if number == 0 else one.beside or 0.0) for one in kinds], most)
        axis.set_title(shown.titles[number])
    return figure


def _draw(axis: Axes, shown: _Shown, sizes: Sequence[float], most: float) -> None:
    """Packet switch below, servers above it, then the averagers. ``sizes``: as of :func:`_kinds`."""
    averaging = shown.averaging
    at = {name: _WIDTH * (k + 0.5) / len(averaging.servers) for k, name in enumerate(averaging.servers)}
    units = {one.name: _WIDTH * (k + 0.5) / len(averaging.first) for k, one in enumerate(averaging.first)}

    def line(x: float, y: float, to_x: float, to_y: float, size: float, colour: str) -> None:
        width = max(_THINNEST, _WIDEST * size / most)
        axis.plot([x, to_x], [y, to_y], color=colour if size else RULE, linewidth=width, zorder=1)

    last = sizes[-1]
    for x in at.values():
        line(x, _GPUS, _WIDTH / 2 + (x - _WIDTH / 2) * 0.8, _PACKETS, last, PALETTE[1])
    for one in averaging.first:
        for cable in one.cables:
            line(at[cable.a.node], _GPUS, units[one.name], _MIDDLE, sizes[0], PALETTE[0])
    if averaging.above is not None:
        for x in units.values():
            line(x, _MIDDLE, _WIDTH / 2, _TOP, sizes[1], PALETTE[0])
        _node(axis, _WIDTH / 2, _TOP, averaging.above.name, 1.0)
        up = f"{format_size(sizes[1])} up on each" if sizes[1] else "nothing"
        centred(axis, _WIDTH / 2 + 1.2, _TOP, up, 8, ha="left", color=INK)
    for name, x in units.items():
        _node(axis, x, _MIDDLE, name, min(1.0, 4.0 / len(units)))
    side = min(0.45, 4.0 / len(at))
    for name, x in at.items():
        box(axis, x - side, _GPUS - 0.25, 2 * side, 0.5, FACE, INK)
        centred(axis, x, _GPUS - 0.02, name, 8 if len(at) <= 8 else 6)
    _node(axis, _WIDTH / 2, _PACKETS, "packet switch", 4.2)
    for y, size in (((_GPUS + _MIDDLE) / 2, sizes[0]), ((_GPUS + _PACKETS) / 2, last)):
        box_look = {"facecolor": FACE, "alpha": 0.85, "linewidth": 0, "pad": 1}
        said = f"{format_size(size)} on each" if size else "nothing"
        centred(axis, _WIDTH / 2, y, said, 8, color=INK, bbox=box_look)
    axis.set(xlim=(-0.1, _WIDTH + 0.1), ylim=(-0.2, (_TOP if averaging.above else _MIDDLE) + 0.6))
    axis.axis("off")


def _node(axis: Axes, x: float, y: float, name: str, half: float) -> None:
    box(axis, x - half, y - 0.3, 2 * half, 0.6, FACE, INK)
    centred(axis, x, y, name, 8)
