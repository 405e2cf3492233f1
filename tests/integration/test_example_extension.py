"""The package in ``docs/extension``, installed beside Ringlight: checked, simulated and emulated."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ringlight.containers.image import ROOT
from ringlight.containers.image_build import ensure_image
from ringlight.testbed.forkserver import SOCKET
from tests.integration.test_run import free_ports

SCENARIO = ROOT / "docs/extension/torus.yaml"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Variables of a process that finds the installed package."""
    folder = tmp_path_factory.mktemp("extension")
    source, target = folder / "package", folder / "installed"
    shutil.copytree(ROOT / "docs/extension", source, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [] if importlib.util.find_spec("pip") else ["uv"]
    words = [sys.executable, "-m", *pip, "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*words, "--no-index", "--target", target, source], check=True, timeout=120)
    path = [str(target), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    # A fork server of the tests has read the extensions before this one was there.
    rest = {name: value for name, value in os.environ.items() if name != SOCKET}
    return {**rest, "PYTHONPATH": os.pathsep.join(filter(None, path)), "NO_COLOR": "1"}


def ringlight(environment: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ringlight.experiments.cli.app", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def left(runs: Path) -> tuple[Mapping[str, Any], Mapping[tuple[str, str], Any], str]:
    """The result of the only run folder there, values by arm and metric of the job, and the report."""
    (folder,) = runs.iterdir()
    result = json.loads((folder / "result.json").read_text())
    of_job = (row for row in result["rows"] if row["subject"] == "job train")
    values = {(row["arm"], row["metric"]): row["value"] for row in of_job}
    return result, values, (folder / "report.html").read_text()


def test_it_is_checked_and_simulated(environment: Mapping[str, str], tmp_path: Path) -> None:
    checked = ringlight(environment, "check", str(SCENARIO))
    assert "6 packet switches r0 … r5, 9 links between them at 40 Gbit/s" in checked.stdout, checked.stderr
    wrong = ringlight(environment, "check", str(SCENARIO), "--set", "fabric.torus.cubes=2")
    assert "fabric.torus: tori: name each of the cubes 0 to 1 at most once" in wrong.stderr
    done = ringlight(environment, "simulate", str(SCENARIO), "--runs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    _, values, report = left(tmp_path)
    assert (values["by-number", "torus_links"], values["by-number", "torus_shared"]) == (2, 3)
    assert (values["by-job", "torus_links"], values["by-job", "torus_shared"]) == (1, 1)
    ratio = values["by-number", "allreduce"] / values["by-job", "allreduce"]
    assert ratio == pytest.approx(3, rel=0.01)
    assert "Cubes joined by light" in report


@pytest.mark.root
@pytest.mark.alone
def test_it_is_emulated_as_simulated(environment: Mapping[str, str], tmp_path: Path) -> None:
    ensure_image(lambda _: None)
    words = ["run", str(SCENARIO), "--arm", "by-job", "--runs", str(tmp_path), *free_ports()]
    done = ringlight(environment, *words)
    assert done.returncode == 0, done.stderr
    result, values, _ = left(tmp_path)
    assert result["fidelity"]["verdict"] == "good", result["fidelity"]
    assert values["by-job", "torus_links"] == 1
