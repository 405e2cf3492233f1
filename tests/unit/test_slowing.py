"""A slower rank or link never lets a simulated job end earlier that is alone, on links that none shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.slowing import ROUNDING, Case, explained, own_links, shared_s
from ringlight.experiments.analysis.prediction import model_s
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record.events import Iteration
from ringlight.experiments.runner.experiment import run_alone
from ringlight.fabric.schedules import ring
from ringlight.fabric.trees import leaf_spine
from ringlight.testbed.simulation import loop_run, rankwise
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.jobs import Compute, Job, NetworkChange
from ringlight.testbed.simulation.link_flows import Passed
from ringlight.testbed.simulation.networks import PacketNetwork
from tests.delays import with_delay
from tests.simulated_jobs import simulate


@pytest.mark.parametrize("seed", range(40))
def test_slowing_never_shortens_on_links_of_their_own(seed: int) -> None:
    case = own_links(np.random.default_rng([seed, 77]), most=8)
    assert case.slowed.run().end_s >= case.run().end_s * (1 - ROUNDING), str(case)


def test_a_rank_or_a_link_that_is_a_little_slower_makes_a_ring_a_little_slower() -> (
    None
):
    """Edges that delay in turn, as between two sites. In lock-step it took 1.7 times as long as any that is
    slower."""
    delay_s = np.zeros((4, 4))
    delay_s[1, 2] = delay_s[3, 0] = 0.1
    case = Case("ring", np.full((4, 4), 2e7), delay_s, (1.0,) * 4, 1e6, 0.2, 3)
    for workload in (False, True):
        even = Case(**{**vars(case), "workload": workload})
        # A link is full from the first byte to the last: 0.2 of computing, 6 chunks of 0.1, once the delay.
        assert even.run().end_s == pytest.approx(3 * (0.2 + 0.1 + 0.6), rel=1e-2)
        for change in (("rank", 0, 1.05), ("rate", 1, 1.01), ("delay", 1, 1e-3)):
            slowed = Case(**{**vars(even), "change": change}).slowed
            assert 1 - ROUNDING <= slowed.run().end_s / even.run().end_s <= 1.05


@pytest.mark.parametrize("latency_s", [0.0, 1e-6, 9e-6, 1e-3])
@pytest.mark.parametrize("ranks", [2, 8, 30])
def test_what_is_computed_at_once_takes_as_long_as_every_part(
    ranks: int, latency_s: float
) -> None:
    """Ranks alternate between two leaves whose link is narrower than theirs."""
    fabric = leaf_spine(2, ranks // 2, 100e9, oversubscription=4).fabric()
    gpus = tuple(f"g{k // 2 + ranks // 2 * (k % 2)}" for k in range(ranks))
    network = PacketNetwork(fabric, latency_s=latency_s)
    job = Job("a", gpus, ring(ranks), 1e6, Compute(1e-3), 2)
    at_once = simulate(network, [job])["a"].end_s
    assert at_once == pytest.approx(
        simulate(network, [job], engine=Engine(trace=True))["a"].end_s, rel=1e-9
    )
    if ranks < 23:
        later = NetworkChange(100.0, network)
        in_parts = simulate(network, [job], [later])["a"].iterations[-1].end_s.max()
        assert at_once == pytest.approx(in_parts, rel=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_slowing_never_shortens_a_ring_of_streams(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (loop_run, rankwise):
        monkeypatch.setattr(module, "MOST_IN_PARTS", 0)
    case = replace(
        own_links(np.random.default_rng([seed, 78]), most=8), collective="ring"
    )
    assert case.slowed.run().end_s >= case.run().end_s * (1 - ROUNDING), str(case)


@pytest.mark.parametrize("seed", range(20))
def test_streams_of_a_large_ring_take_as_long_as_its_parts(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks in any order on a tree, a slow one, and links that change."""
    random = np.random.default_rng([seed, 79])
    ranks = int(random.choice([24, 32]))
    fabric = leaf_spine(
        ranks // 8, 8, 1e9, oversubscription=float(random.choice([1, 2, 4]))
    ).fabric()
    latency_s = float(random.choice([0.0, 1e-4, 2e-3]))
    slow = {int(random.integers(ranks)): 1.5} if random.random() < 0.6 else {}
    order = tuple(random.permutation([*fabric.gpus]).tolist())
    job = Job("a", order, ring(ranks), 4e6, Compute(0.02, slow), 2)
    events = []
    if random.random() < 0.5:
        half = leaf_spine(ranks // 8, 8, 1e9, oversubscription=6).fabric()
        events = [NetworkChange(0.03, PacketNetwork(half, latency_s=latency_s))]
    took_s = []
    for most in (10**6, 0):
        monkeypatch.setattr(loop_run, "MOST_IN_PARTS", most)
        result = simulate(PacketNetwork(fabric, latency_s=latency_s), [job], events)[
            "a"
        ]
        took_s.append(
            [float(one.end_s.max() - one.computed_s.min()) for one in result.iterations]
        )
    in_parts, streamed = took_s
    assert streamed == pytest.approx(in_parts, rel=0.03 if latency_s > 1e-3 else 0.01)


def test_seconds_in_which_flows_share_a_link() -> None:
    passed = [
        Passed((1, 2), 0.0, 2.0, 1.0),
        Passed((2,), 1.0, 3.0, 1.0),
        Passed((1,), 2.0, 3.0, 1.0),
    ]
    assert shared_s(passed) == pytest.approx(1.0)


def two_sites(far: bool = False, **training: Any) -> RunPlan:
    """A plan of a ring over two switches joined by a link that delays, or of its ends at either."""
    link = {"rate": "300 Mbit/s", "queue": "20 ms"}
    links = [
        {"ends": [f"g{k}", f"{'ab'[k // 2]}:{k % 2 + 1}"], **link} for k in range(4)
    ]
    links.append({"ends": ["a:3", "b:3"], "rate": "200 Mbit/s", "queue": "20 ms"})
    text = yaml.safe_dump(
        {
            "name": "sites",
            "description": "A ring over links of unequal delay.",
            "scale": {"time": 5, "payload": 2},
            "fabric": {
                "servers": {"s0": {"gpus": {f"g{k}": "gpu" for k in range(4)}}},
                "packet_switches": {"a": {"ports": 3}, "b": {"ports": 3}},
                "links": links,
            },
            "tcp": {"congestion_control": "reno", "headers": False},
            "training": {
                "model": "resnet50", "gradient": "1 MB", "compute": "20 ms", "batch": 16, "iterations": 2,
                **training,
            },
            "jobs": {"red": {"ranks": ["g0", "g2"] if far else ["g0", "g1", "g2", "g3"]}},
            "arms": {"even": {}},
        }
    )  # fmt: skip
    (plan,) = parse(text, "s.yaml").plans
    fabric = with_delay(plan.setting.fabric, "a", "b", 0.01)
    return replace(plan, setting=replace(plan.setting, fabric=fabric))


@pytest.mark.parametrize("collective", ["ring", "halving-doubling", "binary-tree"])
@pytest.mark.parametrize("gradient", ["20 kB", "1 MB"])
def test_the_model_counts_delay(collective: str, gradient: str) -> None:
    plan = two_sites(collective=collective, gradient=gradient)
    records, failures = run_alone(SimulationBackend(), plan)
    assert not failures
    ends = [one.allreduce_end for one in records if isinstance(one, Iteration)]
    # Of a tree the model knows the busiest link, not how long it waits for others.
    least = 0.75 if collective == "binary-tree" else 0.95
    assert least <= model_s(plan)["red"] / max(ends) <= 1.02


def test_partners_far_apart_wait_for_each_other_s_words() -> None:
    """Both steps of an exchange of two begin with a word, and receipts come at the end: five ways in all."""
    plan = two_sites(
        far=True, collective="halving-doubling", gradient="20 kB", iterations=1
    )
    records, _ = run_alone(SimulationBackend(), plan)
    (took_s,) = {
        one.allreduce_end - one.compute_end
        for one in records
        if isinstance(one, Iteration)
    }
    # 10 ms on the way, five times as long as emulated; and 10 kB in each step at 200 Mbit/s, 10 of it.
    assert took_s == pytest.approx(5 * 0.05 + 2 * 8 * 5e3 / 20e6, rel=1e-6)


def test_an_earlier_end_is_explained_by_sharing_only_if_it_goes_with_it() -> None:
    random = np.random.default_rng(3)
    shared = Case(
        "ring",
        np.ones(6),
        np.full(6, 1e-4),
        (1.0,) * 4,
        1e6,
        0.0,
        2,
        (0, 2, 1, 3),
        4.0,
        ("rate", 4, 1.5),
    )
    own = shared.unshared
    # Each hop crosses between leaves, two at a time over an uplink of half of a GPU's rate.
    assert own.rate_bps[0, 1] == own.rate_bps[1, 2] == pytest.approx(0.5e9)
    assert own.delay_s[0, 1] == pytest.approx(4e-4)
    assert own.run().end_s == pytest.approx(shared.run().end_s / 2, rel=0.05)
    before, after = shared.run(), shared.slowed.run()
    assert explained(0, shared, before, after)["by_sharing"]
    assert not explained(0, own_links(random, most=4), after, before)["by_sharing"]
