"""Bugs that public clients have, for the acceptance kit's own tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ringlight.controller.optical.errors import OpticalError
from ringlight.controller.optical.model import Snapshot
from ringlight.extensions.sonic import databases
from ringlight.extensions.sonic.sonic_rest import SonicRestDriver
from ringlight.extensions.sonic.sonic_rigs import SonicRestRig
from ringlight.fabric.crossconnect import CrossConnectState


def what_is_wanted_for_what_is(patch: pytest.MonkeyPatch) -> None:
    """SONiC's CONFIG_DB, read for STATE_DB."""
    made = databases.snapshot

    def snapshot(name: str, wires: Any, *more: Any) -> Snapshot:
        standing = dict.fromkeys(wires, CrossConnectState.CONNECTED)
        return replace(made(name, wires, *more), cross_connects=standing)

    patch.setattr(databases, "snapshot", snapshot)


def empty_where_a_table_is_not_told(patch: pytest.MonkeyPatch) -> None:
    table = SonicRestDriver._table

    def told(self: SonicRestDriver, target: str, deadline: Any) -> Any:
        try:
            return table(self, target, deadline)
        except OpticalError:
            return {}

    patch.setattr(SonicRestDriver, "_table", told)


MUTANTS = [
    pytest.param(
        SonicRestRig, what_is_wanted_for_what_is, (32,), id="config-for-state"
    ),
    pytest.param(SonicRestRig, empty_where_a_table_is_not_told, (6,), id="empty-table"),
]
