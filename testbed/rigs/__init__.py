"""Rigs: optical switches with hosts at their ports and faults on demand, to test and measure drivers on."""

from collections.abc import Mapping
from functools import cache

from ringlight.fabric.extension import loaders
from ringlight.testbed.rigs.rig import Rig


@cache
def rigs() -> Mapping[str, type[Rig]]:
    """Return the rigs that can be made on this machine, by name, the core's first. Raises ExtensionError."""
    return {name: load() for name, load in loaders("rigs").items()}
