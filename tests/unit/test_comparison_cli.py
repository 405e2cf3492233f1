"""The command on comparisons: a process, its output, its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenarios.cli_comparison import break_even_line
from scenarios.comparison import Comparison, load
from scenarios.runfolder import RunFolder
from tests.synthetic_comparison import ENVIRONMENT, synthesize
from tests.unit.test_cli import ROOT, one_line, ringlight

SCENARIOS = ROOT / "scenarios"


@pytest.mark.parametrize(("name", "trait"), [("oddl_4", "Trouble agent"), ("oddl_sweep", "36 points")])
def test_check_says_what_a_comparison_is(name: str, trait: str) -> None:
    done = ringlight("check", f"scenarios/{name}.yaml")
    assert done.returncode == 0
    assert f"4 GPUs on each of {3 if name == 'oddl_4' else 2} fabrics" in done.stdout
    assert "4 of 4 receivers can be contended" in done.stdout
    assert ("Collisions are impossible by construction" in done.stdout) is (name == "oddl_4")
    assert trait in done.stdout


def test_check_as_json() -> None:
    found = json.loads(ringlight("check", "scenarios/oddl_16.yaml", "--json").stdout)
    assert found["kind"] == "comparison"
    assert len(found["fabrics"]["oddl"]["optical_switches"]) == 8
    assert len(found["fabrics"]["oddl"]["gpus"]) == len(found["fabrics"]["ideal"]["gpus"]) == 16


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text((SCENARIOS / "oddl_4.yaml").read_text().replace("baseline: ideal", "baseline: eps"))
    for command in ("check", "run"):
        done = ringlight(command, str(path))
        assert done.returncode == 2
        assert "baseline: there is no fabric eps" in one_line(done)


def test_an_event_that_lacks_a_key_is_one_line(tmp_path: Path) -> None:
    comparison = load(SCENARIOS / "oddl_4.yaml")
    assert isinstance(comparison, Comparison)
    events = synthesize(comparison).events
    number, event = next((n, e) for n, e in enumerate(events, 1) if e["event"] == "light")
    next(iter(event["agents"].values())).pop("counters")
    with RunFolder(tmp_path, comparison) as folder:
        folder.describe(**ENVIRONMENT)
        for each in events:
            folder.copy(each)
    done = ringlight("report", str(folder.path))
    assert done.returncode == 2
    assert f"events.jsonl: line {number} lacks the key counters" in one_line(done)


def test_up_asks_which_fabric() -> None:
    done = ringlight("up", "scenarios/oddl_4.yaml")
    assert done.returncode == 2
    assert "name one with --fabric: ideal, prototype, oddl" in one_line(done)


@pytest.mark.parametrize("name", ["oddl_4", "oddl_sweep"])
def test_report_prints_the_comparison(name: str, tmp_path: Path) -> None:
    comparison = load(SCENARIOS / f"{name}.yaml")
    assert isinstance(comparison, Comparison)
    with RunFolder(tmp_path, comparison) as folder:
        folder.describe(**ENVIRONMENT)
        for event in synthesize(comparison).events:
            folder.copy(event)
    done = ringlight("report", str(folder.path))
    assert done.returncode == 0, done.stderr
    assert "0 collisions, 0 receiver overlaps, 0 bytes lost" in done.stdout
    assert "Fidelity: good" in done.stdout
    if name == "oddl_4":
        assert "1.0051" in done.stdout
        assert "is within the limit of 1.03" in done.stdout
        assert "parameters identical" in done.stdout
    else:
        assert (
            "102.228 MB: an all-reduce takes 1.05 times as long as without set-ups at a set-up of"
            in done.stdout
        )


@pytest.mark.parametrize(
    ("least_ms", "part"), [(0.5, "0.250 ms (model"), (1.5, "0.250 ms, extrapolated (model")]
)
def test_a_break_even_below_the_sweep_is_called_extrapolated(least_ms: float, part: str) -> None:
    found = {
        "setup_ms": 1.0,
        "stands_for_ms": 0.25,
        "least_measured_setup_ms": least_ms,
        "real_gradient_bytes": 25e6,
        "analytic_stands_for_ms": 0.038,
    }
    assert part in break_even_line(found, 1.05)
