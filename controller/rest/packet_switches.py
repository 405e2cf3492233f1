"""Routes of packet switches: their flow tables and ports."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from ringlight.controller.errors import NotFoundError, UnavailableError
from ringlight.controller.packets.port_notifications import Attached, attached
from ringlight.controller.rest.common import answers
from ringlight.controller.rest.requests import PacketSwitchName
from ringlight.controller.service import Controller
from ringlight.fabric.parts import PacketSwitch, Port


@dataclass(frozen=True)
class PacketSwitchDocument(PacketSwitch):
    """``connected``: to our controller, as those are whose tables it writes."""

    connected: bool = False
    attached: list[Attached] = dataclasses.field(default_factory=list)


@dataclass(frozen=True)
class Flow:
    """An entry of a flow table; ``duration_s``: seconds since it was written."""

    priority: int
    match: dict[str, int | str]
    out_ports: list[int]
    cookie: int
    table_id: int
    packets: int
    bytes: int
    duration_s: float


@dataclass(frozen=True)
class PacketPort:
    """Counters are 0 for a port that came just now; rx is what the switch received."""

    port: int
    interface: str
    up: bool
    gpu: str | None
    peer: str | None
    rx_packets: int = 0
    tx_packets: int = 0
    rx_bytes: int = 0
    tx_bytes: int = 0
    rx_dropped: int = 0
    tx_dropped: int = 0
    rx_errors: int = 0
    tx_errors: int = 0


def add_packet_switches(app: FastAPI, controller: Controller) -> None:
    """Add the routes below ``/v1/packet-switches``."""
    fabric, plane = controller.fabric, controller.plane

    def dpid(name: str) -> int:
        if name not in fabric.packet_switches:
            raise NotFoundError(f"there is no packet switch {name}")
        if not fabric.packet_switches[name].is_ours:
            whose = fabric.packet_switches[name].controller
            raise UnavailableError(
                f"{name} is not connected here: its tables are left to {whose}"
            )
        return fabric.packet_switches[name].dpid

    @app.get(
        "/v1/packet-switches",
        tags=["packet switches"],
        **answers(list[PacketSwitchDocument]),
    )
    def packet_switches() -> Any:
        """Packet switches: who writes their tables, and which circuits end at their ports now."""
        connected, ends = plane.connected(), controller.circuits.ends()
        return [
            PacketSwitchDocument(
                **vars(s),
                connected=s.dpid in connected,
                attached=attached(fabric, ends, s.name),
            )
            for s in fabric.packet_switches.values()
        ]

    @app.get(
        "/v1/packet-switches/{name}/flows",
        tags=["packet switches"],
        **answers(list[Flow], 404, 503, 504),
    )
    def flows(name: PacketSwitchName) -> Any:
        """The flow table, read from the switch now. ``duration_s``: seconds since the flow was written."""
        entries = plane.flows(dpid(name), timeout_s=5.0, counted=True)
        entries.sort(
            key=lambda e: (-e.priority, sorted((k, str(v)) for k, v in e.match.items()))
        )
        # The wire format is left out: nobody reads it.
        return [
            Flow(
                e.priority,
                dict(e.match),
                list(e.out_ports),
                e.cookie,
                e.table_id,
                e.packets,
                e.bytes,
                e.duration_s,
            )
            for e in entries
        ]

    @app.get(
        "/v1/packet-switches/{name}/ports",
        tags=["packet switches"],
        **answers(list[PacketPort], 404, 503, 504),
    )
    def ports(name: PacketSwitchName) -> Any:
        """The ports with their counters and what is lit to them."""
        number = dpid(name)
        stats = {s.port_no: s for s in plane.port_stats(number, timeout_s=5.0)}
        ends = controller.circuits.ends()
        result = []
        for port in plane.ports(number):
            counters = dict(vars(stats[port.number])) if port.number in stats else {}
            end = ends.get(Port(name, port.number))
            gpu = end.node if end is not None and end.node in fabric.gpus else None
            peer = None if end is None else str(end)
            counters.pop("port_no", None)
            result.append(
                PacketPort(port.number, port.name, port.up, gpu, peer, **counters)
            )
        return result
