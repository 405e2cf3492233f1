"""Averagers as a device of labs. Commands load this whenever they start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlight.testbed.devices import Device, DeviceKind, DeviceLog, Site


class AveragerNodes(DeviceKind):
    modules = ("ringlight.extensions.optinc.emulated.__main__",)

    def plan(self, site: Site) -> Device | None:
        """Return the averagers of a lab, None if its fabric has none."""
        if site.fabric is None or "averagers" not in site.fabric.parts:
            return None
        from ringlight.extensions.optinc.averager_processes import AveragerDevice

        return AveragerDevice(site.fabric, site)

    def log(self, inventory: Mapping[str, Any]) -> DeviceLog:
        """Return what counts the work of a lab's averagers."""
        from ringlight.extensions.optinc.averager_log import AveragerLog

        return AveragerLog(inventory.get("averagers", {}))


AVERAGERS = AveragerNodes()
