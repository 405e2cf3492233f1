"""What a regrouping's figures depend on: the tables, the document that shows them, and wrong input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.language.text import ScenarioError
from scenarios.schema import Scenario, load_scenario, parse_scenario
from scenarios.sensitivity import (
    METHODS,
    all_send,
    in_virtual_time,
    markdown,
    ratio_that_hits,
    sensitivity,
    with_ratio,
)
from tests.unit.test_cli import BUNDLED, ROOT, one_line, ringlight

PAGE = ROOT / "docs" / "disaggregation.md"


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario(BUNDLED)


@pytest.fixture(scope="module")
def found(scenario: Scenario) -> dict[str, Any]:
    return sensitivity(scenario)


def test_the_document_shows_what_the_command_prints(scenario: Scenario, found: dict[str, Any]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- ./ringlight sensitivity scenarios/disaggregation.yaml -->\n", "\n<!-- end -->"
    assert text.count(begin) == 1
    assert text.split(begin)[1].split(end)[0].strip() == markdown(scenario, found)


def reductions(found: dict[str, Any], what: str, value: str = "") -> dict[str, dict[str, float]]:
    return next(
        dict(entry["reduction_percent"])
        for entry in found["reductions"]
        if entry["what"] == what and entry["value"].startswith(value)
    )


def test_the_order_of_the_ring_decides_case_a(found: dict[str, Any]) -> None:
    as_is = reductions(found, "as in the file")
    contiguous = reductions(found, "contiguous ring")
    assert as_is["a"]["simulated"] == pytest.approx(70.7, abs=0.1)
    assert contiguous["a"]["simulated"] == pytest.approx(54.8, abs=0.1)
    assert contiguous["a"]["all-send model"] > contiguous["a"]["simulated"] + 5
    assert "b" not in contiguous


def test_more_oversubscription_and_smaller_batches_gain_more(found: dict[str, Any]) -> None:
    for what, rising in (("oversubscription", True), ("batch", False)):
        entries = [e["reduction_percent"] for e in found["reductions"] if e["what"] == what]
        for case in ("a", "b"):
            for method in METHODS:
                values = [entry[case][method] for entry in entries]
                assert values == sorted(values, reverse=not rising)


def test_what_hits_a_figure_does_hit_it(scenario: Scenario, found: dict[str, Any]) -> None:
    needed = {(entry["method"], entry["case"]): entry for entry in found["hits"]}
    assert len(needed) == 4
    entry = needed["simulated", "b"]
    there = with_ratio(scenario, entry["ratio"])
    hit = in_virtual_time(there, "b", scenario.spec.cases["b"].jobs)
    assert hit.reduction_percent == pytest.approx(entry["percent"], abs=0.05)
    # The simulator, unlike the all-send model, needs more in one case than one value for both would have.
    assert needed["simulated", "a"]["ratio"] - needed["simulated", "b"]["ratio"] > 0.2
    model = [needed["all-send model", case]["ratio"] for case in ("a", "b")]
    assert model == pytest.approx([3.1, 3.17], abs=0.02)


def test_what_no_ratio_hits_is_said(scenario: Scenario) -> None:
    assert ratio_that_hits(scenario, "a", all_send, 99.9) is None


def test_no_definition_agrees_with_both_cases_whatever_the_gpus(found: dict[str, Any]) -> None:
    assert len({entry["gpus"] for entry in found["utilisation"]}) == 2
    for entry in found["utilisation"]:
        assert not all(case["consistent"] for case in entry["cases"].values())
    assert found["counter"]["implied_gain"]["b"][0] > found["counter"]["gain"]["b"][1]
    assert found["counter"]["apart"]["b"] > 5


def test_the_command_prints_it(tmp_path: Path) -> None:
    raw = yaml.safe_load(BUNDLED.read_text(encoding="utf-8"))
    raw["sensitivity"] = {"jobs": {"contiguous": raw["sensitivity"]["jobs"]["contiguous"]}}
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(raw, allow_unicode=True), encoding="utf-8")
    shown = ringlight("sensitivity", str(path), "--json")
    assert shown.returncode == 0
    printed = json.loads(shown.stdout)
    assert [entry["what"] for entry in printed["reductions"]] == ["as in the file", "contiguous ring"]
    assert all(entry["ratio"] is None for entry in printed["hits"])
    wrong = ringlight("sensitivity", str(ROOT / "scenarios" / "oddl_4.yaml"))
    assert wrong.returncode == 2
    assert "only a scenario that regroups" in one_line(wrong)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ratio": {"called": "x", "of": "nic", "to": "uplink_rate", "values": [1], "between": [1, 2]}},
         r"sensitivity\.ratio\.of: there is no parameter nic"),
        ({"parameters": {"colour": [1]}}, r"sensitivity\.parameters\.colour: there is no parameter colour"),
        ({"jobs": {"x": {"case": "c", "title": "t", "jobs": {}}}}, r"sensitivity\.jobs\.x\.case: there"),
        ({"slower": {"cray": 2}}, r"sensitivity\.slower: there is no GPU cray; there are tesla-m40"),
    ],
)  # fmt: skip
def test_what_cannot_be_varied_is_named(change: dict[str, Any], said: str) -> None:
    raw = yaml.safe_load(BUNDLED.read_text(encoding="utf-8"))
    raw["sensitivity"] = change
    with pytest.raises(ScenarioError, match=said):
        parse_scenario(yaml.safe_dump(raw, allow_unicode=True), "s.yaml")


def test_a_fit_to_what_is_not_published_is_named() -> None:
    raw = yaml.safe_load(BUNDLED.read_text(encoding="utf-8"))
    raw["parameters"]["batch"]["fitted_to"] = ["cases.a.published.price"]
    with pytest.raises(ScenarioError, match=r"parameters\.batch\.fitted_to: there is no published figure"):
        parse_scenario(yaml.safe_dump(raw, allow_unicode=True), "s.yaml")
