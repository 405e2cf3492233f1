"""The ``ringlight`` command: its options, its errors and its exit codes.

Everything heavy is imported by the command that needs it, so that ``ringlight --help`` answers at once.
Errors are one line on standard error. Exit codes: 0 done, 1 it did not work, 2 the input is wrong, 130
interrupted.
"""

from __future__ import annotations

import _thread
import gc
import logging
import os
import signal
import sys
import time
from functools import cache
from types import FrameType

import typer

from ringlight.experiments.cli.common import Interrupted, say
from ringlight.experiments.cli.epilogs import end_with_examples
from ringlight.experiments.record.writing import DISK_FULL
from ringlight.fabric.extension import extensions
from ringlight.testbed.descriptors import too_few

#: An error that is defined in one of these is a line for the user; any other is a fault of the program.
_FORESEEN = {"ringlight", "click", "typer"}

app = typer.Typer(
    name="ringlight",
    help="SDN control plane, emulator, simulator and testbed for optical interconnects in distributed training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@cache
def add_commands() -> None:
    """Add all commands, those of extensions last, once. Raises ExtensionError if one cannot be used."""
    # Here, as commands that build labs have flags of extensions, of which one may be broken.
    from ringlight.experiments.cli import (
        examples,
        experiments,
        inspection,
        machine,
        rest,
        workload,
    )

    for module in (experiments, examples, workload, machine, inspection, rest):
        module.register(app)
    for installed in extensions():
        if installed.extension.commands:
            installed.load(installed.extension.commands)(app)
    end_with_examples(app)


#: Functions that a signal must not end by an exception, as a lock would stay taken, or the signal be lost.
#: Two in a thousand interrupted calls to a controller left a lock of the HTTP client taken, for which the
#: client's own clean-up then waited without end.
_INDIVISIBLE = {
    "__enter__",
    "__exit__",
    "__del__",
    "acquire",
    "release",
    "_release_save",
    "_acquire_restore",
}
#: Pause before a signal that came in one of them is sent again, seconds.
_AGAIN_S = 0.001


def _terminate(number: int, frame: FrameType | None) -> None:
    """Raise Interrupted, or have the signal come again where what it interrupted is indivisible."""
    if frame is not None and frame.f_code.co_name in (*_INDIVISIBLE, "_terminate"):
        # A thread without an object: one of threading's would take locks in a signal handler.
        _thread.start_new_thread(_send_again, (number,))
        return
    raise Interrupted(number)


def _send_again(number: int) -> None:
    time.sleep(_AGAIN_S)
    os.kill(os.getpid(), number)


def heed_signals() -> None:
    """Have signals that ask for the command's end raise Interrupted in the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)


def main() -> None:
    """Entry point: runs the command; turns every foreseen error into one line and an exit code."""
    if not _with_all_streams():
        say("standard output is closed; to print nothing, send it to /dev/null")
        raise SystemExit(1)
    heed_signals()
    # Where su or cron starts us, tc and ip are found nowhere.
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    # Plans, workloads and rows are millions of objects that stay. Looking for garbage among them after every
    # 700 new ones takes a quarter of the time in which a large file is read.
    gc.set_threshold(50_000, 20, 100)
    # Without a home directory it says in three lines that it has no place for its cache, and goes on.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        add_commands()
        code = app(prog_name="ringlight", standalone_mode=False)
    except Interrupted as error:
        say("interrupted")
        code = 128 + error.number
    except BrokenPipeError:
        # The reader of our output has gone; there is nobody left to tell.
        _discard_output()
        code = 1
    except OSError as error:
        lacking = too_few(error)
        if lacking is None and error.errno not in DISK_FULL:
            raise
        # Errors of run folders name their file already: this one is our output's, or a system file's.
        what = error.filename or "what this command prints"
        say(lacking or f"{what}: cannot be written: {error.strerror}")
        _discard_output()
        code = 1
    except ModuleNotFoundError as error:
        from ringlight.experiments.cli.extras import advice

        line = advice(error)
        if line is None:
            raise
        say(line)
        code = 1
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _FORESEEN:
            raise
        if type(error).__name__ != "NoArgsIsHelpError":
            # For a wrong option, only this text names it.
            message = (
                error.format_message()
                if hasattr(error, "format_message")
                else str(error)
            )
            message = message.replace("Value error, ", "")
            say(" ".join(message.split()) or type(error).__name__)
            _say_what_to_install(error)
        code = (
            2
            if type(error).__name__ == "ScenarioError"
            else getattr(error, "exit_code", 1)
        )
    raise SystemExit(code if isinstance(code, int) else 0)


def _say_what_to_install(error: Exception) -> None:
    """Name the extra of the package whose absence led to an error, if it has one."""
    from ringlight.experiments.cli.extras import advice, missing_in

    missing = missing_in(error)
    line = None if missing is None else advice(missing)
    if line is not None and line not in str(error):
        say(line)


def _with_all_streams() -> bool:
    """Open standard streams that are closed on /dev/null, so that no file gets their numbers.

    Return whether standard output was open.
    """
    printed = sys.stdout is not None
    for number, name, mode in (
        (0, "stdin", "r"),
        (1, "stdout", "w"),
        (2, "stderr", "w"),
    ):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, mode))
    return printed


def _discard_output() -> None:
    """Send the rest of the output to /dev/null, so that the interpreter does not fail on it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
