"""The report: self-contained, complete, honest about what is missing; figures drawn from the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.language.text import ScenarioError
from experiments.report.drawing import job_colours
from scenarios.plots import mean_throughput, ring_edges_crossing, smooth
from scenarios.records import read_runs
from scenarios.report import render
from scenarios.results import build_result
from scenarios.runfolder import RunFolder, finish, read_throughput
from scenarios.schema import Scenario, load_scenario
from tests.synthetic import ENVIRONMENT, Synthesis, synthesize
from tests.unit.page import Page, check_alone, text_of

BUNDLED = Path(__file__).parents[2] / "scenarios" / "disaggregation.yaml"


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario(BUNDLED)


@pytest.fixture(scope="module")
def synthesis(scenario: Scenario) -> Synthesis:
    return synthesize(scenario)


@pytest.fixture(scope="module")
def finished(
    scenario: Scenario, synthesis: Synthesis, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """A run folder written and finished as the runner does it."""
    with RunFolder(tmp_path_factory.mktemp("runs"), scenario) as folder:
        folder.describe(**ENVIRONMENT)
        for event in synthesis.events:
            folder.copy(event)
        for sample in synthesis.series:
            folder.samples(sample["run"], [sample])
    return folder.path, finish(folder.path)


def test_the_page_stands_alone(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = finished
    check_alone((folder / "report.html").read_text(encoding="utf-8"))


def test_the_page_has_both_schemes_and_no_fixed_ink(finished: tuple[Path, dict[str, Any]]) -> None:
    text = (finished[0] / "report.html").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in text
    assert "var(--ink)" in text.split("<svg", 1)[1]
    assert "#1b2129" not in text.split("<svg", 1)[1]


def test_the_page_says_what_the_result_says(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, result = finished
    words = text_of(Page((folder / "report.html").read_text(encoding="utf-8")))
    for figure in ("407 s", "109 s", "73.2 %", "368 s", "140 s", "62.0 %"):
        assert figure in words
    for case in result["cases"].values():
        assert f"{case['completion_s']['fragmented']:.1f} s" in words
    for heading in (
        "Completion time",
        "Regrouping while the jobs train",
        "What the ring's order does",
        "Can this be believed?",
        "What cannot be claimed",
        "Parameters and where they come from",
    ):
        assert heading in words
    assert "Contiguous ring order" in words
    assert "uplink_rate" in words


def test_the_folder_has_what_was_promised(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, result = finished
    for name in ("scenario.yaml", "environment.json", "events.jsonl", "throughput.csv", "utilisation.csv"):
        assert (folder / name).stat().st_size > 0
    assert json.loads((folder / "result.json").read_text()) == result
    for name in ("topology-a", "topology-b", "figure3-a", "figure3-b", "live-regroup"):
        assert (folder / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / "plots" / f"{name}.svg").read_text()


def test_throughput_survives_its_file(finished: tuple[Path, dict[str, Any]], synthesis: Synthesis) -> None:
    assert read_throughput(finished[0] / "throughput.csv") == synthesis.series


def test_what_did_not_run_is_left_out_and_said(scenario: Scenario) -> None:
    empty = build_result(scenario, [], [], ENVIRONMENT)
    words = text_of(Page(render(scenario, empty, ENVIRONMENT, [])))
    assert "This run is not complete." in words
    assert "no link was measured" in words
    assert "Regrouping while the jobs train" not in words


def test_a_missed_limit_is_marked(scenario: Scenario, synthesis: Synthesis) -> None:
    result = build_result(scenario, synthesis.events, synthesis.series, ENVIRONMENT)
    assert "missed" not in render(scenario, result, ENVIRONMENT, [])
    slow = {**result, "live": {**result["live"], "blackout_ms": 136.0}}
    assert 'class="bad">limit 135 ms missed' in render(scenario, slow, ENVIRONMENT, [])


def test_namespace_runs_say_so(scenario: Scenario, synthesis: Synthesis) -> None:
    environment = {**ENVIRONMENT, "runtime": "namespace"}
    result = build_result(scenario, synthesis.events, synthesis.series, environment)
    words = text_of(Page(render(scenario, result, environment, [])))
    assert "network namespaces, no containers" in words
    assert "The workers ran in network namespaces, not in containers" in words


def test_text_from_the_scenario_is_escaped(synthesis: Synthesis, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    odd = BUNDLED.read_text().replace("title: Jobs of 4 and 2 GPUs", 'title: "Jobs <b>4 & 2"')
    path.write_text(odd)
    scenario = load_scenario(path)
    result = build_result(scenario, synthesis.events, synthesis.series, ENVIRONMENT)
    page = Page(render(scenario, result, ENVIRONMENT, []))
    assert "jobs <b>4 & 2" in text_of(page)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"scenario\.yaml"):
        finish(tmp_path)


def test_ring_edges_that_cross(synthesis: Synthesis) -> None:
    crossing = {run.name: ring_edges_crossing(run) for run in read_runs(synthesis.events)}
    assert crossing["a-fragmented-1"] == 3
    assert crossing["b-fragmented-1"] == 2
    assert crossing["variant-contiguous"] == 2
    assert crossing["a-regrouped-1"] == crossing["b-regrouped-1"] == 0


def test_throughput_is_the_mean_over_gpus_however_often_they_are_sampled(synthesis: Synthesis) -> None:
    run = next(run for run in read_runs(synthesis.events) if run.name == "a-regrouped-1")
    # In the middle of the 0.1 s steps: at their edges rounding decides to which a sample belongs.
    once = [{**s, "t": s["t"] + 0.05} for s in synthesis.series if s["run"] == run.name]
    times, mean = mean_throughput(run, "red", once)
    twice = [{**s, "t": s["t"] + shift} for s in once for shift in (0.0, 0.001)]
    assert mean_throughput(run, "red", twice) == (times, pytest.approx(mean))
    assert 80 < max(mean) <= 100


def test_moving_average() -> None:
    assert smooth([0, 1, 2, 3], [0, 0, 4, 4], 2.0) == [0, 4 / 3, 8 / 3, 4]


def test_jobs_have_their_own_colours() -> None:
    colours = job_colours(["red", "blue", "alpha", "beta"])
    assert len(set(colours.values())) == 4
