from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.fabric.crossconnect import CrossConnect, check_matching
from tests.references.decompositions import Configuration, birkhoff, solstice, total_s
from tests.unit.test_allocation_circuits import Matrix, degree, demands

#: Rate of a circuit, bytes/s and bit/s.
RATE = 1e3
RATE_BPS = 8 * RATE


def line_sum(demand: Matrix) -> float:
    """What the busiest GPU sends or receives."""
    return float(max(demand.sum(axis=0).max(), demand.sum(axis=1).max()))


def time_of_pairs(schedule: list[Configuration], demand: Matrix) -> Matrix:
    """How long each pair is joined, in the unit of the schedule; each configuration is looked at."""
    gpus = len(demand)
    time = np.zeros((gpus, gpus))
    for chosen, length in schedule:
        assert length > 0
        lit = [(i, j) for i, j in enumerate(chosen.tolist()) if j != -1]
        assert lit
        check_matching(CrossConnect(i, gpus + j) for i, j in lit)
        for i, j in lit:
            assert demand[i, j] > 0
            time[i, j] += length
    return time


@given(demands())
def test_shares_carry_the_demand_with_no_time_lost(demand: Matrix) -> None:
    schedule = birkhoff(demand)
    if not demand.any():
        assert schedule == []
        return
    assert sum(share for _, share in schedule) == pytest.approx(1, rel=1e-12)
    carried = time_of_pairs(schedule, demand) * line_sum(demand)
    assert (carried >= demand * (1 - 1e-9) - 1e-12 * demand.max()).all()


def test_a_sum_of_two_permutations_is_those_two() -> None:
    demand = np.zeros((4, 4))
    demand[np.arange(4), [1, 2, 3, 0]] = 3
    demand[np.arange(4), [3, 0, 1, 2]] = 1
    found = {(tuple(chosen.tolist()), share) for chosen, share in birkhoff(demand)}
    assert found == {((1, 2, 3, 0), 0.75), ((3, 0, 1, 2), 0.25)}


def test_unequal_demands_of_one_permutation_are_one_configuration() -> None:
    ((chosen, share),) = birkhoff([[0, 3, 0], [0, 0, 2], [1, 0, 0]])
    assert chosen.tolist() == [1, 2, 0]
    assert share == 1


@given(st.lists(st.integers(0, 20), min_size=4, max_size=4).filter(any))
def test_the_configuration_that_can_stand_longest_comes_first(weights: list[int]) -> None:
    """The permutation of a demand with equal sums whose least entry is greatest comes first."""
    everyone = np.arange(5)
    demand = np.zeros((5, 5))
    for step, weight in enumerate(weights, start=1):
        demand[everyone, (everyone + step) % 5] = weight
    longest = max(demand[everyone, list(order)].min() for order in itertools.permutations(range(5)))
    assert birkhoff(demand)[0][1] * sum(weights) == pytest.approx(longest)


@pytest.mark.parametrize("scheduler", [birkhoff, lambda d: solstice(d, RATE_BPS, 1)])
def test_a_demand_is_served_beside_a_far_greater_one(scheduler) -> None:  # type: ignore[no-untyped-def]
    demand = np.array([[0, 1e18, 1e-9], [0, 0, 0], [0, 0, 0]])
    assert time_of_pairs(scheduler(demand), demand)[0, 2] > 0


def test_pairs_of_the_busiest_gpu_are_joined_for_just_their_demand() -> None:
    demand = np.zeros((4, 4))
    demand[0, 1] = 1
    demand[1, 2], demand[3, 2] = 7, 1
    joined = time_of_pairs(birkhoff(demand), demand) * 8
    assert joined[1, 2] == 7
    assert joined[3, 2] == 1


@settings(max_examples=40)
@given(demands(), st.sampled_from([0.0, 1e-6, 1e-3, 1.0, 1e3]))
def test_configurations_carry_the_demand(demand: Matrix, dark_s: float) -> None:
    schedule = solstice(demand, RATE_BPS, dark_s)
    carried = time_of_pairs(schedule, demand) * RATE
    assert (carried >= demand * (1 - 1e-9) - 1e-12 * demand.max()).all()
    # The busiest GPU needs its time, and the GPU with the most partners that many configurations.
    least = line_sum(demand) / RATE + degree(demand) * dark_s
    assert total_s(schedule, dark_s) >= least * (1 - 1e-9)


@settings(max_examples=40)
@given(demands())
def test_no_dark_time_and_no_time_is_lost(demand: Matrix) -> None:
    assert total_s(solstice(demand, RATE_BPS, 0), 0) == pytest.approx(line_sum(demand) / RATE, rel=1e-9)


@settings(max_examples=40)
@given(demands())
def test_a_long_dark_time_and_the_fewest_configurations(demand: Matrix) -> None:
    longer_than_all = demand.sum() / RATE + 1
    assert len(solstice(demand, RATE_BPS, longer_than_all)) == degree(demand)


def test_a_schedule_suits_its_dark_time() -> None:
    """What may be done for a longer dark time may be done for a shorter one; longer ones have fewer."""
    rng = np.random.default_rng(7)
    demand = np.ceil(rng.random((16, 16)) * 1e6)
    np.fill_diagonal(demand, 0)
    times = (0.0, 1e-6, 2e-5, 1e-4, 1e-3, 1e-2, 1.0)
    schedules = [solstice(demand, 8e9, dark_s) for dark_s in times]
    for k, dark_s in enumerate(times):
        for of_longer in schedules[k + 1 :]:
            assert total_s(schedules[k], dark_s) <= total_s(of_longer, dark_s) * (1 + 1e-12)
    assert len(schedules[0]) > len(schedules[1]) > len(schedules[-1]) == degree(demand)


@given(st.permutations(range(8)), st.integers(1, 6))
def test_big_demands_share_a_configuration(order: list[int], turn: int) -> None:
    """Two permutations of big and small demands, and a dark time too long for slices."""
    demand = np.zeros((8, 8))
    demand[order, np.roll(order, 1)] = 1
    demand[order, np.roll(order, 1 + turn)] = 100
    schedule = solstice(demand, 8, 1000)
    assert sorted(seconds for _, seconds in schedule) == [1, 100]


def test_time_of_a_schedule() -> None:
    one = np.array([1, 0])
    assert total_s([(one, 2.0), (one, 0.5)], 0.25) == 3.0
    assert total_s([], 0.25) == 0


@pytest.mark.parametrize(
    ("rate", "dark_s", "said"),
    [
        (0, 0, "rate_bps: the rate of a circuit must be above 0, not 0"),
        (float("nan"), 0, "rate_bps: the rate of a circuit must be above 0, not nan"),
        (1, -1e-3, "dark_s: the dark time must be 0 or more, not -0.001"),
        (1, float("inf"), "dark_s: the dark time must be 0 or more, not inf"),
    ],
)
def test_a_bad_rate_or_dark_time_is_named(rate: float, dark_s: float, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        solstice([[0, 1], [1, 0]], rate, dark_s)


@pytest.mark.parametrize("scheduler", [birkhoff, lambda d: solstice(d, RATE_BPS, 1)])
def test_a_bad_demand_is_named(scheduler) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"^demand: GPU 1 sends to itself"):
        scheduler([[0, 1], [1, 2]])
