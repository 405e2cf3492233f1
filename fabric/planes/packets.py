"""Packets: over GPUs' NICs, packet switches, and circuits through optical switches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.cost import Latencies, steps_time
from ringlight.fabric.paths import PacketView
from ringlight.fabric.planes.base import NETWORK_S, Lighting, Plane, PlaneTimes
from ringlight.fabric.topology import Fabric


class PacketTimes(PlaneTimes):
    """PlaneTimes of packets over the paths that there are."""

    latency_s: ClassVar[float] = NETWORK_S

    def alone_s(
        self,
        ranks: Sequence[str],
        collective: str,
        vector_bytes: float,
        view: PacketView,
        latencies: Latencies = Latencies(),
    ) -> float:
        steps = steps_named(collective, len(ranks))
        return steps_time(view, ranks, steps, vector_bytes, latencies)


class PacketPlane(Plane):
    """All GPUs without an O-NIC."""

    kind: ClassVar[str] = "packets"
    light: ClassVar[Lighting] = "stands"
    shared: ClassVar[bool] = True

    def __str__(self) -> str:
        return "packet switches and circuits"

    @property
    def times(self) -> PacketTimes:
        return PacketTimes(self)


def packets(fabric: Fabric) -> PacketPlane:
    return PacketPlane(fabric, "", fabric.packet_gpus)
