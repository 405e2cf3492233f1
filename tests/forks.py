"""One fork server for all labs and commands of a test run: what they start has been imported once."""

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

from ringlight.fabric.extension import extensions
from ringlight.testbed.forkserver import ForkServer
from ringlight.testbed.preloaded import lab_modules
from ringlight.testbed.process_start import SOCKET, Process, start_process

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-m", "ringlight.experiments.cli.app"]
MODULES = (
    *lab_modules(),
    # what workers import of extensions
    *(
        f"{item.package}.{value.partition(':')[0]}"
        for item in extensions()
        for value in item.extension.worker
    ),
    "ringlight.containers.worker.reference",
    "ringlight.experiments.cli.app",
    "ringlight.experiments.runner.command",
    "ringlight.experiments.backends.emulation.backend",
    "ringlight.experiments.report.report",
    "ringlight.experiments.report.charts",
    "matplotlib.backends.backend_svg",
    # for a controller's first regroup, imported by each while it starts
    "highspy",
)


#: Environment variable with the socket of the server that all processes of a test run share.
SHARED = "RINGLIGHT_TESTS_FORKSERVER"


def place() -> str:
    """The socket of the run's server; of one of this process's own where processes share none."""
    return os.environ.get(SHARED) or str(server().path)


def share() -> None:
    """Start a server for this process and those that it starts."""
    os.environ[SHARED] = str(server().path)


@cache
def server() -> ForkServer:
    """Started when it is first asked for; ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="ringlight-forks-"))
    # What it forks says at SIGABRT what each of its threads is doing.
    made = ForkServer(
        folder / "socket", MODULES, {**os.environ, "PYTHONFAULTHANDLER": "1"}
    )
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(made.close)
    return made


@pytest.fixture(scope="session", autouse=True)
def forks() -> None:
    """Whatever starts processes of a lab finds the server. For the conftest.py of tests that build labs."""
    if os.geteuid() == 0:
        os.environ[SOCKET] = place()


class Command:
    """A command that runs, with nothing to read; what it says is there when it has ended.

    Has what is used of ``subprocess.Popen``.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str] | None = None,
        directory: Path = ROOT,
    ) -> None:
        inherited = os.environ if environment is None else environment
        self._output, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self.process = start_process(
            words,
            {**inherited, SOCKET: place()},
            self._output,
            errors=self._errors,
            directory=directory,
        )
        self.poll, self.wait, self.kill = (
            self.process.poll,
            self.process.wait,
            self.process.kill,
        )
        self.pid, self.send_signal = self.process.pid, self.process.send_signal

    @property
    def returncode(self) -> int | None:
        return self.process.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Its output and errors at its end. Raises subprocess.TimeoutExpired, and kills it."""
        try:
            self.process.wait(timeout)
        finally:
            self.process.kill()
            self.process.wait(10)
        with self._output, self._errors:
            return _read(self._output), _read(self._errors)


def run(
    words: Sequence[str],
    environment: Mapping[str, str] | None = None,
    directory: Path = ROOT,
    timeout_s: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """A command, run to its end. Raises subprocess.TimeoutExpired."""
    command = Command(words, environment, directory)
    said = command.communicate(timeout_s)
    assert command.returncode is not None
    return subprocess.CompletedProcess(list(words), command.returncode, *said)


def ringlight(
    *words: str,
    directory: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """``ringlight`` as a user gives it. Raises subprocess.TimeoutExpired."""
    return run(
        [*COMMAND, *words], {**os.environ, **(environment or {})}, directory, timeout_s
    )


def running(
    command: Sequence[str], environment: Mapping[str, str], errors: Path | int
) -> tuple[Process, TextIO]:
    """A command that runs, with nothing to read; its standard output. ``errors``: where its errors go."""
    environment = {**environment, SOCKET: place()}
    output, into = os.pipe()
    with open(into, "wb") as said, open(errors, "wb") as wrong:
        process = start_process(
            command, environment, said, errors=wrong, directory=ROOT
        )
    return process, open(output)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
