"""Bugs that public clients of optical switches have: planted in a driver, each turns items red."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ringlight.controller.optical import scpi
from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import OpticalError
from ringlight.controller.optical.model import Plan, PortStatus, Snapshot
from ringlight.extensions.calient import rest as calient_rest
from ringlight.extensions.sonic import databases as sonic
from ringlight.extensions.sonic import rest as sonic_ocs
from ringlight.extensions.tl1 import client as tl1_client
from ringlight.extensions.tl1 import grammar as tl1
from ringlight.fabric.crossconnect import CrossConnectState, PortState
from ringlight.testbed.acceptance.checks import CHECKS
from ringlight.testbed.acceptance.rig import Rig
from ringlight.testbed.acceptance.rigs.emulated import ScpiRig
from ringlight.testbed.acceptance.rigs.tl1 import PolatisTl1Rig
from ringlight.testbed.acceptance.rigs.web import CalientRestRig, SonicRestRig
from ringlight.testbed.acceptance.runner import by_item, run_checks

pytestmark = pytest.mark.root

Patch = Callable[[pytest.MonkeyPatch], None]


def no_read_back(patch: pytest.MonkeyPatch) -> None:
    def settled(self: OpticalSwitchDriver, plan: Plan, *_: Any) -> Snapshot:
        standing = dict.fromkeys((*plan.keep, *plan.add), CrossConnectState.CONNECTED)
        ports = dict.fromkeys(self.capabilities().ports, PortStatus(PortState.TUNED))
        return Snapshot(self.name, standing, ports, taken_at=time.monotonic())

    patch.setattr(OpticalSwitchDriver, "_settled", settled)


def http_200_is_success(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calient_rest, "parse_statuses", lambda value, count: ("",) * count)


def up_to_the_first_semicolon(patch: pytest.MonkeyPatch) -> None:
    class FirstSemicolon(tl1.MessageFramer):
        def feed(self, data: bytes) -> list[tl1.Message]:
            return super().feed(data.replace(b";", b"\r\n;", 1))

    patch.setattr(tl1_client, "MessageFramer", FirstSemicolon)


def empty_when_a_reading_fails(patch: pytest.MonkeyPatch) -> None:
    read = scpi.ScpiDriver._read

    def reading(self: scpi.ScpiDriver, deadline: Any) -> Snapshot:
        try:
            return read(self, deadline)
        except OpticalError:
            ports = dict.fromkeys(self.capabilities().ports, PortStatus(PortState.BLOCKED))
            return Snapshot(self.name, {}, ports, taken_at=time.monotonic())

    patch.setattr(scpi.ScpiDriver, "_read", reading)


def delete_after_add(patch: pytest.MonkeyPatch) -> None:
    writes = OpticalSwitchDriver._writes
    patch.setattr(OpticalSwitchDriver, "_writes", lambda self, plan: writes(self, plan)[::-1])


def what_is_wanted_for_what_is(patch: pytest.MonkeyPatch) -> None:
    """SONiC's CONFIG_DB, read for STATE_DB."""
    made = sonic.snapshot

    def snapshot(name: str, wires: Any, *more: Any) -> Snapshot:
        standing = dict.fromkeys(wires, CrossConnectState.CONNECTED)
        return replace(made(name, wires, *more), cross_connects=standing)

    patch.setattr(sonic, "snapshot", snapshot)


def empty_where_a_table_is_not_told(patch: pytest.MonkeyPatch) -> None:
    table = sonic_ocs.SonicRestDriver._table

    def told(self: sonic_ocs.SonicRestDriver, target: str, deadline: Any) -> Any:
        try:
            return table(self, target, deadline)
        except OpticalError:
            return {}

    patch.setattr(sonic_ocs.SonicRestDriver, "_table", told)


MUTANTS = [
    pytest.param(ScpiRig, no_read_back, (31,), id="no-read-back"),
    pytest.param(CalientRestRig, http_200_is_success, (29,), id="http-200-is-success"),
    pytest.param(PolatisTl1Rig, up_to_the_first_semicolon, (7, 28), id="first-semicolon"),
    pytest.param(ScpiRig, empty_when_a_reading_fails, (6,), id="empty-on-failure"),
    pytest.param(ScpiRig, delete_after_add, (13, 24), id="delete-after-add"),
    pytest.param(SonicRestRig, what_is_wanted_for_what_is, (32,), id="config-for-state"),
    pytest.param(SonicRestRig, empty_where_a_table_is_not_told, (6,), id="empty-table"),
]


@pytest.mark.parametrize(("make", "plant", "items"), MUTANTS)
def test_a_planted_bug_turns_its_items_red(
    make: type[Rig], plant: Patch, items: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = [check for check in CHECKS if set(items) & set(check.items)]
    rig = make()
    try:
        sound = by_item(run_checks(rig, checks))
        assert {sound[item].state for item in items} == {"green"}, [sound[item] for item in items]
        plant(monkeypatch)
        mutant = by_item(run_checks(rig, checks))
        assert {mutant[item].state for item in items} == {"failed"}, [mutant[item] for item in items]
    finally:
        rig.close()
