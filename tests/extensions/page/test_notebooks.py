"""The notebooks that show the page beside figures of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

import ringlight as rl
from tests.notebooks import executed, pictures, warnings


@pytest.mark.parametrize("name", ["disaggregation", "own-policy"])
def test_a_notebook_shows_figures_pictures_and_the_page(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = executed(name, tmp_path, monkeypatch)
    assert pictures(outputs, "image/png") == 2
    assert pictures(outputs, "image/svg+xml") >= 1
    shown = [
        output["data"].get("text/html", "") for output in outputs if "data" in output
    ]
    assert sum("<iframe srcdoc=" in html for html in shown) == 1
    assert warnings(outputs) == []


def test_runs_without_a_page_are_one_line(tmp_path: Path) -> None:
    runs = rl.Runs((), tmp_path, {})
    with pytest.raises(rl.ScenarioError, match=r"there is no view\.html"):
        runs.view()
