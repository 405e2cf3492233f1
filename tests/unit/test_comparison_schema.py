"""Comparison files: the bundled ones are sound and derived as said; a mistake is one line with its key."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fabric.collectives import all_reduce
from scenarios.comparison import (
    Comparison,
    expected_s,
    job_settings,
    load,
    nic_rate_bps,
    parse,
    parse_comparison,
    setting_named,
)
from scenarios.prediction import break_even_set_up, collective_time
from scenarios.profiles import MODELS
from scenarios.schema import Scenario, ScenarioError

SCENARIOS = Path(__file__).parents[2] / "scenarios"
BUNDLED = ("oddl_4", "oddl_16", "oddl_sweep")


def bundled(name: str) -> Comparison:
    found = load(SCENARIOS / f"{name}.yaml")
    assert isinstance(found, Comparison)
    return found


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_comparisons_are_sound(name: str) -> None:
    comparison = bundled(name)
    assert list(comparison.settings) == ["ideal", "oddl"]
    rates = {nic_rate_bps(s, g) for s in comparison.settings.values() for g in s.fabric.gpus}
    assert rates == {100e9 / comparison.rate_scale}
    assert comparison.world_size == (16 if name == "oddl_16" else 4)
    assert not comparison.settings["ideal"].onic_faults
    assert comparison.settings["oddl"].onic_faults


@pytest.mark.parametrize("name", BUNDLED)
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
    size, rate, set_up = 1e6, 1e8, 0.002
    steps = 2 * math.log2(ranks)
    closed = steps * set_up + 2 * size * 8 * (ranks - 1) / (ranks * rate)
    assert collective_time(all_reduce("halving-doubling", ranks), size, rate, set_up) == pytest.approx(closed)
    ring = 2 * (ranks - 1) * (set_up + size * 8 / (ranks * rate))
    assert collective_time(all_reduce("ring", ranks), size, rate, set_up) == pytest.approx(ring)


def test_at_the_break_even_an_iteration_takes_the_tolerance_longer() -> None:
    schedule = all_reduce("halving-doubling", 4)
    for compute in (0.0, 0.5):
        set_up = break_even_set_up("halving-doubling", 4, 1e6, 1e8, 1.05, compute)
        with_it, without = (compute + collective_time(schedule, 1e6, 1e8, s) for s in (set_up, 0.0))
        assert with_it / without == pytest.approx(1.05)


def test_expected_time_is_that_of_all_iterations() -> None:
    comparison = bundled("oddl_4")
    request = job_settings(comparison)
    assert expected_s(comparison.settings["oddl"], request, 4) == pytest.approx(
        request["iterations"] * (0.884 + 4 * 12.267e-3), rel=1e-4
    )


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
    "one fabric only": (drop("fabrics", "ideal"), ["fabrics", "at least 2"]),
    "no title": (drop("fabrics", "oddl", "title"), ["fabrics.oddl.title", "missing"]),
    "baseline that is not there": (set_at("baseline", value="eps"), ["baseline", "no fabric eps"]),
    "fewer GPUs on one": (
        lambda raw: raw["fabrics"]["oddl"]["grids"]["n"].update(rows=4, wavelengths=4),
        ["fabrics", "ideal has 4", "oddl has 8"],
    ),
    "fewer wavelengths than ports": (
        set_at("fabrics", "oddl", "grids", "n", "wavelengths", value=1),
        ["fabrics.oddl.grids.n", "1", "2"],
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
    with pytest.raises(ScenarioError, match="name one with --fabric: ideal, oddl"):
        setting_named(comparison, None)
    with pytest.raises(ScenarioError, match="no fabric torus"):
        setting_named(comparison, "torus")
    scenario = load(SCENARIOS / "disaggregation.yaml")
    with pytest.raises(ScenarioError, match="one fabric"):
        setting_named(scenario, "oddl")
