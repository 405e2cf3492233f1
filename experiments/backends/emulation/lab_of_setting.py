"""The lab that a setting asks for: its processes, what cannot be driven in it.

Commands that only build a lab import no more of the backend than this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringlight.controller.optical.registry import check_driver
from ringlight.experiments.language.plan import Setting
from ringlight.fabric.optical_drivers import driver_kinds
from ringlight.fabric.topology import Fabric
from ringlight.testbed.addresses import Addresses
from ringlight.testbed.emulation.optical.session import protocol_named
from ringlight.testbed.processes import LabProcesses


def processes_of(
    setting: Setting,
    runtime: str,
    addresses: Addresses,
    *,
    devices: Sequence[str] = (),
    bounded: bool = False,
    idle_hosts: bool = False,
    **more: Any,
) -> LabProcesses:
    """Return the processes, not started yet, of a lab of this setting.

    ``devices``: names of extensions' devices that it has. ``bounded``: workers have little in progress, as no
    event will delay frames. ``idle_hosts``: every GPU has an idle host from the start. ``more``: keywords of
    ``LabProcesses``.
    """
    scale, tcp = setting.scale, setting.tcp
    options = [
        *("--time-dilation", repr(scale.time), "--payload-scale", repr(scale.payload)),
        *(
            "--congestion-control",
            tcp.congestion_control,
            "--rto-min",
            repr(tcp.rto_min * scale.time),
        ),
        *(["--onic-faults"] if setting.onic_faults else []),
        *(word for name in devices for word in ("--device", name)),
        *(["--bounded"] if bounded else []),
        *(["--idle-hosts"] if idle_hosts else []),
    ]
    return LabProcesses(setting.section, runtime, addresses, options, **more)


def cannot_drive(fabric: Fabric) -> str | None:
    """Return why an optical switch has no driver here, or none can be emulated for it, ``key: reason``; None
    if all can be driven.
    """
    for name, switch in fabric.optical_switches.items():
        try:
            check_driver(switch.driver)
            protocol = driver_kinds()[switch.driver].protocol
            if protocol is not None and not switch.is_elsewhere:
                protocol_named(protocol)
        except ValueError as error:
            return f"fabric.optical_switches.{name}.driver: {error}"
    return None
