"""Calient's products and their drivers.

Sources: [S320] and [SONiC] as in ``fabric/optical_profiles.py``. [TL1]: public TL1 clients of an S320 name
ports such as 5.8.6 and 1.1.4; 5 shelves of 8 modules of 8 ports are 320, which is our conclusion; those of
other Calient switches count modules in another way.
"""

from __future__ import annotations

from dataclasses import replace

from ringlight.fabric.optical_drivers import DriverKind
from ringlight.fabric.optical_profiles import MEMS

#: The class of 3D-MEMS, whose whole-fabric figure, [S320], is this switch's; ports named as in [TL1].
#: Unverified: no switch was at hand, and its loss is that of [SONiC].
CALIENT_S320 = replace(MEMS, name="calient-s320", port_names="shelf.module.port")

_PRODUCTS = ("calient-s320",)

TL1 = DriverKind(
    "calient_tl1:CalientTl1Driver",
    _PRODUCTS,
    "calient-s320",
    "calient-tl1",
    options=frozenset({"group", "bulk"}),
    emulated_options=frozenset({"group", "bulk"}),
    emulated_by="emulation.calient_tl1:PROTOCOL",
    rig="calient_rigs:CalientTl1Rig",
)

REST = DriverKind(
    "calient_rest:CalientRestDriver",
    _PRODUCTS,
    "calient-s320",
    "calient-rest",
    options=frozenset({"tls", "ca_file", "group"}),
    emulated_options=frozenset({"group"}),
    emulated={"tls": False},
    emulated_by="emulation.calient_rest:PROTOCOL",
    rig="calient_rigs:CalientRestRig",
)
