"""Polatis' products and their drivers.

[Polatis] is what ``fabric/optical_profiles.py`` has of it. No switch was at hand: all of this is unverified.
"""

from __future__ import annotations

from dataclasses import replace

from ringlight.fabric.optical_drivers import SCPI, DriverKind
from ringlight.fabric.optical_profiles import PIEZO

#: [Polatis], the class above; ports are numbers.
POLATIS_7000 = replace(PIEZO, name="polatis-7000", port_names="number")

#: No figure of it was found; those of the 7000, which does the same by the same means, are [assumed].
POLATIS_6000 = replace(POLATIS_7000, name="polatis-6000")

_PRODUCTS = ("polatis-7000", "polatis-6000")

#: The core's driver, for switches that are known to be Polatis'.
POLATIS_SCPI = DriverKind(
    "scpi", _PRODUCTS, "polatis-7000", protocol=SCPI.protocol, login=SCPI.login
)

TL1 = DriverKind(
    "polatis_tl1:PolatisTl1Driver",
    _PRODUCTS,
    "polatis-7000",
    "polatis-tl1",
    emulated_by="emulation.polatis_tl1:PROTOCOL",
    rig="polatis_rigs:PolatisTl1Rig",
)

RESTCONF = DriverKind(
    "polatis_restconf:PolatisRestconfDriver",
    _PRODUCTS,
    "polatis-7000",
    "polatis-restconf",
    options=frozenset({"tls", "ca_file", "settle_s"}),
    emulated_options=frozenset({"settle_s"}),
    # It never drops a change that it has shown.
    emulated={"tls": False, "settle_s": 0.0},
    emulated_by="emulation.polatis_restconf:PROTOCOL",
    rig="polatis_rigs:PolatisRestconfRig",
)

NETCONF = DriverKind(
    "polatis_netconf:NetconfDriver",
    _PRODUCTS,
    "polatis-7000",
    options=frozenset({"key_file", "host_key", "known_hosts", "verify"}),
)
