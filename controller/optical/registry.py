"""Make drivers from inventory entries.

A driver is made by ``from_inventory(name, entry, size, openflow)``, its class or a function. Ours are modules
of this package: the entry's ``driver`` is the module's name, so a new driver is one file. Anybody else's is
found by its entry point in the group ``ringlight.optical_drivers``, whose name is the driver's:

    [project.entry-points."ringlight.optical_drivers"]
    acme-tl1 = "acme.switches:from_inventory"

A hyphen and an underscore are the same in a driver's name. A name of ours cannot be taken.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from ringlight.controller.optical.base import OpticalSwitchDriver

ENTRY_POINTS = "ringlight.optical_drivers"

#: Drivers that have another name beside that of their module.
_ALSO = {"polatis_scpi": "scpi"}

Build = Callable[[str, Mapping[str, Any], int, Any], OpticalSwitchDriver]


def _ours(kind: str) -> Build | None:
    """Return the driver that is a module of this package; None if there is none."""
    path = f"{__package__}.{kind}"
    if importlib.util.find_spec(path) is None:
        return None
    build: Build | None = getattr(importlib.import_module(path), "from_inventory", None)
    return build


def _installed(kind: str) -> Build | None:
    """Return the driver that another package has registered; None if there is none.

    Raises ValueError if the driver cannot be loaded.
    """
    points = [point for point in entry_points(group=ENTRY_POINTS) if point.name.replace("-", "_") == kind]
    if not points:
        return None
    if len({point.value for point in points}) > 1:
        raise ValueError(f"two packages register it: {', '.join(sorted(point.value for point in points))}")
    try:
        build = points[0].load()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"its entry point {points[0].value} cannot be loaded: {error}") from None
    if not callable(build):
        raise ValueError(f"its entry point {points[0].value} is not a function")
    factory: Build = build
    return factory


def _build(kind: str) -> Build:
    """Return the driver of this name. Raises ValueError if there is none, or if it cannot be loaded."""
    module = kind.replace("-", "_")
    module = _ALSO.get(module, module)
    try:
        build = _ours(module) or _installed(module)
    except (ImportError, ValueError) as error:
        # A package that an optional driver needs, or a broken entry point.
        raise ValueError(f"{kind}: {error}") from None
    if build is None:
        raise ValueError(f"there is no driver {kind!r}")
    return build


def check_driver(kind: str) -> None:
    """Check that a driver of this name can be loaded. Raises ValueError."""
    _build(kind)


def make_driver(
    name: str, inventory_entry: Mapping[str, Any], size: int, openflow: Any = None
) -> OpticalSwitchDriver:
    """Return the driver of the optical switch ``name`` with ``size`` duplex faceplate ports, not yet opened.

    ``openflow``: the plane that the switch connects to, for drivers that need one. Raises ValueError naming
    the switch and the key.
    """
    kind = inventory_entry.get("driver")
    if not isinstance(kind, str) or not re.fullmatch(r"[a-z][a-z0-9_-]*", kind):
        raise ValueError(f"optical switch {name}: driver: {kind!r} is not a driver's name")
    try:
        build = _build(kind)
    except ValueError as error:
        raise ValueError(f"optical switch {name}: driver: {error}") from None
    try:
        driver = build(name, inventory_entry, size, openflow)
    except KeyError as error:
        raise ValueError(f"optical switch {name}: the inventory entry lacks {error.args[0]!r}") from None
    if not isinstance(driver, OpticalSwitchDriver):
        raise ValueError(f"optical switch {name}: driver: {kind} gave a {type(driver).__name__}, no driver")
    return driver
