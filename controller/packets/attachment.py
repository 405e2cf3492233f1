"""Find the other end of every packet-switch port, given the present light. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any

from pydantic import Field

from ringlight.fabric.keys import FabricKey, fabric_keys
from ringlight.fabric.parts import Gpu, Onic, PacketSwitch, Port
from ringlight.fabric.topology import (
    CrossConnects,
    ElectricalGraph,
    Fabric,
    is_electrical,
    port_name,
    tracer,
)


def attachments(
    fabric: Fabric, cross_connects: CrossConnects
) -> dict[Port, Port | None]:
    """Return the electrical port that light from each plugged packet-switch port reaches; None if dark."""
    ends: dict[Port, Port | None] = {}
    path_from = tracer(fabric, cross_connects)
    for port in fabric.link_at:
        if port.node not in fabric.packet_switches:
            continue
        end = path_from(port)[-1]
        ends[port] = end if end != port and is_electrical(fabric, end) else None
    return ends


def ports_by_node(ends: Mapping[Port, Port | None]) -> dict[str, list[str]]:
    """Return the packet-switch ports that reach each node, by light or by cable. ``ends``: see
    :func:`attachments`.
    """
    ports: dict[str, list[str]] = {}
    for port, end in sorted(ends.items()):
        if end is not None:
            ports.setdefault(end.node, []).append(str(port))
    return ports


@dataclass(frozen=True)
class Circuit:
    """End-to-end connection through optical switches.

    ``ends``: two port names, the GPU first. ``path``: every port that light from the first end passes.
    ``duplex``: light returns on the same path (else the circuit is lit in one direction only). ``lost``: a
    fault has taken its GPU, which neither sends nor receives.
    """

    ends: tuple[str, str]
    path: list[str]
    duplex: bool
    lost: bool = False


def lit_circuits(
    fabric: Fabric, cross_connects: CrossConnects, lost: Collection[str] = ()
) -> list[Circuit]:
    """Return the lit circuits, each once. ``lost``: GPUs that a fault has taken."""
    circuits: list[Circuit] = []
    seen: set[frozenset[Port]] = set()
    path_from = tracer(fabric, cross_connects)
    for port in sorted(
        fabric.electrical_ports, key=lambda p: (p.node not in fabric.gpus, p)
    ):
        path = path_from(port)
        end = path[-1]
        if (
            len(path) < 4
            or not is_electrical(fabric, end)
            or frozenset((port, end)) in seen
        ):
            continue
        seen.add(frozenset((port, end)))
        duplex = path_from(end)[-1] == port
        names = port_name(fabric, port), port_name(fabric, end)
        is_lost = not {port.node, end.node}.isdisjoint(lost)
        circuits.append(Circuit(names, [str(p) for p in path], duplex, is_lost))
    return circuits


def circuit_pairs(
    fabric: Fabric, cross_connects: CrossConnects
) -> list[tuple[Port, Port]]:
    """Return the duplex circuits as pairs of electrical ports, the GPU first."""
    end_names = [
        circuit.ends
        for circuit in lit_circuits(fabric, cross_connects)
        if circuit.duplex
    ]
    return [(Port.parse(a), Port.parse(b)) for a, b in end_names]


@dataclass(frozen=True)
class Node:
    name: str
    kind: str


@dataclass(frozen=True)
class Edge:
    """One direction of a connection. ``path``: every port that packets pass."""

    tail: Annotated[str, Field(serialization_alias="from")]
    head: Annotated[str, Field(serialization_alias="to")]
    out_port: int
    in_port: int
    rate_bps: float
    path: list[str]


@dataclass(frozen=True)
class Topology:
    nodes: list[Node]
    edges: list[Edge]


def topology(graph: ElectricalGraph, lost: Collection[str] = ()) -> Topology:
    """Return an electrical graph as a document: nodes, and directed edges with the path of the light.

    ``lost``: GPUs that a fault has taken; they have no edges.
    """
    return Topology(
        [
            *(Node(name, "gpu") for name in graph.gpus),
            *(Node(name, "packet_switch") for name in graph.packet_switches),
        ],
        [
            Edge(
                edge.out.node,
                edge.into.node,
                edge.out.number,
                edge.into.number,
                edge.rate_bps,
                [str(port) for port in edge.path],
            )
            for edge in graph.edges
            if edge.out.node not in lost and edge.into.node not in lost
        ],
    )


@dataclass(frozen=True)
class FabricOpticalSwitch:
    name: str
    size: int
    driver: str
    profile: str
    wavelengths: int | None


@dataclass(frozen=True)
class FabricLink:
    """``queue_s``: depth of the sender's queue, seconds."""

    ends: tuple[str, str]
    rate_bps: float
    queue_s: float


@dataclass(frozen=True)
class _FabricDocument:
    """The fabric as it is plugged together (rates in bit/s). ``scale``: real bits per second for each that
    the emulation carries. ``least_dbm``: least power that a receiver reads."""

    gpus: list[Gpu]
    packet_switches: list[PacketSwitch]
    optical_switches: list[FabricOpticalSwitch]
    onics: list[Onic]
    links: list[FabricLink]
    circuits: list[tuple[str, str]]
    paths: str
    scale: float
    least_dbm: float


def _documented_keys() -> dict[str, FabricKey]:
    return {
        name: key for name, key in fabric_keys().items() if key.document is not None
    }


#: Besides, what keys of the fabric file tell of themselves.
FabricDocument: Any = make_dataclass(
    "FabricDocument",
    [(name, key.documents) for name, key in _documented_keys().items()],
    bases=(_FabricDocument,),
    frozen=True,
    namespace={"__doc__": _FabricDocument.__doc__},
)


def fabric_document(fabric: Fabric, scale: float = 1.0) -> Any:
    """Return the fabric as a document of the REST API, a ``FabricDocument``.

    ``scale``: real bits per second for each emulated bit per second.
    """
    return FabricDocument(
        list(fabric.gpus.values()),
        list(fabric.packet_switches.values()),
        [
            FabricOpticalSwitch(s.name, s.size, s.driver, s.profile, s.wavelengths)
            for s in fabric.optical_switches.values()
        ],
        list(fabric.onics.values()),
        [
            FabricLink(
                (port_name(fabric, link.a), port_name(fabric, link.b)),
                link.rate_bps,
                link.queue_s,
            )
            for link in fabric.links
        ],
        [(port_name(fabric, a), port_name(fabric, b)) for a, b in fabric.circuits],
        fabric.paths,
        scale,
        fabric.optics.sensitivity_dbm,
        **{
            name: key.document(fabric)
            for name, key in _documented_keys().items()
            if key.document is not None
        },
    )
