"""Rigs: optical switches with hosts at their ports and faults on demand, to test and measure drivers on."""

from collections.abc import Mapping
from functools import cache

from ringlight.fabric.extension import extensions
from ringlight.testbed.rigs.emulated import ScpiRig, WssRig
from ringlight.testbed.rigs.rig import Rig


@cache
def rigs() -> Mapping[str, type[Rig]]:
    """Return the rigs that can be made on this machine, by name, those of extensions behind ours.

    Raises ExtensionError if one cannot be loaded.
    """
    of_extensions = {
        name: installed.load(value)
        for installed in extensions()
        for name, value in installed.extension.rigs.items()
    }
    return {"scpi": ScpiRig, "scpi-wss": WssRig, **of_extensions}
