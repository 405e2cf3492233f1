"""Impaired links as a device of labs. Commands load this whenever they start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlight.testbed.devices import Device, DeviceKind, DeviceLog, Site


class ImpairedLinks(DeviceKind):
    def plan(self, site: Site) -> Device | None:
        """Return what impairs the links of a lab, None if it has no fabric: links may be impaired later."""
        if site.fabric is None:
            return None
        from ringlight.extensions.impairments.ends import ImpairedEnds

        return ImpairedEnds(site.lab)

    def log(self, inventory: Mapping[str, Any]) -> DeviceLog:
        """Return what counts the frames at a lab's impaired links. Raises FaultError."""
        from ringlight.extensions.impairments.log import FrameLog

        return FrameLog(inventory["agent"])


IMPAIRED_LINKS = ImpairedLinks()
