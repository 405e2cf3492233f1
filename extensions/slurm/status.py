"""The state of a cluster's processes as a file, which the lab's controller reads for its health."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringlight.extensions.slurm.process import FOLDER
from ringlight.testbed.freezes import stands_still
from ringlight.testbed.lab import Lab
from ringlight.testbed.standing_labs import belongs_to

FILE = "status.json"
#: Name of the process that keeps the others running.
SUPERVISOR = "supervisor"


class Status:
    """Writer of the file in a cluster's folder. Methods may be called from several threads.

    ``starting``: what is still being waited for, in words.
    """

    def __init__(self, directory: Path, starting: str) -> None:
        self._path = directory / FILE
        self._lock = threading.Lock()
        self._starting: str | None = starting
        self._pids: dict[str, int] = {SUPERVISOR: os.getpid()}
        self._ended: dict[str, str] = {}
        self.change(starting)

    def change(self, starting: str | None) -> None:
        """Tell what is waited for, None if the cluster is ready."""
        with self._lock:
            self._starting = starting
            self._write()

    def runs(self, name: str, pid: int) -> None:
        """Note that a process runs, or runs again."""
        with self._lock:
            self._pids[name] = pid
            self._ended.pop(name, None)
            self._write()

    def ended(self, name: str, how: str) -> None:
        """Note that a process has ended."""
        with self._lock:
            self._ended[name] = how
            self._write()

    def _write(self) -> None:
        document = {
            "starting": self._starting,
            "pids": self._pids,
            "ended": self._ended,
        }
        temporary = self._path.with_name(f".{FILE}")
        temporary.write_text(json.dumps(document), encoding="utf-8")
        temporary.replace(self._path)


def read_status(lab: Lab) -> dict[str, Any] | None:
    """Return the document of a lab's cluster, None if the lab has none. Raises OSError, ValueError."""
    try:
        text = (lab.state_dir / FOLDER / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    document: dict[str, Any] = json.loads(text)
    return document


def troubles(lab: Lab, document: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a cluster's processes now, a line for each."""
    if document["starting"] is not None:
        yield document["starting"]
    pids = dict(document["pids"])
    if not belongs_to(lab, pids[SUPERVISOR]):
        # The others end with it.
        yield f"Slurm: its {SUPERVISOR} has ended and is started again with the cluster"
        return
    for name, pid in pids.items():
        if (how := document["ended"].get(name)) is not None:
            yield f"Slurm: {name} has ended ({how}) and is started again"
        elif not belongs_to(lab, pid):
            yield f"Slurm: {name} has ended"
        elif (how := stands_still(pid)) is not None:
            yield f"Slurm: {name} stands still ({how})"
