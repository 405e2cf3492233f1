"""Rigs: optical switches with hosts at their ports and faults on demand, to test and measure drivers on."""

from collections.abc import Mapping
from functools import cache

from ringlight.fabric.optical_drivers import parts_of_drivers
from ringlight.testbed.rigs.rig import Rig


@cache
def rigs() -> Mapping[str, type[Rig]]:
    """Return the rigs by the names of their drivers, and the core's for switches of wavelengths.

    Raises ExtensionError.
    """
    from ringlight.testbed.rigs.emulated import WssRig

    rigs_of_drivers = {name: load() for name, load in parts_of_drivers("rig").items()}
    return {**rigs_of_drivers, "scpi-wss": WssRig}
