"""What the models say of a plan's jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.prediction import (
    expected_s,
    ideal_all_reduce_s,
    predict_jobs,
)
from ringlight.experiments.language.expand import load
from ringlight.experiments.language.plan import (
    EventPlan,
    JobPlan,
    Loop,
    RunPlan,
    Scale,
    Setting,
    Start,
    Tcp,
    When,
)
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.building import build_fabric
from ringlight.fabric.cost import ring_edge_bytes, steps_time
from ringlight.fabric.keys import plugged
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import PacketView
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import circuit_cross_connects
from tests.simulated import bundled
from tests.unit.fabrics import NIC_BPS, six_gpus

LOOP = Loop(model="vgg16", gradient_bytes=4000, compute_s=0.1, batch=1, seed=7)
JOB = JobPlan("red", "", ("g0", "g1"), 2, 5, LOOP)


def plan_of(
    section: Mapping[str, Any], *jobs: JobPlan, scale: Scale = Scale(), **more: Any
) -> RunPlan:
    fabric = build_fabric(FabricSpec.model_validate(section))
    setting = Setting("f", "F", fabric, section, scale, Tcp(), 1.0)
    lit = tuple((str(a), str(b)) for a, b in fabric.circuits)
    return RunPlan("base", "", "base", {}, 1, setting, jobs, circuits=lit, **more)


@given(st.permutations([f"g{i}" for i in range(6)]), st.integers(2, 6))
def test_a_lone_ring_takes_its_steps_one_after_another(
    order: list[str], n: int
) -> None:
    """Both models of a ring over packet switches agree where there is nobody to share with."""
    ranks = tuple(order[:n])
    plan = plan_of(
        six_gpus(), replace(JOB, ranks=ranks, gpus=n), scale=Scale(time=2, payload=100)
    )
    found = predict_jobs(plan, {"red": ranks})["red"]
    fabric = plan.setting.fabric
    light = circuit_cross_connects(
        fabric, [(Port.parse(a), Port.parse(b)) for a, b in plan.circuits]
    )
    by_steps = steps_time(
        PacketView(fabric, light), ranks, steps_named("ring", n), 4000 * 200
    )
    assert found.all_reduce_s == pytest.approx(by_steps, rel=1e-9)
    assert found.jct_s == pytest.approx(5 * (0.1 + by_steps), rel=1e-9)
    assert found.all_reduce_s >= ideal_all_reduce_s(
        plan.setting, plan.jobs[0], ranks
    ) * (1 - 1e-9)


def test_the_ideal_ring_is_the_textbook_one() -> None:
    plan = plan_of(six_gpus(), JOB, scale=Scale(time=2, payload=100))
    assert ideal_all_reduce_s(plan.setting, JOB, ("g0", "g1", "g2")) == pytest.approx(
        ring_edge_bytes(3, 4000) * 8 / (NIC_BPS / 200)
    )


def test_a_straggler_sets_the_pace() -> None:
    slow = replace(JOB, stragglers={1: 3.0})
    plain, slower = (expected_s(plan_of(six_gpus(), job))["red"] for job in (JOB, slow))
    assert slower - plain == pytest.approx(5 * 0.2)


def check_light_is_waited_for(section: Mapping[str, Any]) -> None:
    """Check that steps on a plane of four, all of the fabric, wait for light, and for nobody else."""
    nodes = tuple(build_fabric(FabricSpec.model_validate(section)).gpus)
    halving = replace(LOOP, collective="halving-doubling")
    job = replace(JOB, ranks=nodes, gpus=4, training=halving)
    plan = plan_of(section, job)
    found = predict_jobs(plan, {"red": nodes})["red"]
    assert found.set_ups > 0
    assert expected_s(plan)["red"] > found.jct_s


@pytest.mark.parametrize(
    "late",
    [
        replace(JOB, name="late", ranks=(), gpus=4),
        replace(JOB, name="late", start=Start(at_s=3)),
        replace(JOB, name="late", start=Start(after=("red",))),
        replace(JOB, name="late", start=Start(by_event=True)),
    ],
)
def test_who_comes_later_is_waited_for_longer_than_alone(late: JobPlan) -> None:
    """Whatever is not known beforehand makes the wait longer, never an error."""
    alone = expected_s(plan_of(six_gpus(), JOB))["red"]
    both = expected_s(plan_of(six_gpus(), JOB, late))
    assert both.keys() == {"red", "late"}
    assert min(both.values()) > alone


def computing_s(job: JobPlan) -> float:
    """Seconds of one iteration in which the rank that computes most does so."""
    if job.workload is None:
        return job.loop.compute_s
    return max(float(np.nansum(program.seconds)) for program in job.workload.programs)


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (ROOT / "tests" / "golden").glob("*.json"))
)
def test_every_bundled_run_has_a_time_to_wait_by(name: str) -> None:
    for plan in load(bundled(name)).plans:
        try:
            plugged(plan.setting.fabric)
        except ValueError:
            # It is simulated only, and nobody waits for that.
            continue
        found = expected_s(plan)
        assert found.keys() == {job.name for job in plan.jobs}
        assert all(
            found[job.name] > job.iterations * computing_s(job) for job in plan.jobs
        )


def test_what_is_killed_is_waited_for() -> None:
    plan = plan_of(six_gpus(), JOB)
    event = EventPlan("1", When(job="red", iteration=2), "kill", back_after_s=2.0)
    assert expected_s(replace(plan, events=(event,)))["red"] == pytest.approx(
        expected_s(plan)["red"] + 2
    )


def test_a_job_in_the_dark_is_waited_for_too() -> None:
    plan = replace(plan_of(six_gpus(), JOB), circuits=())
    event = EventPlan("1", When(at_s=4.0), "kill", back_after_s=2.0)
    assert expected_s(plan)["red"] > 0
    assert expected_s(replace(plan, events=(event,)))["red"] == pytest.approx(
        expected_s(plan)["red"] + 6
    )
