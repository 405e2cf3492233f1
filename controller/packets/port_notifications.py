"""Inform other controllers of changes of light at the ports of their switches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from typing_extensions import TypedDict

from ringlight.controller.bus import EventBus
from ringlight.fabric.parts import Port
from ringlight.fabric.topology import Fabric


class Attached(TypedDict):
    """Node that light reaches from a port, and the addresses of a GPU; all None if the port is dark."""

    port: int
    peer: str | None
    gpu: str | None
    ip: str | None
    mac: str | None


def attached(
    fabric: Fabric, ends: Mapping[Port, Port | None], switch: str
) -> list[Attached]:
    """Return the present attachments of a switch's plugged ports, in order."""
    return [
        _attached(fabric, port.number, ends[port])
        for port in sorted(ends)
        if port.node == switch
    ]


def _attached(fabric: Fabric, port: int, end: Port | None) -> Attached:
    gpu = None if end is None else fabric.gpus.get(end.node)
    return {
        "port": port,
        "peer": None if end is None else str(end),
        "gpu": None if gpu is None else gpu.name,
        "ip": None if gpu is None else gpu.ip,
        "mac": None if gpu is None else gpu.mac,
    }


def moved(
    before: Mapping[Port, Port | None], now: Mapping[Port, Port | None]
) -> list[str]:
    """Return the names of the nodes that light now reaches from another packet-switch port than before,
    sorted.
    """
    then = {end: port for port, end in before.items() if end is not None}
    return sorted(
        {
            end.node
            for port, end in now.items()
            if end is not None and then.get(end) != port
        }
    )


class Followers:
    """Publisher of ``packet_switch_light`` for each of other controllers' switches, when its attachments have
    changed.

    ``announce``: function that receives the GPUs that have moved, on whichever switch they are now: another
    switch may have to learn that they have left it.
    """

    def __init__(
        self, fabric: Fabric, bus: EventBus, announce: Callable[[list[str]], None]
    ) -> None:
        self._fabric = fabric
        self._bus = bus
        self._announce = announce
        self._lock = threading.Lock()
        self._ends: Mapping[Port, Port | None] | None = None

    def tell(self, lit_ends: Callable[[], Mapping[Port, Port | None]]) -> None:
        """Publish the changes of light at the ports of other controllers' switches.

        ``lit_ends``: function that returns the port lit to each packet-switch port now; it is called only if
        there are such switches. The first state is not a change.
        """
        if not self._fabric.foreign_switches:
            return
        ends = lit_ends()
        with self._lock:
            before = ends if self._ends is None else self._ends
            self._ends = dict(ends)
            for name in self._fabric.foreign_switches:
                self._tell(name, before, ends)
            if gpus := [
                name for name in moved(before, ends) if name in self._fabric.gpus
            ]:
                self._announce(gpus)

    def _tell(
        self,
        name: str,
        before: Mapping[Port, Port | None],
        ends: Mapping[Port, Port | None],
    ) -> None:
        then, now = (attached(self._fabric, light, name) for light in (before, ends))
        changed = [entry for entry, old in zip(now, then, strict=True) if entry != old]
        if changed:
            switch = self._fabric.packet_switches[name]
            self._bus.publish(
                "packet_switch_light",
                switch=name,
                dpid=switch.dpid,
                controller=switch.controller,
                ports=changed,
            )
