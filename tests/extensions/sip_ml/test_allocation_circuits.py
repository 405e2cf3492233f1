from __future__ import annotations

import itertools
import re
from fractions import Fraction
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.models.catalogue import MODELS
from ringlight.extensions.models.placement import AUTHORS, placed_workload
from ringlight.extensions.sip_ml.allocation.circuits import (
    CircuitPlan,
    patient_shot,
    permutations,
    single_shot,
)
from ringlight.fabric.crossconnect import CrossConnect, check_matching
from ringlight.fabric.steps import IntArray
from ringlight.workloads.devices import DEVICES
from ringlight.workloads.traffic import traffic
from tests.extensions.sip_ml.circuits_program import highs_single_shot

INFINITE = float("inf")
Matrix = npt.NDArray[np.float64]


@cache
def every_setting(gpus: int, switches: int) -> IntArray:
    """Counts [settings, n, n] of every way to set that many switches, each to a permutation.

    A GPU that a permutation leaves where it is has no circuit there.
    """
    each = []
    for permutation in itertools.permutations(range(gpus)):
        matrix = np.zeros((gpus, gpus), dtype=np.int64)
        matrix[np.arange(gpus), permutation] = 1
        np.fill_diagonal(matrix, 0)
        each.append(matrix)
    return np.array(
        [sum(some) for some in itertools.combinations_with_replacement(each, switches)]
    )


def least_ratio(counts: IntArray, demand: Matrix) -> npt.NDArray[np.float64]:
    """z of each of the settings [settings, n, n]."""
    has = demand > 0
    return (counts[:, has] / (demand[has] / demand.max())).min(axis=1)


def some_demand(rng: np.random.Generator, gpus: int) -> Matrix:
    """A demand with at least one pair: sparse or dense, of few equal sizes, of a few decades, or uniform."""
    while True:
        shape = (gpus, gpus)
        sizes = [
            rng.integers(1, 4, shape).astype(float),
            10 ** rng.uniform(0, 3, shape),
            rng.random(shape),
        ]
        matrix = sizes[rng.integers(3)] * (
            rng.random(shape) < rng.choice([0.3, 0.6, 1.0])
        )
        np.fill_diagonal(matrix, 0)
        if matrix.any():
            return matrix


@st.composite
def demands(draw: st.DrawFn, most: int = 6) -> Matrix:
    gpus = draw(st.integers(2, most))
    size = st.one_of(st.just(0.0), st.integers(1, 5).map(float), st.floats(1e-3, 1e9))
    row = st.lists(size, min_size=gpus, max_size=gpus)
    matrix = np.array(draw(st.lists(row, min_size=gpus, max_size=gpus)))
    np.fill_diagonal(matrix, 0)
    return matrix


def degree(demand: Matrix) -> int:
    has = demand > 0
    return int(max(has.sum(axis=0).max(), has.sum(axis=1).max()))


def busiest(counts: IntArray) -> int:
    return int(max(counts.sum(axis=0).max(), counts.sum(axis=1).max()))


def check_permutations(settings: IntArray, counts: IntArray, switches: int) -> None:
    """Each switch is set to a partial matching, and together they join each pair as often as was asked."""
    gpus = len(counts)
    assert settings.shape == (switches, gpus)
    joined = np.zeros_like(counts)
    for row in settings.tolist():
        lit = [(i, j) for i, j in enumerate(row) if j != -1]
        check_matching(CrossConnect(i, gpus + j) for i, j in lit)
        for i, j in lit:
            joined[i, j] += 1
    assert np.array_equal(joined, counts)


def check_plan(plan: CircuitPlan, demand: Matrix, switches: int) -> None:
    """Everything a plan promises, except that nothing is better."""
    assert plan.counts.shape == demand.shape
    assert busiest(plan.counts) <= switches
    assert not plan.counts[demand == 0].any()
    assert plan.z == (
        least_ratio(plan.counts[None], demand)[0] if demand.any() else INFINITE
    )
    assert plan.z <= plan.bound * (1 + 1e-9)


def exact_z(demand: Matrix, switches: int) -> Fraction:
    """The greatest z, in fractions, by trying every number that it can be; written apart from the code."""
    need = {
        (i, j): Fraction(d) / Fraction(demand.max())
        for (i, j), d in np.ndenumerate(demand)
        if d
    }
    best = Fraction(0)
    for z in {k / d for d in need.values() for k in range(1, switches + 1)}:
        lines: dict[tuple[str, int], int] = {}
        for (i, j), d in need.items():
            circuits = -(-z * d // 1)
            for line in (("out", i), ("in", j)):
                lines[line] = lines.get(line, 0) + int(circuits)
        if max(lines.values()) <= switches:
            best = max(best, z)
    return best


def test_the_best_of_all_settings_is_found() -> None:
    """200 demands of 2 to 4 GPUs and 1 to 4 switches against every way to set the switches."""
    rng = np.random.default_rng(12)
    refused = 0
    for _ in range(200):
        gpus, switches = int(rng.integers(2, 5)), int(rng.integers(1, 5))
        demand = some_demand(rng, gpus)
        best = least_ratio(every_setting(gpus, switches), demand).max()
        if best == 0:
            refused += 1
            with pytest.raises(
                ValueError, match=r"switch(es join| joins) it to at most"
            ):
                single_shot(demand, switches)
            continue
        plan = single_shot(demand, switches)
        check_plan(plan, demand, switches)
        assert plan.z == plan.bound == best
    assert 20 < refused < 120


@settings(max_examples=50)
@given(demands(), st.integers(0, 5))
def test_the_best_z_is_reached_and_no_port_that_helps_stays_dark(
    demand: Matrix, spare: int
) -> None:
    switches = max(degree(demand), 1) + spare
    plan = single_shot(demand, switches)
    check_plan(plan, demand, switches)
    if not demand.any():
        assert plan.bound == INFINITE
        return
    exact = float(exact_z(demand, switches))
    if plan.z == plan.bound:
        assert plan.z == pytest.approx(exact, rel=1e-12)
    else:  # demands within 0.1 % are alike
        assert plan.bound * 0.998 <= plan.z <= exact * (1 + 1e-12)
        assert exact <= plan.bound * (1 + 1e-12)
    free_out = plan.counts.sum(axis=1) < switches
    free_in = plan.counts.sum(axis=0) < switches
    assert not ((demand > 0) & free_out[:, None] & free_in).any()
    check_permutations(permutations(plan.counts, switches), plan.counts, switches)


def test_what_z_leaves_is_shared_as_needed() -> None:
    """GPUs 3 and 4 hold z at 3, for which GPU 0 needs 3 circuits; its other 3 go as its two pairs need."""
    demand = np.zeros((6, 6))
    demand[0, 1], demand[0, 2] = 2, 1
    demand[3, 4] = demand[3, 5] = demand[2, 4] = 3
    plan = single_shot(demand, 6)
    assert plan.z == 3
    assert (plan.counts[0, 1], plan.counts[0, 2]) == (4, 2)


@pytest.mark.parametrize("bytes_apart", [0, 1])
def test_pairs_that_are_alike_get_another_circuit_all_at_once_or_none(
    bytes_apart: int,
) -> None:
    """Two replicas of a Transformer. GPU 0 has one circuit left for 7 pairs that are alike: a step waits for
    the slowest of them, and the GPU at the other end would have one too few for its own."""
    demand = np.full((8, 8), 195_000.0)
    demand[0] = demand[:, 0] = 439_000 + bytes_apart * np.arange(8)
    np.fill_diagonal(demand, 0)
    rings = np.kron(np.eye(2), demand)
    rings[np.arange(16), (np.arange(16) + 8) % 16] = 1_000_000
    plan = single_shot(rings, 20)
    assert set(plan.counts[0, 1:8].tolist()) == {2}
    assert set(plan.counts[1:8, 0].tolist()) == {2}
    assert set(plan.counts[1, 2:8].tolist()) == {2}
    assert (plan.counts == 2 * single_shot(rings, 10).counts).all()


def bundled() -> list[Matrix]:
    """What the models of scenarios/sip_ml.yaml send, three replicas of eight."""
    made = (
        placed_workload(MODELS[name], 3, 8, 24, 8, DEVICES["a100"])
        for name in sorted(AUTHORS)
    )
    return [traffic(workload).astype(np.float64) for workload in made]


def test_more_switches_are_never_slower() -> None:
    """200 random demands, and the bundled ones: seconds to send all, over circuits of 1/Q of a GPU's light.

    Over k times as many they are at most the same. Over any greater number they are longer at most by the
    ports that are too few for a whole multiple, which nobody can help: three equal pairs have thirds of the
    light with 3 switches, and one has a quarter with 4.
    """
    rng = np.random.default_rng(25)
    cases = [some_demand(rng, int(rng.integers(2, 13))) for _ in range(200)] + bundled()
    for demand in cases:
        fewest = degree(demand) + int(rng.integers(0, 5))
        taken_s = {
            switches: switches / single_shot(demand, switches).z
            for switches in (
                fewest,
                fewest + 1,
                fewest + 3,
                2 * fewest,
                3 * fewest,
                4 * fewest,
            )
        }
        # Demands are alike within 0.1 %.
        assert (
            taken_s[4 * fewest]
            <= taken_s[2 * fewest] * 1.001
            <= taken_s[fewest] * 1.001**2
        )
        assert taken_s[3 * fewest] <= taken_s[fewest] * 1.001
        for more, longer_s in taken_s.items():
            assert (
                longer_s <= taken_s[fewest] * more / (more // fewest * fewest) * 1.001
            )
    thirds = [[0, 1, 1, 1], [0] * 4, [0] * 4, [0] * 4]
    assert single_shot(thirds, 3).z / 3 == 1 / 3
    assert single_shot(thirds, 4).z / 4 == 1 / 4


def max_min_fair(demand: Matrix) -> Matrix:
    """Shares of a GPU's light, which can be divided, by progressive filling; written apart from the code."""
    share, rising = np.zeros_like(demand), demand > 0
    while rising.any():
        rooms = []
        for axis in (0, 1):
            load = (demand * rising).sum(axis=axis)
            room = 1 - share.sum(axis=axis)
            rooms.append(np.where(load > 0, room / np.where(load > 0, load, 1), np.inf))
        step = min(room.min() for room in rooms)
        share += step * demand * rising
        full = [room <= step * (1 + 1e-9) for room in rooms]
        rising &= ~(full[1][:, None] | full[0][None, :])
    return share


def test_of_very_many_switches_the_shares_are_max_min_fair(long: bool) -> None:
    rng = np.random.default_rng(6)
    for _ in range(30 if long else 10):
        demand = some_demand(rng, int(rng.integers(2, 9)))
        switches = 20_000
        share = single_shot(demand, switches).counts / switches
        assert share == pytest.approx(max_min_fair(demand), rel=0.01, abs=0.003)


@settings(max_examples=50)
@given(demands(), st.integers(0, 3), st.integers(-20, 20))
def test_only_ratios_of_demands_matter(demand: Matrix, spare: int, power: int) -> None:
    switches = max(degree(demand), 1) + spare
    plan, scaled = (
        single_shot(demand, switches),
        single_shot(demand * 2.0**power, switches),
    )
    assert plan.z == scaled.z
    assert np.array_equal(plan.counts, scaled.counts)


@st.composite
def all_counts(draw: st.DrawFn) -> tuple[IntArray, int]:
    gpus = draw(st.integers(1, 10))
    row = st.lists(st.integers(0, 3) | st.just(0), min_size=gpus, max_size=gpus)
    counts = np.array(draw(st.lists(row, min_size=gpus, max_size=gpus)))
    np.fill_diagonal(counts, 0)
    return counts, max(busiest(counts), 1) + draw(st.integers(0, 3))


@given(all_counts())
def test_counts_are_dealt_to_switches(drawn: tuple[IntArray, int]) -> None:
    counts, switches = drawn
    check_permutations(permutations(counts, switches), counts, switches)


@pytest.mark.parametrize("switches", [1, 2, 3, 5, 7, 16, 20, 31])
def test_full_switches_of_many_gpus(switches: int) -> None:
    """No port is free, and each GPU has neighbours within a window: also with odd numbers of switches."""
    rng = np.random.default_rng(switches)
    gpus = 200
    counts = np.zeros((gpus, gpus), dtype=np.int64)
    for shift in rng.integers(1, 17, switches):
        np.add.at(counts, (np.arange(gpus), (np.arange(gpus) + shift) % gpus), 1)
    settings = permutations(counts, switches)
    assert (settings >= 0).all()
    check_permutations(settings, counts, switches)


def test_one_pair_may_have_all_switches() -> None:
    plan = single_shot([[0, 5], [0, 0]], 20)
    assert plan.counts.tolist() == [[0, 20], [0, 0]]
    assert plan.z == 20
    assert permutations(plan.counts, 20).tolist() == [[1, -1]] * 20


@pytest.mark.parametrize(
    "solver", [single_shot, lambda d, q: highs_single_shot(d, q, 60)]
)
def test_nothing_to_send(solver) -> None:  # type: ignore[no-untyped-def]
    plan = solver(np.zeros((3, 3)), 2)
    assert not plan.counts.any()
    assert plan.z == plan.bound == INFINITE


@pytest.mark.parametrize("by_switch", [True, False])
def test_the_integer_program_finds_no_more(by_switch: bool) -> None:
    """By HiGHS; its bound holds and its plan is a plan also where it does not come to an end."""
    rng = np.random.default_rng(3)
    proved = 0
    sizes = [(3, 2), (4, 3), (4, 4), (5, 4), (6, 3), (6, 5)]
    sizes += [] if by_switch else [(16, 9), (32, 20)]
    for gpus, switches in sizes:
        demand = some_demand(rng, gpus)
        while degree(demand) > switches:
            demand = some_demand(rng, gpus)
        exact = single_shot(demand, switches)
        found = highs_single_shot(demand, switches, 20, by_switch=by_switch)
        check_plan(found, demand, switches)
        assert found.z <= exact.z * (1 + 1e-9)
        assert exact.z <= found.bound * (1 + 1e-6)
        if found.bound <= found.z * (1 + 1e-6):
            proved += 1
            assert found.z == pytest.approx(exact.z, rel=1e-6)
    assert proved


def test_the_integer_program_without_time_says_what_it_can() -> None:
    demand = some_demand(np.random.default_rng(1), 12)
    found = highs_single_shot(demand, 11, 1e-3)
    check_plan(found, demand, 11)
    assert 0 < single_shot(demand, 11).z <= found.bound * (1 + 1e-6) < INFINITE


def test_the_integer_program_gives_nothing_to_too_many_partners() -> None:
    found = highs_single_shot([[0, 1, 1], [0, 0, 0], [0, 0, 0]], 1, 60)
    assert found.z == 0


NAN = float("nan")


@pytest.mark.parametrize(
    "solver", [single_shot, lambda d, q: highs_single_shot(d, q, 60)]
)
@pytest.mark.parametrize(
    ("demand", "switches", "said"),
    [
        ([[0, 1], [1, 2]], 4, "demand: GPU 1 sends to itself (the diagonal must be 0)"),
        (
            [[0, 1], [-3, 0]],
            4,
            "demand: GPU 1 to GPU 0 is -3.0; it must be 0 or more, and finite",
        ),
        (
            [[0, NAN], [1, 0]],
            4,
            "demand: GPU 0 to GPU 1 is nan; it must be 0 or more, and finite",
        ),
        (
            [[0, INFINITE], [1, 0]],
            4,
            "demand: GPU 0 to GPU 1 is inf; it must be 0 or more, and finite",
        ),
        (
            [[0, 1, 2], [1, 0, 1]],
            4,
            "demand: it has one row and one column for each GPU, not the shape [2 x 3]",
        ),
        (
            [1, 2],
            4,
            "demand: it has one row and one column for each GPU, not the shape [2]",
        ),
        (
            [[]],
            4,
            "demand: it has one row and one column for each GPU, not the shape [1 x 0]",
        ),
        ([[0, 1], [1, 0]], 0, "switches: there must be at least 1, not 0"),
    ],
)
def test_a_bad_demand_is_named(
    solver, demand: object, switches: int, said: str
) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        solver(demand, switches)


def test_more_partners_than_switches_name_the_gpu() -> None:
    demand = np.zeros((5, 5))
    demand[3, [0, 1, 2]] = 1
    said = "demand: GPU 3 sends to 3 others, and 2 switches join it to at most 2"
    with pytest.raises(ValueError, match=f"^{said}$"):
        single_shot(demand, 2)
    with pytest.raises(
        ValueError, match=f"^{said.replace('sends to', 'receives from')}$"
    ):
        single_shot(demand.T, 2)
    assert single_shot(demand, 3).z == 1


@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.integers(1, 10))
@settings(deadline=None, max_examples=60)
def test_least_demands_wait_where_ports_are_too_few(
    seed: int, gpus: int, switches: int
) -> None:
    demand = some_demand(np.random.default_rng(seed), gpus)
    plan = patient_shot(demand, switches)
    counts = plan.counts
    assert max(counts.sum(axis=0).max(), counts.sum(axis=1).max()) <= switches
    assert not counts[demand == 0].any()
    degree = max((demand > 0).sum(axis=0).max(), (demand > 0).sum(axis=1).max())
    if degree <= switches:
        assert (counts == single_shot(demand, switches).counts).all()
        return
    assert plan.z == 0 == plan.bound
    for i, j in np.argwhere((demand > 0) & (counts == 0)):
        # Who waits finds all ports of one side with who has at least as much to send.
        row, column = counts[i] > 0, counts[:, j] > 0
        out = counts[i].sum() == switches and (demand[i][row] >= demand[i, j]).all()
        into = (
            counts[:, j].sum() == switches
            and (demand[:, j][column] >= demand[i, j]).all()
        )
        assert out or into
