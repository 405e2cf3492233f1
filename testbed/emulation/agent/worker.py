"""The state of one worker, and how a request describes its end."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ringlight.testbed.emulation.agent.files import read_from
from ringlight.testbed.emulation.guests import GuestEnd
from ringlight.testbed.emulation.worker_hosts import (
    STDERR_TAIL_BYTES,
    Outcome,
    WorkerHost,
    WorkerPlace,
)


@dataclass
class Worker:
    """State of one worker. ``begun``: its guest was requested to start. ``guest_end``: how the guest ended.

    A ``waiting`` worker is a resident without an attempt: a spare, or a worker that was halted.
    """

    host: WorkerHost
    state: Literal["starting", "running", "waiting", "exited", "removed"] = "starting"
    outcome: Outcome | None = None
    begun: bool = False
    guest_end: GuestEnd | None = None
    overdrawn: str | None = None
    read_bytes: int = 0
    exited: threading.Event = field(default_factory=threading.Event)

    @property
    def place(self) -> WorkerPlace:
        return self.host.place

    @property
    def lives(self) -> bool:
        """Return whether the worker has a process that has not ended and must be watched."""
        return self.state in ("running", "waiting")

    def document(self) -> dict[str, Any]:
        place = self.place
        ended = self.outcome or Outcome(None, None, False, None, "")
        if self.guest_end is not None:
            # The worker only holds the NIC for its guest.
            end = self.guest_end
            tail = _tail(place.directory / "stderr.txt")
            ended = Outcome(end.exit_code, end.signal, end.oom, end.error, tail)
        document = {
            "id": place.id,
            "job": place.job,
            "rank": place.rank,
            "gpu": place.gpu,
            "state": self.state,
        }
        return document | asdict(ended)


def _tail(path: Path) -> str:
    """The end of what a guest said."""
    try:
        return read_from(path, max(0, path.lstat().st_size - STDERR_TAIL_BYTES)).decode(
            errors="replace"
        )
    except OSError as error:
        return f"(no {path.name}: {error.strerror})"
