"""Figures of the bundled rings are as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulated import bundled
from tests.unit.test_golden import check_figures

HERE = Path(__file__).parent
SCENARIOS = {
    "mini_wrht": HERE / "data" / "mini_wrht.yaml",
    **{name: bundled(name) for name in ("wrht_9", "wrht_25", "wrht_9_each_step")},
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_figures_are_as_they_were(name: str) -> None:
    check_figures(SCENARIOS[name], HERE / "golden" / f"{name}.json")
