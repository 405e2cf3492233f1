"""Fat trees whose edge switches have fewer uplinks than half their ports."""

from __future__ import annotations

from ringlight.fabric.paths import most_paths
from ringlight.fabric.topology import circuit_cross_connects, electrical_graph
from ringlight.fabric.trees import fat_tree


def test_a_clos_network_of_648_gpus_has_three_uplinks_a_rack() -> None:
    clos = fat_tree(12, 10e9, gpus_per_edge=9, uplinks=3, oversubscription=3)
    assert (len(clos.gpus), len(clos.switches)) == (648, 72 + 36 + 18)
    assert {link.rate_bps for link in clos.links} == {10e9}
    assert max(clos.switches.values()) == 12


def test_the_paths_between_pods_are_uplinks_times_cores_of_an_aggregation_switch() -> (
    None
):
    fabric = fat_tree(4, 10e9, gpus_per_edge=2, uplinks=1).fabric()
    cross_connects = circuit_cross_connects(fabric, fabric.circuits)
    assert most_paths(fabric, electrical_graph(fabric, cross_connects)) == 2
