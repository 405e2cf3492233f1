"""Devices that extensions add to labs: how they are asked for, and what a lab's testbed calls them for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from ringlight.fabric.extension import extensions
from ringlight.testbed.lab import Lab


@dataclass(frozen=True)
class Site:
    """Place of a device. ``state``: directory for its files. ``bridges``: the lab's bridges of Open
    vSwitch that our controller drives, with their datapath ids."""

    lab: Lab
    state: Path
    bridges: Mapping[str, int]


class Device:
    """A device in one lab. Each method does nothing unless a device has its own.

    Interfaces are those of the lab's bridges, by name. Methods may raise NetworkError and OpenVSwitchError.
    """

    def carries(self, bridge: str) -> bool:
        """Return whether it forwards the packets of a bridge, by tables that it reads with OpenFlow 1.5."""
        return False

    def start(self) -> None:
        """Begin, as the bridges are there."""

    def take_up(self, interfaces: Iterable[str]) -> None:
        """Carry what comes in by these interfaces, which have been joined to a bridge that it carries."""

    def leave(self, interfaces: Iterable[str]) -> None:
        """Send nothing out by these interfaces from now on, and by all others."""

    def open_vswitch_is_back(self) -> None:
        """Attach to another process of Open vSwitch what the one before took with it."""

    def inventory(self) -> dict[str, Any]:
        """Return its keys of the lab's inventory, which the controller reads."""
        return {}

    def stop(self) -> None:
        """Remove what :meth:`start` made, also when it was made only in part."""


class DeviceKind(Protocol):
    """Makes a device for each lab that is to have one. ``help``: of the option ``--NAME`` that asks for it.
    ``carries``: it forwards packets in place of Open vSwitch, for less."""

    @property
    def help(self) -> str: ...

    @property
    def carries(self) -> bool: ...

    def plan(self, site: Site) -> Device | None:
        """Return a device, not started yet; None where the machine needs none."""


@cache
def device_kinds() -> dict[str, DeviceKind]:
    """Return the kinds of all extensions, by name. Raises ExtensionError."""
    return {
        name: installed.load(value)
        for installed in extensions()
        for name, value in installed.extension.devices.items()
    }


def plan_devices(names: Collection[str], site: Site) -> list[Device]:
    """Return the devices of these names that the site needs. Raises LookupError naming an unknown one."""
    planned = (device_kinds()[name].plan(site) for name in names)
    return [device for device in planned if device is not None]


def any_carries(names: Collection[str]) -> bool:
    """Return whether one of these devices forwards packets in place of Open vSwitch."""
    return any(device_kinds()[name].carries for name in names)
