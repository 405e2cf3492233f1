"""The table of how far simulations are from emulations: what it names, and where it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import agreement
from benchmarks.agreement import BEGIN, END, files, worst_of, written
from ringlight.experiments.analysis.explanations import cause_of
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.language.text import ScenarioError, parse_yaml, read_text
from tests.extensions.crosscheck.test_blind import entry
from tests.unit.test_cli import ROOT


def fidelity(
    verdict: str, *named: dict[str, Any], runs: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A verdict with a cause for each of the entries in ``named``; ``runs``: those that it compared."""
    reasons = [
        {
            "code": "unlike_simulation",
            "run": one["run"],
            "job": "red",
            "cause": cause_of(one),
        }
        for one in named
    ]
    figures = {"red": {"allreduce_s": {"difference_percent": 1.0}}}
    return {
        "verdict": verdict,
        "reasons": reasons,
        "simulated": dict.fromkeys(runs, figures),
    }


def worst(
    verdict: str, *entries: dict[str, Any], runs: tuple[str, ...] = ()
) -> dict[str, Any]:
    return worst_of({"entries": list(entries)}, fidelity(verdict, *entries, runs=runs))


def test_what_differs_by_more_needs_a_cause_and_is_not_good() -> None:
    near, unknown = entry("near", -4.9), entry("unknown", 7.0)
    named = entry("named", -8.0, retransmits_per_rank_and_iteration=3.0)
    assert cause_of(named)
    assert worst("good", near)["named"]
    assert not worst("good", near, named)["named"]
    assert worst("doubtful", near, named)["named"]
    assert not worst("doubtful", named, unknown)["named"]
    row = worst("doubtful", near, named)
    assert (row["of"], row["difference_percent"], row["beyond"]) == (
        "named, red",
        -8.0,
        1,
    )
    assert row["cause"] == cause_of(named)


def test_of_a_workload_the_iteration_is_taken() -> None:
    verdict = fidelity("good") | {
        "simulated": {"a": {"llm": {"iteration_s": {"difference_percent": -3.3}}}}
    }
    assert worst_of({"entries": []}, verdict)["difference_percent"] == -3.3


def test_a_run_is_taken_by_its_own_comparison_if_it_has_one() -> None:
    far = entry("far", -20.0)
    assert worst("good", far, runs=("far",)) == {
        "jobs": 1, "difference_percent": 1.0, "of": "far, red", "verdict": "good", "cause": None, "beyond": 0,
        "named": True,
    }  # fmt: skip


def test_the_table_replaces_the_block_of_a_page() -> None:
    page = f"before\n{BEGIN}old\n{END}after\n"
    rows = [
        {"scenario": "a.yaml", **worst("good", entry("near", -4.9))},
        {"scenario": "b.yaml", "left_out": "only simulated"},
    ]
    made = written(page, rows, "the command")
    assert made.startswith(f"before\n{BEGIN}| scenario |")
    assert "| `a.yaml` | 1 | −4.9 % | near, red | good | – |" in made
    assert "b.yaml" not in made
    assert made.endswith(f"Made by `the command`.\n{END}after\n")
    with pytest.raises(ValueError, match="there is no"):
        written("before", rows, "the command")
    assert BEGIN in (ROOT / "docs" / "crosscheck.md").read_text()


def test_all_bundled_scenarios_and_cases_are_asked() -> None:
    names = {path.stem for path in files()}
    assert {
        "disaggregation",
        "leaf_spine_arrival",
        "thin_trunk",
        "shallow_queue",
    } <= names
    assert "two_hundred_fifty_six" not in names


def test_a_run_that_did_not_end_is_missed_and_a_file_that_nobody_emulates_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = ROOT / "scenarios" / "disaggregation.yaml"
    for error, key in (
        (BackendError("the testbed ended"), "failed"),
        (ScenarioError("no arm"), "left_out"),
    ):

        def fails(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        monkeypatch.setattr(agreement, "run_crosscheck", fails)
        row = agreement.checked(path, 4, "namespace", tmp_path)
        assert row[key] == str(error)
        assert row.get("named", True) == (key == "left_out")
        assert agreement.table_of([row]) == []
        assert str(error) in agreement.said_of(row)


@pytest.mark.parametrize(
    ("file", "more"),
    [
        ("scenarios/examples/own_algorithm.yaml", False),
        ("scenarios/examples/queue.yaml", True),
    ],
)
def test_only_files_with_more_iterations_are_shortened(file: str, more: bool) -> None:
    path = ROOT / file
    assert agreement.has_more(parse_yaml(read_text(path), str(path)), 4) is more
