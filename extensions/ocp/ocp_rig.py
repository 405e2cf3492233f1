"""The rig of the Open Compute Project's model, around the emulated switch."""

from __future__ import annotations

from ringlight.extensions.gnmi.gnmi_rig import GnmiRig


class OcpRig(GnmiRig):
    protocol = "ocp-gnmi"
    profile = "ocp"
