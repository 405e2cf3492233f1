"""Comparison files: the bundled ones are sound and derived as said; a mistake is one line with its key."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from controller.rest.requests import Cursor
from experiments.language.profiles import MODELS
from experiments.language.text import ScenarioError
from fabric.schedules import steps_named
from scenarios.comparison import (
    Comparison,
    job_settings,
    jobs_of,
    load,
    nic_rate_bps,
    parse,
    parse_comparison,
    setting_named,
)
from scenarios.comparison_runner import END_OF_TRACE, plans
from scenarios.prediction import all_reduce_time, break_even_set_up
from scenarios.schema import Scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
ONE_ROW = {"rows": 1, "columns": 4, "gpu": "ascend-910", "rate": "100 Gbit/s"}
TWO_JOBS = SCENARIOS / "oddl_two_jobs.yaml"
BUNDLED = ("oddl_4", "oddl_16", "oddl_sweep")
RINGS = ("wrht_9", "wrht_25")


def bundled(name: str) -> Comparison:
    found = load(SCENARIOS / f"{name}.yaml")
    assert isinstance(found, Comparison)
    return found


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_comparisons_are_sound(name: str) -> None:
    comparison = bundled(name)
    assert list(comparison.settings) == ["ideal", *(["prototype"] if name == "oddl_4" else []), "oddl"]
    rates = {nic_rate_bps(s, g) for s in comparison.settings.values() for g in s.fabric.gpus}
    assert rates == {100e9 / comparison.rate_scale}
    assert comparison.world_size == (16 if name == "oddl_16" else 4)
    assert not comparison.settings["ideal"].onic_faults
    assert comparison.settings["prototype" if name == "oddl_4" else "oddl"].onic_faults


@pytest.mark.parametrize(("name", "nodes"), [("wrht_9", 9), ("wrht_25", 25)])
def test_bundled_rings_are_sound(name: str, nodes: int) -> None:
    comparison = bundled(name)
    assert comparison.world_size == nodes
    rates = {nic_rate_bps(s, g) for s in comparison.settings.values() for g in s.fabric.gpus}
    assert rates == {25e9 / comparison.rate_scale}
    assert comparison.steps("wrht").steps == 4
    assert {fabric: comparison.set_ups(fabric) for fabric in ("eps", "wrht", "ring")} == {
        "eps": 0, "wrht": 4, "ring": 0,
    }  # fmt: skip
    # A step of WRHT takes long beside what the machine's timers are late by.
    assert comparison.all_reduce_s("wrht", comparison.gradient_bytes) / 4 > 0.5
    assert not any(setting.onic_faults for setting in comparison.settings.values())
    section = comparison.settings["wrht"].raw_fabric
    assert list(section) == ["rings"]


def test_a_fabrics_own_collective_comes_before_the_trainings() -> None:
    comparison = bundled("wrht_9")
    assert comparison.spec.training.collective == "ring"
    assert [comparison.collective(name) for name in comparison.settings] == [
        "ring", "wrht", "ring", "binary-tree", "hierarchical-ring",
    ]  # fmt: skip
    assert job_settings(comparison, "wrht")["collective"] == "wrht"
    # On a ring a pair has a wavelength for itself, so what a representative gets at once takes no longer.
    assert comparison.all_reduce_s("wrht", 1_000_000) == pytest.approx(4 * 8e6 / 31.25e6)
    assert comparison.all_reduce_s("wrht", 1_000_000, 0.01) == pytest.approx(4 * (8e6 / 31.25e6 + 0.01))


@pytest.mark.parametrize("name", [*BUNDLED, *RINGS])
def test_ranks_wait_for_each_other_as_long_as_an_all_reduce_takes(name: str) -> None:
    comparison = bundled(name)
    for fabric in comparison.settings:
        for plan in plans(comparison, fabric, 1):
            exchange_s = comparison.all_reduce_s(fabric, plan.request["gradient_bytes"])
            assert plan.request["peer_timeout_s"] > 15 + 1.5 * exchange_s


def test_a_point_of_a_sweep_may_take_longer_than_trouble_does() -> None:
    raw = yaml.safe_load((SCENARIOS / "oddl_sweep.yaml").read_text())
    raw["sweep"] |= {"gradient": ["200 GB"], "control_delay": ["0 s", "2 s"]}
    comparison = parse(yaml.safe_dump(raw, allow_unicode=True), "s.yaml")
    assert isinstance(comparison, Comparison)
    for fabric in ("ideal", "oddl"):
        points = [plan for plan in plans(comparison, fabric, 1) if plan.kind == "sweep"]
        assert points
        for plan in points:
            delay_s = (plan.faults or {}).get("control_delay_s", 0.0)
            exchange_s = comparison.all_reduce_s(fabric, plan.request["gradient_bytes"], delay_s)
            assert plan.request["peer_timeout_s"] > 1.5 * exchange_s > 60


@pytest.mark.parametrize("name", [*BUNDLED, *RINGS])
def test_every_parameter_is_used_and_explained(name: str) -> None:
    comparison = bundled(name)
    body = comparison.text.split("fabrics:", 1)[1]
    for key, parameter in comparison.spec.parameters.items():
        assert f"${key}" in body
        assert len(parameter.why) > 20


def test_compute_is_derived_from_the_papers_ideal_network() -> None:
    comparison = bundled("oddl_4")
    epoch_s = comparison.spec.published.training_time["ideal"] / 20  # type: ignore[union-attr]
    iterations = 1_281_167 / (4 * comparison.spec.training.batch)
    exchange_s = 2 * 3 / 4 * MODELS["resnet50"].gradient_bytes * 8 / 100e9
    assert exchange_s == pytest.approx(12.27e-3, rel=1e-3)
    assert comparison.spec.training.compute_s == pytest.approx(epoch_s / iterations - exchange_s, rel=2e-3)


def test_the_kinds_are_told_apart_by_their_key() -> None:
    assert isinstance(load(SCENARIOS / "disaggregation.yaml"), Scenario)
    assert isinstance(load(SCENARIOS / "oddl_4.yaml"), Comparison)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 64])
def test_the_model_is_the_closed_form(ranks: int) -> None:
    size, rate = 1e6, 1e8
    closed = 2 * size * 8 * (ranks - 1) / (ranks * rate)
    for name in ("halving-doubling", "ring"):
        assert all_reduce_time(steps_named(name, ranks), size, rate) == pytest.approx(closed)
    depth = math.log2(ranks)
    assert all_reduce_time(steps_named("recursive-doubling", ranks), size, rate) == pytest.approx(
        depth * 8 * size / rate
    )


def test_a_rank_that_receives_from_many_needs_a_port_or_wavelengths_for_it() -> None:
    steps = steps_named("wrht-2", 5)
    # Four vectors to the one in the middle, and one from it to each.
    assert all_reduce_time(steps, 1e6, 8e6) == pytest.approx(4 + 4)
    assert all_reduce_time(steps, 1e6, 8e6, lightpaths=True) == pytest.approx(1 + 1)


def test_at_the_break_even_an_iteration_takes_the_tolerance_longer() -> None:
    steps = steps_named("halving-doubling", 4)
    for compute in (0.0, 0.5):
        set_up = break_even_set_up(steps, 1e6, 1e8, 1.05, compute)
        without = compute + all_reduce_time(steps, 1e6, 1e8)
        assert (without + steps.steps * set_up) / without == pytest.approx(1.05)


def test_expected_time_is_that_of_all_iterations() -> None:
    comparison = bundled("oddl_4")
    request = job_settings(comparison, "oddl")
    iteration_s = 0.884 + 4 * 12.267e-3
    assert comparison.expected_s("oddl", request) == pytest.approx(30 * iteration_s, rel=1e-4)
    # Each of the four steps waits once for light.
    slower_s = 30 * (iteration_s + 4 * 0.01)
    assert comparison.expected_s("oddl", request, 0.01) == pytest.approx(slower_s, rel=1e-4)
    assert comparison.expected_s("ideal", request, 0.01) == pytest.approx(30 * iteration_s, rel=1e-4)


Edit = Callable[[dict[str, Any]], object]


def set_at(*path: str | int, value: object) -> Edit:
    def edit(raw: dict[str, Any]) -> None:
        at: Any = raw
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = value

    return edit


def drop(*path: str) -> Edit:
    def edit(raw: dict[str, Any]) -> None:
        at: Any = raw
        for part in path[:-1]:
            at = at[part]
        del at[path[-1]]

    return edit


BAD: dict[str, tuple[Edit, list[str]]] = {
    "unknown key": (set_at("fabric", value={}), ["fabric", "unknown key"]),
    "one fabric only": (
        lambda raw: [raw["fabrics"].pop(name) for name in ("ideal", "prototype")],
        ["fabrics", "at least 2"],
    ),
    "no title": (drop("fabrics", "oddl", "title"), ["fabrics.oddl.title", "missing"]),
    "baseline that is not there": (set_at("baseline", value="eps"), ["baseline", "no fabric eps"]),
    "fewer GPUs on one": (
        lambda raw: raw["fabrics"]["oddl"]["grids"]["n"].update(rows=4, wavelengths=4),
        ["fabrics", "ideal has 4", "oddl has 8"],
    ),
    "fewer wavelengths than a node has partners": (
        set_at("fabrics", "oddl", "grids", "n", value={**ONE_ROW, "wavelengths": 1}),
        ["training.collective", "halving-doubling", "2 wavelengths in row 0", "there are 1"],
    ),
    "a GPU that is not plugged in": (
        lambda raw: raw["fabrics"]["ideal"]["links"].pop(),
        ["fabrics.ideal.links", "g3"],
    ),
    "two ways to say the compute": (
        set_at("training", "gpu", value="maxwell-titan-x"),
        ["training", "either gpu", "compute"],
    ),
    "no way to say how long": (drop("training", "iterations"), ["training", "samples", "iterations"]),
    "a collective that takes two hops": (
        set_at("training", "collective", value="ring"),
        ["training.collective", "ranks 1 and 2", "neither row nor column"],
    ),
    "payload scale too large": (set_at("scale", "payload", value=1e5), ["scale.payload", "9640"]),
    "trouble on no fabric": (
        set_at("trouble", "agent", "fabric", value="grid"),
        ["trouble.agent.fabric", "no fabric grid"],
    ),
    "killing what is not there": (
        set_at("trouble", "agent", "kill", value="n7"),
        ["trouble.agent.kill", "n7"],
    ),
    "an agent kept away": (
        set_at("trouble", "agent", "absence", value="3 s"),
        ["trouble.agent.absence", "controller"],
    ),
    "trouble too late": (
        set_at("trouble", "agent", "after_iterations", value=14),
        ["trouble.agent.after_iterations", "14"],
    ),
    "faults without O-NICs": (
        lambda raw: raw["trouble"]["agent"].update(fabric="ideal", kill="controller"),
        ["trouble.agent.control", "no O-NICs"],
    ),
    "a share above one": (
        set_at("trouble", "agent", "control", "loss", value=5),
        ["trouble.agent.control.loss", "less than or equal to 1"],
    ),
    "published for no fabric": (
        set_at("published", "training_time", "tor", value="9 s"),
        ["published.training_time", "no fabric tor"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_one_line_naming_file_and_key(name: str) -> None:
    edit, expected = BAD[name]
    raw = yaml.safe_load((SCENARIOS / "oddl_4.yaml").read_text())
    edit(raw)
    with pytest.raises(ScenarioError) as caught:
        parse_comparison(yaml.safe_dump(raw, sort_keys=False), "bad.yaml")
    message = str(caught.value)
    assert message.startswith("bad.yaml: ")
    assert "\n" not in message
    for part in expected:
        assert part in message


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (
            set_at("fabrics", "wrht", "collective", value="gossip"),
            ["fabrics.wrht.collective", "gossip", "halving-doubling"],
        ),
        (
            set_at("fabrics", "hring", "rings", "r", "wavelengths", value=2),
            ["fabrics.hring.collective", "hierarchical-ring", "wavelength"],
        ),
        (
            lambda raw: raw["fabrics"]["wrht"]["rings"]["r"].update(nodes=8),
            ["fabrics", "eps has 9", "wrht has 8"],
        ),
        (
            lambda raw: raw["fabrics"]["wrht"].update(servers={"s0": {"gpus": {"g0": "p100"}}}),
            ["fabrics", "wrht has 10"],
        ),
        (
            lambda raw: raw["fabrics"]["wrht"]["rings"].update(q=raw["fabrics"]["wrht"]["rings"]["r"]),
            ["fabrics", "wrht has 18"],
        ),
        (
            lambda raw: raw.update(trouble={"x": {"title": "x", "fabric": "wrht", "kill": "r0"}}),
            ["trouble.x.kill", "r0", "agent"],
        ),
    ],
)
def test_a_mistake_about_rings_is_one_line(edit: Edit, expected: list[str]) -> None:
    raw = yaml.safe_load((SCENARIOS / "wrht_9.yaml").read_text())
    edit(raw)
    with pytest.raises(ScenarioError) as caught:
        parse(yaml.safe_dump(raw, sort_keys=False), "bad.yaml")
    assert "\n" not in str(caught.value)
    for part in expected:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (set_at("sweep", "fabric", value="ideal"), ["sweep.fabric", "no O-NICs"]),
        (set_at("sweep", "gradient", value=["1 MB"]), ["sweep.gradient[0]", "9640"]),
        (set_at("sweep", "tuning", value=[]), ["sweep.tuning", "at least 1"]),
        (set_at("sweep", "tolerance", value=1), ["sweep.tolerance", "greater than 1"]),
    ],
)
def test_a_mistake_in_a_sweep_is_one_line(edit: Edit, expected: list[str]) -> None:
    raw = yaml.safe_load((SCENARIOS / "oddl_sweep.yaml").read_text())
    edit(raw)
    with pytest.raises(ScenarioError) as caught:
        parse(yaml.safe_dump(raw, sort_keys=False), "bad.yaml")
    for part in expected:
        assert part in str(caught.value)


def test_a_fabric_is_named_where_there_are_several() -> None:
    comparison = bundled("oddl_4")
    assert list(setting_named(comparison, "oddl").fabric.gpus) == ["n0", "n1", "n2", "n3"]
    with pytest.raises(ScenarioError, match="name one with --fabric: ideal, prototype, oddl"):
        setting_named(comparison, None)
    with pytest.raises(ScenarioError, match="no fabric torus"):
        setting_named(comparison, "torus")
    scenario = load(SCENARIOS / "disaggregation.yaml")
    with pytest.raises(ScenarioError, match="one fabric"):
        setting_named(scenario, "oddl")


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (
            set_at("fabrics", "shared", "jobs", "blue", value=["n1", "n3"]),
            ["shared.jobs.blue", "2 GPUs", "red has 4"],
        ),
        (
            set_at("fabrics", "shared", "jobs", "blue", value=["n1", "n3", "n5", "n6"]),
            ["shared.jobs.blue", "n6 is used by red already"],
        ),
        (
            set_at("fabrics", "shared", "jobs", "blue", value=["n1", "n3", "n5", "n8"]),
            ["shared.jobs.blue", "no GPU n8"],
        ),
        (set_at("fabrics", "alone", "jobs", value={}), ["fabrics.alone.jobs"]),
        (
            set_at("fabrics", "shared", "jobs", value={"blue": ["n1", "n3", "n5", "n7"]}),
            ["fabrics.shared.jobs", "job red, which is compared, is not there"],
        ),
    ],
)
def test_a_mistake_in_jobs_is_one_line(edit: Edit, expected: list[str]) -> None:
    raw = yaml.safe_load(TWO_JOBS.read_text())
    edit(raw)
    with pytest.raises(ScenarioError) as caught:
        parse(yaml.safe_dump(raw, sort_keys=False), "bad.yaml")
    for part in expected:
        assert part in str(caught.value)


def test_jobs_that_run_at_once_differ_in_their_seed() -> None:
    comparison = bundled("oddl_two_jobs")
    asked = jobs_of(comparison, "shared", job_settings(comparison, "shared"))
    assert {name: (request["ranks"][0], request["seed"]) for name, request in asked.items()} == {
        "red": ("n0", 7), "blue": ("n1", 8),
    }  # fmt: skip
    assert set(jobs_of(comparison, "alone", job_settings(comparison, "alone"))) == {"red"}


def test_the_runner_asks_for_no_cursor_that_rest_refuses() -> None:
    assert TypeAdapter(Cursor).validate_python(END_OF_TRACE) == END_OF_TRACE
