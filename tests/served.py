"""``ringlight ocs serve`` as tests start it, and a client by lines of text."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from ringlight.testbed.process_start import Process
from tests import forks

WAIT_S = 30.0


USER, PASSWORD = "ann", "s3cr:t"


class Served:
    """A switch that runs. ``addresses``: host and port by protocol."""

    def __init__(self, process: Process, output: TextIO, errors: Path) -> None:
        self.process, self._errors = process, errors
        late = threading.Timer(WAIT_S, process.kill)
        late.start()
        said = ""
        while not said.endswith("\n}\n"):
            line = output.readline()
            assert line, f"it does not serve: {said} {self.errors}"
            said += line
        late.cancel()
        found = json.loads(said)
        self.addresses = {
            name: (where.rpartition(":")[0], int(where.rpartition(":")[2]))
            for name, where in found["addresses"].items()
        }

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def url(self, protocol: str) -> str:
        host, port = self.addresses[protocol]
        return f"http://{host}:{port}"

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


def command(*options: str) -> list[str]:
    return [*forks.COMMAND, "ocs", "serve", *options]


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Served]:
    errors = folder / "errors"
    process, output = forks.running(command(*options, "--json"), os.environ, errors)
    with output:
        try:
            yield Served(process, output, errors)
        finally:
            process.kill()
            process.wait(10)


def any_port(*protocols: str) -> list[str]:
    return [word for name in protocols for word in ("--serve", f"{name}=127.0.0.1:0")]


class Lines:
    """What scripts for telnet do: write, and read until some text has come."""

    def __init__(self, where: tuple[str, int]) -> None:
        self._socket = socket.create_connection(where, timeout=WAIT_S)
        self._seen = b""

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def write(self, text: str) -> None:
        self._socket.sendall(text.encode())

    def until(self, text: bytes) -> str:
        while text not in self._seen:
            more = self._socket.recv(4096)
            assert more, f"it hung up after {self._seen!r}"
            self._seen += more
        end = self._seen.index(text) + len(text)
        said, self._seen = self._seen[:end], self._seen[end:]
        return said.decode()

    def ask(self, line: str, until: bytes) -> str:
        self.write(line)
        return self.until(until)

    def hung_up(self) -> bool:
        """Waits until it has."""
        while self._socket.recv(4096):
            pass
        return True
