"""The weight of the workers' control group: ours while a lab lives, and nobody else's choice overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringlight.testbed import priority
from ringlight.testbed.emulation import clean


@pytest.mark.parametrize(("name", "usual", "ours"), priority.WEIGHTS)
def test_workers_are_favoured_and_the_weight_is_given_back(
    name: str, usual: int, ours: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(priority, "CGROUPS", tmp_path)
    monkeypatch.setattr(priority, "OVS_PID", tmp_path / "nowhere")
    # No container has run yet.
    priority.favour()
    file = tmp_path / name
    assert not file.exists()
    file.parent.mkdir(parents=True)
    file.write_text(f"{usual}\n")
    priority.favour()
    assert int(file.read_text()) == ours
    priority.restore()
    assert int(file.read_text()) == usual
    file.write_text("77\n")
    priority.favour()
    priority.restore()
    assert int(file.read_text()) == 77


@pytest.mark.parametrize(("there", "then", "after"), [(0, -10, 0), (5, 5, 5)])
def test_open_vswitch_keeps_its_niceness_among_sessions(
    there: int, then: int, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(priority, "CGROUPS", tmp_path)
    monkeypatch.setattr(priority, "PROCESSES", tmp_path)
    monkeypatch.setattr(priority, "OVS_PID", tmp_path / "pid")
    (tmp_path / "pid").write_text("4711\n")
    # A kernel that does not group by session.
    priority.favour()
    file = tmp_path / "4711" / "autogroup"
    file.parent.mkdir()
    file.write_text(f"/autogroup-16 nice {there}\n")

    def niceness() -> int:
        return int(file.read_text().split()[-1])

    priority.favour()
    assert niceness() == then
    # The kernel shows it in this way.
    file.write_text(f"/autogroup-16 nice {niceness()}\n")
    priority.restore()
    assert niceness() == after


@pytest.mark.parametrize("alive", [True, False])
def test_only_the_last_lab_gives_it_back(
    alive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, usual, ours = priority.WEIGHTS[0]
    monkeypatch.setattr(priority, "CGROUPS", tmp_path)
    monkeypatch.setattr(priority, "OVS_PID", tmp_path / "nowhere")
    monkeypatch.setattr(clean, "find_labs", list)
    monkeypatch.setattr(clean, "any_alive", lambda: alive)
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    file.write_text(str(ours))
    assert clean.clean() == []
    assert int(file.read_text()) == (ours if alive else usual)
