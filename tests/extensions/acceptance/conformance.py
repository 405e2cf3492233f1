"""Drivers that are not SCPI's: a rig of the tests alone, and bugs that public clients have (`brought`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ringlight.controller.optical import calient_rest, sonic, sonic_ocs, tl1, tl1_client
from ringlight.controller.optical.errors import OpticalError
from ringlight.controller.optical.model import Snapshot
from ringlight.extensions.acceptance.rigs.tl1 import PolatisTl1Rig
from ringlight.extensions.acceptance.rigs.web import CalientRestRig, SonicRestRig
from ringlight.fabric.crossconnect import CrossConnectState
from tests.extensions.acceptance.netconf_rig import NetconfRig

RIGS = {"polatis-netconf": NetconfRig}


def http_200_is_success(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calient_rest, "parse_statuses", lambda value, count: ("",) * count)


def up_to_the_first_semicolon(patch: pytest.MonkeyPatch) -> None:
    class FirstSemicolon(tl1.MessageFramer):
        def feed(self, data: bytes) -> list[tl1.Message]:
            return super().feed(data.replace(b";", b"\r\n;", 1))

    patch.setattr(tl1_client, "MessageFramer", FirstSemicolon)


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
    pytest.param(CalientRestRig, http_200_is_success, (29,), id="http-200-is-success"),
    pytest.param(PolatisTl1Rig, up_to_the_first_semicolon, (7, 28), id="first-semicolon"),
    pytest.param(SonicRestRig, what_is_wanted_for_what_is, (32,), id="config-for-state"),
    pytest.param(SonicRestRig, empty_where_a_table_is_not_told, (6,), id="empty-table"),
]
