"""Switches whose tables are another controller's: it is told what the light has changed at their ports."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.fabric.topology import Fabric, Port


def attached(fabric: Fabric, ends: Mapping[Port, Port | None], switch: str) -> list[dict[str, Any]]:
    """What is at a switch's plugged ports now, in order: the port that light reaches, and of a GPU its
    addresses; all None where it is dark."""
    return [{"port": port.number, **_end(fabric, ends[port])} for port in sorted(ends) if port.node == switch]


def _end(fabric: Fabric, end: Port | None) -> dict[str, Any]:
    gpu = None if end is None else fabric.gpus.get(end.node)
    return {
        "peer": None if end is None else str(end),
        "gpu": None if gpu is None else gpu.name,
        "ip": None if gpu is None else gpu.ip,
        "mac": None if gpu is None else gpu.mac,
    }


class Followers:
    """Publishes ``packet_switch_light`` for each of these switches when what is at its ports has changed."""

    def __init__(self, fabric: Fabric, bus: EventBus) -> None:
        self._fabric = fabric
        self._bus = bus
        self._lock = threading.Lock()
        self._told: dict[str, list[dict[str, Any]]] = {}

    def tell(self, ends: Mapping[Port, Port | None]) -> None:
        """``ends``: the port lit to each packet-switch port now. What is there at first is no change."""
        for name in self._fabric.foreign_switches:
            now = attached(self._fabric, ends, name)
            with self._lock:
                before = self._told.get(name, now)
                self._told[name] = now
                changed = [entry for entry, old in zip(now, before, strict=True) if entry != old]
                if changed:
                    switch = self._fabric.packet_switches[name]
                    self._bus.publish(
                        "packet_switch_light",
                        switch=name,
                        dpid=switch.dpid,
                        controller=switch.controller,
                        ports=changed,
                    )
