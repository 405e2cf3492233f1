"""Drivers of optical switches that a fabric file can name: pure data, and what fits together.

The core's and those of extensions are in one table, :func:`driver_kinds`. Drivers are made in
``controller/optical/registry.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from ringlight.fabric.extension import entries, loaders

#: Profiles of classes of switches rather than products; the switch of any driver can have one.
CLASSES = ("mems", "piezo", "ideal")


@dataclass(frozen=True)
class DriverKind:
    """The facts of a driver that fabric files and testbeds need.

    Values are ``"module:object"``, as those of an extension.

    ``made_by``: class or function that makes it, as ``controller/optical/registry.py`` calls it; or the name of
    the driver that this one is for other products. ``products``: profiles that its switch may have besides those
    of `CLASSES`, by their keys in ``profiles``. ``profile``: the one that it has unless another is said.
    ``protocol``: name of the protocol that the emulated switch serves for it; None if it cannot be emulated.
    ``login``: whether there is a user to say.

    ``options``: what can be said in ``options``, as the driver describes it; ``emulated_options``: those
    that make sense for an emulated switch, too; ``emulated``: keys of the inventory entry of every emulated
    switch. ``is_bridge``: the switch is a bridge of Open vSwitch, which a testbed makes, and which connects
    to the controller; it has any profile.

    ``emulated_by``: the ``ManagementProtocol`` (:mod:`testbed.emulation.optical.session`) of the name
    ``protocol``, empty if another driver brings that. ``rig``: the switch that the driver is tested on, a
    subclass of :class:`~testbed.rigs.rig.Rig` that takes no argument; a driver that has one has the name of its
    protocol, if any.
    """

    made_by: str
    products: tuple[str, ...] = ()
    profile: str = "mems"
    protocol: str | None = None
    login: bool = True
    options: frozenset[str] = frozenset()
    emulated_options: frozenset[str] = frozenset()
    emulated: Mapping[str, object] = field(default_factory=dict)
    is_bridge: bool = False
    emulated_by: str = ""
    rig: str = ""


#: Without a product in its name, for the fabric files that had it before there were others.
SCPI = DriverKind(
    "controller.optical.scpi:ScpiDriver",
    protocol="scpi",
    login=False,
    emulated_by="testbed.emulation.optical.scpi:PROTOCOL",
    rig="testbed.rigs.emulated:ScpiRig",
)

#: Keys of an inventory entry that no option may take the place of.
RESERVED = frozenset(
    {
        *(
            "driver",
            "address",
            "profile",
            "dpid",
            "bridge",
            "pid",
            "rest",
            "restarts",
            "wavelengths",
        ),
        *("username", "password", "password_env", "password_file"),
    }
)


@cache
def driver_kinds() -> Mapping[str, DriverKind]:
    """Return all drivers by name, the core's first. Raises ExtensionError."""
    return {name: load() for name, load in loaders("drivers").items()}


def parts_of_drivers(part: str) -> Mapping[str, Callable[[], Any]]:
    """Return what loads the objects that drivers name in a field, ``emulated_by`` or ``rig``, by driver.

    Raises ExtensionError.
    """
    return {
        name: partial(item.load, getattr(driver_kinds()[name], part))
        for name, (item, _) in entries("drivers").items()
        if getattr(driver_kinds()[name], part)
    }


def protocols_of(profile: str) -> tuple[str, ...]:
    """Return the emulated protocols of a switch of that profile. A switch of a class has all of them."""
    kinds = driver_kinds().values()
    spoken = [
        kind.protocol
        for kind in kinds
        if profile in CLASSES or profile in kind.products
    ]
    return tuple(dict.fromkeys(name for name in spoken if name is not None))


def products_of(driver: str) -> tuple[str, ...]:
    """Return the profiles of products that a driver's switch may have: all that speak its protocol."""
    kinds = driver_kinds()
    kind = kinds[driver]
    alike = [
        other
        for other in kinds.values()
        if kind.is_bridge or other.protocol == kind.protocol is not None
    ]
    return tuple(
        dict.fromkeys(product for other in (kind, *alike) for product in other.products)
    )


def driver_of(text: str) -> str:
    """Return the name of a driver as it is written everywhere; ``text`` may have underscores."""
    return text.replace("_", "-")
