"""The backend of commands that emulate: on this machine, or on others that an option names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import fail
from ringlight.experiments.runner.executor_kinds import remote_labs
from ringlight.experiments.runner.page_kinds import page_flags
from ringlight.testbed.forkserver import forking
from ringlight.testbed.lab_programs import ProgramOptions
from ringlight.testbed.packages import check_packages
from ringlight.testbed.preloaded import lab_modules

if TYPE_CHECKING:
    from ringlight.experiments.backends.emulation.backend import EmulationBackend

#: Without effect where each machine chooses for its labs, or bound to files and addresses of one machine.
_OF_ONE_MACHINE = (
    "rest",
    "openflow",
    "tls_cert",
    "tls_key",
    "rest_insecure",
    "openflow_insecure",
)


@contextmanager
def emulation(
    lab: options.LabOptions,
    context: typer.Context,
    remote: options.Remote,
    programs: Sequence[ProgramOptions] = (),
) -> Iterator[EmulationBackend]:
    """Yield the backend that emulates on this machine, or on the others that ``remote`` names.

    Raises UserError, and LabError if other machines cannot be reached.
    """
    where = _asked(remote, context)
    if where is None:
        check_packages()
        # It imports what labs are made of while this process imports its own and reads the scenario.
        with forking(lab_modules()):
            from ringlight.experiments.backends.emulation.backend import (
                EmulationBackend,
            )

            yield EmulationBackend(lab.runtime, lab.addresses(), programs, lab.devices)
        return
    of_programs = [
        field.name for group in options.program_options() for field in fields(group)
    ]
    of_one_machine = [*_OF_ONE_MACHINE, *of_programs, *page_flags()]
    refuse(
        context, of_one_machine, f"without effect on labs of other machines (--{where})"
    )
    with remote[where].backend(lab.runtime, lab.devices) as backend:
        yield backend


def _asked(remote: options.Remote, context: typer.Context) -> str | None:
    """Return the kind of machines that labs are to be on, None for this machine. Raises UserError.

    Options of machines that were not named have no effect, and are refused.
    """
    where = None
    for name, labs in remote.items():
        if getattr(labs, name) is None:
            refuse(
                context,
                [field.name for field in fields(remote_labs()[name])],
                f"only with --{name}",
            )
        else:
            where = name
    return where


def refuse(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Fails, naming the first of these options that was given, whatever its value."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            fail(f"--{name.replace('_', '-')}: {why}", 2)
