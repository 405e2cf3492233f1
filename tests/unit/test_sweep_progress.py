"""How far a sweep is: a bar on a terminal and in a notebook, a line now and then elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from ringlight.experiments.scripting import sweep_progress
from tests.notebooks import kernel_environment
from tests.unit.test_progress import LINE, Terminal, screen
from tests.unit.test_scripting import regroup_study

SWEEP = {"fabric.leaf_spine.oversubscription": [1, 1.5, 2, 3, 4]}
CELL = """
from tests.unit.test_scripting import regroup_study
from tests.unit.test_sweep_progress import SWEEP
runs = regroup_study(1).simulate(sweep=SWEEP)
"""


def test_lines_count_the_runs_and_do_not_name_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep_progress, "COMPUTED_EVERY_S", 0.0)
    regroup_study(1).simulate(sweep=SWEEP, runs=tmp_path)
    lines = [LINE.fullmatch(line) for line in capsys.readouterr().err.splitlines()]
    first, *counted, last = [line["text"] for line in lines if line]
    assert first.startswith("regroup: run folder ")
    assert counted == [f"{done} of 10 runs" for done in range(1, 11)]
    assert last == "drawing the report"


def test_few_runs_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    regroup_study(1).simulate(runs=tmp_path)
    assert "  fragmented\n" in capsys.readouterr().err


def test_a_terminal_has_a_bar_that_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", written)
    regroup_study(1).simulate(sweep=SWEEP, runs=tmp_path)
    assert "10/10" in written.getvalue()
    assert not any("/10" in line for line in screen(written.getvalue()))


def test_a_notebook_has_a_bar_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel_environment(tmp_path, monkeypatch)
    cell = nbformat.v4.new_code_cell(CELL)
    notebook = nbformat.v4.new_notebook(cells=[cell])
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, resources=resources).execute()
    (bar,) = [
        output["data"]["text/html"]
        for output in notebook.cells[0].outputs
        if "<progress" in output.get("data", {}).get("text/html", "")
    ]
    assert bar == '<progress value="10" max="10"></progress> 10 of 10 runs'
