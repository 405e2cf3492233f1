"""Every bundled scenario in virtual time gives the figures that it always gave.

The figures under tests/golden are those of the code before there was one language for experiments: arm, point
of the sweep, subject, metric, value.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.result import Analysis, analyse
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.runner.command import load_checked
from ringlight.experiments.runner.experiment import choose, run_alone
from tests.simulated import bundled

GOLDEN = ROOT / "tests" / "golden"
#: Simulated figures agree to rounding. What the ring's all-send model says is now of the emulated gradient,
#: which is rounded up to whole elements; it was of the real one.
CLOSE, ROUNDED = 1e-9, 1e-5
OF_REAL_GRADIENT = (
    "jct_predicted",
    "iteration_predicted_before",
    "iteration_predicted_after",
    "jct_over_model",
)


def simulated(path: Path) -> Analysis:
    experiment, backend = load_checked(path), SimulationBackend()
    records = []
    for plan in choose(experiment, backend).plans:
        found, failures = run_alone(backend, plan)
        assert not failures
        records += found
    return analyse(experiment, records, "simulated")


def figures(found: Analysis) -> dict[tuple[str, ...], Any]:
    """By arm, point, subject and metric. An arm has one fabric, so its name says nothing."""
    return {
        (
            row.arm,
            json.dumps(row.point, sort_keys=True),
            "fabric" if row.subject.startswith("fabric ") else row.subject,
            row.metric + (" (published)" if row.label == "published" else ""),
        ): row.value
        for row in found.rows
    }


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.json")))
def test_figures_are_as_they_were(name: str) -> None:
    check_figures(bundled(name), GOLDEN / f"{name}.json")


def check_figures(scenario: Path, golden: Path) -> None:
    """Check the figures of a scenario against those of a file."""
    found = figures(simulated(scenario))
    wanted = json.loads(golden.read_text())
    assert wanted
    wrong = []
    for row in wanted:
        key = (
            row["arm"],
            json.dumps(row["point"], sort_keys=True),
            row["subject"],
            row["metric"],
        )
        within = ROUNDED if row["metric"] in OF_REAL_GRADIENT else CLOSE
        if key not in found:
            wrong.append(f"{key}: missing")
        elif found[key] != pytest.approx(row["value"], rel=within, abs=1e-12):
            wrong.append(f"{key}: {found[key]} instead of {row['value']}")
    assert not wrong, "\n".join(wrong)
