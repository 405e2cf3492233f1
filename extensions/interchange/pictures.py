"""A fabric as a graph for other programs: Mermaid, DOT of Graphviz, GraphML."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ringlight.fabric.parts import Port
from ringlight.fabric.topology import Fabric
from ringlight.fabric.units import format_rate

if TYPE_CHECKING:
    import networkx as nx

_SHAPES = {
    "gpu": ("([", "])", "ellipse"),
    "packet switch": ("[", "]", "box"),
    "optical switch": ("{{", "}}", "hexagon"),
    "WSS": ("{{", "}}", "hexagon"),
    "averager": ("[[", "]]", "component"),
}


def plugged_graph(
    fabric: Fabric, circuits: Iterable[tuple[Port, Port]] = ()
) -> nx.MultiGraph[str]:
    """Return the graph of all nodes and cables, and of the lit ``circuits``, pairs of electrical ports.

    Nodes carry ``kind``, of GPUs also ``server`` and ``ip``; edges ``kind`` (``link`` or ``circuit``), both
    ``port`` and ``other_port`` as people write them, and of links ``rate_bps`` (bits per second, as real).
    """
    import networkx as nx

    graph: nx.MultiGraph[str] = nx.MultiGraph()
    for gpu in fabric.gpus.values():
        graph.add_node(gpu.name, kind="gpu", server=gpu.server, ip=gpu.ip)
    for name in fabric.packet_switches:
        graph.add_node(name, kind="packet switch")
    for switch in fabric.optical_switches.values():
        graph.add_node(
            switch.name, kind="optical switch" if switch.wavelengths is None else "WSS"
        )
    for name, kind in fabric.devices.items():
        graph.add_node(name, kind=kind)
    for link in (*fabric.links, *fabric.cables):
        ends = {"port": str(link.a), "other_port": str(link.b)}
        graph.add_edge(
            link.a.node, link.b.node, kind="link", rate_bps=float(link.rate_bps), **ends
        )
    for a, b in circuits:
        graph.add_edge(a.node, b.node, kind="circuit", port=str(a), other_port=str(b))
    return graph


def mermaid(graph: nx.MultiGraph[str]) -> str:
    """Return a flowchart for Mermaid. GPUs are drawn in their servers, and circuits are dotted."""
    ids = {name: f"n{number}" for number, name in enumerate(graph)}
    servers: dict[str, list[str]] = {}
    lines = ["flowchart LR"]
    for name, data in graph.nodes(data=True):
        left, right, _ = _SHAPES[data["kind"]]
        line = f'{ids[name]}{left}"{name}"{right}'
        if "server" in data:
            servers.setdefault(data["server"], []).append(line)
        else:
            lines.append(f"  {line}")
    for number, (server, inside) in enumerate(servers.items()):
        lines += [
            f'  subgraph s{number}["{server}"]',
            *(f"    {line}" for line in inside),
            "  end",
        ]
    for a, b, data in graph.edges(data=True):
        ports = f"{data['port']} – {data['other_port']}"
        if data["kind"] == "link":
            lines.append(
                f'  {ids[a]} ---|"{ports}, {format_rate(data["rate_bps"])}"| {ids[b]}'
            )
        else:
            lines.append(f'  {ids[a]} -.-|"{ports}"| {ids[b]}')
    return "\n".join(lines) + "\n"


def dot(graph: nx.MultiGraph[str]) -> str:
    """Return an undirected graph in DOT. Circuits are dashed."""
    lines = ["graph fabric {", "  rankdir=LR;"]
    for name, data in graph.nodes(data=True):
        lines.append(f"  {_quoted(name)} [shape={_SHAPES[data['kind']][2]}];")
    for a, b, data in graph.edges(data=True):
        # networkx gives the ends in either order.
        tail, head = (
            (data["port"], data["other_port"])
            if _node(data["port"]) == a
            else (data["other_port"], data["port"])
        )
        words = [
            f"taillabel={_quoted(_number(tail))}",
            f"headlabel={_quoted(_number(head))}",
        ]
        if data["kind"] == "link":
            words.append(f"label={_quoted(format_rate(data['rate_bps']))}")
        else:
            words += ['label="circuit"', "style=dashed"]
        lines.append(f"  {_quoted(a)} -- {_quoted(b)} [{', '.join(words)}];")
    return "\n".join([*lines, "}"]) + "\n"


def graphml(graph: nx.MultiGraph[str]) -> str:
    """Return GraphML text that networkx, yEd and Gephi read."""
    import networkx as nx

    return "\n".join(nx.generate_graphml(graph)) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _node(port: str) -> str:
    return port.rpartition(":")[0]


def _number(port: str) -> str:
    return port.rpartition(":")[2]
