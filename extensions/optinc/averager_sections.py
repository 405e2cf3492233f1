"""Averagers (OptINC): the bytes on their links, what their processes took, and their network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringlight.experiments.record.runs import JobRun, Run
from ringlight.experiments.report.charts import centred, sheet
from ringlight.experiments.report.columns import ARM, JOB, figures
from ringlight.experiments.report.drawing import FACE, INK, PALETTE, RULE, box
from ringlight.experiments.report.page import (
    NOTHING,
    Columns,
    quiet,
    table_of,
    tag,
    text,
)
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, View
from ringlight.extensions.optinc.averager_plane import AveragerPlane
from ringlight.extensions.optinc.averaging import Averaging, averaging_of
from ringlight.extensions.optinc.interferometers import pictured
from ringlight.extensions.optinc.photonics import carried, trained_meshes
from ringlight.extensions.optinc.unit.imperfect import Full, OnMeshes, Squares
from ringlight.extensions.optinc.unit.mesh import Mesh
from ringlight.fabric.units import format_size

#: More servers cannot be read in a picture.
_MOST_SERVERS = 16
_WIDTH, _TOP, _MIDDLE, _GPUS, _PACKETS = 10.0, 5.4, 4.0, 2.2, 0.4
#: Points that the widest line has; others in proportion to their bytes, but not thinner than the least.
_WIDEST, _THINNEST = 5.0, 0.5
#: Modes of the larger of the meshes that are drawn; more cannot be seen.
_LARGEST = 64


@dataclass(frozen=True)
class _Links:
    """Links that are all alike: how many, bytes each way (up and down) with averagers, and without."""

    words: str
    count: int
    up: float
    down: float
    beside: float | None


@dataclass(frozen=True)
class _Shown:
    """A job that averages, and the title of an arm on the same fabric that does not, if there is one."""

    averaging: Averaging
    links: Sequence[_Links]
    titles: tuple[str, str]


@section("topology", "Averagers and their servers")
def averager_links(view: View, draw: Draw) -> str:
    """Return HTML that shows averagers between their servers, with the bytes that every link carries in an
    all-reduce."""
    parts = []
    for levels, shown in _smallest(view).items():
        caption = (
            "What each link carries in an all-reduce, each way and without packets' headers; the wider the "
            f"line, the more. Left: {shown.titles[0]}."
            + (
                f" Right: {shown.titles[1]}, on the same servers."
                if shown.titles[1]
                else ""
            )
        )
        parts += [draw(f"averagers-{levels}", caption, _figure, shown), _table(shown)]
    return "".join(parts)


def _smallest(view: View) -> dict[str, _Shown]:
    """Return the first job on the fewest servers for each number of levels."""
    smallest: dict[str, tuple[Run, JobRun, Averaging]] = {}
    for run, job in _jobs(view, sums=True):
        averaging = averaging_of(run.plan.setting.fabric, job.gpus)
        levels = "one-level" if averaging.above is None else "two-levels"
        least = (
            len(smallest[levels][2].servers)
            if levels in smallest
            else _MOST_SERVERS + 1
        )
        if len(averaging.servers) < least:
            smallest[levels] = run, job, averaging
    return {levels: _shown(view, *shown) for levels, shown in smallest.items()}


def _jobs(view: View, sums: bool) -> Iterator[tuple[Run, JobRun]]:
    """Yield the trainings whose gradients the fabric sums, or the other trainings."""
    jobs = ((run, job) for run in view.runs for job in run.jobs.values() if job.gpus)
    for run, job in jobs:
        plane = job.plan.plane(run.plan.setting.fabric, job.gpus)
        if job.plan.training is not None and isinstance(plane, AveragerPlane) == sums:
            yield run, job


def _shown(view: View, run: Run, job: JobRun, averaging: Averaging) -> _Shown:
    """Return the bytes on a job's links, and those of the first arm on the same fabric that sends only
    packets."""
    title, sent = "", None
    for other, theirs in _jobs(view, sums=False):
        if sent is None and other.plan.setting.fabric == run.plan.setting.fabric:
            sent = view.figures_at(
                other.plan.arm, f"job {theirs.name}", other.plan.point
            ).number("port_sent")
            title = "" if sent is None else view.title(other.plan.arm)
    none, servers = None if sent is None else 0.0, len(averaging.servers)
    size = carried(averaging, job.plan.loop.gradient_bytes)
    links = [_Links("server and averager", servers, size.nic, size.nic, none)]
    if size.up is not None and size.down is not None:
        count = len(averaging.first)
        links.append(
            _Links("averager and the one above it", count, size.up, size.down, none)
        )
    links.append(
        _Links("server and packet switch", servers, size.scales, size.scales, sent)
    )
    return _Shown(averaging, links, (run.plan.title.split(" · ")[0], title))


def _table(shown: _Shown) -> str:
    columns: Columns[_Links] = [
        ("link between", lambda link: link.words),
        ("links", lambda link: str(link.count)),
        (
            f"{text(shown.titles[0])}: up {tag('analytic')}",
            lambda link: format_size(link.up),
        ),
        ("down", lambda link: format_size(link.down)),
        (
            f"{text(shown.titles[1])}: each way {tag('analytic')}",
            lambda link: NOTHING if link.beside is None else format_size(link.beside),
        ),
    ]
    return table_of(shown.links, columns)


def _figure(shown: _Shown) -> Figure:
    titles = [title for title in shown.titles if title]
    margins: Any = {"left": 0.05, "right": 0.05, "top": 0.28, "bottom": 0.05}
    figure, (axes,) = sheet(3.6, columns=len(titles), gap=(0.2, 0), **margins)
    with_averagers, without = (
        [link.up for link in shown.links],
        [link.beside or 0.0 for link in shown.links],
    )
    most = max(*with_averagers, *without, *(link.down for link in shown.links))
    for axis, title, sizes in zip(
        axes, titles, (with_averagers, without), strict=False
    ):
        _draw(axis, shown.averaging, sizes, most)
        axis.set_title(title)
    return figure


def _draw(
    axis: Axes, averaging: Averaging, sizes: Sequence[float], most: float
) -> None:
    """Draw the packet switch below, servers above it, then the averagers. ``sizes``: bytes of each kind of
    link."""
    x_of = {
        server: _WIDTH * (k + 0.5) / len(averaging.servers)
        for k, server in enumerate(averaging.servers)
    }
    units = {
        averager.name: _WIDTH * (k + 0.5) / len(averaging.first)
        for k, averager in enumerate(averaging.first)
    }

    def line(
        x: float, y: float, to_x: float, to_y: float, size: float, colour: str
    ) -> None:
        width = max(_THINNEST, _WIDEST * size / most)
        axis.plot(
            [x, to_x],
            [y, to_y],
            color=colour if size else RULE,
            linewidth=width,
            zorder=1,
        )

    last = sizes[-1]
    for x in x_of.values():
        line(x, _GPUS, _WIDTH / 2 + (x - _WIDTH / 2) * 0.8, _PACKETS, last, PALETTE[1])
    for averager in averaging.first:
        for cable in averager.cables:
            line(
                x_of[cable.a.node],
                _GPUS,
                units[averager.name],
                _MIDDLE,
                sizes[0],
                PALETTE[0],
            )
    if averaging.above is not None:
        for x in units.values():
            line(x, _MIDDLE, _WIDTH / 2, _TOP, sizes[1], PALETTE[0])
        _node(axis, _WIDTH / 2, _TOP, averaging.above.name, 1.0)
        up = f"{format_size(sizes[1])} up on each" if sizes[1] else "nothing"
        centred(axis, _WIDTH / 2 + 1.2, _TOP, up, 8, ha="left", color=INK)
    for unit, x in units.items():
        _node(axis, x, _MIDDLE, unit, min(1.0, 4.0 / len(units)))
    side = min(0.45, 4.0 / len(x_of))
    for server, x in x_of.items():
        box(axis, x - side, _GPUS - 0.25, 2 * side, 0.5, FACE, INK)
        centred(axis, x, _GPUS - 0.02, server, 8 if len(x_of) <= 8 else 6)
    _node(axis, _WIDTH / 2, _PACKETS, "packet switch", 4.2)
    for y, size in (((_GPUS + _MIDDLE) / 2, sizes[0]), ((_GPUS + _PACKETS) / 2, last)):
        box_look = {"facecolor": FACE, "alpha": 0.85, "linewidth": 0, "pad": 1}
        words = f"{format_size(size)} on each" if size else "nothing"
        centred(axis, _WIDTH / 2, y, words, 8, color=INK, bbox=box_look)
    axis.set(
        xlim=(-0.1, _WIDTH + 0.1),
        ylim=(-0.2, (_TOP if averaging.above else _MIDDLE) + 0.6),
    )
    axis.axis("off")


def _node(axis: Axes, x: float, y: float, words: str, half: float) -> None:
    box(axis, x - half, y - 0.3, 2 * half, 0.6, FACE, INK)
    centred(axis, x, y, words, 8)


@section("training", "Averagers", needs=("averager_inputs",))
def averagers(view: View, draw: Draw) -> str:
    """Return HTML that shows the bytes of averagers' jobs, and the resources of the processes that stand
    for averagers."""
    processes = figures(
        view.having("averager_inputs"),
        [
            ARM,
            ("of a processor", "averager_cpu_share"),
            ("latency of a frame", "averager_latency"),
            ("inputs of the tables", "averager_inputs"),
            ("wrong", "averager_inputs_wrong"),
            ("answers checked", "averager_checked"),
            ("started again", "averager_restarts"),
        ],
    )
    wire = figures(
        view.having("wire_over_payload"),
        [
            ARM,
            JOB,
            ("wire over payload", "wire_over_payload"),
            ("without headers", "sent_over_payload"),
            ("sums in a number's bits", "sent_over_payload_even"),
            ("answers unlike the mean", "answers_unlike_mean"),
            ("identical to one process", "parameters_identical"),
        ],
        2,
    )
    explained = quiet(
        "Of a processor: of one, during the all-reduces, the busiest averager. Wire over "
        "payload: bytes at the NIC port and in the direction with most, headers and acknowledgements "
        "included, over those of a rank's numbers, once; then without headers, as workers count, and so if a "
        "ring's sums of whole numbers had no more bits than these. Answers unlike the mean are counted in "
        f"the process that computes the same training by itself {tag(view.label)}."
    )
    return (
        "<p>An averager here is an electrical box that computes the photonic unit's function: a process that "
        "answers frames by a table of what the unit answers to every input. What it takes of a processor, "
        "and a frame's latency, are its own and no light's. Any other network that adds up gradients on "
        f"their way would show the same saving of bytes.{view.says('averagers')}</p>"
        f"{processes}{wire}{explained}"
    )


@section("workload", "An averager's network")
def networks(view: View, draw: Draw) -> str:
    """Return HTML that shows two meshes of interferometers of the first trained network; empty without a
    trained network."""
    trained = (
        mesh
        for plan in view.experiment.plans
        for mesh in trained_meshes(plan.setting.fabric)
    )
    if (network := next(trained, None)) is None:
        return ""
    layers = "; ".join(
        f"layer {k}: {_made_of(layer)}" for k, layer in enumerate(network.layers, 1)
    )
    caption = (
        "Two meshes of the trained network. Matrices are real, so all phases but θ are 0 or π. A crossing is "
        "an interferometer."
    )
    return f"<p>Meshes: {text(layers)}.</p>{draw('meshes', caption, _meshes, network)}"


def _made_of(layer: Squares | Full) -> str:
    if isinstance(layer, Full):
        return f"one of {layer.first.modes} and one of {layer.second.modes} modes"
    return f"{len(layer.meshes)} of {layer.meshes[0].modes} modes"


def _meshes(network: OnMeshes) -> Figure:
    meshes = [
        (number, mesh)
        for number, layer in enumerate(network.layers, 1)
        for mesh in (layer.meshes[:1] if isinstance(layer, Squares) else (layer.first,))
        if mesh.modes <= _LARGEST
    ]
    small, large = (
        pick(meshes, key=lambda numbered: numbered[1].modes) for pick in (min, max)
    )
    return pictured(small[1], large[1], (_title(*small), _title(*large)))


def _title(layer: int, mesh: Mesh) -> str:
    side, count = mesh.modes, mesh.modes * (mesh.modes - 1) // 2
    return f"Layer {layer}, a square of {side} × {side}: {count:,} interferometers"
