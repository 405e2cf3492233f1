"""A run before it is checked."""

from __future__ import annotations

from dataclasses import dataclass

from ringlight.experiments.language.plan import EventPlan, JobPlan
from ringlight.fabric.control_faults import ControlFaults
from ringlight.fabric.topology import Fabric


@dataclass(frozen=True)
class Draft:
    """A run before it is checked. ``where``: the key of its fabric; ``key``: what tells that from others."""

    where: str
    key: str
    fabric: Fabric
    jobs: tuple[JobPlan, ...]
    events: tuple[EventPlan, ...]
    control: ControlFaults
