"""Figures of the bundled grids are as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulated import bundled
from tests.unit.test_golden import check_figures

HERE = Path(__file__).parent
SCENARIOS = {
    **{name: HERE / "data" / f"{name}.yaml" for name in ("mini_oddl", "mini_two_jobs")},
    **{
        name: bundled(name)
        for name in ("oddl_4", "oddl_16", "oddl_sweep", "oddl_two_jobs")
    },
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_figures_are_as_they_were(name: str) -> None:
    check_figures(SCENARIOS[name], HERE / "golden" / f"{name}.json")
