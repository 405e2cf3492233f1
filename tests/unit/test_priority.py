"""The weight of the workers' control group: ours while a lab lives, and nobody else's choice overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import clean, priority


@pytest.mark.parametrize(("name", "usual", "ours"), priority.WEIGHTS)
def test_workers_are_favoured_and_the_weight_is_given_back(
    name: str, usual: int, ours: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(priority, "CGROUPS", tmp_path)
    # No container has run yet.
    priority.favour_workers()
    file = tmp_path / name
    assert not file.exists()
    file.parent.mkdir(parents=True)
    file.write_text(f"{usual}\n")
    priority.favour_workers()
    assert int(file.read_text()) == ours
    priority.restore()
    assert int(file.read_text()) == usual
    file.write_text("77\n")
    priority.favour_workers()
    priority.restore()
    assert int(file.read_text()) == 77


@pytest.mark.parametrize("alive", [True, False])
def test_only_the_last_lab_gives_it_back(
    alive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, usual, ours = priority.WEIGHTS[0]
    monkeypatch.setattr(priority, "CGROUPS", tmp_path)
    monkeypatch.setattr(clean, "find_labs", list)
    monkeypatch.setattr(clean, "any_alive", lambda: alive)
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    file.write_text(str(ours))
    assert clean.clean() == []
    assert int(file.read_text()) == (ours if alive else usual)
