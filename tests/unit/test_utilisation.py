"""Definitions of GPU utilisation, and which of them agree with what is published."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.utilisation import (
    DEFINITIONS,
    Activity,
    counted_over_computing,
    gain_of,
    mean_share,
    waiting_counted,
)
from scenarios.report import render
from scenarios.results import build_result, label_of
from scenarios.schema import Scenario, load_scenario, standing
from scenarios.utilisation import activity, by_definition, waiting_range
from tests.synthetic import ENVIRONMENT, synthesize
from tests.unit.page import Page, text_of
from tests.unit.test_cli import BUNDLED

share = st.floats(0.02, 0.98)


def gpu(compute_s: float, exchange_s: float, n: int = 10, window_s: float = 1e3) -> Activity:
    """One that computes and exchanges n times; bytes at the full rate take a tenth of the exchange."""
    spans = [(compute_s, exchange_s, 0.8 * exchange_s)] * n
    return activity(spans, 0.1 * exchange_s, n * (compute_s + exchange_s), window_s)


def test_each_definition_counts_what_it_says() -> None:
    did = [gpu(0.3, 0.7)]
    found = {name: mean_share(definition, did) for name, definition in DEFINITIONS.items()}
    assert found == pytest.approx(
        {
            "compute": 0.3,
            "full_rate": 0.37,
            "overlap": 0.3 / 0.7,
            "moving": 0.3 + 0.56,
            "collective": 1.0,
            "window": 3.0 / 1e3,
        }
    )


def test_the_mean_is_over_gpus() -> None:
    assert mean_share(DEFINITIONS["compute"], [gpu(0.2, 0.8), gpu(0.6, 0.4)]) == pytest.approx(0.4)
    with pytest.raises(ValueError, match="no GPU"):
        mean_share(DEFINITIONS["compute"], [])


@given(work_s=st.floats(0.01, 1), slow=st.floats(1.5, 10), quick=st.floats(1.0, 1.4), faster=share)
def test_what_counts_the_same_work_shows_the_speed_up(
    work_s: float, slow: float, quick: float, faster: float
) -> None:
    """However unequal the GPUs are: some compute for a part of the time and wait for the slowest."""
    mixed = [work_s, faster * work_s]
    runs = [[gpu(w, times * work_s - w) for w in mixed] for times in (slow, quick)]
    found = by_definition(runs[0], runs[1], None)
    assert found["compute"]["gain"] == pytest.approx(slow / quick)
    assert found["collective"]["gain"] == pytest.approx(1.0)
    assert found["compute"]["consistent"] is None


@given(before=share, ratio=st.floats(1.1, 5), counted=st.floats(0, 1))
def test_the_share_of_waiting_that_counts_is_found_again(before: float, ratio: float, counted: float) -> None:
    after = min(0.99, before * ratio)
    low, high = (u + counted * (1 - u) for u in (before, after))
    if after / before > 1.01:
        assert waiting_counted(before, after, high / low) == pytest.approx(counted, abs=1e-6)


def test_ranges_of_that_share() -> None:
    computing = {"fragmented": 0.2, "regrouped": 0.7}
    assert waiting_range(computing, None) is None
    assert waiting_range(computing, (3.6, 5.0)) is None
    assert waiting_range(computing, (0.5, 0.9)) is None
    assert waiting_range(computing, (0.9, 4.0)) == [0.0, 1.0]
    found = waiting_range(computing, (2.0, 3.0))
    assert found is not None
    low, high = found
    for counted, gain in ((low, 3.0), (high, 2.0)):
        assert (0.7 + counted * 0.3) / (0.2 + counted * 0.8) == pytest.approx(gain)


@given(speed_up=st.floats(1.01, 10), counted=st.floats(0, 100))
def test_a_gain_tells_what_the_counter_counts(speed_up: float, counted: float) -> None:
    gain = gain_of(speed_up, counted)
    assert 1 < gain <= speed_up
    assert counted_over_computing(speed_up, gain) == pytest.approx(counted, rel=1e-3, abs=1e-3)


def test_the_papers_two_cases_do_not_fit_one_counter() -> None:
    """3 times at 3.73 times the speed leaves no way to 1 time at 2.63 times the speed."""
    counted = counted_over_computing(407 / 109, 3.0)
    per_iteration = (368 * 3) / (407 * 4)
    assert gain_of(368 / 140, counted * per_iteration) == pytest.approx(2.30, abs=0.01)
    assert math.isinf(counted_over_computing(368 / 140, 1.0))
    assert gain_of(368 / 140, math.inf) == 1.0


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario(BUNDLED)


@pytest.fixture(scope="module")
def result(scenario: Scenario) -> dict[str, Any]:
    synthesis = synthesize(scenario)
    return build_result(scenario, synthesis.events, synthesis.series, ENVIRONMENT)


def test_the_result_has_every_definition_and_says_which_agree(result: dict[str, Any]) -> None:
    for case in result["cases"].values():
        assert case["utilisations"].keys() == DEFINITIONS.keys()
        assert case["utilisations"]["compute"]["fragmented"] == pytest.approx(
            case["utilisation"]["fragmented"]
        )
        speed_up = case["completion_s"]["fragmented"] / case["completion_s"]["regrouped"]
        assert case["utilisations"]["compute"]["gain"] == pytest.approx(speed_up, rel=0.02)
    found = result["utilisation"]
    assert found["consistent"] == []
    # Of invented times that are the paper's own: 3.73 times the work is not three times.
    assert found["of_case"]["a"] == []
    assert set(found["of_case"]["b"]) >= {"collective", "window"}
    assert label_of("cases.a.utilisations.compute.gain") == "measured"
    assert label_of("cases.a.utilisations.overlap.gain") == "analytic"
    assert label_of("cases.b.published.utilisation.gain[0]") == "published"


def test_the_page_says_that_no_definition_agrees(scenario: Scenario, result: dict[str, Any]) -> None:
    words = text_of(Page(render(scenario, result, ENVIRONMENT, [])))
    part = words.split("GPU utilisation, by definition", 1)[1].split("Can this be believed?", 1)[0]
    assert "no significant improvement in resource utilization is observed" in part
    assert "No definition is consistent with all that is published" in part
    assert "predicted" in part
    one = {**result, "utilisation": {**result["utilisation"], "consistent": ["window"]}}
    assert "Consistent with all that is published" in render(scenario, one, ENVIRONMENT, [])


def test_nothing_is_claimed_where_nothing_is_published(scenario: Scenario) -> None:
    cases = {name: case.model_copy(update={"published": None}) for name, case in scenario.spec.cases.items()}
    plain = replace(scenario, spec=scenario.spec.model_copy(update={"cases": cases, "paper": None}))
    synthesis = synthesize(scenario)
    found = build_result(plain, synthesis.events, synthesis.series, ENVIRONMENT)
    assert found["utilisation"] is None
    assert found["cases"]["a"]["waiting_counted"] is None
    words = text_of(Page(render(plain, found, ENVIRONMENT, [])))
    part = words.split("GPU utilisation, by definition", 1)[1].split("Can this be believed?", 1)[0]
    assert "published" not in part
    assert "consistent" not in part


def test_times_are_fitted_and_utilisation_is_not(scenario: Scenario, result: dict[str, Any]) -> None:
    """No parameter was derived from the utilisation: it is held out."""
    for case in result["cases"].values():
        assert case["published"]["standing"] == {
            "fragmented": "fitted",
            "regrouped": "fitted",
            "reduction_percent": "fitted",
            "utilisation": "predicted",
        }
    spec = scenario.spec
    half = spec.model_copy(update={"parameters": {"batch": spec.parameters["batch"]}})
    key = "cases.b.published"
    assert standing(half, f"{key}.regrouped") == "fitted"
    assert standing(half, f"{key}.fragmented", f"{key}.regrouped") == "predicted"
    assert standing(half, "live.blackout") == "free"
    words = text_of(Page(render(scenario, result, ENVIRONMENT, [])))
    assert "paper published fitted" in words
    assert "73.2 % (fitted)" in words
