from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.parts import (
    Gpu,
    Link,
    OpticalSwitch,
    PacketSwitch,
    Port,
)
from ringlight.fabric.topology import (
    ElectricalGraph,
    Fabric,
    circuit_cross_connects,
    electrical_graph,
    trace,
)
from tests.unit.fabrics import circuits, make_fabric, six_gpu_fabric


def test_light_is_followed_through_a_cross_connect() -> None:
    fabric = six_gpu_fabric()
    lit = circuit_cross_connects(fabric, fabric.circuits)
    assert [str(p) for p in trace(fabric, lit, Port("g0", 0))] == [
        "g0:0",
        "ocs0:1",
        "ocs0:7",
        "tor0:1",
    ]
    assert [str(p) for p in trace(fabric, {}, Port("g0", 0))] == ["g0:0", "ocs0:1"]
    assert trace(fabric, lit, Port("tor0", 5))[-1] == Port("tor1", 5)
    assert trace(fabric, lit, Port("tor0", 4))[-1].node == "ocs0"


def joined(graph: ElectricalGraph) -> set[tuple[str, str]]:
    return {(edge.out.node, edge.into.node) for edge in graph.edges}


def test_one_direction_of_light_makes_one_edge() -> None:
    fabric = six_gpu_fabric()
    graph = electrical_graph(fabric, {"ocs0": [CrossConnect(1, 14 + 7)]})
    assert joined(graph) == {("g0", "tor0"), ("tor0", "tor1"), ("tor1", "tor0")}


def test_light_through_two_optical_switches_has_the_slowest_rate() -> None:
    fabric = Fabric(
        {"g0": Gpu("g0", "s0", "m", "10.82.0.2", "")},
        {"tor0": PacketSwitch("tor0", 1, 1)},
        {
            "a": OpticalSwitch("a", 2, "scpi", "ideal"),
            "b": OpticalSwitch("b", 2, "scpi", "ideal"),
        },
        (
            Link(Port("g0", 0), Port("a", 1), 3e9, 0),
            Link(Port("a", 2), Port("b", 1), 1e9, 0),
            Link(Port("b", 2), Port("tor0", 1), 2e9, 0),
        ),
    )
    both_ways = [CrossConnect(1, 4), CrossConnect(2, 3)]
    graph = electrical_graph(fabric, {"a": both_ways, "b": both_ways})
    assert joined(graph) == {("g0", "tor0"), ("tor0", "g0")}
    assert [edge.rate_bps for edge in graph.leaving["g0"]] == [1e9]


def test_a_loop_of_light_is_an_error() -> None:
    fabric = Fabric(
        {"g0": Gpu("g0", "s0", "m", "10.82.0.2", "")},
        {},
        {"o": OpticalSwitch("o", 3, "scpi", "ideal")},
        (
            Link(Port("g0", 0), Port("o", 1), 1e9, 0),
            Link(Port("o", 2), Port("o", 3), 1e9, 0),
        ),
    )
    # Not a matching: both ingress 1 and ingress 3 feed faceplate 2.
    with pytest.raises(ValueError, match="light from g0:0 runs in a loop through o:2"):
        trace(fabric, {"o": [CrossConnect(1, 5), CrossConnect(3, 5)]}, Port("g0", 0))


def test_parallel_circuits_are_an_edge_each() -> None:
    fabric = make_fabric([[2, 2]], [])
    pairs = [(Port("tor0", 1), Port("tor1", 2)), (Port("tor0", 2), Port("tor1", 1))]
    graph = electrical_graph(fabric, circuit_cross_connects(fabric, pairs))
    assert [(edge.out.number, edge.into.number) for edge in graph.leaving["tor0"]] == [
        (1, 2),
        (2, 1),
    ]


@given(st.data())
def test_circuits_come_out_as_electrical_edges_both_ways(data: st.DataObject) -> None:
    fabric = make_fabric([[3, 1], [1, 3]], [0, 0, 1, 1, 1], trunks=[(0, 1)])
    chosen = data.draw(circuits(fabric))
    graph = electrical_graph(fabric, circuit_cross_connects(fabric, chosen))
    edges = {(a.node, b.node) for a, b in chosen} | {
        (b.node, a.node) for a, b in chosen
    }
    assert joined(graph) == edges | {
        ("tor0", "tor1"),
        ("tor1", "tor0"),
    }
    into = {edge.out: edge.into for edge in graph.edges}
    for a, b in chosen:
        assert into[a] == b


@pytest.mark.parametrize(
    "text", ["", ":1", "tor0:", "tor0:x", "tor0:-1", "tor0:1:2", "tor0:²", "tor0: 1"]
)
def test_ports_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is not a port"):
        Port.parse(text)


def test_ports_are_written_as_they_are_read() -> None:
    assert Port.parse("tor0:3") == Port("tor0", 3)
    assert Port.parse("g0") == Port("g0", 0)
    assert str(Port.parse("tor0:3")) == "tor0:3"
