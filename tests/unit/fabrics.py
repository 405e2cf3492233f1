"""Fabrics that several tests share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import networkx as nx
from hypothesis import strategies as st

from ringlight.fabric.algorithms import STEPS
from ringlight.fabric.building import build_fabric
from ringlight.fabric.parts import Gpu, Link, Onic, OpticalSwitch, PacketSwitch, Port
from ringlight.fabric.paths import Hop
from ringlight.fabric.routing import Rule, out_port
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import ElectricalGraph, Fabric

#: Every collective, by the names that a scenario uses.
COLLECTIVES = tuple(STEPS)

#: Real rates of the six-GPU testbed; the inter-switch link is 3.1 times slower than a NIC.
NIC_BPS = 40e9
OVERSUBSCRIPTION = 3.1


def six_gpus() -> dict[str, object]:
    """The disaggregation testbed as a scenario writes it: g0-g2 on tor0, g3-g5 on tor1."""
    links: list[dict[str, object]] = [
        {"ends": [f"g{i}", f"ocs0:{i + 1}"], "rate": "40 Gbit/s"} for i in range(6)
    ]
    links += [
        {"ends": [f"tor{t}:{p}", f"ocs0:{6 + 4 * t + p}"], "rate": "40 Gbit/s"}
        for t in (0, 1)
        for p in (1, 2, 3, 4)
    ]
    links.append(
        {"ends": ["tor0:5", "tor1:5"], "rate": f"{40 / OVERSUBSCRIPTION} Gbit/s"}
    )
    return {
        "servers": {
            "s0": {"gpus": {"g0": "tesla-m40", "g1": "titan-v"}},
            "s1": {"gpus": {"g2": "tesla-m40"}},
            "s2": {"gpus": {"g3": "tesla-m40", "g4": "titan-v"}},
            "s3": {"gpus": {"g5": "tesla-m40"}},
        },
        "packet_switches": {"tor0": {"ports": 5}, "tor1": {"ports": 5}},
        "optical_switches": {"ocs0": {"size": 14}},
        "links": links,
        "circuits": [[f"g{i}", f"tor{i // 3}:{i % 3 + 1}"] for i in range(6)],
    }


def six_gpu_fabric() -> Fabric:
    return build_fabric(FabricSpec.model_validate(six_gpus()))


def make_fabric(
    ports: list[list[int]],
    gpus: list[int],
    *,
    copper_gpus: list[int] | None = None,
    trunks: list[tuple[int, int]] | None = None,
    optical_trunk_ports: int = 0,
    rate_bps: float = 1e9,
) -> Fabric:
    """``ports[o][s]`` fibres join optical switch o and packet switch s; GPU i hangs on ``gpus[i]``.

    ``copper_gpus`` gives packet switches of further GPUs, ``trunks`` pairs of packet switches joined by
    copper. Every packet switch also has ``optical_trunk_ports`` fibres on optical switch 0.
    """
    next_port: dict[str, int] = {}

    def port(node: str) -> Port:
        next_port[node] = next_port.get(node, 0) + 1
        return Port(node, next_port[node])

    links: list[Link] = []
    names = [f"g{i}" for i in range(len(gpus) + len(copper_gpus or []))]
    for name, o in zip(names, gpus, strict=False):
        links.append(Link(Port(name, 0), port(f"ocs{o}"), rate_bps, 0.02))
    for name, s in zip(names[len(gpus) :], copper_gpus or [], strict=True):
        links.append(Link(Port(name, 0), port(f"tor{s}"), rate_bps, 0.02))
    switches = range(max((len(row) for row in ports), default=0))
    for o, row in enumerate(ports):
        for s, count in enumerate(row):
            links += [
                Link(port(f"tor{s}"), port(f"ocs{o}"), rate_bps, 0.02)
                for _ in range(count)
            ]
    for s in switches:
        links += [
            Link(port(f"tor{s}"), port("ocs0"), rate_bps, 0.02)
            for _ in range(optical_trunk_ports)
        ]
    for a, b in trunks or []:
        links.append(Link(port(f"tor{a}"), port(f"tor{b}"), rate_bps, 0.02))
    return Fabric(
        {
            name: Gpu(
                name, "s0", "gpu", f"10.82.0.{i + 1}", f"02:52:4c:00:00:{i + 1:02x}"
            )
            for i, name in enumerate(names)
        },
        {
            f"tor{s}": PacketSwitch(f"tor{s}", s + 1, next_port.get(f"tor{s}", 1))
            for s in switches
        },
        {
            f"ocs{o}": OpticalSwitch(
                f"ocs{o}", next_port.get(f"ocs{o}", 1), "scpi", "ideal"
            )
            for o in range(len(ports))
        },
        tuple(links),
    )


def switch_ports(fabric: Fabric, optical: str) -> list[Port]:
    """Packet-switch ports that are plugged into one optical switch, in order."""
    found = []
    for port, link in fabric.link_at.items():
        if port.node in fabric.packet_switches and link.other(port).node == optical:
            found.append(port)
    return sorted(found)


def gpu_ports(fabric: Fabric, optical: str) -> list[Port]:
    """GPU ports that are plugged into one optical switch, in order."""
    return sorted(
        port
        for port, link in fabric.link_at.items()
        if port.node in fabric.gpus and link.other(port).node == optical
    )


@st.composite
def circuits(
    draw: st.DrawFn, fabric: Fabric, *, all_lit: bool = False, trunks: bool = False
) -> list[tuple[Port, Port]]:
    """Random circuits from GPUs to packet switches; with ``trunks`` also between packet switches."""
    chosen: list[tuple[Port, Port]] = []
    for optical in fabric.optical_switches:
        free = draw(st.permutations(switch_ports(fabric, optical)))
        for gpu in gpu_ports(fabric, optical):
            if free and (all_lit or draw(st.integers(0, 5)) > 0):
                chosen.append((gpu, free.pop()))
        while trunks and len(free) >= 2 and draw(st.booleans()):
            chosen.append((free.pop(), free.pop()))
    return chosen


def nodes_of(path: Sequence[Hop]) -> list[str]:
    """The nodes that a path visits, both GPUs included."""
    return [path[0].out.node, *(hop.into.node for hop in path)]


def as_networkx(graph: ElectricalGraph) -> nx.MultiDiGraph[str]:
    """The same graph for algorithms of others."""
    made: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    made.add_nodes_from((*graph.gpus, *graph.packet_switches))
    made.add_edges_from(
        (edge.out.node, edge.into.node, edge.out.number) for edge in graph.edges
    )
    return made


def walk(
    rules: Iterable[Rule],
    graph: ElectricalGraph,
    source: str,
    ip: str,
    source_ip: str = "",
) -> list[str]:
    """The nodes that a packet from GPU ``source`` to ``ip`` visits under ``rules``.

    ``source_ip``: the sender's address, empty for ARP. It ends at a GPU, or at the switch that drops it.
    Raises ValueError when it comes to a switch a second time (a loop).
    """
    table = {rule.key: rule.out_port for rule in rules}
    at = {(edge.out.node, edge.out.number): edge.into.node for edge in graph.edges}
    node = next(iter(graph.heads(source)), None)
    path = [source]
    while node is not None:
        if node in path[1:]:
            raise ValueError(
                f"a packet from {source} to {ip} loops: {' '.join([*path, node])}"
            )
        path.append(node)
        port = out_port(table, node, ip, source_ip)
        node = None if port is None else at.get((node, port))
    return path


def onic_stars(nodes: int, ports: int = 1, beside: tuple[Gpu, ...] = ()) -> Fabric:
    """O-NICs n0, n1, … with tunable lasers, port p of each on a WSS wp that joins all of them.

    ``beside``: GPUs that come first and have none.
    """
    names = [f"n{i}" for i in range(nodes)]
    gpus = [
        *beside,
        *(
            Gpu.numbered(name, name, "test", len(beside) + i)
            for i, name in enumerate(names)
        ),
    ]
    links = tuple(
        Link(Port(name, port), Port(f"w{port}", i + 1), 100e9, 0.02)
        for port in range(ports)
        for i, name in enumerate(names)
    )
    return Fabric(
        {gpu.name: gpu for gpu in gpus},
        {},
        {
            f"w{port}": OpticalSwitch(f"w{port}", nodes, "scpi", "lcos", nodes)
            for port in range(ports)
        },
        links,
        onics={name: Onic(name, ports, 10.5e-9) for name in names},
    )
