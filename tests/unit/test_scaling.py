"""The scale that a machine chooses for runs that leave it to the machine: ``scale: auto``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ringlight.experiments.analysis.carrying import MEASURED, REFERENCE, Costs
from ringlight.experiments.analysis.scaling import (
    MESSAGE_FRAMES,
    NOTHING,
    PROCESSORS,
    STEPS,
    SWITCH,
    TIMERS,
    choose_scale,
)
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.plan import ChosenScale, RunPlan
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.folder import experiment_of
from ringlight.experiments.runner import machine
from ringlight.experiments.runner.command import load_checked
from ringlight.experiments.runner.machine import WAKE_S
from ringlight.testbed.emulation import calibration
from ringlight.testbed.emulation.calibration import Measured
from tests.unit.test_cli import ringlight

TEXT = """
name: small
description: Four GPUs on two leaves.
scale: auto
fabric:
  leaf_spine: {leaves: 2, spines: 1, gpus_per_leaf: 2, gpu: a100, rate: 40 Gbit/s, uplink_rate: 80 Gbit/s}
training: {model: resnet50, compute: 1 s, batch: 8, iterations: 2, gradient: 1.6 GB}
"""
LIGHT = """
name: light
description: Two jobs of two GPUs, each on both of two packet switches.
scale: auto
fabric:
  servers: {s0: {gpus: {g0: a100, g1: a100, g2: a100, g3: a100}}}
  packet_switches: {tor0: {ports: 3}, tor1: {ports: 3}}
  optical_switches: {ocs0: {size: 8, driver: scpi, profile: mems}}
  links:
    - {ends: [g0, "ocs0:1"], rate: 40 Gbit/s}
    - {ends: [g1, "ocs0:2"], rate: 40 Gbit/s}
    - {ends: [g2, "ocs0:3"], rate: 40 Gbit/s}
    - {ends: [g3, "ocs0:4"], rate: 40 Gbit/s}
    - {ends: ["tor0:1", "ocs0:5"], rate: 40 Gbit/s}
    - {ends: ["tor0:2", "ocs0:6"], rate: 40 Gbit/s}
    - {ends: ["tor1:1", "ocs0:7"], rate: 40 Gbit/s}
    - {ends: ["tor1:2", "ocs0:8"], rate: 40 Gbit/s}
    - {ends: ["tor0:3", "tor1:3"], rate: 10 Gbit/s}
  circuits: [[g0, "tor0:1"], [g1, "tor0:2"], [g2, "tor1:1"], [g3, "tor1:2"]]
training: {model: resnet50, compute: 1 s, batch: 8, iterations: 2, gradient: 1.6 GB}
jobs: {red: {ranks: [g0, g2]}, blue: {ranks: [g1, g3]}}
"""
#: Where nothing costs anything but what a test says.
FREE = Costs(
    message=0.0, frame=0.0, switched=0.0, step=0.0, port=0.0, carried=0.0, wake=0.0
)


def chosen(text: str, costs: Costs, processors: int = 2) -> ChosenScale:
    found = parse(text, "small.yaml", scale_for=chooser(costs, processors)).scale
    assert found is not None
    return found


def chooser(
    costs: Costs, processors: int = 2
) -> Callable[[Sequence[RunPlan]], ChosenScale]:
    return lambda plans: choose_scale(plans, costs, processors)


@pytest.mark.parametrize(
    ("costs", "limit"),
    [
        (replace(FREE, frame=1e-2), PROCESSORS),
        (replace(FREE, message=10.0), PROCESSORS),
        (replace(FREE, switched=1e-2), SWITCH),
        (replace(FREE, port=1e-3), SWITCH),
        (replace(FREE, wake=0.1), TIMERS),
        (replace(FREE, step=0.1), STEPS),
        (FREE, NOTHING),
    ],
)
def test_the_part_that_costs_most_limits_and_is_named(costs: Costs, limit: str) -> None:
    # Of few processors Open vSwitch cannot fill one before it is too much for all.
    found = chosen(TEXT, costs, 8)
    assert found.limit == limit
    assert found.time == 1 if limit == NOTHING else found.time > 1
    # To two digits, and never less than the part asks for.
    assert found.time >= max(found.wants.values())
    assert found.time <= max(1.0, 1.1 * max(found.wants.values()))


def test_what_a_machine_carries_as_it_is_is_not_scaled() -> None:
    slow = (
        TEXT.replace("40 Gbit/s", "10 Mbit/s")
        .replace("80 Gbit/s", "20 Mbit/s")
        .replace("1.6 GB", "2 MB")
    )
    found = chosen(slow, MEASURED)
    assert (found.time, found.payload, found.limit) == (1, 1, NOTHING)


def test_twice_the_work_takes_twice_the_time_and_twice_the_processors_half() -> None:
    costs = replace(FREE, frame=1e-3)
    once, twice, wide = (
        chosen(TEXT, *of).wants[PROCESSORS]
        for of in ((costs,), (replace(FREE, frame=2e-3),), (costs, 4))
    )
    assert twice == pytest.approx(2 * once, rel=1e-3)
    assert wide == pytest.approx(once / 2, rel=1e-3)


def test_messages_and_queues_keep_their_frames() -> None:
    found = parse(TEXT, "small.yaml", scale_for=chooser(replace(FREE, frame=1e-2)))
    (plan,) = found.plans
    # A quarter of the gradient is a message.
    frame = plan.setting.frames.mtu_bytes
    assert plan.jobs[0].loop.gradient_bytes / 4 >= MESSAGE_FRAMES * frame
    assert plan.setting.frames.short == ()
    # Where bytes cost little, messages stay longer.
    easy = chosen(TEXT, replace(FREE, frame=1e-6, wake=0.01))
    assert found.scale is not None
    assert easy.payload < found.scale.payload


def test_one_scale_for_all_arms_so_that_they_can_be_compared() -> None:
    arms = "arms: {small: {training.gradient: 160 MB}, large: {}, own: {scale: {time: 3, payload: 7}}}\n"
    found = parse(TEXT + arms, "small.yaml", scale_for=chooser(MEASURED))
    scales = {plan.arm: plan.setting.scale for plan in found.plans}
    assert scales["small"] == scales["large"]
    assert (scales["own"].time, scales["own"].payload) == (3, 7)
    assert found.scale is not None
    assert found.scale.scale == scales["small"]
    stated = parse(TEXT, "small.yaml", sets=["scale={time: 2, payload: 5}"])
    assert stated.scale is None
    assert stated.plans[0].setting.scale.rate == 10


def test_slow_links_are_filled_for_longer_than_their_queues_last() -> None:
    def filled_s(time: float, scale: str = "auto") -> float:
        text = TEXT.replace("scale: auto", f"scale: {scale}")
        made = chosen(TEXT, FREE).model_copy(update={"time": time})
        return (
            parse(text, "small.yaml", scale_for=lambda _: made)
            .plans[0]
            .setting.link_test_s
        )

    # Queues are of 20 ms.
    assert filled_s(1.0) == 0.8
    assert filled_s(36.0) == pytest.approx(3 * 36 * 0.02)
    assert filled_s(1000.0) == 10
    assert filled_s(1.0, "{time: 36, payload: 10}") == 0.8


def test_a_moved_job_is_expected_at_the_full_rate_of_its_link() -> None:
    """Both jobs cross the link between the switches until light has been moved."""
    costs = replace(FREE, message=1.0)
    still = chosen(LIGHT, costs).wants[PROCESSORS]
    moved = chosen(LIGHT + "events: [{when: start, do: regroup}]\n", costs).wants[
        PROCESSORS
    ]
    assert moved > 4 * still


def test_without_a_machine_there_is_no_scale() -> None:
    with pytest.raises(
        ScenarioError, match=r"small.yaml: scale: auto: nothing here knows the machine"
    ):
        parse(TEXT, "small.yaml")
    with pytest.raises(ScenarioError, match=r"scale: "):
        parse(TEXT.replace("auto", "automatic"), "small.yaml")


def test_a_run_folder_keeps_the_scale_that_was_chosen(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(TEXT)
    done = ringlight("simulate", str(file), "--runs", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    environment = json.loads((folder / "environment.json").read_text())
    kept = ChosenScale.model_validate(environment["chosen_scale"])
    # A simulation is of the real fabric.
    assert kept.scale.rate == 1
    # Another machine, or this one with other costs, reads what was run.
    environment["chosen_scale"] |= {"time": 12.0, "payload": 34.0}
    (folder / "environment.json").write_text(json.dumps(environment))
    assert (
        experiment_of(folder).plans[0].setting.scale.rate == 12 * 34 != kept.scale.rate
    )
    resumed = load_checked(file, resume=folder)
    assert resumed.plans[0].setting.scale.time == 12


def test_check_says_scale_time_and_limit(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(TEXT.replace("1 s", "1 ms"))
    done = ringlight("check", str(file), "--json")
    said = json.loads(done.stdout)["scale"]
    assert said["limit"] == TIMERS
    assert said["mtu_bytes"] == [9000]
    assert said["takes_s"]["runs"] > 2 * 0.001 * said["time"]
    words = ringlight("check", str(file)).stdout
    assert (
        f"scale: time {said['time']:g}, payload {said['payload']:g}, frames of 9000 bytes"
        in words
    )
    assert "an emulation takes about" in words


MEASURES = {
    "frame": 60e-6, "switched": 30e-6, "port": 2e-6, "carried": 4e-6, "lit": 2e-6, "wake": 2 * WAKE_S,
    "container": 0.3, "taken": 0.02,
}  # fmt: skip


def test_a_calibration_is_of_one_processor_kernel_and_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "RINGLIGHT_CALIBRATION", str(tmp_path / "cache" / "calibration.json")
    )
    assert machine.kept() is None
    said: list[str] = []
    monkeypatch.setattr(calibration, "calibrate", lambda say: Measured(**MEASURES))
    made = machine.calibrate(said.append)
    found = machine.kept()
    assert found is not None
    assert (found, said) == (made, [])
    # Workers go by the speed of the machine, switches are as measured.
    assert found.costs.message == pytest.approx(2 * MEASURED.message)
    assert (found.costs.switched, found.costs.port) == (30e-6, 2e-6)
    assert (found.costs.past_switches().switched, found.costs.past_switches().port) == (
        4e-6,
        0,
    )
    for key in ("processor", "kernel", "commit", "processors"):
        text = (tmp_path / "cache" / "calibration.json").read_text()
        other = json.loads(text)
        other["machine"][key] = "another"
        (tmp_path / "cache" / "calibration.json").write_text(json.dumps(other))
        assert machine.kept() is None, key
        (tmp_path / "cache" / "calibration.json").write_text(text)
    for broken in ("", "[]", '{"machine": {}}'):
        (tmp_path / "cache" / "calibration.json").write_text(broken)
        assert machine.kept() is None


def test_who_builds_a_lab_measures_once_and_what_others_disturbed_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGLIGHT_CALIBRATION", str(tmp_path / "calibration.json"))
    said: list[str] = []
    taken = [0.5, 0.01, 0.5]
    monkeypatch.setattr(
        calibration,
        "calibrate",
        lambda say: Measured(**{**MEASURES, "taken": taken.pop(0)}),
    )
    choose = partial(machine.scale_here, measure=said.append)

    def costs() -> str:
        scale = parse(TEXT, "small.yaml", scale_for=choose).scale
        assert scale is not None
        return scale.costs

    assert (costs(), costs(), machine.kept()) == (REFERENCE, REFERENCE, None)
    once, others = (
        "calibrating this machine, once",
        "other programs used 50 % of the processors",
    )
    disturbed = f"{others}: not kept; again with: ringlight calibrate"
    assert said == [once, disturbed]
    # Another day is another chance.
    monkeypatch.setattr(machine, "_today", lambda: "2126-01-01")
    found = costs()
    assert found.startswith("this machine (")
    assert said == [once, disturbed, once]
    # What counts stays, whoever disturbs another one.
    machine.calibrate(said.append)
    assert (costs(), said[3:], taken) == (found, [disturbed], [])


def test_a_file_that_says_nothing_is_left_to_the_machine_only_where_that_is_asked_for() -> (
    None
):
    silent = TEXT.replace("scale: auto\n", "").replace("compute: 1 s", "compute: 1 ms")
    assert parse(silent, "small.yaml").plans[0].setting.scale.rate == 1
    found = parse(silent, "small.yaml", scale_for=chooser(MEASURED), auto=True)
    assert found.scale is not None
    assert found.plans[0].setting.scale == found.scale.scale
    swept = silent + "sweep: {scale.time: [1, 4]}\n"
    for text, sets in (
        (swept, ()),
        (silent, ("scale.time=3",)),
        (silent + "scale: {time: 2}\n", ()),
    ):
        assert (
            parse(
                text, "small.yaml", sets=sets, scale_for=chooser(MEASURED), auto=True
            ).scale
            is None
        )
