"""A blind test on real labs: predicted first, emulated after, compared at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ringlight.experiments.analysis import machine_faults
from ringlight.experiments.backends.emulation import linktest
from ringlight.experiments.cli.app import add_commands, app
from tests.integration.controller_rig import free_port

pytestmark = pytest.mark.root


def test_an_experiment_that_chance_drew_is_predicted_then_emulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However much others take of the processors, nothing is made once more: no time counts here.
    for module in (machine_faults, linktest):
        monkeypatch.setattr(module, "TAKEN", 2.0)
    ports = (
        "--rest",
        f"127.0.0.1:{free_port()}",
        "--openflow",
        f"127.0.0.1:{free_port()}",
    )
    options = (
        "--random",
        "1",
        "--seed",
        "22",
        "--runtime",
        "namespace",
        "--runs",
        str(tmp_path),
    )
    # A busy machine may be off by more than the limit, and then says so with 1.
    add_commands()
    done = CliRunner().invoke(
        app, ["crosscheck", *options, "--limit", "1000", "--json", *ports]
    )
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    said = done.stderr
    assert said.index(found["blind"]["predicted_sha256"]) < said.index(
        "is up: tree-000"
    )
    assert found["emulated"]["runtime"] == "namespace"
    assert [entry["run"] for entry in found["entries"]] == ["tree-000"] * len(
        found["entries"]
    )
    assert found["not_compared"] == []
