"""What providers of light are made of in unit tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.light.provider import LightContext
from ringlight.controller.onic.place import OnicPlace
from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import Unreachable
from ringlight.controller.optical.model import (
    Capabilities,
    PortStatus,
    Snapshot,
    dual_sided,
)
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, PortState
from ringlight.fabric.topology import Fabric


class Wss(OpticalSwitchDriver):
    """A WSS that does at once what it is told."""

    def __init__(self, name: str, size: int, wavelengths: int) -> None:
        ingress, egress = dual_sided(size)
        super().__init__(
            name, Capabilities(ingress, egress, max_batch=64, wavelengths=wavelengths)
        )
        self.stand: set[CrossConnect] = set()
        self.writes = 0
        self.away = False

    def _read(self, deadline: Deadline) -> Snapshot:
        if self.away:
            raise Unreachable("no session")
        state = dict.fromkeys(self.stand, CrossConnectState.CONNECTED)
        return Snapshot(
            self.name,
            state,
            dict.fromkeys(self.capabilities().ports, PortStatus(PortState.TUNED)),
        )

    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        self.writes += 1
        self.stand -= set(batch)

    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        self.writes += 1
        self.stand |= set(batch)


def light_context(
    fabric: Fabric,
    site: Any,
    *,
    agent: Any = None,
    bus: EventBus | None = None,
    circuits: Any = None,
    onics: Mapping[str, OnicPlace] | None = None,
    workload: Any = None,
    time_dilation: float = 1.0,
    sockets: Mapping[str, Path] | None = None,
) -> LightContext:
    """Return a context with stand-ins for what a test does not need."""
    workloads: Any = SimpleNamespace(workload=workload)
    bus = bus or EventBus()
    return LightContext(
        fabric,
        site,
        agent,
        bus,
        circuits,
        onics or {},
        workloads,
        time_dilation,
        sockets or {},
    )
