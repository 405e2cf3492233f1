"""The controller's own placement and regrouping as policies of a replay, GPU by GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import yaml

from ringlight.containers.image import ROOT
from ringlight.controller.jobs.reservation import JOB, Holder, reserve
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.runner.foretold import Foreteller
from ringlight.extensions.cluster.clusters import Policies
from ringlight.extensions.cluster.job_traces import JobTrace, generated
from ringlight.extensions.cluster.records import replay_in
from ringlight.extensions.cluster.simulation.breaking import Losses
from ringlight.extensions.cluster.simulation.by_gpu import Gpus
from ringlight.extensions.cluster.simulation.crossing import Alternating
from ringlight.extensions.cluster.simulation.measures import measured
from ringlight.extensions.cluster.simulation.replay import replay
from ringlight.extensions.cluster.tiers import cluster_of, leaves_of
from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric


def lit(
    switches: int, each: int, spare: int, uplink: str = "5 Gbit/s"
) -> dict[str, object]:
    """A fabric whose GPUs hang on packet switches through one optical switch; a core joins these."""
    gpus = switches * each
    ports = each + spare
    ends = [(f"g{n}", f"ocs0:{n + 1}") for n in range(gpus)]
    ends += [
        (f"tor{s}:{p}", f"ocs0:{gpus + s * ports + p}")
        for s in range(switches)
        for p in range(1, ports + 1)
    ]
    up = [
        {"ends": [f"tor{s}:{ports + 1}", f"core:{s + 1}"], "rate": uplink}
        for s in range(switches)
    ]
    return {
        "servers": {"s0": {"gpus": {f"g{n}": "gpu" for n in range(gpus)}}},
        "packet_switches": {f"tor{s}": {"ports": ports + 1} for s in range(switches)}
        | {"core": {"ports": switches}},
        "optical_switches": {
            "ocs0": {"size": 2 * (gpus + switches * spare), "profile": "mems"}
        },
        "links": [{"ends": list(pair), "rate": "10 Gbit/s"} for pair in ends] + up,
        "circuits": [[f"g{n}", f"tor{n // each}:{n % each + 1}"] for n in range(gpus)],
    }


def built(switches: int, each: int, spare: int) -> Fabric:
    return build_fabric(FabricSpec.model_validate(lit(switches, each, spare)))


def test_a_replay_chooses_gpus_as_the_controller_reserves_them() -> None:
    fabric = built(3, 4, 1)
    rng = np.random.default_rng(1)
    gpus, switch_of, holders = (
        Gpus(fabric, cluster_of(fabric), [1.0] * 200),
        leaves_of(fabric),
        {},
    )
    for job in range(200):
        if free := len(fabric.gpus) - len(holders):
            wanted = int(rng.integers(1, free + 1))
            chosen = reserve(tuple(fabric.gpus), holders, switch_of, wanted)
            placed = gpus.take(job, wanted)
            on = [switch_of[gpu] for gpu in chosen]
            assert placed == {int(name[3:]): on.count(name) for name in on}
            holders |= dict.fromkeys(chosen, Holder(JOB, str(job)))
        for other in sorted({int(holder.name) for holder in holders.values()}):
            if rng.random() < 0.6:
                gpus.give(other)
                gone = Holder(JOB, str(other))
                holders = {
                    gpu: holder for gpu, holder in holders.items() if holder != gone
                }
    assert sum(gpus.free()) == len(fabric.gpus) - len(holders)


@pytest.mark.parametrize("light", ["none", "controller"])
def test_littles_law_and_what_is_done(light: str) -> None:
    fabric = built(3, 4, 1)
    cluster, trace = (
        cluster_of(fabric),
        generated(120, 40, 100, {1: 1, 2: 3, 3: 2, 4: 2, 6: 1}, 3),
    )
    shares = np.where(trace.gpus > 1, 0.6, 0.0)
    gpus = Gpus(fabric, cluster, shares.tolist())
    policies = Policies(placement="controller", light=light, dark_s=2.0)  # type: ignore[arg-type]
    losses = Losses(((500.0, "g3"), (900.0, "g8")), 10.0, 5.0)
    rings = np.ones(len(trace), dtype=np.bool_)
    found = replay(
        cluster,
        trace,
        shares,
        rings,
        policies,
        start_up_s=3.0,
        by_gpu=gpus,
        losses=losses,
    )
    figures = measured(cluster, trace, found, 0.0).figures
    assert (figures["little_gap"] or 0.0) < 1e-9
    took = found.end_s - found.start_s
    assert np.all(took >= (trace.duration_s + 3.0) * (1 - 1e-9))
    assert found.done[-1] == pytest.approx(trace.work, rel=1e-9)
    assert found.held[-1] == pytest.approx(float(trace.gpus @ took), rel=1e-9)
    # Two GPUs are lost for good; light leads to the others.
    assert sum(gpus.free()) == len(fabric.gpus) - 2
    assert (found.fibres > 0) == (light == "controller")
    assert found.dark_s.any() == (light == "controller")


def test_controllers_regrouping_brings_a_job_together() -> None:
    fabric = built(2, 4, 0)
    gpus = Gpus(fabric, cluster_of(fabric), [1.0] * 4)
    assert [gpus.take(job, 3) for job in range(2)] == [{0: 3}, {1: 3}]
    # One is free on each switch; a ring over both leaves each once.
    assert gpus.take(2, 2) == {0: 1, 1: 1}
    assert gpus.loads(2) == [(0, 1.0), (1, 1.0)]
    gpus.give(0)
    touched, fibres = gpus.regroup()
    assert touched == {2: {0: 2}}
    assert fibres == 2
    assert gpus.loads(2) == []
    assert gpus.free() == [2, 1]


def test_a_spare_of_another_switch_makes_the_ring_cross() -> None:
    fabric = built(2, 4, 0)
    gpus = Gpus(fabric, cluster_of(fabric), [1.0] * 3)
    assert [gpus.take(0, 4), gpus.take(1, 2)] == [{0: 4}, {1: 2}]
    assert gpus.lose("g7") is None
    assert gpus.lose("g1") == 0
    assert gpus.replace(0) == 1
    assert gpus.placed(0) == {0: 3, 1: 1}
    assert gpus.loads(0) == [(0, 1.0), (1, 1.0)]
    assert gpus.lose("g0") == 0
    assert gpus.replace(0) == 0
    assert gpus.free() == [0, 0]
    gpus.give(1)
    assert gpus.replace(0) == 1
    assert gpus.placed(0) == {0: 2, 1: 2}


def test_a_gpu_that_is_lost_while_its_job_begins() -> None:
    """The job comes at 0 and begins after ten seconds; four of them are over when it starts once more."""
    fabric = built(2, 4, 0)
    cluster, trace = (
        cluster_of(fabric),
        generated(1, 1, 100, {4: 1}, 0, durations="constant"),
    )
    gpus, losses = Gpus(fabric, cluster, [0.0]), Losses(((4.0, "g0"),), 30.0, 7.0)
    trace = replace(trace, arrival_s=np.zeros(1))
    found = replay(
        cluster, trace, np.zeros(1), np.ones(1, dtype=np.bool_), Policies(placement="controller"),
        start_up_s=10.0, by_gpu=gpus, losses=losses,
    )  # fmt: skip
    assert found.end_s.tolist() == [4 + 7 + 100]
    assert found.done[-1] == pytest.approx(4 * 100)


@pytest.mark.parametrize("at_s", [49.0, 51.0])
def test_a_gpu_that_is_lost_while_its_job_is_dark(at_s: float) -> None:
    """It loses what it did since its last checkpoint, as if its light had not moved at 50 s."""
    fabric = built(2, 4, 0)
    cluster = cluster_of(fabric)
    # The second job's GPUs are on both switches until the third comes, and the first has left.
    trace = JobTrace(
        np.array([0.0, 0, 0, 50]), np.array([3, 3, 2, 1]), np.array([40.0, 200, 200, 9])
    )
    gpus = Gpus(fabric, cluster, [1.0] * 4)
    losses = Losses(((at_s, "g3"),), 30.0, 0.0)
    policies = Policies(placement="controller", light="controller", dark_s=5.0)
    found = replay(
        cluster,
        trace,
        np.zeros(4),
        np.ones(4, dtype=np.bool_),
        policies,
        by_gpu=gpus,
        losses=losses,
    )
    assert found.hit == 1
    assert found.done[-1] == pytest.approx(trace.work)
    # From 30 s on once more, after what it was dark.
    assert found.end_s[2] == pytest.approx(
        200 + (at_s if at_s < 50 else 50) - 30 + (5 if at_s < 50 else 1)
    )


SCENARIO = """
name: trace-and-light
description: Jobs of a made-up trace on six GPUs whose fibres the controller moves.
scale: {time: 0.01, payload: 40000}
jobs:
  trace:
    generate: {jobs: 8, gap: 200 s, duration: 600 s, sizes: {2: 2, 3: 1}}
    seed: 5
    sends: {share: 0.8, pattern: ring}
    sharing: duty
    start_up: 80 s
    dark: 10 s
    trains: {iteration: 45 s, recovery: 120 s}
arms:
  stays: {}
  moves: {jobs.trace.light: controller}
  lost:
    like: moves
    events: [{when: {at: 700 s}, do: lose, target: gpu g1, then: swap}]
"""


def plans(text: str = SCENARIO) -> dict[str, RunPlan]:
    raw = yaml.safe_load(text) | {"fabric": lit(2, 3, 0)}
    return {
        plan.arm: plan
        for plan in parse(yaml.safe_dump(raw, sort_keys=False), "light.yaml").plans
    }


def test_a_replay_is_near_to_a_simulation_flow_by_flow() -> None:
    """With light that stays and moves, and a GPU that is lost: the same starts, and times within 5 %."""
    foretell = Foreteller()
    ends = {}
    for arm, plan in plans().items():
        # The simulation has the same start-up, as a measurement would give it.
        found = foretell(
            replace(plan, jobs=tuple(replace(job, start_up_s=0.8) for job in plan.jobs))
        )
        replay = replay_in(found.computed)
        assert replay is not None
        for name, (_, _, began, ended) in replay.jobs.items():
            assert began is not None
            assert ended is not None
            assert ended - began == pytest.approx(found.jct_s[name], rel=0.05), (
                arm,
                name,
            )
        ends[arm] = {name: moments[3] for name, moments in replay.jobs.items()}
    assert ends["moves"]["j4"] < 0.8 * ends["stays"]["j4"]
    assert ends["lost"]["j2"] > ends["moves"]["j2"] + 1.2


def test_a_replay_turn_by_turn_is_the_simulation_flow_by_flow() -> None:
    """Jobs that compute and send in turn: all moments are the same, whatever light does."""
    foretell = Foreteller()
    for arm, plan in plans(SCENARIO.replace("duty", "on-off")).items():
        ups = [0.6 + 0.05 * number for number in range(len(plan.jobs))]
        jobs = tuple(
            replace(job, start_up_s=up) for job, up in zip(plan.jobs, ups, strict=True)
        )
        found = foretell(replace(plan, jobs=jobs))
        replay = replay_in(found.computed)
        assert replay is not None
        for (name, (_, granted, began, ended)), up in zip(
            replay.jobs.items(), ups, strict=True
        ):
            assert granted is not None
            assert began == pytest.approx(granted + up)
            assert ended is not None
            # Packets of the simulation, and light that the replay moves at once.
            assert ended - began == pytest.approx(
                found.jct_s[name], rel=0.005 if arm == "stays" else 0.02
            )


def test_a_job_takes_its_turns_from_where_it_is() -> None:
    """Two jobs of iterations of ten seconds, of which they send for six, on a link for one of them."""
    crossing = Alternating(np.array([1.0]), 10.0)
    crossing.add(0, 0.0, [(0, 1.0)], 20.0, 0.6, 2)
    crossing.add(1, 0.0, [(0, 1.0)], 5.0, 0.6, 2)
    turns = []
    now = 0.0
    while crossing.jobs:
        crossing.settle(now)
        now, job = crossing.until, crossing.next_over()
        over = crossing.turn(job, now)
        turns.append((round(now, 9), job, over))
        if over:
            assert crossing.remove(job, now) == 0
    # The second sends from the beginning, and the first from four seconds on: one second is shared.
    assert turns == [
        (4, 0, False),
        (6, 1, True),
        (11, 0, False),
        (15, 0, False),
        (21, 0, True),
    ]


def test_jobs_after_a_regrouping_wait_for_it() -> None:
    plan = plans()["moves"]
    assert [event.name for event in plan.events] == [f"regroup-j{n}" for n in range(8)]
    assert all(
        event.when.granted == event.name.removeprefix("regroup-")
        for event in plan.events
    )


def test_light_of_the_controller_goes_with_its_placement() -> None:
    with pytest.raises(ScenarioError) as error:
        plans(SCENARIO.replace("sharing: duty", "sharing: duty\n    placement: random"))
    assert (
        "jobs.trace.placement: if light is the controller's, placement must be, too"
        in str(error.value)
    )
    fabric, trace, nothing = built(2, 3, 0), generated(2, 1, 1, {1: 1}, 0), np.zeros(2)
    with pytest.raises(ValueError, match="GPU by GPU"):
        replay(
            cluster_of(fabric),
            trace,
            nothing,
            nothing > 0,
            Policies(placement="controller"),
        )


@pytest.mark.parametrize(
    ("fabric", "more", "said"),
    [
        (
            "tree",
            "light: when-it-pays",
            "jobs.trace.light: when-it-pays: where the controller places jobs",
        ),
        (
            "tree",
            "faults: {file: infinitehbd_faults.json, servers: 400}",
            "jobs.trace.faults: if the",
        ),
        (
            "ideal",
            "seed: 1",
            "jobs.trace.placement: controller: it places jobs on packet switches",
        ),
        (
            "ideal",
            "trains: {iteration: 1 s}",
            "jobs.trace.trains: jobs can train only if the GPUs have links",
        ),
    ],
)
def test_what_the_controller_does_not_decide_is_refused(
    fabric: str, more: str, said: str
) -> None:
    fabrics = {
        "tree": "leaf_spine: {leaves: 4, spines: 2, gpus_per_leaf: 8, gpu: g, rate: 10 Gbit/s}",
        "ideal": "interconnect: {kind: ideal, gpus: 8, gpu: g, rate: 100 Gbit/s}",
    }
    text = f"""
name: refused
description: Policies that do not go together.
fabric: {{{fabrics[fabric]}}}
jobs:
  trace:
    generate: {{jobs: 4, gap: 20 s, duration: 300 s, sizes: {{2: 1}}}}
    sends: {{share: 0.3, pattern: ring}}
    placement: {"pack" if "trains" in more else "controller"}
    {more}
"""
    with pytest.raises(ScenarioError) as error:
        parse(text, str(ROOT / "scenarios/traces/refused.yaml"))
    assert said in str(error.value)


def test_rings_of_named_gpus_over_circuits() -> None:
    """Its ranks are on the switches 0, 0, 1 and, once one is lost, 0, 2, 1."""
    spec = {
        "optical_switches": {"ocs0": {"size": 9, "profile": "mems"}},
        "leaf_spine": {
            "leaves": 3, "spines": 3, "gpus_per_leaf": 2, "gpu": "g", "rate": "10 Gbit/s", "core": "ocs0",
        },
    }  # fmt: skip
    fabric = build_fabric(FabricSpec.model_validate(spec))
    cluster = cluster_of(fabric)
    gpus = Gpus(fabric, cluster, [1.0])
    placed = gpus.take(0, 3)
    assert placed == {0: 2, 1: 1}
    # Each pair's circuits are one link; the ring goes there and back.
    assert gpus.loads(0) == cluster.loads(placed, once_round=True) == [(0, 1.0)]
    gpus.take(1, 1)
    assert gpus.lose("g1") == 0
    assert gpus.replace(0) == 1
    assert sorted(gpus.loads(0)) == [(0, 1.0), (1, 1.0), (2, 1.0)]


def test_order_of_ranks_decides_how_often_a_ring_crosses() -> None:
    fabric = built(2, 4, 0)
    gpus = Gpus(fabric, cluster_of(fabric), [1.0] * 9)
    for job in range(8):
        gpus.take(job, 1)
    for job in (1, 2, 4, 7):
        gpus.give(job)
    # Two are free on each switch: its ranks go switch by switch.
    assert gpus.take(8, 4) == {0: 2, 1: 2}
    assert gpus.loads(8) == [(0, 1.0), (1, 1.0)]
