"""One fork server for all labs and commands of a test process: what they start has been imported once."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, TextIO

import pytest

from ringlight.testbed.emulation.testbed import WORKER_MODULES
from ringlight.testbed.forkserver import SOCKET, ForkServer, Process, start_process

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-m", "ringlight.experiments.cli.app"]
PROGRAMS = (
    "ringlight.controller.__main__",
    "ringlight.testbed.emulation.__main__",
    "ringlight.testbed.emulation.testbed",
    "ringlight.testbed.emulation.optical.__main__",
    "ringlight.testbed.emulation.onic.__main__",
    "ringlight.testbed.emulation.averager.__main__",
    *WORKER_MODULES,
    "ringlight.containers.worker.optinc",
    "ringlight.containers.worker.reference",
    "ringlight.experiments.cli.app",
    "ringlight.experiments.runner.command",
    "ringlight.experiments.backends.emulation.backend",
    "ringlight.experiments.report.report",
    "ringlight.experiments.report.charts",
    "matplotlib.backends.backend_svg",
    # for a controller's first regroup, imported by each while it starts
    "scipy.optimize",
)


@cache
def server() -> ForkServer:
    """Started when it is first asked for; ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="ringlight-forks-"))
    made = ForkServer(folder / "socket", PROGRAMS, os.environ)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(made.close)
    return made


@pytest.fixture(scope="session", autouse=True)
def forks() -> None:
    """Whatever starts processes of a lab finds the server. For the conftest.py of tests that build labs."""
    if os.geteuid() == 0:
        os.environ[SOCKET] = str(server().path)


def ringlight(
    *words: str,
    directory: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """A command as a user gives it, with nothing to read. Raises subprocess.TimeoutExpired."""
    environment = {**os.environ, **(environment or {}), SOCKET: str(server().path)}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start_process([*COMMAND, *words], environment, output, errors=errors, directory=directory)
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
            process.wait(10)
        said = [_read(file) for file in (output, errors)]
    return subprocess.CompletedProcess([*COMMAND, *words], code, *said)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def running(
    command: Sequence[str], environment: Mapping[str, str], errors: Path | int
) -> tuple[Process, TextIO]:
    """A command that runs, with nothing to read; its standard output. ``errors``: where its errors go."""
    environment = {**environment, SOCKET: str(server().path)}
    output, into = os.pipe()
    with open(into, "wb") as said, open(errors, "wb") as wrong:
        process = start_process(command, environment, said, errors=wrong, directory=ROOT)
    return process, open(output)
