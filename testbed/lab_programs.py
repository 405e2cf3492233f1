"""Programs that extensions add to labs: each runs in a process of its own, and may write switches' tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ringlight.fabric.extension import loaders
from ringlight.fabric.table_writers import programs
from ringlight.testbed.lab import Lab

if TYPE_CHECKING:
    from ringlight.fabric.topology import Fabric
    from ringlight.testbed.process_start import Process


class LabProgram(Protocol):
    """A program of one lab, as the testbed runs it. ``openflow``: where its switches find it, ``host:port``;
    None if it has no switches. ``log``: file of its output."""

    @property
    def openflow(self) -> str | None: ...

    @property
    def log(self) -> Path: ...

    def start(self, lab: Lab, ready: Path) -> Process:
        """Start it and return its process, which writes ``ready`` once it runs. Raises OSError."""


class ProgramOptions(Protocol):
    """A program as a command was told of it: a dataclass whose fields are options of the command.

    ``name``: the kind's. ``needs_hosts``: it runs programs at GPUs, which all have idle hosts then.
    ``is_requested``: whether there is something to run; ``is_asked``: whether any of the
    options was given.
    """

    @property
    def name(self) -> str: ...

    @property
    def needs_hosts(self) -> bool: ...

    @property
    def is_requested(self) -> bool: ...

    @property
    def is_asked(self) -> bool: ...

    def given_to(self, scenario: Path, settings: Sequence[Any]) -> list[Any]:
        """Return the settings with the packet switches left to it that the options say.

        Raises UserError if the switches and the options do not fit.
        """

    def listens(self) -> Mapping[str, str]:
        """Return the addresses at which it will listen, ``host:port`` by option. Raises LabError naming what
        stands in its way."""

    def facts(self) -> Mapping[str, Any]:
        """Return what ``environment.json`` says of it; nothing if it is not wanted."""

    def write(
        self, path: Path, url: str, cacert: str | None, token: Path | None, logs: Path
    ) -> None:
        """Write a file from which the testbed's :class:`LabProgram` is read.

        ``url``: of the controller's REST API, ``cacert``: what its certificate is checked with, ``token``:
        file with the token that it asks for. ``logs``: folder for its output.
        """


class ProgramKind(Protocol):
    """``controller``: what the fabric file calls it where it says who writes a packet switch's tables, None if
    it writes none. ``missing``: what to say where a switch waits for one. ``fact``: the key of
    ``environment.json`` that says which it was, and the option that does."""

    @property
    def controller(self) -> str | None: ...

    @property
    def missing(self) -> str: ...

    @property
    def fact(self) -> tuple[str, str]: ...

    def options(self) -> type[Any]:
        """Return the :class:`ProgramOptions` of commands whose labs may have one."""

    def read(self, path: Path) -> LabProgram:
        """Return the program that a file describes. Raises OSError, ValueError."""

    def lab_of(self, pid: int) -> str | None:
        """Return the lab of a process of the program that does not show its label, None for any other process.

        A process may write its title over its environment. ``pid``: of a process that may end meanwhile.
        """


@cache
def program_kinds() -> dict[str, ProgramKind]:
    """Return the kinds of all extensions, by name. Raises ExtensionError."""
    return {name: load() for name, load in loaders("processes").items()}


def waiting(fabric: Fabric, names: Iterable[str] = ()) -> str | None:
    """Return which switch waits for a program that is not among these, ``key: reason``; None if none does."""
    there = set(names)
    for switch in fabric.packet_switches.values():
        name = programs().get(switch.controller)
        if name is not None and name not in there:
            missing = program_kinds()[name].missing
            return f"packet_switches.{switch.name}.controller: {switch.controller}, and {missing}"
    return None


def writers(fabric: Fabric) -> set[str]:
    """Return the names of the programs that write the tables of a fabric's packet switches."""
    words = {switch.controller for switch in fabric.packet_switches.values()}
    return {name for word, name in programs().items() if word in words}
