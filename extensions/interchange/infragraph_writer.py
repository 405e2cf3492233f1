"""A fabric as InfraGraph (schema 3.1): as plugged with its light as annotations, or as lit.

The document is the library's own answer of ``get_graph``: ``infrastructure`` and ``annotations``. Instances
of the schema are a name and a count, and its numbers begin at 0: port 1 of a switch is ``port[0]``.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ringlight.experiments.language.text import plain_yaml
from ringlight.extensions.interchange.snapshot import Exported, Snapshot
from ringlight.fabric.light import Optics
from ringlight.fabric.parts import OURS, Link, Port
from ringlight.fabric.topology import Fabric, optical_neighbour

#: Type of the component that stands for an optical switch's crossbar; the schema has no word for that.
CROSSBAR = "optical_circuit_switch"
#: Type of the same part of a switch that tells wavelengths apart.
SELECTIVE = "wavelength_selective_switch"


@dataclass(frozen=True)
class _Node:
    """A node as InfraGraph has it: the name and text of its device, and what an annotation says of it."""

    device: str
    parts: dict[str, Any]
    about: Mapping[str, str]


def infragraph(snapshot: Snapshot, *, as_lit: bool) -> Exported:
    """Return the document, YAML. ``as_lit``: circuits are edges; else every fibre is, and circuits are
    annotations."""
    every = _nodes(snapshot.fabric, as_lit)
    plugged = {port.node for link in snapshot.fabric.links for port in (link.a, link.b)}
    nodes = {name: node for name, node in every.items() if name in plugged}
    places = _placed(nodes, snapshot.fabric.gpus)
    links = _links(snapshot.fabric.links)
    edges = [
        _edge(places, (link.a, link.b), links[_kind(link)])
        for link in snapshot.fabric.links
    ]
    lights = [_cross_connect(snapshot.fabric, *pair) for pair in snapshot.circuits]
    if as_lit and lights:
        edges += (_edge(places, ends, "light") for ends in lights)
    infrastructure = {
        "name": re.sub(r"[^\w()<>\[\]-]", "-", snapshot.name, flags=re.ASCII),
        "description": f"Fabric {snapshot.name} of Ringlight",
        "devices": list({node.device: node.parts for node in nodes.values()}.values()),
        "links": [_link(name, kind) for kind, name in links.items()]
        + ([{"name": "light"}] if as_lit and lights else []),
        "instances": _instances(nodes, places),
        "edges": edges,
    }
    lost = _lost(snapshot.fabric, [name for name in every if name not in plugged])
    annotations = {
        "nodes": _annotated(nodes, places)
        + ([] if as_lit else _annotated_light(places, lights)),
        "edges": [],
        "links": [_about_link(name, kind) for kind, name in links.items()],
        "graph": [_attribute("not_carried", "; ".join(lost))] if lost else [],
    }
    document = {"infrastructure": infrastructure, "annotations": annotations}
    return Exported(plain_yaml(document), tuple(lost))


def _nodes(fabric: Fabric, as_lit: bool) -> dict[str, _Node]:
    nodes: dict[str, _Node] = {}
    for gpu in fabric.gpus.values():
        ports = 1 if gpu.name not in fabric.onics else fabric.onics[gpu.name].ports
        about = {"name": gpu.name, "server": gpu.server, "model": gpu.model}
        nodes[gpu.name] = _gpu_node(ports, about)
    for switch in fabric.packet_switches.values():
        parts = _device("packet_switch", "asic", {"switch": {}}, switch.ports, False)
        nodes[switch.name] = _Node(parts["name"], parts, {"name": switch.name})
    for optical in fabric.optical_switches.values():
        selective = optical.wavelengths is not None
        kind = {"custom": {"type": SELECTIVE if selective else CROSSBAR}}
        name = "wss" if selective else "optical_switch"
        parts = _device(name, "crossbar", kind, optical.size, as_lit)
        about = {
            "name": optical.name,
            "driver": optical.driver,
            "profile": optical.profile,
        }
        if optical.loss_db is not None:
            about["loss_db"] = repr(optical.loss_db)
        if optical.dark_s is not None:
            about["dark_s"] = repr(optical.dark_s)
        nodes[optical.name] = _Node(parts["name"], parts, about)
    return nodes


def _gpu_node(ports: int, about: Mapping[str, str]) -> _Node:
    name = f"gpu_{ports}_nic" if ports > 1 else "gpu_nic"
    edge = _inside("xpu[0]", f"nic[0:{ports}]", "pcie")
    parts = {
        "name": name,
        "components": [
            _component("xpu", {"xpu": {}}),
            _component("nic", {"nic": {}}, ports),
        ],
        "links": [{"name": "pcie"}],
        "edges": [edge],
    }
    return _Node(name, parts, about)


def _device(
    kind: str, core: str, choice: dict[str, Any], ports: int, apart: bool
) -> dict[str, Any]:
    """Return a device of a core and ports, which are joined to it unless they are ``apart``."""
    edges = [] if apart else [_inside(f"{core}[0]", f"port[0:{ports}]", "internal")]
    return {
        "name": f"{kind}_{ports}",
        "components": [
            _component(core, choice),
            _component("port", {"port": {}}, ports),
        ],
        "links": [] if apart else [{"name": "internal"}],
        "edges": edges,
    }


def _component(name: str, choice: dict[str, Any], count: int = 1) -> dict[str, Any]:
    return {"name": name, "count": count, "choice": next(iter(choice)), **choice}


def _inside(a: str, b: str, link: str) -> dict[str, Any]:
    ends = {"ep1": {"component": a}, "ep2": {"component": b}}
    return {**ends, "scheme": "many2many", "link": link}


@dataclass(frozen=True)
class _Places:
    """``of``: instance and index of each node. ``nics``: nodes whose ports are NICs, and begin at 0."""

    of: Mapping[str, tuple[str, int]]
    nics: Container[str]

    def end(self, port: Port) -> dict[str, str]:
        """Return a port as the end of an edge."""
        nic = port.node in self.nics
        part = f"nic[{port.number}]" if nic else f"port[{port.number - 1}]"
        return {"instance": self.node(port.node), "component": part}

    def node(self, name: str) -> str:
        """Return a node as annotations name it."""
        instance, index = self.of[name]
        return f"{instance}[{index}]"


def _placed(nodes: Mapping[str, _Node], nics: Container[str]) -> _Places:
    """Return where each node is: g0, g1, … of one device are instance g, others have their own."""
    series: dict[tuple[str, str], list[int]] = {}
    for name, node in nodes.items():
        match = re.fullmatch(r"(.*[^0-9])(0|[1-9][0-9]*)", name)
        if match is not None:
            series.setdefault((match[1], node.device), []).append(int(match[2]))
    of = {name: (name, 0) for name in nodes}
    used = set(nodes)
    for (prefix, _), numbers in series.items():
        if numbers == list(range(len(numbers))) and prefix not in used:
            used.add(prefix)
            of |= {f"{prefix}{number}": (prefix, number) for number in numbers}
    return _Places(of, nics)


def _instances(nodes: Mapping[str, _Node], places: _Places) -> list[dict[str, Any]]:
    instances: dict[str, dict[str, Any]] = {}
    for name, (instance, _) in places.of.items():
        entry = {"name": instance, "device": nodes[name].device, "count": 0}
        instances.setdefault(instance, entry)["count"] += 1
    return list(instances.values())


def _edge(places: _Places, ends: tuple[Port, Port], link: str) -> dict[str, Any]:
    joined = {"ep1": places.end(ends[0]), "ep2": places.end(ends[1])}
    return {**joined, "scheme": "one2one", "link": link}


#: What is the same of links of one kind: rate, queue and delay, in bits per second and seconds.
_Kind = tuple[float, float, float]


def _kind(link: Link) -> _Kind:
    return link.rate_bps, link.queue_s, link.delay_s


def _links(links: Iterable[Link]) -> dict[_Kind, str]:
    kinds = dict.fromkeys(map(_kind, links))
    return {kind: f"link-{number}" for number, kind in enumerate(kinds, 1)}


def _link(name: str, kind: _Kind) -> dict[str, Any]:
    rate_bps, _, delay_s = kind
    unit = "gigabits_per_second"
    physical: dict[str, Any] = {"bandwidth": {"choice": unit, unit: rate_bps / 1e9}}
    if delay_s:
        physical["latency"] = {"choice": "us", "us": delay_s * 1e6}
    return {"name": name, "physical": physical}


def _about_link(name: str, kind: _Kind) -> dict[str, Any]:
    return {"name": name, "attributes": [_attribute("queue_s", repr(kind[1]))]}


def _attribute(name: str, value: str) -> dict[str, str]:
    return {"attribute": name, "value": value}


def _annotated(nodes: Mapping[str, _Node], places: _Places) -> list[dict[str, Any]]:
    return [
        {
            "name": places.node(name),
            "attributes": [_attribute(key, text) for key, text in node.about.items()],
        }
        for name, node in nodes.items()
    ]


def _cross_connect(fabric: Fabric, a: Port, b: Port) -> tuple[Port, Port]:
    """Return the two ports of an optical switch that a circuit joins."""
    near, far = optical_neighbour(fabric, a), optical_neighbour(fabric, b)
    if near is None or far is None:
        raise ValueError(f"no optical switch joins {a} and {b}")
    return near, far


def _annotated_light(
    places: _Places, lights: Iterable[tuple[Port, Port]]
) -> list[dict[str, Any]]:
    annotated = []
    for near, far in lights:
        for here, there in ((near, far), (far, near)):
            end = places.end(here)
            name = end["instance"] + end["component"]
            instance, index = places.of[there.node]
            value = f"{instance}.{index}.port.{there.number - 1}"
            light = [_attribute("cross_connect", value)]
            annotated.append({"name": name, "attributes": light})
    return annotated


def _lost(fabric: Fabric, unplugged: list[str]) -> list[str]:
    """Return what of a fabric the document cannot say, or says in no way that a program reads."""
    lost = [f"{key} of the fabric file" for key in fabric.parts]
    if unplugged:
        lost.append(f"nodes with nothing plugged in ({', '.join(unplugged)})")
    if fabric.devices:
        lost.append(f"devices ({', '.join(fabric.devices)}) and their cables")
    if fabric.onics:
        lost.append("lasers of optical NICs")
    if fabric.optics != Optics():
        lost.append("power of light (light)")
    if fabric.paths != "hash":
        lost.append(f"the choice of paths (paths: {fabric.paths})")
    if any(switch.controller != OURS for switch in fabric.packet_switches.values()):
        lost.append("controllers of packet switches (controller, moved_flows)")
    if any(switch.access for switch in fabric.optical_switches.values()):
        lost.append("addresses and options of optical switches")
    if fabric.has_link_effects:
        lost.append("what links do to frames, besides a mean delay")
    return lost
