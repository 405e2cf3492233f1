"""The collective ``optinc`` in scenarios: what is emulated, and carried out in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from ringlight.experiments.analysis.prediction import expected_s, predict_jobs
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.emulation.requests import only_simulated
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import load
from ringlight.experiments.language.light_events import light_events
from ringlight.experiments.language.targets import TARGETS_OF
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.runs import runs_of
from ringlight.experiments.runner.experiment import choose, run_alone
from ringlight.extensions.optinc.averaging import averaging_of, scale_bytes
from ringlight.fabric.algorithms import parse_collective, steps_named
from ringlight.fabric.planes.base import NETWORK_S
from tests.extensions.optinc.test_averagers import names, one_level, two_levels
from tests.unit.test_language_mistakes import ROOT
from tests.unit.test_ring_of_bits import RATE_BPS, all_reduce_s, plans_of, simulated
from tests.unit.test_ring_of_bits import scenario as with_collective


def scenario(fabric: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Jobs of one all-reduce by averagers after 10 ms on all GPUs, on links of 100 Gbit/s."""
    return with_collective(fabric, "optinc", **more)


def test_the_bundled_scenario_is_emulated_and_simulated() -> None:
    experiment = load(ROOT / "scenarios" / "optinc_4.yaml")
    assert {
        plan.arm: only_simulated(plan)
        for plan in experiment.plans
        if plan.arm != "ring-bits"
    } == {
        "optinc": None,
        "electrical": None,
        "ring": None,
    }
    assert not choose(experiment, SimulationBackend()).refused


def test_ranks_in_another_order_than_the_averagers_ports_are_not_emulated() -> None:
    ranks = ["g1", "g0", "g2", "g3"]
    (plan,) = plans_of(scenario(one_level(), jobs={"train": {"ranks": ranks}}))
    assert only_simulated(plan) == (
        "jobs.train.ranks: emulated in the order of the ports of averager avg0, g0, g1, g2, g3"
    )


def test_the_ring_takes_by_bytes_alone_half_as_long_again() -> None:
    """2 (N - 1) / N at N = 4, and a little less, as OptINC sends scales first and waits for one frame."""
    experiment = load(ROOT / "scenarios" / "optinc_4.yaml")
    runs = {plan.arm: simulated(plan) for plan in experiment.plans}
    took = {arm: all_reduce_s(run) for arm, run in runs.items()}
    assert 1.45 < took["ring"] / took["optinc"] < 1.5
    models = {
        plan.arm: predict_jobs(plan, {"train": names(4)})["train"].all_reduce_s
        for plan in experiment.plans
    }
    # Frames that are handed on whole make it a little less.
    assert 1.47 < models["ring"] / models["optinc"] < 1.5
    # sums of 10 bits, and scales
    assert models["ring-bits"] / models["ring"] == pytest.approx(
        (1.6875 + 1.5 / 512) / 1.5, rel=1e-6
    )
    assert took["ring-bits"] / took["ring"] == pytest.approx(1.6904 / 1.5, rel=5e-3)
    for plan in experiment.plans:
        assert models[plan.arm] < took[plan.arm] < 1.05 * models[plan.arm]
        assert expected_s(plan)["train"] == pytest.approx(8 * (0.4 + models[plan.arm]))
        # The numbers pass no packet switch.
        assert bool(runs[plan.arm].jobs["train"].iterations[0].stalls) is False


@pytest.mark.parametrize(
    ("fabric", "servers"),
    [(one_level(), 4), (two_levels(), 16), (two_levels(decimals=False), 16)],
)
def test_an_all_reduce_is_the_scales_and_then_the_stream(
    fabric: dict[str, Any], servers: int
) -> None:
    raw = scenario(
        fabric, jobs={"train": {"ranks": names(servers)}}, tcp={"headers": False}
    )
    (plan,) = plans_of(raw)
    job = plan.jobs[0]
    size = job.loop.gradient_bytes
    one = averaging_of(plan.setting.fabric, job.ranks)
    scales_s = 8 * 2 * (servers - 1) / servers * scale_bytes(size) / RATE_BPS
    sent_s, waits = scales_s + one.stream_s(size), 2 + len(one.hops)
    assert all_reduce_s(simulated(plan)) == pytest.approx(
        sent_s + waits * NETWORK_S, rel=1e-9
    )
    late = simulated(plan, SimulationBackend(latency_s=1e-3))
    assert all_reduce_s(late) == pytest.approx(
        sent_s + waits * (NETWORK_S + 1e-3), rel=1e-9
    )


def test_it_begins_when_the_last_rank_comes_to_it() -> None:
    raw = scenario(one_level(), jobs={"train": {"ranks": "all", "slower": {2: 3}}})
    iterations = simulated(plans_of(raw)[0]).jobs["train"].iterations
    assert {it.rank: round(it.compute_end - it.compute_start, 9) for it in iterations}[
        2
    ] == 0.03
    assert {it.i: it.allreduce_end for it in iterations} == {
        it.i: it.allreduce_end for it in reversed(iterations)
    }
    even = simulated(plans_of(scenario(one_level()))[0]).jobs["train"].iterations
    assert iterations[0].allreduce_end == pytest.approx(even[0].allreduce_end + 0.02)


def test_a_ring_beside_it_loses_nothing() -> None:
    """Averagers' cables are their servers' alone; what the ring shares with the scales is left out."""
    fabric = one_level(4)
    fabric["servers"] |= {f"s{i}": {"gpus": {f"x{i}": "gpu"}} for i in (8, 9)}
    fabric["packet_switches"]["tor0"]["ports"] = 6
    fabric["links"] += [
        {"ends": [f"x{i}", f"tor0:{i - 3}"], "rate": "100 Gbit/s"} for i in (8, 9)
    ]
    jobs = {
        "train": {"ranks": names(4)},
        "ring": {"ranks": ["x8", "x9"], "training": {"collective": "ring"}},
    }
    both = simulated(plans_of(scenario(fabric, jobs=jobs))[0])
    for job in jobs:
        alone = simulated(plans_of(scenario(fabric, jobs={job: jobs[job]}))[0])
        assert all_reduce_s(both, job) == pytest.approx(
            all_reduce_s(alone, job), rel=1e-12
        )


def test_a_job_that_is_cancelled_ends_there() -> None:
    event = {
        "when": {"job": "train", "iteration": 1},
        "do": "cancel",
        "target": "job train",
    }
    raw = scenario(
        one_level(), jobs={"train": {"ranks": "all", "may_fail": True}}, events=[event]
    )
    (plan,) = plans_of(raw)
    records = run_alone(SimulationBackend(), plan)[0]
    (run,) = runs_of(records, [plan])
    assert run.jobs["train"].state == "CANCELLED"
    assert len(run.jobs["train"].by_index) == 1


def test_what_the_simulation_does_not_know_is_refused() -> None:
    event = {"when": {"at": "1 ms"}, "do": "cut", "target": "link g0 tor0:1"}
    (plan,) = plans_of(scenario(one_level(), events=[event]))
    assert SimulationBackend().refuses(plan) == (
        "events.1.do: the simulation cannot cut where averagers work"
    )


def lost(then: str) -> dict[str, Any]:
    return {"when": {"at": "1 ms"}, "do": "lose", "target": "gpu g3", "then": then}


def packets_only() -> dict[str, Any]:
    raw = one_level()
    return {**raw, "averagers": {}, "links": raw["links"][:4]}


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (scenario(packets_only()),
         "training.collective: optinc of job train on fabric: the fabric has no averagers"),
        (scenario(one_level(), jobs={"train": {"gpus": 4}}),
         "jobs.train.gpus: which averager a job has depends on its GPUs; give ranks"),
        (scenario(one_level(), jobs={"train": {"ranks": names(3)}}),
         "averager avg0 waits for 4 servers, and GPU g3 is not one of the ranks"),
        (scenario(one_level(), events=[lost("shrink")]),
         "jobs.train: a lost GPU of averager avg0 can only let the job fail"),
        (scenario(one_level(network="trained", bits=16)),
         "fabric.averagers.avg0.network: no trained weights for 16 bits on 4 ports"),
        (scenario(one_level(), events=[{"when": "start", "do": "cut", "target": "link g0:1 avg0:1"}]),
         "the link at g0:1 is a cable of averager avg0, which stays as it is"),
        (scenario(one_level(), events=[{"when": {"at": "1 s"}, "do": "kill", "target": "averager avg9"}]),
         "events.1.target: there is no averager avg9"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(raw: dict[str, Any], named: str) -> None:
    with pytest.raises(ScenarioError, match=named.replace(".", r"\.")):
        plans_of(raw)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("optinc-4", "optinc has no wavelengths"),
        ("optinc-striped", "optinc has no striped"),
        ("optinc-bits-8", "optinc has no bits"),
    ],
)
def test_optinc_has_no_options(name: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse_collective(name)


def test_optinc_has_no_steps() -> None:
    """So a controller or a worker that is asked for it says so."""
    with pytest.raises(
        ValueError, match="collective optinc: its plane does it, so it has no steps"
    ):
        steps_named("optinc", 4)


def test_every_event_of_the_language_is_something_that_the_emulation_can_do() -> None:
    others = ("cancel", "start", *light_events())
    asked = {
        f"{do} {kind}"
        for do, kinds in TARGETS_OF.items()
        for kind in kinds
        if do not in others
    }
    assert asked <= EmulationBackend.capabilities
