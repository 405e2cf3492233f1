"""Impairments of the fibres of a grid."""

from __future__ import annotations

import pytest

from ringlight.experiments.backends.simulation.backend import SimulationBackend
from tests.extensions.impairments.test_impairments import SCENARIO, experiment

pytest.importorskip("ringlight.extensions.oddl")


def test_impaired_fibres_are_not_simulated() -> None:
    grid = {"rows": 1, "columns": 4, "gpu": "t", "rate": "1 Gbit/s"}
    fabric = {
        "grids": {"m": grid},
        "impaired": [{"ends": ["m0:0", "m-r0:1"], "loss": 0.1}],
    }
    training = {**SCENARIO["training"], "collective": "ring"}
    (plan,) = experiment(fabric=fabric, training=training).plans
    assert "m0:0 - m-r0:1" in (SimulationBackend().refuses(plan) or "")
