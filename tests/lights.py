"""What providers of light are made of in unit tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.light.provider import LightContext
from ringlight.fabric.topology import Fabric


def light_context(
    fabric: Fabric,
    site: Any,
    *,
    agent: Any = None,
    bus: EventBus | None = None,
    circuits: Any = None,
    onics: Any = None,
    workload: Any = None,
    time_dilation: float = 1.0,
    sockets: Mapping[str, Path] | None = None,
) -> LightContext:
    """Return a context with stand-ins for what a test does not need."""
    workloads: Any = SimpleNamespace(workload=workload)
    bus = bus or EventBus()
    return LightContext(fabric, site, agent, bus, circuits, onics, workloads, time_dilation, sockets or {})
