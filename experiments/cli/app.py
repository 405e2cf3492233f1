"""The ``ringlight`` command: its options, its errors and its exit codes.

Everything heavy is imported by the command that needs it, so that ``ringlight --help`` answers at once.
Errors are one line on standard error. Exit codes: 0 done, 1 it did not work, 2 the input is wrong, 130
interrupted.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from types import FrameType

import typer

from experiments.cli import experiments, machine, rest
from experiments.cli.common import Interrupted, say
from experiments.record.writing import DISK_FULL

#: Errors that are a line for the user, not a fault of the program; by module, so that none is imported early.
_USER_ERRORS = {
    "experiments.backends.protocol": ("BackendError",),
    "experiments.backends.emulation.processes": ("RunError",),
    "experiments.language.text": ("ScenarioError",),
    "experiments.client": ("ApiError", "Unreachable"),
    "experiments.cli.common": ("UserError",),
    "experiments.record.writing": ("WriteError",),
    "testbed.services": ("ServiceError",),
    "testbed.lab": ("LabError",),
    "testbed.emulation.netlink": ("NetworkError",),
    "testbed.emulation.openvswitch": ("OpenVSwitchError",),
    "testbed.emulation.optical.build": ("BuildError",),
    "containers.image": ("ImageError",),
}

app = typer.Typer(
    name="ringlight",
    help="SDN control plane, emulator and testbed for optical interconnects in distributed training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
experiments.register(app)
machine.register(app)
rest.register(app)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


def main() -> None:
    """Entry point: runs the command; turns every foreseen error into one line and an exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)
    # Without a home directory it says in three lines that it has no place for its cache, and goes on.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        code = app(prog_name="ringlight", standalone_mode=False)
    except Interrupted as error:
        say("interrupted")
        code = 128 + error.number
    except _expected_errors() as error:
        if type(error).__name__ != "NoArgsIsHelpError":
            # Of a wrong option, only this says which.
            said = error.format_message() if hasattr(error, "format_message") else str(error)
            say(" ".join(said.split()) or type(error).__name__)
        code = 2 if type(error).__name__ == "ScenarioError" else getattr(error, "exit_code", 1)
    except BrokenPipeError:
        # The reader of our output has gone; there is nobody left to tell.
        _discard_output()
        code = 1
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        # Of a run folder it has been said which file; this is our own output, or a file of the system's.
        say(f"{error.filename or 'what this command prints'}: cannot be written: {error.strerror}")
        _discard_output()
        code = 1
    raise SystemExit(code if isinstance(code, int) else 0)


def _discard_output() -> None:
    """What is left of the output goes nowhere, so that the interpreter does not fail on it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _expected_errors() -> tuple[type[BaseException], ...]:
    """The classes of :data:`_USER_ERRORS` whose modules are in use, and those of the command-line parser."""
    found: list[type[BaseException]] = []
    for module, names in _USER_ERRORS.items():
        loaded = sys.modules.get(module)
        found += [getattr(loaded, name) for name in names if hasattr(loaded, name)]
    return (*found, *rest.USAGE_ERRORS)


if __name__ == "__main__":
    main()
