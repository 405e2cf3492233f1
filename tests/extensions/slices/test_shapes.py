"""Shapes, circuits and rings of slices: properties over random cubes, topologies and places."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.extensions.slices.cubes import Cubes
from ringlight.extensions.slices.light import moves
from ringlight.extensions.slices.pool import Pool
from ringlight.extensions.slices.shapes import (
    Shape,
    shape_of,
    sides_of,
    squarest,
    topology_of,
)
from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import circuit_cross_connects

CUBE = (4, 4, 4)
#: Sides of cubes, in GPUs.
SIDES = st.sampled_from([(2, 2, 2), (4, 4, 4), (2, 2, 1), (2, 1, 1), (2, 2), (4, 4)])


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """A box of at most eight cubes, twisted where that is possible and drawn."""
    cube = draw(SIDES)
    grid = sorted(
        draw(
            st.lists(st.integers(1, 2), min_size=len(cube), max_size=len(cube)).filter(
                lambda grid: math.prod(grid) <= 8
            )
        )
    )
    sides = tuple(a * b for a, b in zip(cube, grid, strict=True))
    twisted = draw(st.booleans())
    try:
        return shape_of(cube, topology_of(sides), twisted=twisted)
    except ValueError:
        return shape_of(cube, topology_of(sides))


@st.composite
def several_slices(draw: st.DrawFn) -> tuple[Cubes, list[tuple[Shape, list[str]]]]:
    """Slices of cubes of one kind, in any places and with some to spare."""
    first = draw(shapes())
    made = [first]
    for _ in range(draw(st.integers(0, 2))):
        other = draw(shapes())
        if other.cube == first.cube:
            made.append(other)
    total = sum(shape.cubes for shape in made) + draw(st.integers(0, 2))
    cubes = Cubes(first.cube, total)
    names = draw(st.permutations(cubes.names))
    slices = []
    for shape in made:
        slices.append((shape, list(names[: shape.cubes])))
        names = names[shape.cubes :]
    return cubes, slices


def graph(cubes: Cubes, slices: list[tuple[Shape, list[str]]]) -> nx.MultiGraph:
    """Routers with their electrical links and their circuits."""
    made = nx.MultiGraph()
    made.add_nodes_from(f"r{gpu[1:]}" for gpu in cubes.gpus)
    lit = itertools.chain.from_iterable(cubes.circuits(*each) for each in slices)
    for a, b in itertools.chain(cubes.cables(), lit):
        made.add_edge(a.node, b.node)
    return made


@given(several_slices())
def test_each_gpu_of_a_slice_has_two_links_in_each_dimension_that_is_longer_than_one(
    made: tuple[Cubes, list[tuple[Shape, list[str]]]],
) -> None:
    cubes, slices = made
    links = graph(cubes, slices)
    for shape, names in slices:
        degree = 2 * sum(side > 1 for side in shape.sides)
        routers = {f"r{gpu[1:]}" for name in names for gpu in cubes.gpus_of(name)}
        assert {links.degree(router) for router in routers} <= {degree}
        assert not any(a == b for a, b in links.edges(routers))
        # The slice is connected, and to nothing else.
        assert nx.node_connected_component(links, min(routers)) == routers


@given(several_slices())
def test_circuits_of_slices_are_disjoint_and_made_by_one_switch_each(
    made: tuple[Cubes, list[tuple[Shape, list[str]]]],
) -> None:
    cubes, slices = made
    ends = Counter(
        port for each in slices for pair in cubes.circuits(*each) for port in pair
    )
    assert set(ends.values()) <= {1}
    fibre = dict(cubes.fibres())
    inputs = Counter(fibre.values())
    assert set(inputs.values()) == {1}
    for each in slices:
        for a, b in cubes.circuits(*each):
            assert fibre[a].node == fibre[b].node
    assert Counter(port.node for port in fibre.values()) == cubes.switches


@given(shapes())
def test_a_ring_passes_each_gpu_once_and_only_links_of_the_slice(shape: Shape) -> None:
    cubes = Cubes(shape.cube, shape.cubes)
    links = nx.Graph(graph(cubes, [(shape, list(cubes.names))]))
    ring = cubes.ring(shape, cubes.names)
    assert sorted(ring) == sorted(cubes.gpus)
    if len(ring) > 1:
        pairs = zip(ring, (*ring[1:], ring[0]), strict=True)
        assert all(links.has_edge(f"r{a[1:]}", f"r{b[1:]}") for a, b in pairs)


@given(shapes(), st.data())
def test_a_swap_moves_no_circuit_but_those_of_the_two_cubes(
    shape: Shape, data: st.DataObject
) -> None:
    cubes = Cubes(shape.cube, shape.cubes + 2)
    pool = Pool(cubes)
    pool.take("red", shape, names := pool.chosen(shape))
    lost = data.draw(st.sampled_from(names))
    spare = pool.swap("red", lost)
    after = [spare if name == lost else name for name in names]
    lit = list(cubes.circuits(shape, names))
    planned = moves(cubes, lit, shape, after, (lost,))
    of_lost = {gpu[1:] for gpu in cubes.gpus_of(lost)}
    of_spare = {gpu[1:] for gpu in cubes.gpus_of(spare)}
    for pairs, gpus in ((planned.remove, of_lost), (planned.add, of_spare)):
        for a, b in pairs:
            assert {a[1:].split(":")[0], b[1:].split(":")[0]} & gpus
    kept = {tuple(map(str, pair)) for pair in lit} - set(planned.remove)
    requested = {tuple(map(str, pair)) for pair in cubes.circuits(shape, after)}
    assert kept | set(planned.add) == requested
    assert not moves(cubes, cubes.circuits(shape, after), shape, after)


@pytest.mark.parametrize(
    ("topology", "diameter"), [("4x4x8", 8), ("4x8x8", 10)], ids=["4x4x8", "4x8x8"]
)
def test_a_twist_shortens_paths(topology: str, diameter: int) -> None:
    def longest(twisted: bool) -> int:
        shape = shape_of(CUBE, topology, twisted=twisted)
        cubes = Cubes(CUBE, shape.cubes)
        return int(nx.diameter(nx.Graph(graph(cubes, [(shape, list(cubes.names))]))))

    assert longest(False) == diameter
    assert longest(True) == 6


def test_a_pod_of_tpu_v4_has_48_switches_of_128_ports() -> None:
    """Jouppi et al., ISCA 2023: 64 cubes of 4 x 4 x 4, 96 fibres each, and 48 optical circuit switches."""
    cubes = Cubes(CUBE, 64)
    assert len(cubes.gpus) == 4096
    assert len(cubes.switches) == 48
    assert set(cubes.switches.values()) == {128}
    assert len(list(cubes.fibres())) == 64 * 96


@pytest.mark.parametrize(
    ("topology", "twisted", "message"),
    [
        ("4x4", False, "it has 2 sides, and the cubes 4x4x4 have 3"),
        ("4x4x6", False, "6 is no multiple of 4"),
        ("8x4x4", False, "ascending order, 4x4x8"),
        ("4x4x4x4", False, "is no topology"),
        ("0x4x4", False, "a side is at least 1"),
        ("4x4x4", True, "only a torus whose sides are n and 2n"),
        ("4x8x16", True, "only a torus whose sides are n and 2n"),
    ],
)
def test_illegal_shapes_are_refused(topology: str, twisted: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shape_of(CUBE, topology, twisted=twisted)


@given(st.integers(1, 64))
def test_the_squarest_shape_has_the_cubes_and_is_a_topology(count: int) -> None:
    shape = squarest(CUBE, count)
    assert shape.cubes == count
    assert shape_of(CUBE, topology_of(shape.sides)) == shape
    assert sides_of(topology_of(shape.sides)) == shape.sides


@pytest.mark.parametrize(
    ("cubes", "message"),
    [
        (["c0"], "needs 2 partitions, and 1 are given"),
        (["c0", "c9"], "there is no partition c9; they are c0 to c3"),
        (["c0", "c0"], "partition c0 is given twice"),
        (["c0", "c2"], "partition c2 is used by slice blue"),
        (["c0", "c3"], "partition c3 is out of service"),
    ],
)
def test_cubes_that_a_slice_cannot_have_are_named(
    cubes: list[str], message: str
) -> None:
    pool = Pool(Cubes(CUBE, 4))
    pool.take("blue", pool.shape("4x4x4"), ["c2"])
    pool.out.add("c3")
    with pytest.raises(ValueError, match=message):
        pool.take("red", pool.shape("4x4x8"), cubes)
    assert pool.free == ["c0", "c1"]


def test_the_fabric_has_the_circuits_of_its_slices() -> None:
    cubes = {"cube": "2x2x1", "count": 4, "gpu": "tpu7x", "rate": "40 Gbit/s"}
    slices = {"red": {"topology": "2x2x2"}, "blue": {"topology": "2x2x1"}}
    spec = FabricSpec.model_validate({"cubes": {**cubes, "slices": slices}})
    fabric = build_fabric(spec)
    assert len(fabric.gpus) == 16
    lit = circuit_cross_connects(fabric, fabric.circuits)
    # Red: 2 + 2 circuits of x and y and 4 of z for each of two cubes; blue has none along z.
    assert sum(map(len, lit.values())) == 2 * (16 + 4)


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        (
            {"red": {"topology": "2x2x3"}},
            "slices.red: topology 2x2x3 needs 3 partitions; 2 are free",
        ),
        (
            {"red": {"topology": "2x3x1"}},
            "slices.red: topology 2x3x1: 3 is no multiple",
        ),
        ({"Red": {"topology": "2x2x1"}}, "Red"),
    ],
)
def test_slices_of_a_file_that_there_cannot_be_are_named(
    slices: dict[str, object], message: str
) -> None:
    cubes = {"cube": "2x2x1", "count": 2, "gpu": "a", "rate": "1 Gbit/s"}
    with pytest.raises(ValueError, match=message):
        FabricSpec.model_validate({"cubes": {**cubes, "slices": slices}})
