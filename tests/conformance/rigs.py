"""Names of the kit's rigs."""

from testbed.acceptance.rig import Rig
from testbed.acceptance.rigs.emulated import HOSTS, PASSWORD, SIZE, USER, Proxy, ScpiRig

__all__ = ["HOSTS", "PASSWORD", "SIZE", "USER", "Proxy", "Rig", "ScpiRig"]
