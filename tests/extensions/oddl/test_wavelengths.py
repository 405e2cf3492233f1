from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ringlight.controller.onic.reach import Reach
from ringlight.extensions.oddl.grid import Grid, lines, position, sockets
from ringlight.extensions.oddl.wavelengths import (
    LightUse,
    choose_nodes,
    colour_pairs,
    cross_connects,
    is_latin,
    light_use,
    wavelength_map,
    ways_for,
)
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import CrossConnect, check_matching
from ringlight.fabric.parts import OpticalSwitch, Port
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.steps import pairs_of
from ringlight.fabric.topology import (
    Fabric,
    circuit_cross_connects,
    electrical_graph,
    optical_neighbour,
    trace,
)
from tests.unit.fabrics import six_gpus


def grid_spec(rows: int, columns: int, **values: Any) -> dict[str, Any]:
    return {
        "rows": rows,
        "columns": columns,
        "gpu": "titan-v",
        "rate": "100 Gbit/s",
    } | values


def grid_fabric(rows: int, columns: int, **values: Any) -> tuple[Fabric, Grid]:
    fabric = build_fabric(
        FabricSpec.model_validate({"grids": {"n": grid_spec(rows, columns, **values)}})
    )
    return fabric, fabric.parts["grids"]["n"]


def arrivals(
    fabric: Fabric, lit: dict[str, frozenset[CrossConnect]]
) -> dict[tuple[Port, int], Port]:
    """Where light of each O-NIC port and colour comes out, followed fibre by fibre apart from fabric.grid."""
    found = {}
    for port, link in fabric.link_at.items():
        if port.node not in fabric.gpus:
            continue
        near = link.other(port)
        switch = fabric.optical_switches[near.node]
        for xc in lit.get(switch.name, ()):
            if xc.ingress == near.number and xc.wavelength is not None:
                far = Port(switch.name, xc.egress - switch.size)
                assert (port, xc.wavelength) not in found
                found[port, xc.wavelength] = fabric.link_at[far].other(far)
    return found


sides = st.integers(1, 7)


@settings(max_examples=40)
@given(sides, sides, st.integers(0, 3), st.data())
def test_light_of_a_job_arrives_where_the_map_says_and_nowhere_else(
    rows: int, columns: int, spare: int, data: st.DataObject
) -> None:
    assume(rows * columns > 1)
    fabric, grid = grid_fabric(rows, columns, wavelengths=max(rows, columns) + spare)
    job = data.draw(st.lists(st.sampled_from(grid.nodes), unique=True))
    ways = wavelength_map(grid, job)
    lit = cross_connects(grid, fabric, ways)
    expected = {
        (Port(a, way.port), way.wavelength): Port(b, way.port)
        for a, peers in ways.items()
        for b, way in peers.items()
    }
    # Isolation: no light leaves the job, and none of it is missing.
    assert arrivals(fabric, lit) == expected
    assert all(name in fabric.optical_switches and group for name, group in lit.items())
    for a in job:
        for b in job:
            same_line = (position(grid, a)[0] == position(grid, b)[0]) != (
                position(grid, a)[1] == position(grid, b)[1]
            )
            assert (b in ways[a]) == same_line


@settings(max_examples=40)
@given(sides, sides, st.integers(0, 3))
def test_the_map_of_a_whole_grid_is_a_latin_square(
    rows: int, columns: int, spare: int
) -> None:
    """Per wavelength a matching; from a port every colour leads to another; at a port each is unique."""
    assume(rows * columns > 1)
    fabric, grid = grid_fabric(rows, columns, wavelengths=max(rows, columns) + spare)
    lit = cross_connects(grid, fabric, wavelength_map(grid, grid.nodes))
    assert set(lit) == set(fabric.optical_switches)
    for name, group in lit.items():
        size = fabric.optical_switches[name].size
        assert check_matching(group) == group
        assert len(group) == size * (size - 1)
        assert {xc.wavelength for xc in group} <= set(range(1, grid.wavelengths))
        assert len({(xc.ingress, xc.wavelength) for xc in group}) == len(group)
        assert len({(xc.egress, xc.wavelength) for xc in group}) == len(group)


def test_a_two_by_two_grid() -> None:
    fabric, grid = grid_fabric(2, 2)
    assert wavelength_map(grid, grid.nodes)["n0"] == {
        "n1": Reach(0, 1),
        "n2": Reach(1, 1),
    }
    assert cross_connects(grid, fabric, wavelength_map(grid, ("n0", "n1"))) == {
        "n-r0": frozenset({CrossConnect(1, 4, 1), CrossConnect(2, 3, 1)})
    }
    assert cross_connects(grid, fabric, wavelength_map(grid, ("n0", "n3"))) == {}
    assert position(grid, "n2") == (1, 0)


def test_nodes_that_are_not_there_are_named() -> None:
    _, grid = grid_fabric(2, 2)
    with pytest.raises(ValueError, match="grid n has no node g0"):
        sockets(grid, "g0")
    with pytest.raises(ValueError, match="grid n has no node n4"):
        wavelength_map(grid, ("n0", "n4"))
    with pytest.raises(ValueError, match="node n1 is named twice"):
        wavelength_map(grid, ("n0", "n1", "n1"))


@pytest.mark.parametrize(
    ("nodes", "count", "radix"), [(4, 4, 2), (16, 8, 4), (1024, 64, 32)]
)
def test_the_sizes_of_the_paper(nodes: int, count: int, radix: int) -> None:
    """Li et al., OFC 2024: 64 switches of 32 ports for 1,024 nodes."""
    fabric, grid = grid_fabric(radix, radix)
    assert len(grid.nodes) == len(fabric.gpus) == nodes
    assert len(fabric.optical_switches) == count
    assert {(s.size, s.wavelengths) for s in fabric.optical_switches.values()} == {
        (radix, radix)
    }
    assert len(fabric.link_at) == 4 * nodes


# Choosing nodes


@settings(max_examples=150)
@given(sides, sides, st.data())
def test_chosen_nodes_are_a_free_rectangle_or_there_is_none(
    rows: int, columns: int, data: st.DataObject
) -> None:
    assume(rows * columns > 1)
    _, grid = grid_fabric(rows, columns)
    free = data.draw(st.sets(st.sampled_from(grid.nodes), min_size=rows * columns // 2))
    count = data.draw(st.integers(1, rows * columns))
    rectangles = {
        (height, width, top, left): tuple(
            grid.nodes[(top + r) * columns + left + c]
            for r in range(height)
            for c in range(width)
        )
        for height in range(1, rows + 1)
        for width in range(1, columns + 1)
        if height * width == count
        for top in range(rows - height + 1)
        for left in range(columns - width + 1)
    }
    possible = {
        where: nodes for where, nodes in rectangles.items() if free.issuperset(nodes)
    }
    if not possible:
        with pytest.raises(ValueError, match=rf"\b{count}\b"):
            choose_nodes(grid, free, count)
        return
    chosen = choose_nodes(grid, free, count)
    assert chosen in possible.values()
    squarest = min(abs(height - width) for height, width, *_ in possible)
    assert chosen in {
        nodes for (h, w, *_), nodes in possible.items() if abs(h - w) == squarest
    }


def test_the_squarest_free_rectangle_is_taken() -> None:
    _, grid = grid_fabric(4, 4)
    assert choose_nodes(grid, grid.nodes, 4) == ("n0", "n1", "n4", "n5")
    assert choose_nodes(grid, set(grid.nodes) - {"n5"}, 4) == ("n2", "n3", "n6", "n7")
    middle = set(grid.nodes) - {"n5", "n6", "n9", "n10"}
    assert choose_nodes(grid, middle, 4) == ("n0", "n1", "n2", "n3")
    assert choose_nodes(grid, grid.nodes, 6) == ("n0", "n1", "n2", "n4", "n5", "n6")
    assert choose_nodes(grid, ["n7"], 1) == ("n7",)


def test_what_does_not_fit_is_named() -> None:
    _, grid = grid_fabric(4, 4)
    with pytest.raises(ValueError, match="at least one node, not 0"):
        choose_nodes(grid, grid.nodes, 0)
    with pytest.raises(ValueError, match="grid n has 1 free nodes of 16, not 2"):
        choose_nodes(grid, ["n3", "g0"], 2)
    with pytest.raises(
        ValueError, match="5 nodes do not make a rectangle in grid n of 4 × 4"
    ):
        choose_nodes(grid, grid.nodes, 5)
    with pytest.raises(
        ValueError,
        match=r"no rectangle of 4 free nodes \(2 × 2, 1 × 4, 4 × 1\) is left",
    ):
        choose_nodes(grid, ["n0", "n5", "n10", "n15"], 4)


# Schedules


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 4), (4, 4), (8, 4), (8, 8)])
def test_halving_doubling_partners_are_one_hop_apart(rows: int, columns: int) -> None:
    _, grid = grid_fabric(rows, columns)
    ways_for(grid, grid.nodes, steps_named("halving-doubling", len(grid.nodes)))
    nodes = choose_nodes(grid, set(grid.nodes) - {"n0"}, len(grid.nodes) // 4)
    ways_for(grid, nodes, steps_named("halving-doubling", len(nodes)))


def test_ranks_that_are_not_one_hop_apart_are_named() -> None:
    _, grid = grid_fabric(2, 2)
    with pytest.raises(
        ValueError, match=r"ranks 1 and 2 \(n1, n2\) share neither row nor column"
    ):
        ways_for(grid, grid.nodes, steps_named("ring", 4))
    ways_for(grid, ("n0", "n1", "n3", "n2"), steps_named("ring", 4))
    with pytest.raises(ValueError, match="3 nodes for a schedule of 4 ranks"):
        ways_for(grid, grid.nodes[:3], steps_named("ring", 4))


# Fewer wavelengths than ports


@given(st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from("abcdefg"))))
def test_pairs_are_coloured_with_as_few_colours_as_a_node_has_pairs(
    pairs: list[tuple[str, str]],
) -> None:
    colour = colour_pairs(pairs)
    assert colour.keys() == set(pairs)
    for end in (0, 1):
        used = [(pair[end], k) for pair, k in colour.items()]
        assert len(set(used)) == len(used)
    most = max(
        (
            sum(pair[end] == node for pair in colour)
            for end in (0, 1)
            for node in "abcdefg"
        ),
        default=0,
    )
    assert set(colour.values()) <= set(range(most))


def test_the_prototype_of_the_paper() -> None:
    """Li et al., OFC 2024: one WSS, four nodes with one port, two wavelengths, halving-doubling."""
    fabric, grid = grid_fabric(1, 4, wavelengths=2)
    assert list(fabric.optical_switches) == ["n-r0"]
    assert lines(grid) == ("row",)
    assert {onic.ports for onic in fabric.onics.values()} == {1}
    steps = steps_named("halving-doubling", 4)
    ways = ways_for(grid, grid.nodes, steps)
    # One wavelength for the partner i XOR 1, the other for i XOR 2.
    assert ways == {
        f"n{i}": {f"n{i ^ 1}": Reach(0, 0), f"n{i ^ 2}": Reach(0, 1)} for i in range(4)
    }
    lit = cross_connects(grid, fabric, ways)
    assert lit["n-r0"] == {
        CrossConnect(i + 1, 4 + 1 + (i ^ partner), k)
        for i in range(4)
        for k, partner in ((0, 1), (1, 2))
    }
    # Every receiver hears two nodes; each laser goes to the second wavelength and back.
    assert light_use(ways, grid.nodes, steps) == LightUse(4, 4, 2, 4, 4, 8)


@settings(max_examples=40)
@given(st.sampled_from([(1, 8), (8, 1), (4, 4), (2, 8)]), st.integers(0, 3), st.data())
def test_light_set_for_a_collective_leads_where_the_map_says_and_nowhere_else(
    shape: tuple[int, int], spare: int, data: st.DataObject
) -> None:
    rows, columns = shape
    needed = max(rows, columns).bit_length() - 1
    fabric, grid = grid_fabric(
        rows, columns, wavelengths=min(max(rows, columns) - 1, needed + spare)
    )
    assert not is_latin(grid)
    nodes = choose_nodes(grid, grid.nodes, data.draw(st.sampled_from([2, 4, 8])))
    steps = steps_named("halving-doubling", len(nodes))
    ways = ways_for(grid, nodes, steps)
    assert {(a, b) for a, peers in ways.items() for b in peers} == set(
        pairs_of(nodes, steps)
    )
    assert arrivals(fabric, cross_connects(grid, fabric, ways)) == {
        (Port(a, way.port), way.wavelength): Port(b, way.port)
        for a, peers in ways.items()
        for b, way in peers.items()
    }


@settings(max_examples=40)
@given(st.sampled_from([(1, 8, 3), (4, 4, 2), (4, 4, 4), (2, 8, 8)]), st.data())
def test_no_light_of_one_job_reaches_a_node_of_another(
    shape: tuple[int, int, int], data: st.DataObject
) -> None:
    """Rectangles of lines, interleaved at will: all jobs' light at once."""
    rows, columns, wavelengths = shape
    fabric, grid = grid_fabric(rows, columns, wavelengths=wavelengths)
    order = data.draw(st.permutations(range(columns)))
    jobs = []
    for chosen in (order[: columns // 2], order[columns // 2 :]):
        nodes = [
            grid.nodes[row * columns + column]
            for row in range(rows)
            for column in sorted(chosen)
        ]
        jobs.append(
            (nodes, ways_for(grid, nodes, steps_named("halving-doubling", len(nodes))))
        )
    lit: dict[str, frozenset[CrossConnect]] = {}
    for _, ways in jobs:
        for name, group in cross_connects(grid, fabric, ways).items():
            lit[name] = lit.get(name, frozenset()) | group
    for group in lit.values():
        check_matching(group)
    reached = arrivals(fabric, lit)
    assert len(reached) == sum(
        len(peers) for _, ways in jobs for peers in ways.values()
    )
    for (start, _), end in reached.items():
        (home,) = [nodes for nodes, _ in jobs if start.node in nodes]
        assert end.node in home


def test_wavelengths_that_are_too_few_are_named() -> None:
    _, grid = grid_fabric(1, 8, wavelengths=2)
    with pytest.raises(
        ValueError, match=r"needs 3 wavelengths in row 0, one for each .*; there are 2"
    ):
        ways_for(grid, grid.nodes, steps_named("halving-doubling", 8))
    # A ring sends one way only, but an agent grants light only to those that its own map has.
    ring = ways_for(grid, grid.nodes, steps_named("ring", 8))
    assert set(ring["n3"]) == {"n2", "n4"}
    with pytest.raises(
        ValueError, match="its light is set for a collective, and none is given"
    ):
        wavelength_map(grid, grid.nodes)
    with pytest.raises(ValueError, match="node n7 is not one of the job's"):
        wavelength_map(grid, grid.nodes[:2], [("n0", "n7")])
    _, small = grid_fabric(2, 4, wavelengths=2)
    with pytest.raises(ValueError, match="n0 and n5 share neither row nor column"):
        wavelength_map(small, small.nodes, [("n0", "n5")])


# What a collective asks of lasers and receivers


@pytest.mark.parametrize(
    ("shape", "collective", "use"),
    [
        # On 2 × 2 each of the two partners has a port of its own: nothing is shared, nothing retunes.
        ((2, 2), "halving-doubling", LightUse(8, 0, 1, 8, 0, 0)),
        ((1, 2), "halving-doubling", LightUse(2, 0, 1, 2, 0, 0)),
        # Two partners in each row and each column: there and back, at every port.
        ((4, 4), "halving-doubling", LightUse(32, 32, 2, 32, 32, 64)),
        ((1, 8), "halving-doubling", LightUse(8, 8, 3, 8, 8, 32)),
        ((1, 4), "ring", LightUse(4, 0, 1, 4, 0, 0)),
    ],
)
def test_what_a_collective_asks_of_lasers_and_receivers(
    shape: tuple[int, int], collective: str, use: LightUse
) -> None:
    _, grid = grid_fabric(*shape)
    steps = steps_named(collective, len(grid.nodes))
    found = light_use(ways_for(grid, grid.nodes, steps), grid.nodes, steps)
    assert found == use
    assert found.collisions_possible is (use.contended > 0)
    assert ("impossible by construction" in str(found)) is (use.contended == 0)
    twice = found + found
    assert (twice.receivers, twice.senders, twice.retunes) == (
        2 * use.receivers,
        use.senders,
        2 * use.retunes,
    )


# The fabric


def test_a_grid_becomes_gpus_switches_and_fibres() -> None:
    fabric, grid = grid_fabric(2, 3, wavelengths=4, tuning="20 ns")
    assert list(fabric.gpus) == list(grid.nodes) == ["n0", "n1", "n2", "n3", "n4", "n5"]
    assert (fabric.gpus["n5"].ip, fabric.gpus["n5"].model) == ("10.82.0.7", "titan-v")
    assert fabric.optical_switches["n-r1"] == OpticalSwitch(
        "n-r1", 3, "scpi", "lcos", 4
    )
    assert fabric.optical_switches["n-c2"].size == 2
    assert fabric.onics["n4"].ports == 2
    assert fabric.onics["n4"].tuning_s == pytest.approx(20e-9)
    # n4 is in row 1 and column 1.
    assert fabric.link_at[Port("n4", 0)].other(Port("n4", 0)) == Port("n-r1", 2)
    assert fabric.link_at[Port("n4", 1)].other(Port("n4", 1)) == Port("n-c1", 2)
    assert {link.rate_bps for link in fabric.links} == {100e9}


def test_a_grid_may_stand_beside_the_rest() -> None:
    raw = six_gpus() | {"grids": {"n": grid_spec(2, 2)}}
    fabric = build_fabric(FabricSpec.model_validate(raw))
    assert list(fabric.gpus)[-5:] == ["g5", "n0", "n1", "n2", "n3"]
    assert len({gpu.ip for gpu in fabric.gpus.values()}) == 10
    assert set(fabric.onics) == {"n0", "n1", "n2", "n3"}


def test_circuits_and_packets_do_not_see_a_wss() -> None:
    raw = six_gpus() | {"grids": {"n": grid_spec(2, 2)}}
    fabric = build_fabric(FabricSpec.model_validate(raw))
    lit = {
        **circuit_cross_connects(fabric, fabric.circuits),
        **cross_connects(
            fabric.parts["grids"]["n"],
            fabric,
            wavelength_map(
                fabric.parts["grids"]["n"], fabric.parts["grids"]["n"].nodes
            ),
        ),
    }
    assert set(circuit_cross_connects(fabric, fabric.circuits)) == {"ocs0"}
    assert trace(fabric, lit, Port("n0", 0)) == (Port("n0", 0), Port("n-r0", 1))
    assert optical_neighbour(fabric, Port("n0", 0)) is None
    assert optical_neighbour(fabric, Port("g0", 0)) == Port("ocs0", 1)
    graph = electrical_graph(fabric, lit)
    touched = [port.node for edge in graph.edges for port in (edge.out, edge.into)]
    assert (touched.count("n0"), touched.count("g0")) == (0, 2)
    with pytest.raises(ValueError, match="no optical switch joins n0:0 and n1:0"):
        circuit_cross_connects(fabric, [(Port("n0", 0), Port("n1", 0))])


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({"grids": {"n": grid_spec(2, 4, wavelengths=0)}}, r"grids\.n\.wavelengths"),
        ({"grids": {"n": grid_spec(0, 4)}}, r"grids\.n\.rows"),
        ({"grids": {"n": grid_spec(1, 1)}}, "a grid needs at least 2 nodes"),
        (
            {"grids": {"n": grid_spec(2, 2, wss={"profile": "magic"})}},
            r"grids\.n\.wss\.profile",
        ),
        ({"grids": {"n": grid_spec(2, 2, colour="red")}}, r"grids\.n\.colour"),
        ({"grids": {"n": grid_spec(2, 2), "n1": grid_spec(2, 6)}, "servers": {}}, None),
        (
            {"grids": {"n": grid_spec(4, 4), "n1": grid_spec(2, 2)}},
            r"grids\.n1: n-s10 has GPU n10 too",
        ),
        (
            {"grids": {"n": grid_spec(2, 2)}, "servers": {"s": {"gpus": {"n0": "m"}}}},
            r"grids\.n: s has GPU n0 too",
        ),
        (
            {
                "grids": {"n": grid_spec(2, 2)},
                "optical_switches": {"n-r0": {"size": 2}},
            },
            r"the name n-r0 is used by two nodes",
        ),
        (
            {
                "grids": {"n": grid_spec(2, 2)},
                "packet_switches": {"tor0": {"ports": 1}},
                "links": [{"ends": ["n0:1", "tor0:1"], "rate": "1 Gbit/s"}],
            },
            r"links\[0\]: port n0:1 is already plugged in grids\.n",
        ),
        ({}, "servers is missing; only a fabric with one of "),
        (
            {"servers": {"s": {"gpus": {"g0": "m"}}}, "links": []},
            "packet_switches is missing",
        ),
        (
            {
                "servers": {"s": {"gpus": {"g0": "m"}}},
                "packet_switches": {"t": {"ports": 1}},
            },
            "links is missing",
        ),
    ],
)
def test_a_bad_grid_is_named(raw: dict[str, Any], named: str | None) -> None:
    if named is None:
        build_fabric(FabricSpec.model_validate(raw))
        return
    with pytest.raises(ValueError, match=named):
        build_fabric(FabricSpec.model_validate(raw))
