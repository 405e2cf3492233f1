"""Parts of a lab that ended, stood still and came back: a file that the testbed writes and a run reads."""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

log = logging.getLogger(__name__)

#: The file's name in a lab's state.
FILE = "deaths.jsonl"
#: Such as optical switch, O-NIC agent, controller, Open vSwitch, worker on GPU, bridge, port, and
#: the name of a program or a device of an extension.
ProcessKind = str


@dataclass(frozen=True)
class Death:
    """A process ended, or is back. ``t``: CLOCK_MONOTONIC, seconds. ``how``: how it ended; None: it is back.

    ``asked``: the lab's fault service, or its run, had it killed. ``frozen``: it did not end, but stood still
    from ``t`` on; None as ``how``: it goes on. A bridge ends when it is deleted, a port (``switch:3``)
    when it is not as the testbed left it.
    """

    t: float
    kind: ProcessKind
    name: str
    how: str | None = None
    asked: bool = False
    frozen: bool = False

    @property
    def is_astray(self) -> bool:
        """Return whether the process did not end, or is a bridge or a port."""
        return self.frozen or self.kind in ("bridge", "port")


class Deaths:
    """Adds to the file. Safe from any thread; what cannot be written is logged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def ended(self, kind: ProcessKind, name: str, how: str, asked: bool) -> None:
        self.add(Death(time.monotonic(), kind, name, how, asked))

    def back(self, kind: ProcessKind, name: str) -> None:
        self.add(Death(time.monotonic(), kind, name))

    def add(self, death: Death) -> None:
        """Add what was seen elsewhere."""
        try:
            with self._lock, self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(death)) + "\n")
        except OSError as error:
            log.error("%s: %s", self._path, error.strerror)


class DeathLog:
    """Reads on, from where it read before. A missing file counts as empty."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self) -> list[Death]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        # A line that is being written is read with the next.
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [Death(**json.loads(line)) for line in whole.splitlines()]
