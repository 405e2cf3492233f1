"""Make drivers from inventory entries.

The kind of a driver (:mod:`fabric.optical_drivers`) names what makes it, in the package of its extension: a
class or a function, which gets the switch's name, its entry, its size and the OpenFlow plane. A hyphen and an
underscore are the same in a driver's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.fabric.extension import ExtensionError, entries
from ringlight.fabric.optical_drivers import driver_kinds, driver_of

Build = Callable[[str, Mapping[str, Any], int, Any], OpticalSwitchDriver]


def _build(name: str) -> Build:
    """Return what makes the driver of this name.

    Raises ValueError if there is none, or if it cannot be loaded or lacks methods that a driver must have.
    """
    kind = driver_kinds().get(driver_of(name))
    if kind is None:
        raise ValueError(f"there is no driver {name!r}")
    if ":" not in kind.made_by:
        return _build(kind.made_by)
    installed, _ = entries("drivers")[driver_of(name)]
    try:
        build: Build = installed.load(kind.made_by)
    except ExtensionError as error:
        # A package that an optional driver needs, or a broken extension.
        raise ValueError(f"{name}: {error}") from None
    if missing := sorted(getattr(build, "__abstractmethods__", ())):
        raise ValueError(f"{name}: {kind.made_by} lacks {', '.join(missing)}")
    return build


def check_driver(name: str) -> None:
    """Check that a driver of this name can be loaded, and is one. Raises ValueError."""
    _build(name)


def make_driver(
    name: str, inventory_entry: Mapping[str, Any], size: int, openflow: Any = None
) -> OpticalSwitchDriver:
    """Return the driver of the optical switch ``name`` with ``size`` duplex faceplate ports, not yet opened.

    ``openflow``: the plane that the switch connects to, for drivers that need one. Raises ValueError naming
    the switch and the key.
    """
    kind = inventory_entry.get("driver")
    if not isinstance(kind, str) or not re.fullmatch(r"[a-z][a-z0-9_-]*", kind):
        raise ValueError(
            f"optical switch {name}: driver: {kind!r} is not a driver's name"
        )
    try:
        build = _build(kind)
    except ValueError as error:
        raise ValueError(f"optical switch {name}: driver: {error}") from None
    try:
        driver = build(name, inventory_entry, size, openflow)
    except KeyError as error:
        raise ValueError(
            f"optical switch {name}: the inventory entry lacks {error.args[0]!r}"
        ) from None
    if not isinstance(driver, OpticalSwitchDriver):
        raise ValueError(
            f"optical switch {name}: driver: {kind} gave a {type(driver).__name__}, no driver"
        )
    return driver
