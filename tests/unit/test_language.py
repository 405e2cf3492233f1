"""The experiment language: what a file becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.language.expand import load

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("scenarios/next/*.yaml"), *ROOT.glob("tests/data/next/*.yaml")])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_bundled_file_is_read(path: Path) -> None:
    experiment = load(path)
    assert experiment.plans
    assert len({plan.name for plan in experiment.plans}) == len(experiment.plans)


def test_the_demo_as_run_plans() -> None:
    experiment = load(ROOT / "scenarios/next/disaggregation.yaml")
    plans = {plan.name: plan for plan in experiment.plans}
    assert list(plans) == ["a-fragmented", "a-regrouped", "b-fragmented", "b-regrouped", "contiguous", "live"]
    assert len({id(plan.setting) for plan in experiment.plans}) == 1
    red, blue = plans["a-fragmented"].jobs
    assert (red.ranks, red.iterations, red.gradient_bytes) == (("g0", "g3", "g1", "g4"), 18, 1_383_576)
    assert (blue.iterations, blue.compute_s) == (36, pytest.approx(0.19278 * 28 / 16))
    assert plans["b-regrouped"].job("red").ranks == ("g0", "g3", "g1")
    assert [event.do for event in plans["b-regrouped"].events] == ["regroup"]
    assert plans["b-regrouped"].events[0].when.start
    live = plans["live"].events[0].when
    assert (live.job, live.iteration) == ("red", 6)
    assert plans["live"].job("blue").beacon_s == pytest.approx(0.005)


def test_times_of_the_file_are_stretched_and_runs_of_one_lab_share_a_setting() -> None:
    experiment = load(ROOT / "scenarios/next/oddl_4.yaml")
    plans = {plan.name: plan for plan in experiment.plans}
    killed = plans["controller-killed"]
    assert killed.events[0].back_after_s == 10.0
    assert killed.job("train").iterations == 21
    assert killed.job("train").compute_s == pytest.approx(4 * 0.221)
    assert killed.setting is plans["prototype"].setting is plans["agent-killed"].setting
    assert killed.setting.onic_faults
    assert not plans["oddl"].setting.onic_faults
    assert plans["agent-killed"].control.loss == 0.05
    assert plans["prototype"].tuning_s == dict.fromkeys(("n0", "n1", "n2", "n3"), pytest.approx(42e-9))
