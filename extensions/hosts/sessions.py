"""Programs of a host that are used from elsewhere: lines are sent in, and their output is requested.

A session lives in the host's worker, and ends if no request arrives for long.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from ringlight import IMPORT_PATH
from ringlight.testbed.lab import LabError
from ringlight.testbed.process_start import SOCKET, end_process

#: A session ends so long after the last question, seconds; and once it has said so much, bytes.
FORSAKEN_S, MOST_BYTES = 60.0, 64 << 20
#: Of what was said so much is told at once, bytes; longest orderly end, seconds.
_BLOCK, _END_S = 1 << 16, 10.0


@dataclass
class _Session:
    process: subprocess.Popen[bytes]
    output: BinaryIO
    asked_s: float = field(default_factory=time.monotonic)


_SESSIONS: dict[str, _Session] = {}


def begin_session(command: Sequence[str]) -> str:
    """Start a program that reads lines. Return the session's id."""
    environment = {name: value for name, value in os.environ.items() if name != SOCKET}
    output = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env={**environment, "PYTHONUNBUFFERED": "1"},
        cwd=IMPORT_PATH,
        start_new_session=True,
    )
    session = secrets.token_hex(8)
    _SESSIONS[session] = _Session(process, output)
    threading.Thread(
        target=_watch, args=(session,), name="session", daemon=True
    ).start()
    return session


def tell_session(session: str, lines: str, last: bool) -> None:
    """Have the program read these; ``last``: and nothing more. Raises LabError."""
    program = _session(session)
    assert program.process.stdin is not None
    # It may have ended, which is asked for.
    with suppress(BrokenPipeError):
        program.process.stdin.write(lines.encode())
        program.process.stdin.flush()
    if last:
        with suppress(BrokenPipeError):
            program.process.stdin.close()


def hear_session(session: str, known: int) -> tuple[bytes, int | None]:
    """Return the output of the program after ``known`` bytes, and its exit code once all output was returned.

    Raises LabError.
    """
    program = _session(session)
    program.asked_s = time.monotonic()
    code = program.process.poll()
    output = os.pread(program.output.fileno(), _BLOCK, known)
    return output, None if output else code


def end_session(session: str) -> None:
    """End the program, if it runs, and forget its output."""
    program = _SESSIONS.pop(session, None)
    if program is None:
        return
    assert program.process.stdin is not None
    with suppress(OSError):
        program.process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        # It ends what it has started.
        program.process.wait(_END_S)
    end_process(program.process, _END_S)
    program.output.close()


def _session(session: str) -> _Session:
    if session not in _SESSIONS:
        raise LabError("the program has ended on its host")
    return _SESSIONS[session]


def _watch(session: str) -> None:
    """End a session if requests have ceased, or its program writes too much."""
    while (program := _SESSIONS.get(session)) is not None:
        forsaken = time.monotonic() - program.asked_s > FORSAKEN_S
        if forsaken or os.fstat(program.output.fileno()).st_size > MOST_BYTES:
            end_session(session)
            return
        time.sleep(1.0)
