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
from dataclasses import dataclass, field, fields
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
    they are used.
    """

    name: str
    #: Names of the extensions whose modules it imports.
    requires: tuple[str, ...] = ()

    #: Function that adds commands to a :class:`typer.Typer`. It is called whenever ``ringlight`` starts, so
    #: its module must import what is heavy inside its commands.
    commands: str = ""
    #: By name, a ``testbed.devices.DeviceKind``: devices of labs that an option of this name asks for, or
    #: that labs have which need them. The module is loaded whenever ``ringlight`` starts; the testbed plans
    #: the device, tells it what becomes of the lab's bridges and links, and runs its processes.
    devices: Mapping[str, str] = field(default_factory=dict)
    #: By the name of the process in a lab, a ``testbed.lab_programs.ProgramKind``. Its options are options of
    #: the commands that build a lab for its user, the testbed starts it again when it ends, and packet
    #: switches of which the fabric file says so have it as their controller. The module is loaded wherever a
    #: fabric file is read.
    processes: Mapping[str, str] = field(default_factory=dict)
    #: By its name, an ``experiments.runner.executor_kinds.ExecutorKind``: other machines that make runs. The
    #: name is an option of commands that make runs, so its module is imported as that of ``commands``.
    executors: Mapping[str, str] = field(default_factory=dict)
    #: Functions that are called with the ``controller.service.Controller`` once its parts are made, before it
    #: starts. What they append to its ``app_parts`` is called with the FastAPI application when that is made:
    #: routes that they add are as the core's; middleware that they add is asked before the token is. What they
    #: append to ``on_start`` and ``on_stop`` begins and ends their threads.
    controller: tuple[str, ...] = ()
    #: By its file's name in a run folder, an ``experiments.runner.page_kinds.PageKind``: a page that shows
    #: runs beside their report, and a lab. Its flag is an option of commands that build a lab, so its module
    #: is imported as that of ``commands``.
    pages: Mapping[str, str] = field(default_factory=dict)

    #: Keys of the fabric file, and of its links, each a :class:`fabric.keys.FabricKey`. The scenario language
    #: and the fabric's schema read them when they are imported, so its module must be light.
    fabric: Mapping[str, str] = field(default_factory=dict)
    #: By its name, a kind of planes, each a :class:`fabric.planes.kinds.PlaneKind`: which planes a fabric has,
    #: who lights them for jobs, and what simulates jobs there. Its module is loaded with every fabric.
    planes: Mapping[str, str] = field(default_factory=dict)
    #: By name, a :class:`fabric.algorithms.Algorithm` of an all-reduce.
    collectives: Mapping[str, str] = field(default_factory=dict)
    #: Modules that workers import, which go into their image with the package's own module. An object in one
    #: is a ``workloads.following.Following``, what the light of a job's workload may follow.
    worker: tuple[str, ...] = ()

    #: Formats of files that hold workloads or algorithms of collectives, each a
    #: ``workloads.formats.contract.Format``. Their modules are imported whenever ``ringlight`` starts.
    formats: tuple[str, ...] = ()
    #: By the key of a job's ``workload`` that names its source, a class of
    #: ``experiments.language.workload_keys.WorkloadKeys``: the keys that then may stand there, and the making
    #: of the workload.
    workloads: Mapping[str, str] = field(default_factory=dict)
    #: By name, kinds of programs that run beside the workers of a job (``fabric.guests.GuestKind``).
    guests: Mapping[str, str] = field(default_factory=dict)
    #: By its name, a driver of optical switches, described by a ``DriverKind``
    #: (:mod:`fabric.optical_drivers`), with the protocol that the emulated switch serves for it and the rig
    #: that it is tested on; fabric files and inventories ask for it.
    drivers: Mapping[str, str] = field(default_factory=dict)
    #: By its name, which the object has, too, a ``Profile`` (:mod:`fabric.optical_profiles`), the times and
    #: losses of a product, which fabric files name.
    profiles: Mapping[str, str] = field(default_factory=dict)

    #: Modules whose functions are metrics (``@metric``, ``experiments.analysis.metrics``), without an object.
    metrics: tuple[str, ...] = ()
    #: Functions that are sections of the report (``@section``, ``experiments.report.sections``); each says
    #: which section of the core it follows.
    sections: tuple[str, ...] = ()
    #: By the name that a scenario's ``paper.model`` has, a module with closed forms and a verdict
    #: (``experiments.papers``), without an object.
    papers: Mapping[str, str] = field(default_factory=dict)
    #: By what an event of a scenario does (its ``do``), an ``experiments.language.light_events.LightEvent``: an
    #: event that moves light in a lab and in the simulation. Its module is loaded with the scenario language.
    light_events: Mapping[str, str] = field(default_factory=dict)
    #: Modules with kinds of records of a run (``experiments.record.events.Record``), without an object.
    events: tuple[str, ...] = ()
    #: By ``CLASS.METHOD``, functions that scripts call as methods of ``Study``, ``Runs`` or ``Lab``,
    #: which is their first argument.
    methods: Mapping[str, str] = field(default_factory=dict)
    #: By the key of a scenario's section ``jobs``, objects that make a run's jobs
    #: (``experiments.language.job_sources.JobSource``).
    jobs: Mapping[str, str] = field(default_factory=dict)

    @property
    def values(self) -> tuple[str, ...]:
        """Return every value that names an object or a module."""
        made: list[str] = []
        for entry in fields(self):
            if entry.name in ("name", "requires"):
                continue
            value = getattr(self, entry.name)
            if isinstance(value, Mapping):
                value = value.values()
            made += [value] if isinstance(value, str) else value
        return tuple(value for value in made if value)


@dataclass(frozen=True)
class InstalledExtension:
    """An extension and the package that holds it."""

    extension: Extension
    package: str

    def load(self, value: str) -> Any:
        """Return the object, or the module, that a value names. Raises ExtensionError if there is none."""
        module_name, _, name = value.partition(":")
        try:
            module = importlib.import_module(f"{self.package}.{module_name}")
            return getattr(module, name) if name else module
        except (ImportError, AttributeError, SyntaxError) as error:
            raise ExtensionError(
                f"extension {self.extension.name}: {value} cannot be loaded: {error}"
            ) from error


#: What the core has of what extensions add.
CORE = InstalledExtension(
    Extension(
        "ringlight",
        drivers={"scpi": "fabric.optical_drivers:SCPI"},
        profiles={
            "mems": "fabric.optical_profiles:MEMS",
            "piezo": "fabric.optical_profiles:PIEZO",
            "lcos": "fabric.optical_profiles:LCOS",
            "mrr": "fabric.optical_profiles:MRR",
            "ideal": "fabric.optical_profiles:IDEAL",
        },
        planes={"packets": "fabric.planes.kinds:PACKETS"},
    ),
    "ringlight",
)


@cache
def entries(field_name: str) -> Mapping[str, tuple[InstalledExtension, str]]:
    """Return whose each thing in a field is, and its value, by the thing's name.

    Things of the core come first. Raises ExtensionError as :func:`extensions`, and if two have a thing of the
    same name.
    """
    return entries_of(field_name, (CORE, *extensions()))


def entries_of(
    field_name: str, installed: Iterable[InstalledExtension]
) -> Mapping[str, tuple[InstalledExtension, str]]:
    """Return the entries of :func:`entries` of certain extensions. Raises ExtensionError."""
    by_name: dict[str, tuple[InstalledExtension, str]] = {}
    for item in installed:
        values: Mapping[str, str] = getattr(item.extension, field_name)
        for name, value in values.items():
            if name in by_name:
                raise ExtensionError(
                    f"extension {item.extension.name}: {field_name}: there is a {name} already"
                )
            by_name[name] = item, value
    return by_name


def loaders(field_name: str) -> Mapping[str, Callable[[], Any]]:
    """Return what loads each thing in a field, by the thing's name.

    Raises ExtensionError as :func:`entries`.
    """
    return {
        name: partial(item.load, value)
        for name, (item, value) in entries(field_name).items()
    }


def loaded(field_name: str) -> list[Any]:
    """Return the things in a field without names, those of the core first.

    Raises ExtensionError as :func:`extensions`, and for one that cannot be loaded.
    """
    return [
        item.load(value)
        for item in (CORE, *extensions())
        for value in getattr(item.extension, field_name)
    ]


@cache
def extensions() -> tuple[InstalledExtension, ...]:
    """Return all extensions, each after those that it requires, ours first.

    Raises ExtensionError if one cannot be loaded, has the name of another, or requires one that is not there.
    """
    return in_order(
        [*_of_folders(), *map(_of_entry_point, entry_points(group=ENTRY_POINTS))]
    )


def in_order(installed: Iterable[InstalledExtension]) -> tuple[InstalledExtension, ...]:
    """Return extensions, each after those that it requires. Raises ExtensionError as :func:`extensions`."""
    by_name: dict[str, InstalledExtension] = {}
    for item in installed:
        if by_name.setdefault(item.extension.name, item) is not item:
            packages = f"{by_name[item.extension.name].package} and {item.package}"
            raise ExtensionError(
                f"two extensions are called {item.extension.name}: {packages}"
            )
    for name, item in by_name.items():
        missing = [
            required for required in item.extension.requires if required not in by_name
        ]
        if missing:
            raise ExtensionError(
                f"extension {name} requires {missing[0]}, which is not installed"
            )
    order = TopologicalSorter(
        {name: item.extension.requires for name, item in by_name.items()}
    )
    try:
        return tuple(by_name[name] for name in order.static_order())
    except CycleError as error:
        raise ExtensionError(
            f"extensions require each other: {', '.join(error.args[1])}"
        ) from None


def _of_folders() -> list[InstalledExtension]:
    try:
        package = importlib.import_module("ringlight.extensions")
    except ModuleNotFoundError:
        return []
    names = sorted(part.name for part in pkgutil.iter_modules(package.__path__))
    return [_of_folder(name, f"{package.__name__}.{name}") for name in names]


def _of_folder(name: str, package: str) -> InstalledExtension:
    try:
        extension = importlib.import_module(package).EXTENSION
    except (ImportError, AttributeError) as error:
        raise ExtensionError(
            f"extension {name}: {package} cannot be loaded: {error}"
        ) from None
    return InstalledExtension(extension, package)


def _of_entry_point(point: EntryPoint) -> InstalledExtension:
    try:
        extension = point.load()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ExtensionError(
            f"extension {point.name}: {point.value} cannot be loaded: {error}"
        ) from None
    if not isinstance(extension, Extension) or extension.name != point.name:
        raise ExtensionError(
            f"extension {point.name}: {point.value} is not an Extension of that name"
        )
    return InstalledExtension(extension, point.module)
