"""From an inventory entry to a driver.

A driver is a module of this package with a function ``from_inventory(name, entry, size, openflow)``; the
entry's ``driver`` is the module's name. So a new driver is one file.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any

from controller.optical.base import OpticalSwitchDriver


def make_driver(
    name: str, inventory_entry: Mapping[str, Any], size: int, openflow: Any = None
) -> OpticalSwitchDriver:
    """The driver of the optical switch ``name`` with ``size`` duplex faceplate ports, not yet opened.

    ``openflow``: the plane that the switch connects to, for drivers that need one. Raises ValueError
    naming the switch and the key.
    """
    kind = inventory_entry.get("driver")
    if not isinstance(kind, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", kind):
        raise ValueError(f"optical switch {name}: driver: {kind!r} is not a driver's name")
    try:
        module = importlib.import_module(f"controller.optical.{kind}")
        build = module.from_inventory
    except (ModuleNotFoundError, AttributeError):
        raise ValueError(f"optical switch {name}: driver: there is no driver {kind!r}") from None
    try:
        driver = build(name, inventory_entry, size, openflow)
    except KeyError as error:
        raise ValueError(f"optical switch {name}: the inventory entry lacks {error.args[0]!r}") from None
    assert isinstance(driver, OpticalSwitchDriver)
    return driver
