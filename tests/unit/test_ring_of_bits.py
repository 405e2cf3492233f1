"""A ring that adds up whole numbers of B bits: what it sends, how long that takes, where it is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import yaml

from ringlight.experiments.analysis.prediction import predict_jobs
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.runs import Run, runs_of
from ringlight.experiments.runner.experiment import run_alone
from ringlight.fabric.algorithms import parse_collective, steps_named
from ringlight.fabric.collectives import all_reduce
from ringlight.fabric.kinds import collective_steps
from ringlight.fabric.schedules import ring
from ringlight.fabric.steps import Steps
from ringlight.fabric.whole_numbers.sums import sum_bits
from tests.examples import assert_as_planned

RATE_BPS = 100e9
RATE = "100 Gbit/s"
#: Four GPUs on a packet switch.
FOUR = {
    "servers": {f"s{i}": {"gpus": {f"g{i}": "gpu"}} for i in range(4)},
    "packet_switches": {"tor0": {"ports": 4}},
    "links": [{"ends": [f"g{i}", f"tor0:{i + 1}"], "rate": RATE} for i in range(4)],
}
RANKS = [f"g{i}" for i in range(4)]


def scenario(fabric: dict[str, Any], collective: str, **more: Any) -> dict[str, Any]:
    """Jobs of one all-reduce after 10 ms on all GPUs."""
    training = {"model": "resnet50", "compute": "10 ms", "batch": 64, "iterations": 2}
    of_all = {**training, "collective": collective}
    return {
        "name": "a",
        "description": "b",
        "fabric": fabric,
        "training": of_all,
        **more,
    }


def plans_of(raw: dict[str, Any]) -> tuple[RunPlan, ...]:
    return tuple(parse(yaml.safe_dump(raw, sort_keys=False), "a.yaml").plans)


def simulated(plan: RunPlan, backend: SimulationBackend | None = None) -> Run:
    records = run_alone(backend or SimulationBackend(), plan)[0]
    (run,) = runs_of(records, [plan])
    assert_as_planned(run)
    return run


def all_reduce_s(run: Run, job: str = "train") -> float:
    first, *others = [
        it.allreduce_end - it.compute_end for it in run.jobs[job].iterations
    ]
    assert others == pytest.approx([first] * len(others), rel=1e-11)
    return first


def phases(steps: Steps) -> list[tuple[str, float]]:
    """For each step what it does at its end, and the part of the float32 vector that every rank sends."""
    found = []
    for step in steps:
        assert Counter(step.sources.tolist()) == Counter(range(steps.world_size))
        assert (step.destinations == (step.sources + 1) % steps.world_size).all()
        (count,) = set(step.count.tolist())
        assert ((step.first >= 0) & (step.first + count <= steps.chunks)).all()
        found.append((step.op, count / steps.chunks))
    return found


@pytest.mark.parametrize("bits", [2, 8, 11, 16])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
def test_scales_then_sums_then_means(bits: int, ranks: int) -> None:
    once = ranks - 1
    found = phases(steps_named(f"ring-bits-{bits}", ranks))
    assert [op for op, _ in found] == 2 * (["reduce"] * once + ["replace"] * once)
    per_value = [32 * ranks * share for _, share in found]
    assert per_value[: 2 * once] == pytest.approx([16 / 1024] * 2 * once)
    assert per_value[2 * once : 3 * once] == pytest.approx(
        [sum_bits(bits, ranks)] * once
    )
    assert per_value[3 * once :] == pytest.approx([bits] * once)


@pytest.mark.parametrize(("ranks", "over"), [(4, 1.594), (8, 1.969), (16, 2.227)])
def test_sums_that_are_as_wide_as_they_need_would_be_fewer_bytes(
    ranks: int, over: float
) -> None:
    """Widths that grow: the sum of k codes with the bits of k of them."""
    growing = [sum_bits(8, ranks_in_it) for ranks_in_it in range(1, ranks)]
    assert growing[0] == 8
    assert growing[-1] == sum_bits(8, ranks)
    assert (sum(growing) + 8 * (ranks - 1)) / (8 * ranks) == pytest.approx(
        over, abs=5e-4
    )


@pytest.mark.parametrize(
    ("ranks", "raw", "even"),
    [(4, 1.6875, 1.5), (8, 2.078125, 1.75), (16, 2.34375, 1.875)],
)
def test_bytes_over_payload_with_eight_bits(
    ranks: int, raw: float, even: float
) -> None:
    """Raw, and as the paper counts: each number with its B bits. Scales are 1/512 of the payload each way."""
    payload = 8 / 32
    found = [share / payload for _, share in phases(steps_named("ring-bits-8", ranks))]
    scales, sums, means = (
        sum(found[k * (ranks - 1) : end * (ranks - 1)])
        for k, end in ((0, 2), (2, 3), (3, 4))
    )
    assert sums + means == pytest.approx(raw)
    assert sums * 8 / sum_bits(8, ranks) + means == pytest.approx(even)
    assert scales == pytest.approx(even / 512)


def test_who_has_which_chunk_is_as_in_a_ring_of_values() -> None:
    for found, plain in zip(
        list(steps_named("ring-bits-8", 5))[8:], ring(5), strict=True
    ):
        assert np.array_equal(found.first, plain.first * 2048)


@pytest.mark.parametrize("bits", [8, 16])
def test_the_simulation_takes_as_long_as_its_bytes(bits: int) -> None:
    (plan,) = plans_of(
        scenario(
            FOUR,
            f"ring-bits-{bits}",
            jobs={"train": {"ranks": RANKS}},
            tcp={"headers": False},
            costs={"latency": "0 s"},
        )
    )
    values = plan.jobs[0].loop.gradient_bytes / 4
    per_value = 2 * 16 / 1024 + sum_bits(bits, 4) + bits
    took_s = 0.75 * values * per_value / RATE_BPS
    assert all_reduce_s(simulated(plan)) == pytest.approx(took_s, rel=1e-6)
    assert predict_jobs(plan, {"train": RANKS})["train"].all_reduce_s == pytest.approx(
        took_s, rel=1e-9
    )


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("halving-doubling-bits-8", "halving-doubling has no bits"),
        ("bidirectional-ring-bits-8", "bidirectional-ring has no bits"),
        ("ring-bits-8-striped", "whole numbers are not spread over wavelengths"),
        ("ring-bits-1", "1 bits: 2 to 16 are possible"),
        ("ring-bits-17", "17 bits: 2 to 16 are possible"),
    ],
)
def test_others_are_refused_by_name(name: str, named: str) -> None:
    with pytest.raises(ValueError, match=f"collective '{name}': {named}"):
        parse_collective(name)


def test_a_name_says_what_was_read() -> None:
    assert str(parse_collective("ring-bits-12")) == "ring-bits-12"
    assert steps_named("ring-bits-12", 3).name == "ring-bits-12"


def test_it_is_no_schedule_of_one_vector() -> None:
    with pytest.raises(
        ValueError, match="ring-bits-8: its sums and means are not of one size"
    ):
        all_reduce("ring-bits-8", 4)
    with pytest.raises(
        ValueError, match="only gradients of a training are made whole numbers"
    ):
        collective_steps("all-reduce", "ring-bits-8", 4)


def check_refused_on_light(fabric: dict[str, Any], light: str) -> None:
    """Check that whole numbers are refused where light is set up for each step. ``light``: the plane."""
    raw = scenario(fabric, "ring-bits-8", jobs={"train": {"gpus": 4}})
    named = f"whole numbers go over packet switches and circuits; {light} is neither"
    with pytest.raises(ScenarioError, match=named):
        plans_of(raw)
