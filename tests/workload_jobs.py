"""Scenarios whose job executes a workload, on six GPUs behind two packet switches."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringlight.experiments.language.expand import Experiment, load
from ringlight.experiments.language.text import ScenarioError
from tests.simulated import SIX_GPUS

FOUR, SIX = "[g0, g1, g3, g4]", "all"


def scenario(directory: Path, workload: str, ranks: str = FOUR, more: str = "") -> Path:
    """Write ``a.yaml`` with a job ``llm`` of such ranks and such a workload."""
    jobs = f"jobs: {{llm: {{ranks: {ranks}, workload: {workload}}}}}\n"
    lines = [
        line
        for line in SIX_GPUS.splitlines()
        if not line.startswith(("training:", "scale:"))
    ]
    path = directory / "a.yaml"
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, "scale: {time: 1, payload: 1}", jobs, more]))
    return path


def refusal(directory: Path, workload: str, ranks: str = FOUR, more: str = "") -> str:
    """Return the one line with which such a scenario is refused, without the directory."""
    path = scenario(directory, workload, ranks, more)
    with pytest.raises(ScenarioError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ").replace(f"{directory}/", "")


def loaded(directory: Path, workload: str, ranks: str = FOUR) -> Experiment:
    """Return such a scenario."""
    return load(scenario(directory, workload, ranks))
