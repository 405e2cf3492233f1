"""Draw a fabric: GPUs below, in the colours of their jobs, and above them what joins them, by distance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import networkx as nx
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve

from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.report.charts import Spot, centred, key
from ringlight.experiments.report.drawing import (
    FACE,
    INK,
    LIGHT,
    QUIET,
    RULE,
    box,
    job_colours,
)
from ringlight.fabric.parts import Port
from ringlight.fabric.planes.choice import lit_planes
from ringlight.fabric.topology import Fabric

#: In a layer with more nodes those with the same neighbours are drawn as one; if it still has more, all are.
MOST = 20
_WIDTH, _HIGH, _BOX = 10.0, 1.7, 0.62
#: With more circuits over an edge there is one line for each job.
_MOST_CIRCUITS = 6
#: Width of a character, in units of the picture.
_CHARACTER = 0.12
#: Face and edge of a node, by kind; other kinds have the last.
_LOOKS = {
    "packet switch": (FACE, INK),
    "optical switch": ("#fdf3dc", LIGHT),
    "": (FACE, QUIET),
}
_PLURALS = {
    "gpu": "GPUs",
    "packet switch": "packet switches",
    "optical switch": "optical switches",
}


def topology(plan: RunPlan) -> Figure:
    """Return a picture of the fabric of a run, with the light that it begins with."""
    fabric = plan.setting.fabric
    colours = job_colours([job.name for job in plan.jobs])
    owners = {gpu: job.name for job in plan.jobs for gpu in job.ranks}
    graph = _plugged(fabric)
    circuits = plan.circuits or [(str(a), str(b)) for a, b in fabric.circuits]
    _colour_light(graph, fabric, circuits, {g: colours[job] for g, job in owners.items()})
    graph = _merged(graph, owners)
    layers = _layers(graph)
    places = _places(graph, layers)
    figure, axis = _paper(_HIGH * (len(layers) - 1) + 1.4)
    for a, b, data in graph.edges(data=True):
        _draw_edge(axis, places[a], places[b], data.get("light", []))
    for layer in layers:
        for name in layer:
            wide = min(2.8, 0.9 * _WIDTH / len(layer))
            colour = colours.get(graph.nodes[name]["owner"], QUIET)
            _draw_node(axis, places[name], wide, name, graph.nodes[name], colour)
    seen = {data["owner"] for _, data in graph.nodes(data=True)}
    shown = [key(colour, job, 5) for job, colour in colours.items() if job in seen]
    if 1 < len(shown) <= 6:
        figure.legend(handles=shown, loc="upper left", ncols=6, frameon=False, fontsize=8)
    return figure


def _paper(high: float) -> tuple[Figure, Axes]:
    """Return a figure without axes, and what is drawn on: ``high`` units above half a unit."""
    figure = Figure(figsize=(5.6, 0.56 * (high + 0.5)))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, _WIDTH), ylim=(-0.5, high))
    axis.axis("off")
    return figure, axis


def _plugged(fabric: Fabric) -> nx.Graph[Any]:
    """Return the graph of all nodes and links; GPUs without a link hang on their planes."""
    graph: nx.Graph[Any] = nx.Graph()
    graph.add_nodes_from(fabric.gpus, kind="gpu")
    graph.add_nodes_from(fabric.packet_switches, kind="packet switch")
    graph.add_nodes_from(fabric.optical_switches, kind="optical switch")
    for name, kind in fabric.devices.items():
        graph.add_node(name, kind=kind)
    for link in (*fabric.links, *fabric.cables):
        graph.add_edge(link.a.node, link.b.node)
    for plane in lit_planes(fabric):
        if any(not graph.degree(gpu) for gpu in plane.nodes):
            graph.add_node(str(plane), kind="plane")
            graph.add_edges_from((gpu, str(plane)) for gpu in plane.nodes)
    return graph


def _colour_light(
    graph: nx.Graph[Any],
    fabric: Fabric,
    circuits: Iterable[tuple[str, str]],
    colours: Mapping[str, str],
) -> None:
    """Give the fibres of lit circuits the colour of the job whose GPU is at an end."""
    for ends in circuits:
        ports = [Port.parse(end) for end in ends]
        nodes = (port.node for port in ports)
        colour = next((colours[node] for node in nodes if node in colours), LIGHT)
        for port in ports:
            if (link := fabric.link_at.get(port)) is not None:
                edge = graph.edges[link.a.node, link.b.node]
                edge.setdefault("light", []).append(colour)


def _merged(graph: nx.Graph[Any], owners: Mapping[str, str]) -> nx.Graph[Any]:
    """Return a graph that is small enough for a picture; nodes have ``layer``, ``owner`` and ``count``.

    ``layer``: steps from the nearest GPU.
    """
    gpus = [name for name, kind in graph.nodes(data="kind") if kind == "gpu"]
    steps = dict.fromkeys(gpus, 0)
    for layer, names in enumerate(nx.bfs_layers(graph, gpus)):
        steps |= dict.fromkeys(names, layer)
    for name, data in graph.nodes(data=True):
        data |= {"layer": steps.get(name, 1), "owner": owners.get(str(name), ""), "count": 1}
    for alike in (_neighbours, _all):
        sizes = Counter(layer for _, layer in graph.nodes(data="layer"))
        full = {layer for layer, size in sizes.items() if size > MOST}
        graph = _joined(graph, full, alike) if full else graph
    return graph


def _neighbours(graph: nx.Graph[Any], name: Hashable) -> Hashable:
    return graph.nodes[name]["owner"], frozenset(graph[name])


def _all(graph: nx.Graph[Any], name: Hashable) -> Hashable:
    return None


def _joined(
    graph: nx.Graph[Any],
    full: Collection[int],
    alike: Callable[[nx.Graph[Any], Hashable], Hashable],
) -> nx.Graph[Any]:
    """Return the graph in which nodes of full layers that are of one kind and alike are one node."""
    members: dict[Hashable, list[Hashable]] = {}
    for name, data in graph.nodes(data=True):
        same = (data["layer"], data["kind"], alike(graph, name))
        members.setdefault(same if data["layer"] in full else name, []).append(name)
    made: nx.Graph[Any] = nx.Graph()
    first_of: dict[Hashable, Hashable] = {}
    for names in members.values():
        owners = {graph.nodes[name]["owner"] for name in names}
        made.add_node(names[0], **graph.nodes[names[0]])
        made.nodes[names[0]]["count"] = sum(graph.nodes[name]["count"] for name in names)
        made.nodes[names[0]]["owner"] = owners.pop() if len(owners) == 1 else ""
        first_of |= dict.fromkeys(names, names[0])
    for a, b, light in graph.edges(data="light", default=[]):
        if first_of[a] != first_of[b]:
            made.add_edge(first_of[a], first_of[b])
            made.edges[first_of[a], first_of[b]].setdefault("light", []).extend(light)
    return made


def _layers(graph: nx.Graph[Any]) -> list[list[Hashable]]:
    layers: dict[int, list[Hashable]] = {}
    for name, layer in graph.nodes(data="layer"):
        layers.setdefault(layer, []).append(name)
    return [layers[layer] for layer in sorted(layers)]


def _places(graph: nx.Graph[Any], layers: list[list[Hashable]]) -> dict[Hashable, Spot]:
    """Return the middle of each node, which is above what it joins if there is room."""
    places: dict[Hashable, Spot] = {}
    for number, layer in enumerate(layers):
        below = {
            name: fmean([places[near][0] for near in graph[name] if near in places] or [0])
            for name in layer
        }
        for place, name in enumerate(sorted(layer, key=lambda name: below[name])):
            places[name] = _WIDTH * (place + 0.5) / len(layer), number * _HIGH
    return places


def _draw_edge(axis: Axes, a: Spot, b: Spot, light: Sequence[str]) -> None:
    """Draw a line for each circuit, side by side, or one for what is dark; an arc within a layer."""
    colours = light if len(light) <= _MOST_CIRCUITS else list(dict.fromkeys(light))
    (x1, y1), (x2, y2) = a, b
    bend = 0.8 + 0.05 * abs(x2 - x1) if y1 == y2 else 0.0
    for place, colour in enumerate(colours or [RULE]):
        shift = 0.07 * (place - (len(colours or [RULE]) - 1) / 2)
        curve = Curve(
            [(x1 + shift, y1), ((x1 + x2) / 2 + shift, (y1 + y2) / 2 + bend), (x2 + shift, y2)],
            [Curve.MOVETO, Curve.CURVE3, Curve.CURVE3],
        )
        look = {"edgecolor": colour, "linewidth": 1.7 if light else 0.8, "zorder": 1 + bool(light)}
        axis.add_patch(PathPatch(curve, fill=False, **look))


def _draw_node(
    axis: Axes, spot: Spot, wide: float, name: Hashable, data: Mapping[str, Any], colour: str
) -> None:
    kind, count = data["kind"], data["count"]
    is_gpu = kind == "gpu"
    face, edge = (colour, colour) if is_gpu else _LOOKS.get(kind, _LOOKS[""])
    words = [str(name)] if count == 1 else [f"{count:,} {_PLURALS.get(kind, kind)}", f"×{count:,}"]
    room = [text for text in words if len(text) * _CHARACTER <= wide]
    wide = min(wide, 0.85) if count == 1 and len(words[0]) <= 4 else wide
    x, y = spot
    box(axis, x - wide / 2, y - _BOX / 2, wide, _BOX, face, edge)
    if room:
        centred(axis, x, y, room[0], 7, color="white" if is_gpu else INK)
