"""The light paths of an emulated optical switch: opened in the kernel, and changed as the device decides."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from ringlight.testbed.emulation.optical.commands import (
    Dark,
    Effect,
    Gate,
    Light,
    SetLabel,
    SetRecovery,
)
from ringlight.testbed.emulation.optical.datapath import Datapath, Selective
from ringlight.testbed.emulation.optical.lasers import Lasers
from ringlight.testbed.emulation.optical.recovery import ModelledPaths
from ringlight.testbed.emulation.optical.switch_settings import Settings

#: Light paths, and what a device remembers of them over a restart.
LightPaths = Datapath | ModelledPaths


def apply_effects(
    datapath: LightPaths, effects: Iterable[Effect], decided_ns: int | None = None
) -> int:
    """Make the kernel do what the device decided, at ``decided_ns`` if that is known. Return the delay in
    nanoseconds.

    A process that is held up between decision and effect takes light away late. The light that replaces it is
    then delayed by the same time, because the device decides how long ports are dark, not the machine.
    """
    late_ns = 0
    for effect in effects:
        match effect:
            case Light(ingress, egress, ready_ns, wavelength, loss_db):
                datapath.connect(
                    ingress, egress, ready_ns + late_ns, wavelength, loss_db
                )
            case Dark(ingress, wavelength):
                datapath.disconnect(ingress, wavelength)
                if decided_ns is not None:
                    late_ns = max(late_ns, time.monotonic_ns() - decided_ns)
            case Gate(port, admin):
                datapath.set_admin(port, admin)
            case SetLabel(port, label):
                datapath.set_label(port, label)
            case SetRecovery(recovery):
                datapath.set_recovery(recovery)
    return late_ns


def open_datapath(settings: Settings, pins: Path) -> Datapath:
    """Return the datapath of a switch whose maps are pinned in ``pins``. Raises OSError."""
    ports = 2 * settings.size
    if settings.lasers is None:
        tagged = Selective(settings.wavelengths) if settings.wavelengths else None
        return Datapath.open(pins, settings.name, ports, tagged)
    lasers = Lasers.open(settings.lasers)
    try:
        selective = Selective(
            settings.wavelengths, lasers.descriptor, settings.laser_of_port
        )
        return Datapath.open(pins, settings.name, ports, selective)
    finally:
        lasers.close()
