"""All-reduces that are looked up end as if they were simulated, whatever happens between and in them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.topology import Fabric
from ringlight.fabric.trees import leaf_spine
from ringlight.testbed.simulation import loop_run
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.jobs import (
    Compute,
    Event,
    GpuLost,
    Job,
    JobResult,
    NetworkChange,
)
from ringlight.testbed.simulation.networks import PacketNetwork
from ringlight.testbed.simulation.phases import StepCost
from ringlight.testbed.simulation.simulation import Simulation

RATE = 10e9
COLLECTIVES = ("ring", "halving-doubling", "binary-tree", "bidirectional-ring")
#: So many experiments are drawn; sampled but with --long.
EXPERIMENTS = 2000


def drawn(seed: int) -> tuple[Fabric, list[Job], list[tuple[float, Event | str]]]:
    """Jobs on a leaf-spine fabric, and what happens to them: events, and names of jobs that are stopped."""
    random = np.random.default_rng(seed)
    leaves, spines = int(random.integers(2, 5)), int(random.integers(1, 4))
    fabric = leaf_spine(
        leaves,
        4,
        RATE,
        oversubscription=float(random.choice([1.0, 2.0])),
        spines=spines,
    ).fabric()
    gpus = list(fabric.gpus)
    if random.random() < 0.6:
        random.shuffle(gpus)
    jobs: list[Job] = []
    while len(gpus) >= 2 and len(jobs) < 5:
        size = int(random.choice([2, 3, 4]))
        ranks, gpus = tuple(gpus[:size]), gpus[size:]
        if len(ranks) < 2:
            break
        names = [
            name
            for name in COLLECTIVES
            if name != "halving-doubling" or len(ranks) in (2, 4)
        ]
        alike = bool(jobs) and random.random() < 0.5
        mean_s, vector = (
            float(random.choice([0.5e-3, 2e-3, 5e-3])),
            float(random.choice([0.4e6, 2e6])),
        )
        slow = {0: 1.3} if random.random() < 0.3 else {}
        like = jobs[-1] if alike and len(jobs[-1].ranks) == len(ranks) else None
        jobs.append(
            Job(
                f"j{len(jobs)}",
                ranks,
                like.steps
                if like
                else steps_named(str(random.choice(names)), len(ranks)),
                like.vector_bytes if like else vector,
                like.compute if like else Compute(mean_s, slow),
                iterations=int(random.integers(3, 12)),
                cost=StepCost(reduce_s_per_byte=1e-10)
                if random.random() < 0.2
                else StepCost(),
                start_s=0.0
                if random.random() < 0.7
                else float(random.uniform(0, 0.02)),
            )
        )
    return fabric, jobs, list(happening(random, fabric, jobs))


def happening(
    random: np.random.Generator, fabric: Fabric, jobs: list[Job]
) -> Iterator[tuple[float, Event | str]]:
    network = PacketNetwork(fabric)
    for time_s in sorted(random.uniform(0, 0.05, int(random.integers(0, 4))).tolist()):
        job = jobs[int(random.integers(len(jobs)))]
        match random.integers(4):
            case 0:
                yield time_s, GpuLost(time_s, job.ranks[0], "shrink", recovery_s=1e-3)
            case 1:
                yield time_s, job.name
            case 2:
                slower = PacketNetwork(fabric, share=float(random.choice([0.5, 0.9])))
                yield time_s, NetworkChange(time_s, slower)
            case _:
                yield time_s, NetworkChange(time_s, network, dark_s=1e-3)


def results(seed: int, *, repeating: bool) -> tuple[dict[str, JobResult], int]:
    """What becomes of the jobs, and how many events that took."""
    fabric, jobs, later = drawn(seed)
    simulation = Simulation(
        PacketNetwork(fabric, latency_s=1e-6 * (seed % 3)),
        Engine(),
        disturbed=bool(later),
    )
    if not repeating:
        simulation.groups = None
    for job in jobs:
        simulation.add(job)
        simulation.begin(job.name)
    for time_s, event in later:
        simulation.run(time_s)
        if not isinstance(event, str):
            simulation.happen(event)
        elif not simulation.loops[event].over:
            simulation.stop(event, "stopped")
    simulation.run()
    simulation.give_up()
    return simulation.results, simulation.engine.events


def differences(seed: int) -> float:
    """The largest difference of a time from that of the long way, as a share of it."""
    (short, _), (long, _) = (
        results(seed, repeating=True),
        results(seed, repeating=False),
    )
    worst = 0.0
    for name, one in long.items():
        other = short[name]
        assert (other.failed, len(other.iterations), len(other.losses)) == (
            one.failed,
            len(one.iterations),
            len(one.losses),
        ), f"seed {seed}, job {name}"
        pairs = [(other.end_s, one.end_s)]
        for a, b in zip(other.iterations, one.iterations, strict=True):
            pairs += [
                *zip(a.begin_s, b.begin_s, strict=True),
                *zip(a.end_s, b.end_s, strict=True),
            ]
        worst = max([worst, *(abs(a - b) / b for a, b in pairs if b > 0)])
    return worst


@pytest.mark.parametrize("start", range(0, EXPERIMENTS, 50))
@pytest.mark.sampled(20)
def test_what_is_looked_up_ends_as_what_is_simulated(start: int) -> None:
    for seed in range(start, start + 50):
        assert differences(seed) < 1e-12, f"seed {seed}"


@pytest.mark.parametrize("start", range(0, 400, 50))
@pytest.mark.sampled(4)
def test_rings_of_streams_end_as_what_is_simulated(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_run, "MOST_IN_PARTS", 0)
    for seed in range(start, start + 50):
        assert differences(seed) < 1e-12, f"seed {seed}"


def test_a_job_that_is_stopped_before_its_part_of_an_episode_takes_no_links() -> None:
    # Its rank would have come to an all-reduce that another one's episode, which was looked up, counts on.
    assert differences(556) < 1e-12


def crossing(iterations: int, *, repeating: bool = True) -> Simulation:
    """Four jobs of two GPUs each, of which one is slower, across two leaves, which share spines."""
    fabric = leaf_spine(2, 4, RATE, oversubscription=2.0, spines=2).fabric()
    gpus = list(fabric.gpus)
    simulation = Simulation(PacketNetwork(fabric))
    if not repeating:
        simulation.groups = None
    for number in range(4):
        ranks = gpus[number], gpus[4 + number]
        job = Job(
            f"j{number}",
            ranks,
            steps_named("ring", 2),
            1e6,
            Compute(2e-3, {0: 1.01}),
            iterations,
        )
        simulation.add(job)
        simulation.begin(job.name)
    return simulation


def test_an_iteration_like_an_earlier_one_costs_no_events_of_flows() -> None:
    few, many, long = crossing(10), crossing(1000), crossing(1000, repeating=False)
    for simulation in (few, many, long):
        simulation.run()
    # Each rank comes and ends, and its end is an event.
    assert many.engine.events - few.engine.events <= 2 * 8 * 990
    assert long.engine.events > 3 * many.engine.events
    for name, one in long.results.items():
        assert many.results[name].end_s == pytest.approx(one.end_s, rel=1e-12)


def test_in_the_middle_of_an_episode_that_was_looked_up_flows_are_where_they_would_be() -> (
    None
):
    short, long, whole = crossing(50), crossing(50, repeating=False), crossing(50)
    whole.run()
    twentieth = whole.results["j1"].iterations[20]
    for simulation in (short, long):
        simulation.run(
            float(0.53 * twentieth.computed_s[0] + 0.47 * twentieth.end_s[0])
        )
    found, expected = (
        {
            one.engine.key(link): left
            for link, left in enumerate(one.engine.remaining(22))
            if left
        }
        for one in (short, long)
    )
    assert expected
    assert found == pytest.approx(expected, rel=1e-9)
    for simulation in (short, long):
        simulation.run()
    assert short.results["j1"].end_s == pytest.approx(
        long.results["j1"].end_s, rel=1e-12
    )
