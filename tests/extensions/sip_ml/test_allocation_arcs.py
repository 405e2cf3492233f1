"""Lightpaths of a ring of wavelengths for a demand: plans that are true, and how near the best they are."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.sip_ml.allocation.arcs import (
    ArcPlan,
    Decisions,
    Divisions,
    allocate,
)
from ringlight.extensions.wrht import wdm
from tests.extensions.sip_ml.colour_bound import colour_bound
from tests.extensions.sip_ml.ring_program import highs_ring, load_bound

Demand = npt.NDArray[np.float64]


@st.composite
def demands(draw: st.DrawFn, most_nodes: int = 9) -> Demand:
    """Small rings, some of whose pairs send nothing and others as much as each other."""
    nodes = draw(st.integers(2, most_nodes))
    values = st.sampled_from([0.0, 0.0, 1e-3, 1.0, 1.0, 2.5, 7.0]) | st.floats(0.01, 10)
    matrix = np.array(
        draw(st.lists(values, min_size=nodes**2, max_size=nodes**2))
    ).reshape(nodes, nodes)
    np.fill_diagonal(matrix, 0.0)
    return matrix


def random_demand(random: np.random.Generator, nodes: int, density: float) -> Demand:
    matrix = random.uniform(0.05, 1.0, (nodes, nodes)) * (
        random.random((nodes, nodes)) < density
    )
    np.fill_diagonal(matrix, 0.0)
    matrix[0, 1] = 0.5
    return matrix


def z_of(counts: npt.NDArray[np.int64], demand: Demand) -> float:
    sends = demand > 0
    return (
        float((counts[sends] / (demand[sends] / demand.max())).min())
        if sends.any()
        else np.inf
    )


def taken(plan: ArcPlan) -> npt.NDArray[np.int64]:
    """Lightpaths on each colour of each segment [2, nodes, wavelengths], counted one by one."""
    found = np.zeros((2, plan.nodes, plan.wavelengths), dtype=np.int64)
    rows = zip(
        plan.sources, plan.destinations, plan.clockwise, plan.colours, strict=True
    )
    for source, destination, clockwise, colour in rows:
        fibre, start, end = (
            (0, source, destination) if clockwise else (1, destination, source)
        )
        for along in range((end - start) % plan.nodes):
            found[fibre, (start + along) % plan.nodes, colour] += 1
    return found


def check_plan(plan: ArcPlan, demand: Demand, wavelengths: int) -> None:
    """Everything that a plan says of itself, and that nothing is left over that somebody could have."""
    nodes = len(demand)
    wdm.check_wavelengths(plan.step(), nodes, wavelengths)
    # That takes two lightpaths of a pair on one colour for one.
    assert taken(plan).max(initial=0) <= 1
    counts = plan.counts()
    assert counts.sum() == len(plan.sources)
    assert not counts[demand == 0].any()
    assert plan.z <= z_of(counts, demand) + 1e-12
    assert plan.z <= plan.bound * (1 + 1e-9)
    free = taken(plan) == 0
    for a, b in zip(*np.nonzero(demand), strict=True):
        for fibre, start, end in ((0, a, b), (1, b, a)):
            way = (start + np.arange((end - start) % nodes)) % nodes
            assert not free[fibre, way].all(axis=0).any(), (
                f"{a} to {b} could have one more"
            )


@settings(max_examples=80, deadline=None)
@given(demands(), st.integers(1, 12))
def test_a_plan_is_what_it_says(demand: Demand, wavelengths: int) -> None:
    check_plan(allocate(demand, wavelengths), demand, wavelengths)


@pytest.mark.parametrize(("nodes", "wavelengths"), [(16, 70), (33, 70)])
def test_a_plan_of_a_larger_ring_is_what_it_says(nodes: int, wavelengths: int) -> None:
    demand = random_demand(np.random.default_rng(nodes), nodes, 0.3)
    check_plan(allocate(demand, wavelengths), demand, wavelengths)


# Against other ways to the same figure


def best_level(fits: Any, demand: Demand, wavelengths: int) -> float:
    """The greatest z whose numbers of lightpaths fit, tried one by one from below."""
    shares = [float(value) for value in demand[demand > 0] / demand.max()]
    steps = sorted(
        {k / share for share in shares for k in range(1, 2 * wavelengths + 1)}
    )
    best = 0.0
    for level in steps:
        if not fits([int(np.ceil(level * share - 1e-9)) for share in shares]):
            break
        best = level
    return best


def brute_load(demand: Demand, wavelengths: int) -> float:
    """The program's optimum, up to 3 wavelengths: every number of clockwise ones of every pair is tried."""
    nodes = len(demand)
    # Four bits for each segment of either fibre; the highest is set when the load is too great.
    empty, full = (
        sum(value << 4 * k for k in range(2 * nodes)) for value in (7 - wavelengths, 8)
    )
    ways = []
    for a, b in zip(*np.nonzero(demand), strict=True):
        on = [(segment - int(a)) % nodes < (b - a) % nodes for segment in range(nodes)]
        clockwise = sum(1 << 4 * k for k in range(nodes) if on[k])
        ways.append(
            (clockwise, sum(1 << 4 * (nodes + k) for k in range(nodes) if not on[k]))
        )

    def fits(numbers: Sequence[int]) -> bool:
        reached = {empty}
        for number, (one, other) in zip(numbers, ways, strict=True):
            more = [k * one + (number - k) * other for k in range(number + 1)]
            reached = {
                load + way
                for load in reached
                for way in more
                if not (load + way) & full
            }
        return bool(reached)

    return best_level(fits, demand, wavelengths)


def brute_colours(demand: Demand, wavelengths: int) -> float:
    """The best z of a plan with colours: every set of colours of every pair is tried."""
    nodes = len(demand)
    # A place is a segment of a fibre on a colour, one bit each.
    places: list[list[int]] = []
    for a, b in zip(*np.nonzero(demand), strict=True):
        both = []
        for fibre, start, end in ((0, a, b), (1, b, a)):
            segments = [(start + k) % nodes for k in range((end - start) % nodes)]
            for colour in range(wavelengths):
                both.append(
                    sum(
                        1 << int((fibre * nodes + s) * wavelengths + colour)
                        for s in segments
                    )
                )
        places.append(both)

    def fits(numbers: Sequence[int]) -> bool:
        reached = {0}
        for number, own in zip(numbers, places, strict=True):
            ways = [sum(chosen) for chosen in itertools.combinations(own, number)]
            reached = {full | way for full in reached for way in ways if not full & way}
        return bool(reached)

    return best_level(fits, demand, wavelengths)


def test_the_load_bound_is_the_programs_optimum() -> None:
    random = np.random.default_rng(11)
    for _ in range(200):
        nodes, wavelengths = int(random.integers(2, 6)), int(random.integers(1, 4))
        demand = random_demand(random, nodes, 0.4)
        best = brute_load(demand, wavelengths)
        assert load_bound(demand, wavelengths) == pytest.approx(best, rel=1e-6), demand
        plan = allocate(demand, wavelengths)
        assert plan.z <= best * (1 + 1e-9)
        assert best <= plan.bound * (1 + 1e-9)


def test_highs_finds_the_programs_optimum() -> None:
    random = np.random.default_rng(12)
    for _ in range(200):
        nodes, wavelengths = int(random.integers(2, 6)), int(random.integers(1, 4))
        demand = random_demand(random, nodes, 0.4)
        found = highs_ring(demand, wavelengths, 10.0)
        assert found.z == pytest.approx(brute_load(demand, wavelengths), rel=1e-6)
        assert found.bound == pytest.approx(found.z, rel=1e-4)
        assert found.counts.shape == (2, 1, nodes, nodes)
        assert z_of(found.counts.sum(axis=(0, 1)), demand) == pytest.approx(found.z)


def test_highs_gives_colours_when_each_ring_is_one() -> None:
    random = np.random.default_rng(13)
    for _ in range(15):
        demand = random_demand(random, int(random.integers(3, 5)), 0.5)
        best = brute_colours(demand, 2)
        assert highs_ring(demand, 2, 10.0, rings=2).z == pytest.approx(best, rel=1e-6)
        assert allocate(demand, 2).z <= best * (1 + 1e-9)


def test_nothing_that_is_coloured_exceeds_the_bound_of_colours() -> None:
    random = np.random.default_rng(15)
    reached = 0
    for _ in range(40):
        demand = random_demand(random, 4, 0.6)
        best, bound = brute_colours(demand, 2), colour_bound(demand, 2)
        assert best * (1 - 1e-9) <= bound <= load_bound(demand, 2) * (1 + 1e-9)
        reached += bound == pytest.approx(best)
    assert reached >= 30, "parts of colours are more than whole ones now and then only"


def test_long_ways_cost_colours_that_the_load_does_not_see() -> None:
    # Each of three nodes sends to the next but one: 2 segments clockwise, or 1 the other way round.
    demand = np.roll(np.eye(3), 2, axis=1)
    # On two colours the load has room for three lightpaths clockwise, but no two share a colour.
    assert load_bound(demand, 2) == 3.0
    assert colour_bound(demand, 2) == brute_colours(demand, 2) == 2.0
    assert allocate(demand, 2).z == 2.0
    assert colour_bound(demand, 2, least=2.5) == 2.5, "what is known is not looked for"
    assert colour_bound(np.zeros((3, 3)), 2) == np.inf


@pytest.mark.parametrize("nodes", [12, 16])
def test_traffic_one_way_on_small_rings_comes_near_what_colours_allow(
    nodes: int,
) -> None:
    hops = (np.arange(nodes) - np.arange(nodes)[:, None]) % nodes
    demand = np.random.default_rng(0).uniform(0.05, 1.0, (nodes, nodes)) * (
        (hops > 0) & (hops <= nodes // 2)
    )
    plan = allocate(demand, 5 * nodes)
    bound = colour_bound(demand, 5 * nodes, least=plan.z)
    assert bound < 0.97 * load_bound(demand, 5 * nodes)
    assert plan.z >= 0.9 * bound


def test_the_search_comes_near_the_best_with_colours() -> None:
    random = np.random.default_rng(14)
    shares = []
    for _ in range(25):
        demand = random_demand(random, 4, 0.5)
        best = brute_colours(demand, 3)
        if best:
            shares.append(allocate(demand, 3).z / best)
    assert statistics.median(shares) == 1.0
    assert min(shares) >= 0.7, "of few wavelengths one more or less is much"


@pytest.mark.parametrize(("nodes", "wavelengths"), [(8, 40), (16, 80)])
def test_the_search_comes_near_the_load_bound(nodes: int, wavelengths: int) -> None:
    random = np.random.default_rng(nodes)
    gaps = []
    for density in (0.3, 0.6, 1.0) * (4 if nodes == 8 else 1):
        plan = allocate(random_demand(random, nodes, density), wavelengths)
        gaps.append(1 - plan.z / plan.bound)
    assert statistics.median(gaps) <= 0.02
    assert max(gaps) <= 0.10


def test_traffic_that_goes_one_way_uses_the_other_fibre_too() -> None:
    nodes = 32
    ahead = (np.arange(nodes) - np.arange(nodes)[:, None]) % nodes
    demand = np.random.default_rng(0).uniform(0.05, 1.0, (nodes, nodes)) * (
        (ahead > 0) & (ahead <= 8)
    )
    plan = allocate(demand, 160)
    assert plan.z >= 1.3 * load_bound(demand, 160, shorter_way=True)
    assert (~plan.clockwise).any()


def test_all_to_all_of_five_needs_three_wavelengths_and_finds_them() -> None:
    assert allocate(np.ones((5, 5)) - np.eye(5), 3).z == 1.0


# Large rings


def windowed(nodes: int, window: int, random: np.random.Generator) -> Demand:
    """A placed job's traffic: neighbours up to ``window`` away either way, and the one 8 further on."""
    hops = (np.arange(nodes) - np.arange(nodes)[:, None]) % nodes
    near = (hops > 0) & (np.minimum(hops, nodes - hops) <= window)
    return near * random.uniform(0.05, 1.0, (nodes, nodes)) + (hops == 8)


def test_a_large_ring_reaches_what_the_load_of_the_shorter_ways_allows() -> None:
    demand = windowed(256, 8, np.random.default_rng(2))
    plan = allocate(demand, 80)
    wdm.check_wavelengths(plan.step(), 256, 80)
    assert (
        z_of(plan.counts(), demand)
        >= plan.z
        >= 0.98 * load_bound(demand, 80, shorter_way=True)
    )


def test_a_narrow_place_of_a_large_ring_is_avoided_the_other_way_round() -> None:
    random = np.random.default_rng(5)
    demand = windowed(256, 8, random) * (random.random((256, 256)) < 0.3)
    plan = allocate(demand, 80)
    wdm.check_wavelengths(plan.step(), 256, 80)
    assert plan.z > 1.01 * load_bound(demand, 80, shorter_way=True)


def test_a_demand_that_repeats_has_a_plan_that_does() -> None:
    random = np.random.default_rng(3)
    job = random_demand(random, 8, 0.5)
    demand = np.kron(np.eye(24), job)
    here = np.arange(192)
    demand[here, (here + 8) % 192] += 1.0
    plan = allocate(demand, 40)
    check_plan_of_a_part(plan, demand)
    assert plan.z >= 0.98 * load_bound(demand, 40, shorter_way=True)
    # One replica more of something: no part of the ring is like the next.
    demand[5, 9] += 0.25
    other = allocate(demand, 40)
    wdm.check_wavelengths(other.step(), 192, 40)
    assert (other.counts() != np.roll(other.counts(), (8, 8), (0, 1))).any()


def check_plan_of_a_part(plan: ArcPlan, demand: Demand) -> None:
    wdm.check_wavelengths(plan.step(), plan.nodes, plan.wavelengths)
    assert taken(plan).max() == 1
    assert z_of(plan.counts(), demand) >= plan.z
    part = next(
        p
        for p in range(8, plan.nodes)
        if (plan.counts() == np.roll(plan.counts(), (p, p), (0, 1))).all()
    )
    assert part < plan.nodes


# Decisions


def test_a_demand_that_is_known_up_to_a_factor_has_the_same_plan() -> None:
    random = np.random.default_rng(4)
    first, second = random_demand(random, 8, 0.6), random_demand(random, 8, 0.6)
    decisions = Decisions(20, kept=1)
    plan = decisions.decide(first)
    assert decisions.decide(first * 3e7) is plan
    assert decisions.decide(first.T) is not plan
    assert decisions.decide(second).z == allocate(second, 20).z
    again = decisions.decide(first)
    assert again is not plan, "more than one was kept"
    assert (again.counts() == plan.counts()).all()


def of_pairs(
    demand: Demand, wavelengths: int, asked: Demand | None = None
) -> npt.NDArray[np.int64]:
    """Lightpaths [nodes, nodes] of the pairs of ``demand``, in no order, for what is ``asked``."""
    sources, destinations = np.nonzero(demand.T)[::-1]
    divisions = Divisions(len(demand), sources, destinations, wavelengths)
    found = np.zeros(demand.shape, dtype=np.int64)
    found[sources, destinations] = divisions.counts(
        (demand if asked is None else asked)[sources, destinations]
    )
    return found


@settings(max_examples=40, deadline=None)
@given(demands(), st.integers(1, 12), st.randoms(use_true_random=False))
def test_divisions_are_those_of_plans(
    demand: Demand, wavelengths: int, random: Any
) -> None:
    asked = demand * [[random.choice((0.0, 1.0, 2.0)) for _ in demand] for _ in demand]
    wanted = allocate(asked, wavelengths).counts()
    assert (of_pairs(demand, wavelengths, asked) == wanted).all()


def test_divisions_of_a_ring_that_repeats_are_those_of_plans() -> None:
    random = np.random.default_rng(6)
    for seed in range(4):
        demand = np.kron(np.eye(24), random_demand(np.random.default_rng(seed), 8, 0.5))
        here = np.arange(192)
        demand[here, (here + 8) % 192] += random.uniform(0.5, 2.0)
        assert (of_pairs(demand, 40) == allocate(demand, 40).counts()).all()
    demand[5, 6] += 0.25
    assert (of_pairs(demand, 40) == allocate(demand, 40).counts()).all()


def test_divisions_are_remembered_up_to_a_factor() -> None:
    random = np.random.default_rng(4)
    demand = random_demand(random, 8, 0.6)
    sources, destinations = np.nonzero(demand)
    divisions = Divisions(8, sources, destinations, 20, kept=1)
    mine, other = demand[sources, destinations], random.uniform(0.1, 1.0, len(sources))
    found = divisions.counts(mine)
    assert (divisions.counts(3e7 * mine) == found).all()
    divisions.counts(other)
    assert (divisions.counts(mine) == found).all()
    nothing = divisions.counts(np.zeros(len(sources)))
    assert not nothing.any()


# Bad input

ALL = [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize(
    ("demand", "named"),
    [
        ([[0, 1]], r"demand: .* not the shape \[1 x 2\]"),
        ([[0, 1], [2, 3]], r"demand: GPU 1 sends to itself"),
        ([[0, -1], [2, 0]], r"demand: GPU 0 to GPU 1 is -1"),
        ([[0, 1], [float("nan"), 0]], r"demand: GPU 1 to GPU 0 is nan"),
    ],
)
def test_bad_input_is_named(demand: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        allocate(demand, 4)


def test_where_some_pair_gets_no_lightpath_z_is_0() -> None:
    demand = np.ones((8, 8)) - np.eye(8)
    plan = allocate(demand, 2)
    assert plan.z == 0
    check_plan(plan, demand, 2)


def test_rings_must_divide_the_wavelengths() -> None:
    with pytest.raises(
        ValueError, match="rings: 4 wavelengths are not divided among 3 rings"
    ):
        highs_ring(ALL, 4, 1.0, rings=3)


def test_nobody_sends() -> None:
    plan = allocate(np.zeros((4, 4)), 3)
    assert (len(plan.sources), plan.z, plan.bound) == (0, np.inf, np.inf)
    assert (
        load_bound(np.zeros((4, 4)), 3)
        == highs_ring(np.zeros((4, 4)), 3, 1.0).z
        == np.inf
    )
