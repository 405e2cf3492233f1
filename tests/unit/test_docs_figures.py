"""Tables and pictures of the pages: where they stand, that scenarios have them, and how they are made."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from docs.figures.__main__ import BLOCK, BLOCKS, attempt, main, pages, runs_of, written
from docs.figures.parts import (
    Figure,
    MeanRatio,
    Middle,
    Picture,
    StepCount,
    Table,
    of,
    simulated,
)
from ringlight.experiments.analysis.metrics import metrics
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.text import ScenarioError, parse_yaml
from ringlight.experiments.record.version import ROOT
from ringlight.experiments.runner.command import (
    carry_out_experiment,
    joined,
    load_checked,
)
from tests.simulated import TWO_SWITCHES, the

DERIVED = re.compile(
    r"(_best(_at)?)?(_(ratio|reduction|baseline|ratio_agrees)|\.mean)?$"
)
AGAINST = re.compile(r"(?:faster_up_to|faster_from|(\w+)_ratio)\.([\w-]+)")


@cache
def documented() -> str:
    return (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def is_metric(name: str, arms: Collection[str]) -> bool:
    if (found := AGAINST.fullmatch(name)) is not None:
        return found[2] in arms and (found[1] is None or found[1] in metrics())
    return (
        DERIVED.sub("", name) in metrics()
        or f"`{DERIVED.sub('', name)}`" in documented()
    )


def test_every_block_stands_on_one_page_and_is_closed() -> None:
    names = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        found = [match[1] for match in BLOCK.finditer(text)]
        assert (
            text.count("<!-- figures:") == text.count("<!-- end -->") == len(found)
        ), page
        names += found
    assert sorted(names) == sorted(BLOCKS)


@pytest.mark.parametrize(
    "scenario", sorted({block.scenario for block in BLOCKS.values()})
)
def test_blocks_name_what_their_scenario_has(scenario: str) -> None:
    # Read and not expanded: that takes long for thousands of runs, and other tests do it.
    file = ROOT / "scenarios" / f"{scenario}.yaml"
    text = file.read_text(encoding="utf-8")
    raw = parse_yaml(text, str(file))
    jobs = [f"job {name}" for name in raw.get("jobs", ["train"])]
    added = (path.split(".") for arm in raw["arms"].values() for path in arm)
    jobs += [f"job {path[1]}" for path in added if path[0] == "jobs"]
    for block in (block for block in BLOCKS.values() if block.scenario == scenario):
        if isinstance(block, Picture):
            assert (ROOT / "docs" / "images" / block.file).exists()
        if isinstance(block, Table):
            assert max(len(line) for line in block.lines) <= len(
                block.columns.split(" | ")
            )
            for figure in block.figures:
                assert figure.arm in raw["arms"]
                if isinstance(figure, Middle):
                    assert set(figure.over) <= raw["arms"].keys()
                    assert raw["repeat"] > 1
                if isinstance(figure, MeanRatio):
                    assert figure.over in raw["arms"]
                if isinstance(figure, Figure | Middle):
                    assert is_metric(figure.metric, raw["arms"]), figure.metric
                    # What a page calls an all-reduce is what the cross-check calls so.
                    assert figure.metric != "exchange"
                    assert all(f"{path}:" in text for path in figure.at)
                    assert (
                        not figure.subject.startswith("job ") or figure.subject in jobs
                    )


TEXT = "Before.\n\n<!-- figures: two -->\nold\n<!-- end -->\n\nAfter.\n"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A block of a small experiment, whose file is written."""
    (tmp_path / "two.yaml").write_text(TWO_SWITCHES, encoding="utf-8")
    jct = of(lambda value: f"{value:.6f} s", simulated("base", "jct", "job red"))
    steps = StepCount("simulated", "base", "job red")
    found = Table(
        str(tmp_path / "two"),
        " | time | paper",
        [["red", jct], ["steps", of(str, steps)]],
    )
    monkeypatch.setattr("docs.figures.__main__.BLOCKS", {"two": found})
    return found


def run_of(tmp_path: Path, runs: str = "runs") -> Path:
    found = load_checked(tmp_path / "two.yaml")
    return carry_out_experiment(found, SimulationBackend(), tmp_path / runs)[0].path


def test_a_block_is_made_from_a_run_and_twice_the_same(
    tmp_path: Path, table: Table
) -> None:
    path = run_of(tmp_path)
    done, left = attempt(runs_of([path]))
    assert not left
    first = written(TEXT, ROOT / "README.md", done)
    assert f"| red | {the(joined([path]), 'jct', subject='job red'):.6f} s | |" in first
    assert "| steps | 2 | |" in first  # a ring of two ranks
    assert "old" not in first
    assert first.startswith("Before.")
    assert first.endswith("After.\n")
    (said,) = [line for line in first.splitlines() if line.startswith("Simulated on ")]
    assert re.search(
        r"\d+ processors, (commit|code version) [0-9a-f]{7,}\S*, \d{4}-\d\d-\d\d; `",
        said,
    )
    assert written(first, ROOT / "README.md", attempt(runs_of([path]))[0]) == first
    assert written(TEXT, ROOT / "README.md", attempt({})[0]) == TEXT


def test_a_run_of_another_version_of_the_file_does_not_count(
    tmp_path: Path, table: Table
) -> None:
    runs = runs_of([run_of(tmp_path)])
    assert list(attempt(runs)[0]) == ["two"]
    (tmp_path / "two.yaml").write_text(TWO_SWITCHES + "# changed\n", encoding="utf-8")
    assert attempt(runs) == (
        {},
        {"two": f"no simulated run of scenarios/{tmp_path}/two.yaml"},
    )


def test_what_is_wrong_is_one_line(
    tmp_path: Path,
    table: Table,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = run_of(tmp_path)
    with pytest.raises(
        ScenarioError, match=r"two simulated runs of one scenario; give one"
    ):
        runs_of([path, run_of(tmp_path, "again")])
    other = replace(
        table, lines=[["red", of(str, simulated("base", "blackout", "event 1"))]]
    )
    monkeypatch.setattr("docs.figures.__main__.BLOCKS", {"two": other})
    assert attempt(runs_of([path])) == (
        {},
        {"two": f"{path.name}: no blackout of arm base (event 1)"},
    )
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_check_names_the_blocks_that_no_run_makes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = [page.read_bytes() for page in pages()]
    assert main(["--check"]) == 1
    said = capsys.readouterr().out
    assert len(said.splitlines()) == len(BLOCKS)
    assert (
        "not made: disaggregation-live (no measured run of scenarios/disaggregation.yaml)"
        in said
    )
    assert [page.read_bytes() for page in pages()] == before
