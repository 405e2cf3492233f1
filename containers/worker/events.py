"""Events of a worker, appended as JSON lines to a file that the server agent follows."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class EventLog:
    """Writes each event as one line at once, so that a reader never sees half of one.

    ``t`` is CLOCK_MONOTONIC, seconds: the same clock in every container of a host. It is now, unless the
    event's values have one.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
        )

    def write(self, event: str, **values: object) -> None:
        line = json.dumps(
            {"t": time.monotonic(), "event": event, **values}, separators=(",", ":")
        )
        os.write(self._descriptor, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)
