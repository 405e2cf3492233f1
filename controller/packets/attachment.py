"""What is at the other end of every packet-switch port, given the light now. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ringlight.fabric.parts import Port
from ringlight.fabric.topology import (
    CrossConnects,
    Fabric,
    is_electrical,
    trace,
)

if TYPE_CHECKING:
    import networkx as nx


def attachments(fabric: Fabric, cross_connects: CrossConnects) -> dict[Port, Port | None]:
    """The electrical port that light from each plugged packet-switch port reaches; None when dark."""
    ends: dict[Port, Port | None] = {}
    for port in fabric.link_at:
        if port.node not in fabric.packet_switches:
            continue
        end = trace(fabric, cross_connects, port)[-1]
        ends[port] = end if end != port and is_electrical(fabric, end) else None
    return ends


def lit_circuits(fabric: Fabric, cross_connects: CrossConnects) -> list[dict[str, object]]:
    """End-to-end connections through optical switches, each once: ``{"ends", "path", "duplex"}``.

    ``ends``: two port names, the GPU first; ``path``: every port that light from the first end passes;
    ``duplex``: whether light comes back the same way (else the circuit is lit in one direction only).
    """
    circuits: list[dict[str, object]] = []
    seen: set[frozenset[Port]] = set()
    for port in sorted(fabric.electrical_ports, key=lambda p: (p.node not in fabric.gpus, p)):
        path = trace(fabric, cross_connects, port)
        end = path[-1]
        if len(path) < 4 or not is_electrical(fabric, end) or frozenset((port, end)) in seen:
            continue
        seen.add(frozenset((port, end)))
        back = trace(fabric, cross_connects, end)
        circuits.append(
            {
                "ends": [port_name(fabric, port), port_name(fabric, end)],
                "path": [str(p) for p in path],
                "duplex": back[-1] == port,
            }
        )
    return circuits


def circuit_pairs(fabric: Fabric, cross_connects: CrossConnects) -> list[tuple[Port, Port]]:
    """The duplex circuits as pairs of electrical ports, the GPU first."""
    pairs = []
    for circuit in lit_circuits(fabric, cross_connects):
        ends = circuit["ends"]
        if circuit["duplex"] and isinstance(ends, list):
            pairs.append((Port.parse(ends[0]), Port.parse(ends[1])))
    return pairs


def port_name(fabric: Fabric, port: Port) -> str:
    """``"g0"`` for a GPU's NIC port 0, else ``node:number``."""
    return port.node if port.node in fabric.gpus and port.number == 0 else str(port)


def topology(graph: nx.MultiDiGraph[str]) -> dict[str, object]:
    """An electrical graph as JSON: nodes and directed edges with the path of the light."""
    return {
        "nodes": [{"name": name, "kind": data["kind"]} for name, data in graph.nodes(data=True)],
        "edges": [
            {
                "from": tail,
                "to": head,
                "out_port": data["out_port"],
                "in_port": data["in_port"],
                "rate_bps": data["rate_bps"],
                "path": [str(p) for p in data["path"]],
            }
            for tail, head, data in graph.edges(data=True)
        ],
    }


def fabric_document(fabric: Fabric) -> Mapping[str, object]:
    """The fabric as built, as JSON (rates in bit/s, queues in seconds)."""
    return {
        "gpus": [
            {"name": g.name, "server": g.server, "model": g.model, "ip": g.ip, "mac": g.mac}
            for g in fabric.gpus.values()
        ],
        "packet_switches": [
            {"name": s.name, "dpid": s.dpid, "ports": s.ports, "controller": s.controller}
            for s in fabric.packet_switches.values()
        ],
        "optical_switches": [
            {
                "name": s.name,
                "size": s.size,
                "driver": s.driver,
                "profile": s.profile,
                "wavelengths": s.wavelengths,
            }
            for s in fabric.optical_switches.values()
        ],
        "onics": [
            {
                "gpu": onic.gpu,
                "ports": onic.ports,
                "tuning_s": onic.tuning_s,
                "transmitters": onic.transmitters,
            }
            for onic in fabric.onics.values()
        ],
        "grids": [
            {
                "name": grid.name,
                "rows": grid.rows,
                "columns": grid.columns,
                "nodes": list(grid.nodes),
                "wavelengths": grid.wavelengths,
            }
            for grid in fabric.grids.values()
        ],
        "rings": [
            {
                "name": ring.name,
                "nodes": list(ring.nodes),
                "switches": list(ring.switches),
                "wavelengths": ring.wavelengths,
            }
            for ring in fabric.rings.values()
        ],
        "links": [
            {
                "ends": [port_name(fabric, link.a), port_name(fabric, link.b)],
                "rate_bps": link.rate_bps,
                "queue_s": link.queue_s,
            }
            for link in fabric.links
        ],
        "circuits": [[port_name(fabric, a), port_name(fabric, b)] for a, b in fabric.circuits],
        "paths": fabric.paths,
    }
