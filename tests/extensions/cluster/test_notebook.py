"""The notebook that replays a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

import ringlight as rl
from tests.notebooks import executed, pictures, warnings


def test_the_notebook_shows_that_moving_fibres_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = executed("data-centre", tmp_path, monkeypatch)
    assert pictures(outputs, "image/png") == 4
    assert pictures(outputs, "image/svg+xml") == 1
    assert warnings(outputs) == []
    runs = rl.open(min((tmp_path / "runs").glob("*-data-centre-simulated")))
    slowdown = [
        runs.value("network_slowdown", arm=arm)
        for arm in ("random", "best-fit", "moving")
    ]
    assert slowdown == sorted(slowdown, reverse=True)
