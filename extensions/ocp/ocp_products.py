"""Switches of the Open Compute Project's model, and their driver."""

from __future__ import annotations

from dataclasses import replace

from ringlight.fabric.optical_drivers import DriverKind
from ringlight.fabric.optical_profiles import MEMS

#: The model says nothing of how a switch moves light: 3D-MEMS, as of the first of them. Its ports are named
#: by number. [assumed], all of it.
OCP = replace(MEMS, name="ocp", port_names="number")

GNMI = DriverKind(
    "ocp_gnmi:GnmiDriver",
    ("ocp",),
    "ocp",
    "ocp-gnmi",
    options=frozenset(
        {"tls", "ca_file", "cert_file", "key_file", "server_name", "inputs", "outputs"},
    ),
    emulated={"tls": False},
    emulated_by="emulation.ocp_gnmi:PROTOCOL",
    rig="ocp_rig:OcpRig",
)
