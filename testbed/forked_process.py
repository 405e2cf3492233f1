"""A process that a fork server has forked: it takes over all that an executed process would have of its own."""

from __future__ import annotations

import atexit
import ctypes
import os
import resource
import runpy
import signal
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ringlight.testbed.process_start import ForkRequest

_PR_SET_PDEATHSIG, _PR_SET_MM, _PR_SET_MM_MAP = 1, 35, 14
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sbrk.restype = ctypes.c_void_p


def close_all(descriptors: Sequence[int]) -> None:
    """Close file descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def become(
    request: ForkRequest, descriptors: Sequence[int], room: ArgumentRoom
) -> None:
    """Take over all that an executed process would have of its own."""
    output, errors, namespace = descriptors
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, place in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(source, place)
    _reopen_streams(unbuffered=bool(request.environment.get("PYTHONUNBUFFERED")))
    # It takes privileges, which nobody needs to stay where he is.
    here = os.stat("/proc/self/ns/net").st_ino == os.fstat(namespace).st_ino
    if not here and _libc.setns(namespace, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace")
    close_all([nothing, *descriptors])
    resource.setrlimit(resource.RLIMIT_NOFILE, request.files)
    os.chdir(request.directory)
    sys.path[0] = request.directory
    # Emptied first, as the C library has no copies of what it was given at the start.
    os.environ.clear()
    os.environ.update(request.environment)
    room.show(request.command, request.environment)
    if request.user is not None:
        _drop_privileges(request.user)
    # The kernel forgets it when the user changes.
    if request.follow:
        _libc.prctl(_PR_SET_PDEATHSIG, request.follow, 0, 0, 0)


def _drop_privileges(user: int) -> None:
    """Become a user that has no privilege and gains none, as setpriv would. Raises OSError."""
    for capability in range(1 + int(Path("/proc/sys/kernel/cap_last_cap").read_text())):
        _control(_PR_CAPBSET_DROP, capability)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # Root keeps what it has until it gives it up. Version 3 of the call takes two words of each set.
    if _libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24)):
        raise OSError(ctypes.get_errno(), "cannot give up capabilities")
    _control(_PR_SET_NO_NEW_PRIVS, 1)
    # Otherwise its files in /proc would be root's, as of a program that has changed its user.
    _control(_PR_SET_DUMPABLE, 1)


def _control(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), *map(ctypes.c_ulong, (0, 0, 0))):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def _reopen_streams(unbuffered: bool) -> None:
    """Make the standard streams again, as the old ones know what the server's were: seekable, for example."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        mode, by_line = (
            ("w", name == "stderr" or unbuffered) if number else ("r", False)
        )
        stream = os.fdopen(
            number,
            mode,
            1 if by_line else -1,
            encoding=old.encoding,
            errors=old.errors,
            closefd=False,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


class ArgumentRoom:
    """Memory in which the kernel shows a process's arguments and environment.

    It is as long as the arguments and the environment with which the process was executed.
    """

    def __init__(self) -> None:
        fields = (
            Path("/proc/self/stat")
            .read_text(encoding="ascii")
            .rpartition(")")[2]
            .split()
        )
        # As proc(5) numbers them, less three: ends of code and start of the stack, ends of data and start of
        # the heap, ends of arguments, ends of environment.
        self._code, self._data = [*map(int, fields[23:26])], [*map(int, fields[42:45])]
        first, last, first_variable, last_variable = map(int, fields[45:49])
        self._words, self._variables = (first, last), (first_variable, last_variable)

    def show(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Have ``/proc`` show these. If the kernel does not let the ends be moved, empty ones follow."""
        variables = [f"{name}={value}" for name, value in environment.items()]
        ends = [*_put(words, *self._words), *_put(variables, *self._variables)]
        code, code_end, stack = self._code
        layout = (
            code,
            code_end,
            *self._data,
            _libc.sbrk(ctypes.c_long(0)),
            stack,
            *ends,
        )
        # struct prctl_mm_map, with no auxiliary vector and no executable to change
        memory_map = struct.pack("=12QIi", *layout, 0, 0, -1)
        _libc.prctl(
            _PR_SET_MM,
            _PR_SET_MM_MAP,
            memory_map,
            ctypes.c_ulong(len(memory_map)),
            ctypes.c_ulong(0),
        )


def _put(texts: Sequence[str], first: int, last: int) -> tuple[int, int]:
    """Write texts in place of others. Return the first and the last address written."""
    data = b"".join(os.fsencode(text) + b"\0" for text in texts)[: last - first]
    ctypes.memset(first, 0, last - first)
    ctypes.memmove(first, data, len(data))
    return first, first + len(data)


def _execute(command: Sequence[str]) -> None:
    """Do what ``python -m`` does; what the server imported is there, except for the program itself."""
    index = command.index("-m") + 1
    module = command[index]
    sys.argv[:] = command[index:]
    for name in (module, f"{module}.__main__"):
        if "__path__" not in vars(sys.modules.get(name, object)):
            sys.modules.pop(name, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def exit_code_of(command: Sequence[str]) -> int:
    """Execute a command. Return its exit code."""
    try:
        _execute(command)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)  # noqa: T201
            return 1
        return end.code or 0
    return 0


def end_process(code: int) -> NoReturn:
    """Exit as the interpreter does, but for taking apart all that was imported.

    That touches every page that this process still shares with the server, so each would be copied: it took
    four times as long as the fork.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)
