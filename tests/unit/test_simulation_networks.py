from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringlight.fabric.cost import RingJob, RingModel
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import PacketView, Router
from ringlight.fabric.steps import Step, frozen
from ringlight.fabric.topology import circuit_cross_connects, electrical_graph
from ringlight.fabric.trees import leaf_spine
from ringlight.testbed.simulation.maxmin import rates
from ringlight.testbed.simulation.networks import (
    PacketNetwork,
    scaled,
    without_link,
)
from tests.unit.fabrics import circuits, make_fabric, nodes_of, six_gpu_fabric


def one_step(pairs: list[tuple[int, int]]) -> Step:
    sources, destinations = (frozen([pair[side] for pair in pairs]) for side in (0, 1))
    return Step(
        sources,
        destinations,
        frozen([0] * len(pairs)),
        frozen([1] * len(pairs)),
        "reduce",
    )


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_packets_take_the_controllers_paths(data: st.DataObject) -> None:
    fabric = make_fabric(
        [[3, 3, 2], [2, 2, 2]],
        [0, 0, 1, 1, 0],
        copper_gpus=[0, 2],
        trunks=[(0, 1)],
        optical_trunk_ports=2,
    )
    lit = circuit_cross_connects(fabric, data.draw(circuits(fabric, trunks=True)))
    graph = electrical_graph(fabric, lit)
    router = Router(fabric, graph)
    network = PacketNetwork(fabric, lit)
    for source in fabric.gpus:
        for destination in fabric.gpus:
            if source == destination:
                continue
            said = None
            try:
                nodes = nodes_of(router.path(source, destination))
            except ValueError as error:
                said = str(error)
            if said is not None:
                with pytest.raises(ValueError) as ours:
                    network.path(source, destination)
                assert str(ours.value) == said
                continue
            keys = [network.key(link) for link in network.path(source, destination)]
            assert [key[1].node for key in keys] == nodes[1:]  # type: ignore[index]
            assert keys[0][0].node == source  # type: ignore[index]


def test_rates_are_those_of_the_cost_model() -> None:
    fabric = six_gpu_fabric()
    ranks = tuple(fabric.gpus)
    network = PacketNetwork(fabric)
    routes = network.routes(ranks, one_step([(i, (i + 1) % 6) for i in range(6)]))
    lit = circuit_cross_connects(fabric, fabric.circuits)
    expected = RingModel(PacketView(fabric, lit), [RingJob("a", ranks, 1.0)]).rates_bps(
        ["a"]
    )["a"]
    assert rates(routes.offsets, routes.links, network.capacity_bps) == pytest.approx(
        expected
    )


def test_a_share_is_left_for_headers() -> None:
    fabric = leaf_spine(1, 2, 10e9).fabric()
    assert PacketNetwork(fabric, share=0.95).capacity_bps == pytest.approx([9.5e9] * 4)
    with pytest.raises(ValueError, match=r"share is 1.5"):
        PacketNetwork(fabric, share=1.5)


def test_a_tree_is_oversubscribed_as_told() -> None:
    fabric = leaf_spine(4, 8, 10e9, oversubscription=4).fabric()
    network = PacketNetwork(fabric)
    crossing = one_step([(i, (i + 8) % 32) for i in range(32)])
    routes = network.routes(tuple(fabric.gpus), crossing)
    assert np.diff(routes.offsets).tolist() == [4] * 32
    assert rates(routes.offsets, routes.links, network.capacity_bps) == pytest.approx(
        [2.5e9] * 32
    )
    assert len(leaf_spine(1, 4, 1e9).fabric().packet_switches) == 1


def test_a_dark_gpu_and_a_link_without_capacity_are_named() -> None:
    fabric = six_gpu_fabric()
    dark = dataclasses.replace(fabric, circuits=fabric.circuits[1:])
    with pytest.raises(ValueError, match="no path from g0 to g1: g0 is dark"):
        PacketNetwork(dark).path("g0", "g1")
    with pytest.raises(ValueError, match="there is no GPU g9"):
        PacketNetwork(fabric).path("g0", "g9")
    nothing = dataclasses.replace(
        fabric,
        links=tuple(dataclasses.replace(link, rate_bps=0.0) for link in fabric.links),
    )
    with pytest.raises(
        ValueError, match=r"link g0:0 to tor0:1: its capacity is 0 bit/s"
    ):
        PacketNetwork(nothing)


def test_a_fabric_with_a_cut_fibre_and_a_scaled_one() -> None:
    fabric = leaf_spine(2, 2, 10e9).fabric()
    cut = PacketNetwork(without_link(fabric, Port("leaf0", 3)))
    with pytest.raises(ValueError, match="no path from g0 to g2"):
        cut.path("g0", "g2")
    assert len(cut.path("g0", "g1")) == 2
    with pytest.raises(ValueError, match="nothing is plugged into g0:4"):
        without_link(fabric, Port("g0", 4))
    assert PacketNetwork(scaled(fabric, 1000)).capacity_bps.max() == 20e6
