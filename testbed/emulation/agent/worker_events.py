"""Events of a lab's workers, in the order in which they became known."""

from __future__ import annotations

import logging
from typing import Any

from ringlight.testbed.emulation.agent.files import parse_event, read_from
from ringlight.testbed.emulation.agent.worker import Worker

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 1 << 20


class WorkerEvents:
    """Events that workers wrote, and that were seen of them. Whoever calls holds the lock of the workers."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self._events)

    def since(self, cursor: int) -> list[dict[str, Any]]:
        """Return the events from number ``cursor`` on."""
        return self._events[cursor:]

    def note(self, worker: Worker, event: dict[str, Any]) -> None:
        """Add an event of a worker."""
        place = worker.place
        self._events.append(
            event | {"job": place.job, "worker": place.id, "rank": place.rank}
        )

    def read(self, worker: Worker) -> None:
        """Take up the whole lines that the worker has appended since the last time."""
        try:
            data = read_from(worker.place.directory / "events.jsonl", worker.read_bytes)
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning(
                "events of worker %s cannot be read: %s",
                worker.place.id,
                error.strerror,
            )
            return
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) > MAX_LINE_BYTES:
            whole = len(data)
        worker.read_bytes += whole
        for line in data[:whole].splitlines():
            event = parse_event(line)
            if event is None:
                log.warning(
                    "worker %s wrote a line that is no event: %.80r",
                    worker.place.id,
                    line,
                )
            else:
                self.note(worker, event)
