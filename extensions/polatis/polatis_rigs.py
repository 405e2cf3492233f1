"""Rigs of Polatis' drivers, around the emulated switch."""

from __future__ import annotations

import re

from ringlight.extensions.http.http_rig import HttpRig
from ringlight.extensions.tl1.tl1_rig import Tl1Proxy, Tl1Rig


class PolatisProxy(Tl1Proxy):
    WRITE = re.compile(rb"\A((ENT|DLT)-PATCH|(OPR|RLS)-PORT-SHUTTER):")
    READ = re.compile(rb"\ARTRV-PATCH:")


class PolatisTl1Rig(Tl1Rig):
    recoveries = ("RESTORE",)
    protocol = "polatis-tl1"
    profile = "polatis-7000"
    proxy_of = PolatisProxy
    #: The dialect only tells whether a port's shutter is open.
    shows_failed = False


class PolatisRestconfRig(HttpRig):
    """Polatis' RESTCONF, of a switch that is known to keep what it has shown."""

    recoveries = ("REMOVE",)
    protocol = "polatis-restconf"
