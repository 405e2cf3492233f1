"""Rigs of SONiC's drivers, around the emulated switch."""

from __future__ import annotations

from ringlight.extensions.gnmi.gnmi_rig import GnmiRig
from ringlight.extensions.http.http_rig import HttpRig


class SonicRestRig(HttpRig):
    """SONiC's REST, whose models know no optical power."""

    recoveries = ("RESTORE",)
    shows_tuning = True
    protocol = "sonic-ocs"
    profile = "sonic-ocs"


class SonicGnmiRig(GnmiRig):
    """SONiC's models, whose switch does not report light."""

    protocol = "sonic-ocs-gnmi"
    profile = "sonic-ocs"
