"""Names of connections, which the emulated switch keeps beyond its process."""

from __future__ import annotations

import json
from dataclasses import replace

from ringlight.extensions.ocp.emulation.ocp_tree import Names
from ringlight.fabric.optical_profiles import PIEZO
from ringlight.testbed.emulation.optical.commands import (
    NS,
    Recovery,
    Stored,
    TunedEgress,
    Wire,
)
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.recovery import booted

LIT = {(1, None): TunedEgress(9, 5 * NS), (2, None): TunedEgress(10, 900 * NS)}


def test_connections_keep_their_names() -> None:
    device = OpticalDevice(8, PIEZO, 0, Stored(LIT))
    Names(device).give({"red": Wire(1, 9)}, [])
    noted = json.loads(json.dumps(device.remembered()))
    again = OpticalDevice(8, PIEZO, 0, Stored(LIT, notes=noted | {"other": [1]}))
    # Nobody has asked for names yet; what nobody knows is kept.
    assert again.remembered() == noted | {"other": [1]}
    assert Names(again).current() == {"red": Wire(1, 9), "port-2:port-10": Wire(2, 10)}
    assert again.remembered() == noted | {"other": [1]}
    assert booted(again_stored := Stored(LIT, notes=noted), PIEZO, 0, 0).notes == noted
    assert (
        booted(replace(again_stored, recovery=Recovery.REMOVE), PIEZO, 0, 0).notes == {}
    )
