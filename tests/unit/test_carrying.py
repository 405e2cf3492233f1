"""What ``check`` says of a machine that is to carry a plan: messages, frames, processors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ringlight.experiments.analysis.carrying import (
    LAB_PROCESSORS,
    LATE,
    Costs,
    Demand,
    alike,
    demand_of,
    traffics_of,
)
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.plan import RunPlan
from tests.unit.test_cli import ringlight

#: Round costs, so that sums can be made by hand.
COSTS = Costs(message=1e-3, frame=1e-4, switched=1e-5, step=1e-3)
TEXT = """
name: small
description: Four GPUs on two leaves.
scale: {time: 1, payload: 400}
fabric:
  leaf_spine: {leaves: 2, spines: 1, gpus_per_leaf: 2, gpu: a100, rate: 40 Gbit/s, uplink_rate: 80 Gbit/s}
training: {model: resnet50, compute: 1 s, batch: 8, iterations: 2, gradient: %s}
"""


def plan_of(gradient: str = "160 MB", more: str = "") -> RunPlan:
    return parse(TEXT % gradient + more, "small.yaml").plans[0]


def test_messages_and_frames_of_a_ring_are_those_that_one_counts_by_hand() -> None:
    plan = plan_of()
    (found,) = traffics_of(plan, plan.jobs).values()
    # 2 (n - 1) steps of n ranks; a quarter of 400 kB each.
    assert found.messages == 6 * 4
    assert found.bytes == 24 * 100_000
    assert found.steps == 6
    frames = -(-100_000 // (plan.setting.frames.mtu_bytes - 52))
    sent, switched = found.frames(plan.setting.frames.mtu_bytes)
    assert sent == 24 * frames
    # Two of four neighbours share a leaf, two pass three switches; two frames have one acknowledgement.
    assert switched == pytest.approx(6 * frames * (1 + 3 + 1 + 3) * 1.5)
    # Computing, and 600 kB a rank at 100 Mbit/s.
    assert found.seconds == pytest.approx(1 + 0.048, rel=0.01)
    busy_s = 24 * 1e-3 + 24 * frames * 1e-4 + switched * 1e-5
    demand = demand_of(plan, COSTS)
    assert demand is not None
    assert demand.processors == pytest.approx(busy_s / found.seconds)
    # Four GPUs; the lab takes its part whatever they send.
    assert demand.lab == pytest.approx(LAB_PROCESSORS[0] + 4 * LAB_PROCESSORS[1])
    assert demand.in_all == pytest.approx(demand.processors + demand.lab)


def test_jobs_that_come_later_have_no_more_gpus_together_than_there_are() -> None:
    later = "{gpus: 4, start: {at: 1 s}}"
    one, six = (
        demand_of(
            plan_of(
                more=f"jobs: {{{', '.join(f'j{n}: {later}' for n in range(count))}}}\n"
            ),
            COSTS,
        )
        for count in (1, 6)
    )
    assert one is not None
    assert six is not None
    assert six.messages_per_s == pytest.approx(one.messages_per_s)
    assert six.processors == pytest.approx(one.processors)
    assert six.message_bytes == pytest.approx(one.message_bytes)


def test_small_messages_are_too_much_where_long_ones_are_not() -> None:
    """Messages of 4 kB as emulated: their steps take longer than their bytes do."""
    quick = "training.compute=1 ms"
    long, short = (
        demand_of(parse(TEXT % size, "small.yaml", sets=[quick]).plans[0], COSTS)
        for size in ("160 MB", "6.4 MB")
    )
    assert long is not None
    assert short is not None
    assert short.message_bytes == pytest.approx(4000)
    assert short.frames_per_message == 1
    assert short.messages_per_s > 10 * long.messages_per_s
    assert short.late > 1 > long.late
    assert short.processors > 2 > long.processors
    assert short.too_much(2)


def test_a_workload_is_counted_as_the_training_with_the_same_all_reduce() -> None:
    text = "jobs: {train: {ranks: all, workload: {collective: all-reduce, size: 160 MB}}}\n"
    workload, training = plan_of(more=text), plan_of()
    (one,), (other,) = (
        traffics_of(plan, plan.jobs).values() for plan in (workload, training)
    )
    assert one.frames(9000) == other.frames(9000)
    assert (one.messages, one.steps) == (other.messages, other.steps)
    assert one.seconds == pytest.approx(0.048, rel=0.01)


def test_lines_that_are_alike_become_one() -> None:
    lines = [("a", "same"), ("b", "other"), ("c", "same")]
    assert list(alike(lines)) == ["a, c: same", "b: other"]
    assert list(alike((f"arm-{k}", "same") for k in range(12))) == [
        "arm-0, arm-1 … arm-11 (12): same"
    ]


def test_too_much_is_a_question_of_the_processors_that_there_are() -> None:
    demand = Demand(10.0, 10.0, 1.0, 4000.0, 3.0, 0.0)
    assert demand.too_much(2)
    assert not demand.too_much(8)
    assert replace(demand, processors=1.0).too_much(2) is False
    assert replace(demand, processors=1.0, lab=1.0).too_much(2)
    # No number of processors makes the latency of steps shorter.
    assert replace(demand, late=2 * LATE).too_much(8)


def test_check_says_which_arms_the_machine_does_not_carry(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    arms = "\n".join(
        f"  small-{k}: {{training.compute: 1 ms, training.gradient: 4 MB}}"
        for k in range(12)
    )
    file.write_text(TEXT % "160 MB" + f"arms:\n  long: {{}}\n{arms}\n")
    done = ringlight("check", str(file))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    (able,) = [line for line in lines if "this machine is fast enough" in line]
    assert able.startswith("long: this machine is fast enough: ")
    (unable,) = [line for line in lines if "is too slow" in line]
    assert unable.startswith(
        "small-0, small-1 … small-11 (12): this machine is too slow"
    )
    assert "messages/s of 2.5 kB in 1 frames" in unable


def test_check_says_once_what_a_dozen_arms_have_in_common(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    kill = "events: [{name: dead, when: {at: 1 s}, do: kill, target: controller}]"
    arms = "\n".join(
        f"  arm-{k}: {{training.compute: {k + 1} ms, {kill}}}" for k in range(12)
    )
    file.write_text(TEXT % "160 MB" + f"arms:\n{arms}\n")
    done = ringlight("check", str(file))
    assert done.returncode == 0, done.stderr
    who = "arm-0, arm-1 … arm-11 (12): "
    refused = "not by the simulation: events.dead.do: the simulation cannot kill the controller"
    said = [line for line in done.stdout.splitlines() if "kill" in line]
    assert said[-2:] == [f"{who}dead: kill controller", f"{who}{refused}"]
    assert len(said) == 3
    assert said[0].startswith("not predicted: arm-0")
