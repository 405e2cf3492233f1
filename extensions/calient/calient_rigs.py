"""Rigs of Calient's drivers, around the emulated switch."""

from __future__ import annotations

import re

from ringlight.extensions.http.http_rig import HttpRig
from ringlight.extensions.tl1.tl1_rig import Tl1Proxy, Tl1Rig


class CalientProxy(Tl1Proxy):
    # Both phases of making a circuit, and of ending one, count as one write: the last.
    WRITE = re.compile(rb"\A(ACT-CRS|DLT-CRS|(ENT|DLT)-CRS-BULK):")
    READ = re.compile(rb"\ARTRV-CRS:")


class CalientTl1Rig(Tl1Rig):
    recoveries = ("REMOVE",)
    protocol = "calient-tl1"
    profile = "calient-s320"
    proxy_of = CalientProxy


class CalientRestRig(HttpRig):
    """Calient's REST, which shows neither failed nor disabled ports."""

    shows_failed = False
    recoveries = ("MAINTAIN",)
    protocol = "calient-rest"
