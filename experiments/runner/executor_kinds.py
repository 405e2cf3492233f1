"""Executors that extensions offer: machines other than this one, on which runs are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from ringlight.fabric.extension import loaders

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ringlight.experiments.backends.emulation.backend import EmulationBackend


class RemoteLabs(Protocol):
    """Machines on which a command has its labs built: a dataclass whose fields are options of the command.

    All have defaults. The field with the name of the kind has the address of the machines; None if the labs
    are to be on this machine.
    """

    def backend(
        self, runtime: str, devices: Sequence[str]
    ) -> AbstractContextManager[EmulationBackend]:
        """Return a context manager that gives the backend whose labs are there, a ``RemoteBackend``.

        ``runtime`` and ``devices``: of the labs. Raises LabError if the machines cannot be reached.
        """


@dataclass(frozen=True)
class ExecutorKind:
    """Other machines that make runs. Its name is the option that takes their address.

    ``executor``: from the address a context manager that gives an executor, which computes simulated runs. It
    raises ScenarioError if there is none. ``help``: of the option. ``labs``: a class of :class:`RemoteLabs`;
    None if nothing can be emulated there. ``lost``: the exceptions that the executor raises for work that was
    lost, besides those of ``concurrent.futures``.
    """

    executor: Callable[[str], AbstractContextManager[Executor]]
    help: str
    labs: type[Any] | None = None
    lost: Callable[[], tuple[type[BaseException], ...]] = tuple


@cache
def executor_kinds() -> dict[str, ExecutorKind]:
    """Return the kinds of all extensions, by name. Raises ExtensionError."""
    return {name: load() for name, load in loaders("executors").items()}


def remote_labs() -> dict[str, type[Any]]:
    """Return the classes of :class:`RemoteLabs`, by the name of their kind. Raises ExtensionError."""
    return {
        name: kind.labs
        for name, kind in executor_kinds().items()
        if kind.labs is not None
    }


def remote_options() -> list[str]:
    """Return the names of all options that say where labs are built. Raises ExtensionError."""
    return [field.name for labs in remote_labs().values() for field in fields(labs)]


def executor_of(written: str) -> AbstractContextManager[Executor]:
    """Return the context manager of the executor that is written ``NAME:ADDRESS``. Raises ScenarioError."""
    from ringlight.experiments.language.text import ScenarioError

    name, _, address = written.partition(":")
    if name not in executor_kinds():
        known = ", ".join(sorted(executor_kinds())) or "none is installed"
        raise ScenarioError(f"--executor: there is no executor {name!r}; {known}")
    return executor_kinds()[name].executor(address)


def backend_at(written: str, runtime: str) -> AbstractContextManager[EmulationBackend]:
    """Return the context manager of the backend whose labs are at ``NAME:ADDRESS``, with its usual settings.

    ``runtime``: docker or namespace.
    Raises ScenarioError if no labs can be there.
    """
    from ringlight.experiments.language.text import ScenarioError

    name, _, address = written.partition(":")
    if name not in remote_labs():
        known = ", ".join(sorted(remote_labs())) or "none is installed"
        raise ScenarioError(f"no labs are built by an executor {name!r}; {known}")
    labs: RemoteLabs = remote_labs()[name](**{name: address})
    return labs.backend(runtime, ())


def lost() -> tuple[type[BaseException], ...]:
    """Return the exceptions that executors raise for work that was lost. Raises ExtensionError."""
    return (
        CancelledError,
        *(error for kind in executor_kinds().values() for error in kind.lost()),
    )
