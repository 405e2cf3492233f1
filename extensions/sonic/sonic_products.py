"""Switches that SONiC runs on, and their drivers."""

from __future__ import annotations

from dataclasses import replace

from ringlight.fabric.optical_drivers import DriverKind
from ringlight.fabric.optical_profiles import MEMS

#: SONiC's design document has no figure of time, so those of 3D-MEMS are [assumed]; the losses of its
#: examples are those of the class. Its ports are 1A, 1B and so on.
SONIC_OCS = replace(MEMS, name="sonic-ocs", port_names="number")

_PRODUCTS = ("sonic-ocs",)

REST = DriverKind(
    "sonic_rest:SonicRestDriver",
    _PRODUCTS,
    "sonic-ocs",
    "sonic-ocs",
    options=frozenset({"tls", "ca_file"}),
    emulated={"tls": False},
    emulated_by="emulation.sonic_rest:PROTOCOL",
    rig="sonic_rigs:SonicRestRig",
)

GNMI = DriverKind(
    "sonic_gnmi:SonicGnmiDriver",
    _PRODUCTS,
    "sonic-ocs",
    "sonic-ocs-gnmi",
    options=frozenset(
        {"tls", "ca_file", "cert_file", "key_file", "server_name", "schema"}
    ),
    emulated_options=frozenset({"schema"}),
    emulated={"tls": False},
    emulated_by="emulation.sonic_gnmi:PROTOCOL",
    rig="sonic_rigs:SonicGnmiRig",
)
