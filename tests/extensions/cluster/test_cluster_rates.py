"""Rates of jobs that share links: against linear programs, the flow simulator, and an exact on-off
simulation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from ringlight.extensions.cluster.clusters import Cluster, best_fit_parts
from ringlight.extensions.cluster.simulation import rate_loops, rates
from ringlight.extensions.cluster.tiers import cluster_of
from ringlight.fabric.gpu_choice import fewest_parts
from ringlight.fabric.trees import fat_tree, leaf_spine
from ringlight.testbed.simulation.maxmin import rates as flow_rates

Loads = list[list[tuple[int, float]]]
SEED = 20


def flat(loads: Loads) -> tuple[Any, Any, Any]:
    """Offsets, links and weights."""
    offsets = np.cumsum([0, *map(len, loads)])
    links = np.array([link for one in loads for link, _ in one], dtype=np.int64)
    return offsets, links, np.array([weight for one in loads for _, weight in one])


def random_cluster(rng: np.random.Generator) -> Cluster:
    leaves, each = int(rng.integers(2, 9)), int(rng.integers(2, 9))
    if rng.random() < 0.3:
        return cluster_of(
            fat_tree(
                4, 1e9, gpus_per_edge=each, oversubscription=rng.uniform(1, 4)
            ).fabric()
        )
    return cluster_of(
        leaf_spine(leaves, each, 1e9, oversubscription=rng.uniform(1, 6)).fabric()
    )


def random_loads(rng: np.random.Generator, cluster: Cluster, most: int = 64) -> Loads:
    """Jobs that fill a part of the cluster at random."""
    free = np.repeat(np.arange(len(cluster.gpus)), cluster.gpus)
    rng.shuffle(free)
    free, found = free[: max(most, 2)], []
    while len(free) > 1:
        count = int(rng.integers(2, min(len(free), 16) + 1))
        leaves, counts = np.unique(free[:count], return_counts=True)
        placed = dict(zip(leaves.tolist(), counts.tolist(), strict=True))
        free = free[count:]
        if loads := cluster.loads(placed, bool(rng.random() < 0.3)):
            found.append(loads)
    return found


def by_programs(loads: Loads, capacity: Any, caps: Sequence[float]) -> list[float]:
    """Max-min fair rates: the least rate is maximised, those that cannot have more are held, and again."""
    jobs = len(loads)
    use = np.zeros((len(capacity), jobs))
    for job, one in enumerate(loads):
        for link, weight in one:
            use[link, job] += weight
    held: dict[int, float] = {}
    while len(held) < jobs:
        free = [job for job in range(jobs) if job not in held]
        # Variables: the rates, and the least of those that are not held.
        least = np.zeros((len(free), jobs + 1))
        for row, job in enumerate(free):
            least[row, job], least[row, -1] = -1, 1
        bounds = [
            (held.get(job, 0.0), held.get(job, caps[job])) for job in range(jobs)
        ] + [(0, None)]
        upper = np.vstack([np.hstack([use, np.zeros((len(use), 1))]), least])
        right = np.concatenate([capacity, np.zeros(len(free))])
        level = -linprog(
            [*[0] * jobs, -1], upper, right, bounds=bounds, method="highs"
        ).fun
        floors = [(held.get(j, level), held.get(j, caps[j])) for j in range(jobs)]
        for job in free:
            most = -linprog(
                [-(j == job) for j in range(jobs)], use, capacity + 1e-12,
                bounds=[(low - 1e-12, high) for low, high in floors], method="highs",
            ).fun  # fmt: skip
            if most <= level + 1e-8:
                held[job] = level
    return [held[job] for job in range(jobs)]


@pytest.mark.parametrize("seed", range(50))
def test_rates_are_those_of_linear_programs(seed: int) -> None:
    rng = np.random.default_rng([SEED, seed])
    cluster = random_cluster(rng)
    loads = random_loads(rng, cluster, 40)
    if not loads:
        pytest.skip("no job is on two switches")
    offsets, links, weights = flat(loads)
    caps = rng.choice([1.0, 1.0, 0.6, 0.3], len(loads))
    wanted = by_programs(loads, cluster.links, caps.tolist())
    for found in (rates.shared, rate_loops.shared):
        assert found(offsets, links, weights, cluster.links, caps) == pytest.approx(
            wanted, abs=1e-9
        )


@pytest.mark.parametrize("seed", range(50))
def test_rates_are_those_of_the_flow_simulator(seed: int) -> None:
    """Jobs on two switches each, whose flows all meet the same others: as many flows as GPUs' rates cross."""
    rng = np.random.default_rng([SEED, 1, seed])
    leaves, each = int(rng.integers(2, 9)), 8
    cluster = cluster_of(
        leaf_spine(leaves, each, 1e9, oversubscription=rng.uniform(1, 6)).fabric()
    )
    loads: Loads = []
    flows: list[list[int]] = []
    for _ in range(int(rng.integers(1, 12))):
        a, b = rng.choice(leaves, 2, replace=False).tolist()
        weight = int(rng.integers(1, 5))
        loads.append([(a, float(weight)), (b, float(weight))])
        # Links: NICs of both GPUs, up from each switch, down to each.
        for source, sink in ((a, b), (b, a)):
            flows += [[source, leaves + sink, -1, -1]] * weight
    nics = itertools.count(2 * leaves)
    flows = [[up, down, next(nics), next(nics)] for up, down, *_ in flows]
    capacity = np.concatenate([cluster.links, cluster.links, np.ones(2 * len(flows))])
    by_flow = flow_rates(
        np.arange(len(flows) + 1) * 4, np.array(flows).ravel(), capacity
    )
    offsets, links, weights = flat(loads)
    found = rates.shared(offsets, links, weights, cluster.links, np.ones(len(loads)))
    each_flow = np.repeat(found, [2 * int(one[0][1]) for one in loads])
    assert each_flow == pytest.approx(by_flow, rel=1e-6)


def test_compiled_loops_find_the_same() -> None:
    for seed in range(30):
        rng = np.random.default_rng([SEED, 2, seed])
        cluster = random_cluster(rng)
        loads = random_loads(rng, cluster)
        offsets, links, weights = flat(loads)
        if not loads:
            continue
        shares = rng.uniform(0.05, 0.7, len(loads))
        for name, function in rates.SHARING.items():
            wanted = function(offsets, links, weights, cluster.links, shares)
            found = rate_loops.LOOPS[name](
                offsets, links, weights, cluster.links, shares
            )
            assert found == pytest.approx(wanted, rel=1e-9), name


def on_off(
    loads: Loads,
    capacity: Any,
    shares: Any,
    periods: Any,
    rng: np.random.Generator,
    until: float,
) -> Any:
    """Speeds of jobs that compute for exponential times and then send, sharing max-min who sends: exact."""
    count = len(loads)
    sending = np.zeros(count, dtype=bool)
    left = rng.exponential((1 - shares) * periods)
    work, now = np.zeros(count), 0.0
    warm, begin, before = until / 10, 0.0, work
    while now < until:
        rate = np.ones(count)
        if (who := np.flatnonzero(sending)).size:
            offsets, links, weights = flat([loads[k] for k in who])
            rate[who] = rate_loops.shared(
                offsets, links, weights, capacity, np.ones(len(who))
            )
        job = int((left / rate).argmin())
        took = float(left[job] / rate[job])
        now, left, work = now + took, left - rate * took, work + rate * took
        if not begin and now > warm:
            begin, before = now, work
        sending[job] = not sending[job]
        left[job] = (
            shares[job] * periods[job]
            if sending[job]
            else rng.exponential((1 - shares[job]) * periods[job])
        )
    return (work - before) / (now - begin)


def some_links(rng: np.random.Generator) -> tuple[Loads, Any, Any]:
    """A link, or a few, with jobs that cross any of them: loads, capacity, shares."""
    count = 1 if rng.random() < 0.5 else int(rng.integers(2, 8))
    jobs = int(rng.integers(2, 12))
    loads: Loads = [
        [
            (int(link), float(rng.integers(1, 17)))
            for link in rng.choice(
                count, int(rng.integers(1, min(count, 4) + 1)), replace=False
            )
        ]
        for _ in range(jobs)
    ]
    shares = rng.uniform(0.05, 0.6, jobs)
    offsets, links, weights = flat(loads)
    asked = np.bincount(links, weights * np.repeat(shares, np.diff(offsets)), count)
    return loads, np.maximum(asked * rng.uniform(0.5, 2.0, count), 1.0), shares


def some_tree(rng: np.random.Generator) -> tuple[Loads, Any, Any]:
    """A cluster of up to 64 GPUs that are given out at random: loads, capacity, shares."""
    loads: Loads = []
    while len(loads) < 2:
        cluster = random_cluster(rng)
        loads = random_loads(rng, cluster)
    return loads, cluster.links, rng.uniform(0.05, 0.6, len(loads))


@pytest.mark.parametrize("made", [some_links, some_tree])
def test_the_mean_field_is_near_an_exact_on_off_simulation(
    made: Callable[[np.random.Generator], tuple[Loads, Any, Any]],
    request: pytest.FixtureRequest,
) -> None:
    """95 % of 100 random links and fabrics are within 5 points in the mean over their jobs, and so are 95 %
    of all single jobs; here 24 of each, in which chance has more weight."""
    long = request.config.getoption("--long")
    of_all, of_jobs = [], list[float]()
    for case in range(100 if long else 24):
        rng = np.random.default_rng([SEED, 3, case])
        loads, capacity, shares = made(rng)
        periods = rng.uniform(0.5, 2.0, len(loads))
        exact = on_off(loads, capacity, shares, periods, rng, 1000 if long else 200)
        found = rates.duty(*flat(loads), capacity, shares)
        of_all.append(float(found.mean() - exact.mean()))
        of_jobs += (found - exact).tolist()
        assert (
            rates.always(*flat(loads), capacity, shares).mean() <= exact.mean() + 0.03
        )
    assert np.mean(np.abs(of_all) <= 0.05) >= 0.95
    assert np.mean(np.abs(of_jobs) <= 0.05) >= (0.95 if long else 0.93)


def test_the_mean_field_of_a_large_cluster_at_random(
    request: pytest.FixtureRequest,
) -> None:
    """Thirty-two switches of 64 GPUs, of whose links each job is on most: right in the mean over all jobs."""
    if not request.config.getoption("--long"):
        pytest.skip("half a minute")
    rng = np.random.default_rng([SEED, 5])
    cluster = cluster_of(leaf_spine(32, 64, 1e9, oversubscription=4).fabric())
    free, loads = np.repeat(np.arange(32), 64), []
    rng.shuffle(free)
    while len(free) > 512:
        count = int(rng.choice([8, 16, 32, 64, 128, 256]))
        leaves, counts = np.unique(free[:count], return_counts=True)
        loads.append(
            cluster.loads(
                dict(zip(leaves.tolist(), counts.tolist(), strict=True)), False
            )
        )
        free = free[count:]
    shares, periods = np.full(len(loads), 0.3), rng.uniform(0.5, 2.0, len(loads))
    exact = on_off(loads, cluster.links, shares, periods, rng, 60)
    found = rates.duty(*flat(loads), cluster.links, shares)
    assert found.mean() == pytest.approx(exact.mean(), abs=0.03)


def test_bounds_are_in_order() -> None:
    for seed in range(20):
        rng = np.random.default_rng([SEED, 4, seed])
        cluster = random_cluster(rng)
        if loads := random_loads(rng, cluster):
            shares = rng.uniform(0.05, 0.6, len(loads))
            low, middle, high = (
                f(*flat(loads), cluster.links, shares).mean()
                for f in (rates.always, rates.duty, rates.interleaved)
            )
            assert low <= middle + 1e-6
            assert middle <= high + 0.02


def test_a_tree_as_a_cluster() -> None:
    found = cluster_of(fat_tree(4, 1e9, gpus_per_edge=4, oversubscription=2).fabric())
    assert found.gpus == (4,) * 8
    assert found.parts == (tuple(range(8)), (0, 0, 1, 1, 2, 2, 3, 3))
    assert found.capacity == ((2.0,) * 8, (4.0,) * 4)
    # Two GPUs in one pod and two in another: 2 x 2 / 3 leave each pod, 4/3 x ... each switch.
    assert found.loads({0: 1, 1: 1, 2: 2}, False) == [
        (0, 1.0), (1, 1.0), (2, pytest.approx(4 / 3)), (8, pytest.approx(4 / 3)), (9, pytest.approx(4 / 3)),
    ]  # fmt: skip
    assert found.loads({0: 3}, False) == []
    assert found.loads({0: 2, 1: 2}, True) == [(0, 1.0), (1, 1.0)]


def test_fewest_parts() -> None:
    assert fewest_parts({"a": 3, "b": 2, "c": 5}, 2) == [("b", 2)]
    assert fewest_parts({"a": 3, "b": 2, "c": 5}, 7) == [("c", 5), ("a", 2)]
    assert best_fit_parts({"a": 3, "b": 2, "c": 5}, 7) == [("c", 5), ("b", 2)]
    assert best_fit_parts({"a": 3, "b": 2, "c": 5}, 9) == [("c", 5), ("a", 3), ("b", 1)]
    assert best_fit_parts({"a": 3, "b": 2, "c": 5}, 2) == [("b", 2)]
    with pytest.raises(ValueError, match="2 GPUs too few are free"):
        fewest_parts({"a": 3, "b": 0}, 5)
