"""The door for extensions: their contract, and the search for those that are installed.

An extension is a package with an object ``EXTENSION``. Ours are the folders of ``ringlight.extensions``;
anybody else's has an entry point, whose name is the extension's:

    [project.entry-points."ringlight.extensions"]
    torus = "acme_torus:EXTENSION"

No file of the core imports an extension or knows one by its name. With an extension's folder deleted, and its
tests, scenarios and pages, everything else works as before.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import EntryPoint, entry_points
from typing import Any

ENTRY_POINTS = "ringlight.extensions"


class ExtensionError(ValueError):
    """An extension that cannot be used. The message is one line that names it."""


@dataclass(frozen=True)
class Extension:
    """The additions of one extension.

    Values are ``"module:object"``, the module's name relative to the extension's package, and are loaded when
    they are used. ``requires``: names of the extensions whose modules it imports. ``commands``: a function
    that adds commands to a :class:`typer.Typer`. It is called whenever ``ringlight`` starts, so its module
    must import what is heavy inside its commands.

    ``drivers``: by its name, a driver of optical switches, described by a ``DriverKind``
    (:mod:`fabric.optical_drivers`); fabric files and inventories ask for it. ``protocols``: by its name, a
    ``ManagementProtocol`` (:mod:`testbed.emulation.optical.session`), which the emulated optical switch loads
    to serve it. ``profiles``: by its name, a ``Profile`` (:mod:`fabric.optical_profiles`), the times and
    losses of a product, which fabric files name.
    ``rigs``: by name, which is its driver's, a subclass of :class:`~testbed.rigs.rig.Rig` that takes no
    argument; ``testbed.rigs.rigs()`` loads all.
    """

    name: str
    requires: tuple[str, ...] = ()
    commands: str = ""
    drivers: Mapping[str, str] = field(default_factory=dict)
    protocols: Mapping[str, str] = field(default_factory=dict)
    profiles: Mapping[str, str] = field(default_factory=dict)
    rigs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class InstalledExtension:
    """An extension and the package that holds it."""

    extension: Extension
    package: str

    def load(self, value: str) -> Any:
        """Return the object that a value names. Raises ExtensionError if there is none."""
        module, _, name = value.partition(":")
        try:
            return getattr(importlib.import_module(f"{self.package}.{module}"), name)
        except (ImportError, AttributeError) as error:
            raise ExtensionError(
                f"extension {self.extension.name}: {value} cannot be loaded: {error}"
            ) from None


#: What the core has of what extensions add.
CORE = InstalledExtension(
    Extension(
        "ringlight",
        drivers={"scpi": "fabric.optical_drivers:SCPI"},
        protocols={"scpi": "testbed.emulation.optical.scpi:PROTOCOL"},
        profiles={
            "mems": "fabric.optical_profiles:MEMS",
            "piezo": "fabric.optical_profiles:PIEZO",
            "lcos": "fabric.optical_profiles:LCOS",
            "mrr": "fabric.optical_profiles:MRR",
            "ideal": "fabric.optical_profiles:IDEAL",
        },
        rigs={"scpi": "testbed.rigs.emulated:ScpiRig", "scpi-wss": "testbed.rigs.emulated:WssRig"},
    ),
    "ringlight",
)


@cache
def loaders(field_name: str) -> Mapping[str, Callable[[], Any]]:
    """Return what loads each thing that the core and the extensions have in a field, by the thing's name.

    Raises ExtensionError as :func:`extensions`, and if two have a thing of the same name.
    """
    return loaders_of(field_name, (CORE, *extensions()))


def loaders_of(field_name: str, installed: Iterable[InstalledExtension]) -> Mapping[str, Callable[[], Any]]:
    """Return the loaders of :func:`loaders` of certain extensions. Raises ExtensionError."""
    by_name: dict[str, Callable[[], Any]] = {}
    for item in installed:
        values: Mapping[str, str] = getattr(item.extension, field_name)
        for name, value in values.items():
            if name in by_name:
                raise ExtensionError(
                    f"extension {item.extension.name}: {field_name}: there is a {name} already"
                )
            by_name[name] = partial(item.load, value)
    return by_name


@cache
def extensions() -> tuple[InstalledExtension, ...]:
    """Return all extensions, each after those that it requires, ours first.

    Raises ExtensionError if one cannot be loaded, has the name of another, or requires one that is not there.
    """
    return in_order([*_of_folders(), *map(_of_entry_point, entry_points(group=ENTRY_POINTS))])


def in_order(installed: Iterable[InstalledExtension]) -> tuple[InstalledExtension, ...]:
    """Return extensions, each after those that it requires. Raises ExtensionError as :func:`extensions`."""
    by_name: dict[str, InstalledExtension] = {}
    for item in installed:
        if by_name.setdefault(item.extension.name, item) is not item:
            packages = f"{by_name[item.extension.name].package} and {item.package}"
            raise ExtensionError(f"two extensions are called {item.extension.name}: {packages}")
    for name, item in by_name.items():
        missing = [required for required in item.extension.requires if required not in by_name]
        if missing:
            raise ExtensionError(f"extension {name} requires {missing[0]}, which is not installed")
    order = TopologicalSorter({name: item.extension.requires for name, item in by_name.items()})
    try:
        return tuple(by_name[name] for name in order.static_order())
    except CycleError as error:
        raise ExtensionError(f"extensions require each other: {', '.join(error.args[1])}") from None


def _of_folders() -> list[InstalledExtension]:
    try:
        package = importlib.import_module("ringlight.extensions")
    except ModuleNotFoundError:
        return []
    names = sorted(f"{package.__name__}.{part.name}" for part in pkgutil.iter_modules(package.__path__))
    return [InstalledExtension(importlib.import_module(name).EXTENSION, name) for name in names]


def _of_entry_point(point: EntryPoint) -> InstalledExtension:
    try:
        extension = point.load()
    except (ImportError, AttributeError) as error:
        raise ExtensionError(f"extension {point.name}: {point.value} cannot be loaded: {error}") from None
    if not isinstance(extension, Extension) or extension.name != point.name:
        raise ExtensionError(f"extension {point.name}: {point.value} is not an Extension of that name")
    return InstalledExtension(extension, point.module)
