"""Bugs that public clients of optical switches have: planted in a driver, each turns items red."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ringlight.controller.optical import scpi
from ringlight.controller.optical.errors import OpticalError
from ringlight.controller.optical.model import PortStatus, Snapshot
from ringlight.controller.optical.plan_run import PlanRun
from ringlight.extensions.acceptance.checks import CHECKS
from ringlight.extensions.acceptance.runner import by_item, run_checks
from ringlight.fabric.crossconnect import CrossConnectState, PortState
from ringlight.testbed.rigs.emulated import ScpiRig
from ringlight.testbed.rigs.rig import Rig
from tests.extensions.acceptance.brought import mutants

pytestmark = pytest.mark.root

Patch = Callable[[pytest.MonkeyPatch], None]


def no_read_back(patch: pytest.MonkeyPatch) -> None:
    def settled(self: PlanRun, *_: Any) -> Snapshot:
        standing = dict.fromkeys(
            (*self._plan.keep, *self._plan.add), CrossConnectState.CONNECTED
        )
        ports = dict.fromkeys(self._capabilities.ports, PortStatus(PortState.TUNED))
        return Snapshot(self._before.switch, standing, ports, taken_at=time.monotonic())

    patch.setattr(PlanRun, "_settled", settled)


def empty_when_a_reading_fails(patch: pytest.MonkeyPatch) -> None:
    read = scpi.ScpiDriver._read

    def reading(self: scpi.ScpiDriver, deadline: Any) -> Snapshot:
        try:
            return read(self, deadline)
        except OpticalError:
            ports = dict.fromkeys(
                self.capabilities().ports, PortStatus(PortState.BLOCKED)
            )
            return Snapshot(self.name, {}, ports, taken_at=time.monotonic())

    patch.setattr(scpi.ScpiDriver, "_read", reading)


def delete_after_add(patch: pytest.MonkeyPatch) -> None:
    writes = PlanRun._writes
    patch.setattr(PlanRun, "_writes", lambda self, plan: writes(self, plan)[::-1])


MUTANTS = [
    pytest.param(ScpiRig, no_read_back, (31,), id="no-read-back"),
    pytest.param(ScpiRig, empty_when_a_reading_fails, (6,), id="empty-on-failure"),
    pytest.param(ScpiRig, delete_after_add, (13, 24), id="delete-after-add"),
    *mutants(),
]


@pytest.mark.parametrize(("make", "plant", "items"), MUTANTS)
def test_a_planted_bug_turns_its_items_red(
    make: type[Rig], plant: Patch, items: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = [check for check in CHECKS if set(items) & set(check.items)]
    rig = make()
    try:
        sound = by_item(run_checks(rig, checks))
        assert {sound[item].state for item in items} == {"green"}, [
            sound[item] for item in items
        ]
        plant(monkeypatch)
        mutant = by_item(run_checks(rig, checks))
        assert {mutant[item].state for item in items} == {"failed"}, [
            mutant[item] for item in items
        ]
    finally:
        rig.close()
