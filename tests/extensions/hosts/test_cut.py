"""Where fabrics are cut for several hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest

from ringlight.containers.image import ROOT
from ringlight.experiments.language.expand import load
from ringlight.extensions.hosts.cut import Cut, cut
from ringlight.fabric.topology import Fabric

SCENARIOS = ROOT / "scenarios"


@cache
def fabric(name: str) -> Fabric:
    return load(SCENARIOS / f"{name}.yaml").plans[0].setting.fabric


def host_of(made: Cut) -> Mapping[str, int]:
    return {name: host for host, names in enumerate(made.hosts) for name in names}


@pytest.mark.parametrize(
    ("name", "hosts"),
    [("disaggregation", 2), ("examples/fat_tree_4", 2), ("examples/fat_tree_4", 4)],
)
def test_every_node_is_on_one_host_and_gpus_are_with_their_switch(
    name: str, hosts: int
) -> None:
    found, made = fabric(name), cut(fabric(name), hosts)
    where = host_of(made)
    assert len(made.hosts) == hosts
    assert len(where) == sum(map(len, made.hosts))
    assert where.keys() == {
        *found.gpus,
        *found.packet_switches,
        *found.optical_switches,
    }
    pairs = [(a.node, b.node) for a, b in found.circuits] + [
        (link.a.node, link.b.node) for link in found.links
    ]
    for a, b in pairs:
        if {a, b} & found.gpus.keys() and {a, b} & found.packet_switches.keys():
            assert where[a] == where[b]
    gpus = [sum(name in found.gpus for name in names) for names in made.hosts]
    assert max(gpus) == min(gpus)


def test_each_fibre_that_crosses_has_a_number_and_no_other_has() -> None:
    found = fabric("disaggregation")
    made = cut(found, 2)
    where = host_of(made)
    crossing = [
        link for link in found.links if where[link.a.node] != where[link.b.node]
    ]
    assert [fibre.link for fibre in made.fibres] == crossing
    assert [fibre.number for fibre in made.fibres] == list(range(1, len(crossing) + 1))
    assert all(
        fibre.hosts == (where[fibre.link.a.node], where[fibre.link.b.node])
        for fibre in made.fibres
    )
    assert made.crossing_bps == {
        (0, 1): pytest.approx(sum(link.rate_bps for link in crossing))
    }


def test_a_fat_tree_is_cut_between_its_pods() -> None:
    """Each core switch reaches all four pods, so of its four fibres three cross; nothing less is possible."""
    made = cut(fabric("examples/fat_tree_4"), 4)
    pods = [
        {name[:2] for name in names if name.startswith("p")} for names in made.hosts
    ]
    assert sorted(map(sorted, pods)) == [["p0"], ["p1"], ["p2"], ["p3"]]
    assert len(made.fibres) == 12


def test_the_optical_switch_is_where_less_crosses() -> None:
    found = fabric("disaggregation")

    def crossing(ocs: int) -> float:
        where = {**dict.fromkeys(("tor1", "g3", "g4", "g5"), 1), "ocs0": ocs}
        ends = ((link.rate_bps, link.a.node, link.b.node) for link in found.links)
        return sum(rate for rate, a, b in ends if where.get(a, 0) != where.get(b, 0))

    assert cut(found, 2).crossing_bps[0, 1] == pytest.approx(
        min(crossing(0), crossing(1))
    )


def test_what_cannot_be_cut_says_why() -> None:
    with pytest.raises(
        ValueError,
        match="2 of its parts have GPUs and may be apart, too few for 3 hosts",
    ):
        cut(fabric("disaggregation"), 3)
    with pytest.raises(ValueError, match="nothing is plugged port by port"):
        cut(replace(fabric("disaggregation"), links=()), 2)
    with pytest.raises(ValueError, match="at least 1"):
        cut(fabric("disaggregation"), 0)
    assert cut(fabric("disaggregation"), 1).fibres == ()
