"""Regroupings, without switches to speak to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringlight.controller.circuits import regroup
from ringlight.controller.circuits.regroup import RegroupManager
from ringlight.controller.errors import NotFoundError
from tests.unit.test_controller_circuits import FABRIC, PORTS, Bench


class NoJobs(SimpleNamespace):
    def running(self, job_ids: Any = None) -> list[Any]:
        return []


@pytest.fixture
def regroups(tmp_path: Path) -> Iterator[RegroupManager]:
    bench = Bench(tmp_path / "state")
    assert bench.set(PORTS[:6]) == []
    yield RegroupManager(FABRIC, bench.manager, NoJobs(), bench.bus)  # type: ignore[arg-type]
    bench.intents.close()


def test_a_regrouping_that_moves_nothing_is_done_at_once(regroups: RegroupManager) -> None:
    made = regroups.start(None, dry_run=False, who="ann")
    assert made["plan"]["fibres_moved"] == 0
    deadline = time.monotonic() + 5.0
    while regroups.get(made["id"])["state"] == "APPLYING" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert regroups.get(made["id"])["state"] == "DONE", regroups.get(made["id"])
    regroups.stop()


def test_old_plans_are_forgotten(regroups: RegroupManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regroup, "KEPT", 3)
    made = [regroups.start(None, dry_run=True, who="ann")["id"] for _ in range(5)]
    assert [one["id"] for one in regroups.all()] == made[-3:]
    with pytest.raises(NotFoundError):
        regroups.get(made[0])
