"""docs/interchange.md shows what its commands print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ringlight.experiments.cli.app import add_commands, app
from ringlight.extensions.interchange.exports import FORMS
from ringlight.extensions.interchange.imports import READERS
from tests.extensions.interchange.fabrics import TWO_TORS, lit
from tests.extensions.interchange.page import PAGE, renewed

add_commands()


def test_the_outputs_are_those_of_the_commands() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert renewed(text) == text


def test_every_format_is_in_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    written = re.findall(r"`([a-z-]+)`", "".join(
        line.split("|")[2] for line in text.splitlines() if line.startswith("| ")
        and line.count("|") == 5
    ))  # fmt: skip
    assert sorted(set(written) - {"import"}) == sorted(FORMS)
    assert len(READERS) == 7


def test_the_script_of_the_page_loads_an_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("infragraph")
    (tmp_path / "build").mkdir()
    exported = FORMS["infragraph"].text(lit(TWO_TORS)).text
    (tmp_path / "build/fabric.yaml").write_text(exported)
    monkeypatch.chdir(tmp_path)
    script = re.search(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    assert script is not None
    names: dict[str, Any] = {}
    exec(compile(script[1], str(PAGE), "exec"), names)
    assert len(names["graph"]) == 39


def test_the_imported_cluster_of_the_page_is_simulated(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    source = PAGE.parent / "interchange/model.yaml"
    done = CliRunner().invoke(app, ["import", str(source), "-o", str(cluster)])
    assert done.exit_code == 0, done.output
    runs = str(tmp_path / "runs")
    done = CliRunner().invoke(app, ["simulate", str(cluster), "--runs", runs])
    assert done.exit_code == 0, done.output
