"""Limits of the machine: raised while a lab lives, and nobody else's choice overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringlight.testbed import limits, priority
from ringlight.testbed.emulation import clean


@pytest.fixture
def sysctls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose limits are all 10, but for one that is greater than labs need."""
    root = tmp_path / "sys"
    for name in limits.LEAST:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("10\n")
    (root / "net/core/wmem_max").write_text(f"{1 << 30}\n")
    monkeypatch.setattr(limits, "SYSCTLS", root)
    monkeypatch.setattr(limits, "BEFORE", tmp_path / "before.json")
    monkeypatch.setattr(priority, "CGROUPS", tmp_path)
    monkeypatch.setattr(priority, "OVS_PID", tmp_path / "nowhere")
    monkeypatch.setattr(clean, "find_labs", list)
    return root


def now(root: Path) -> dict[str, int]:
    return {name: int((root / name).read_text()) for name in limits.LEAST}


def test_the_last_lab_leaves_the_machine_as_it_was(
    sysctls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = now(sysctls)
    limits.enlarge()
    raised = now(sysctls)
    assert raised == {**limits.LEAST, "net/core/wmem_max": 1 << 30}
    # A second lab finds them raised, and is not the last.
    limits.enlarge()
    monkeypatch.setattr(clean, "any_alive", lambda: True)
    clean.clean()
    assert now(sysctls) == raised
    monkeypatch.setattr(clean, "any_alive", lambda: False)
    clean.clean()
    assert now(sysctls) == before
    assert not limits.BEFORE.exists()
    assert sorted(path.name for path in limits.BEFORE.parent.iterdir()) == ["sys"]


def test_what_somebody_set_meanwhile_stays(sysctls: Path) -> None:
    limits.enlarge()
    (sysctls / "net/core/rmem_max").write_text("50")
    # Another lab needs it; what was there before the first is remembered all the same.
    limits.enlarge()
    assert now(sysctls)["net/core/rmem_max"] == limits.LEAST["net/core/rmem_max"]
    (sysctls / "net/core/rmem_max").write_text("77")
    limits.give_back()
    assert now(sysctls)["net/core/rmem_max"] == 77
    assert now(sysctls)["net/core/netdev_max_backlog"] == 10


def test_where_there_is_nothing_to_raise_nothing_is_remembered(sysctls: Path) -> None:
    for name, least in limits.LEAST.items():
        (sysctls / name).write_text(str(least))
    limits.enlarge()
    limits.give_back()
    assert not limits.BEFORE.exists()
    assert now(sysctls) == limits.LEAST
