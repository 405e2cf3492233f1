"""Points of a sweep by their names, and values put in place of the file's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.language.text import ScenarioError
from tests.unit.test_cli import one_line, ringlight

SWEPT = """
name: swept
description: A sweep that changes the fabric.
scale: {time: 1, payload: 400}
fabric: {leaf_spine: {leaves: 2, spines: 1, gpus_per_leaf: 2, gpu: a100, rate: 10 Gbit/s}}
training: {model: resnet50, compute: 10 ms, batch: 8, iterations: 1}
sweep: {fabric.leaf_spine.rate: [10 Gbit/s, 20 Gbit/s], training.iterations: [1, 2]}
"""
ARMS = """
arms:
  ring: {}
  tree: {training.collective: binary-tree, training.compute: 20 ms}
"""
RATE = "fabric.leaf_spine.rate"


def swept(*sets: str, more: str = "", repeat: int | None = None) -> Experiment:
    return parse(SWEPT + more, "swept.yaml", sets=sets, repeat=repeat)


def rate_of(found: Experiment, *choice: str | None) -> float:
    return found.one_setting(*choice).fabric.links[0].rate_bps


def test_a_sweep_that_changes_the_fabric_is_opened_at_one_of_its_points() -> None:
    with pytest.raises(ScenarioError) as refused:
        swept().one_setting()
    # What it says can be done is done below.
    assert "--point" in str(refused.value)
    assert "--set PATH=VALUE" in str(refused.value)
    assert f"base-3 ({RATE} = 20 Gbit/s, training.iterations = 1)" in str(refused.value)
    assert rate_of(swept(), None, "base-3") == 20e9
    assert rate_of(swept(f"{RATE}=20 Gbit/s")) == 20e9
    assert rate_of(swept(f"{RATE}=40 Gbit/s", more=ARMS), "tree") == 40e9


def test_a_point_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(
        ScenarioError,
        match=r"there is no point base-9; there are base-1 \(.*, base-4 \(",
    ):
        swept().plans_of(points=["base-9"])
    with pytest.raises(
        ScenarioError, match="there is no point ring-1 of arm tree; there are tree-1"
    ):
        swept(more=ARMS).plans_of(["tree"], ["ring-1"])
    many = swept(more="").text.replace("[1, 2]", str(list(range(1, 60))))
    with pytest.raises(ScenarioError) as refused:
        parse(many, "swept.yaml").plans_of(points=["nix"])
    assert len(str(refused.value)) < 1500
    assert "(118 in all)" in str(refused.value)


def test_all_repeats_of_a_point_are_of_that_point() -> None:
    found = swept(repeat=3).plans_of(points=["base-2"])
    assert [plan.name for plan in found] == ["base-2", "base-2-r2", "base-2-r3"]


def test_what_is_set_holds_in_every_arm_and_is_no_longer_swept() -> None:
    found = swept("training.iterations=5", "training.compute=30 ms", more=ARMS)
    assert len(found.plans) == 2 * 2
    assert {plan.jobs[0].iterations for plan in found.plans} == {5}
    assert {plan.jobs[0].loop.compute_s for plan in found.plans} == {0.03}
    assert all(plan.point.keys() == {RATE} for plan in found.plans)
    # Over what is left nothing is swept twice.
    assert [
        plan.name for plan in swept("training.iterations=5", f"{RATE}=5 Gbit/s").plans
    ] == ["base"]
    assert swept(
        "fabric={leaf_spine: {leaves: 2, spines: 1, gpus_per_leaf: 1, gpu: a100, rate: 1 Gbit/s}}"
    )


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["training.iteration=5"], "--set training.iteration: unknown key; the nearest is training.it"),
        (["training.iterations=many"], "--set training.iterations: should be a whole number, not 'many'"),
        (["training.iterations"], "--set: 'training.iterations' is not PATH=VALUE"),
        (["jobs.train.ranks=[g0, g1"], "--set jobs.train.ranks: '[g0, g1' is not YAML"),
        (["name=other"], "--set name: name is the same in all runs"),
        (["a..b=1"], "--set a..b: not a dotted path"),
    ],
)  # fmt: skip
def test_what_cannot_be_set_is_one_line(sets: Sequence[str], said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        swept(*sets)
    assert f"swept.yaml: {said}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_knows_what_was_set_and_which_points_were_wanted(
    tmp_path: Path,
) -> None:
    file = tmp_path / "swept.yaml"
    file.write_text(SWEPT)
    runs = tmp_path / "runs"
    run = ("simulate", str(file), "--runs", str(runs), "--json")
    done = ringlight(*run, "--set", "training.iterations=3", "--point", "base-2")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["complete"]
    assert result["points"] == {"p0": {RATE: "20 Gbit/s"}}
    (folder,) = runs.iterdir()
    # The page made anew and the runs gone on with are of the same values.
    assert (
        json.loads(ringlight("report", str(folder), "--json").stdout)["rows"]
        == result["rows"]
    )
    other = ringlight(*run, "--resume", str(folder), "--set", "training.iterations=4")
    assert "its runs were made with another --set; begin anew" in one_line(other)
    assert ringlight(*run, "--resume", str(folder)).returncode == 0
    lines = (folder / "events.jsonl").read_text().splitlines()
    assert sum('"run_ended"' in line for line in lines) == 2


@pytest.mark.parametrize("command", ["up", "run", "simulate"])
def test_every_command_of_a_scenario_takes_a_point(
    command: str, tmp_path: Path
) -> None:
    file = tmp_path / "swept.yaml"
    file.write_text(SWEPT)
    # Where there is no such place no lab comes up, should the choice get lost.
    where = () if command == "simulate" else ("--rest", "nowhere")
    said = one_line(ringlight(command, str(file), "--point", "nix", *where))
    assert f"{file}: there is no point nix; there are base-1" in said
    said = one_line(ringlight(command, str(file), "--set", "nix=1", *where))
    assert f"{file}: --set nix: unknown key" in said
