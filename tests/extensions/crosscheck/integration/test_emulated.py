"""The cross-check of a run that was emulated before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import forks
from tests.integration.test_run import DEADLINE_S, MINI, running_command

pytestmark = pytest.mark.root


def test_its_simulation_has_the_same_jobs_in_the_same_runs(tmp_path: Path) -> None:
    """And no other order of magnitude."""
    with running_command(
        tmp_path / "runs", "--arm", "regrouped", "--arm", "live"
    ) as command:
        assert command.end()[0] == 0, "\n".join(command.lines)
    (folder,) = (tmp_path / "runs").iterdir()
    check_against(folder, tmp_path / "crosscheck")


def check_against(emulated: Path, runs: Path) -> None:
    """Check what the cross-check of an emulated run comes to."""
    folders = ("--emulated", str(emulated), "--runs", str(runs))
    done = forks.ringlight(
        "crosscheck",
        str(MINI),
        *folders,
        "--limit",
        "300",
        "--json",
        timeout_s=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = {(arm, job) for arm in ("regrouped", "live") for job in ("red", "blue")}
    assert {(entry["arm"], entry["job"]) for entry in found["entries"]} == expected
    assert found["not_compared"] == ["fragmented"]
    for entry in found["entries"]:
        ratio = entry["iteration_s"]["simulated"] / entry["iteration_s"]["emulated"]
        assert 1 / 3 < ratio < 3
        assert entry["causes"]["gap_s"] == pytest.approx(
            entry["iteration_s"]["emulated"] - entry["iteration_s"]["simulated"]
        )
