"""Count the work of a lab's averagers during a run, from the status of their processes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ringlight.experiments.record.events import Record
from ringlight.extensions.optinc.averager_records import AveragersCounted

#: An averager tells it every second; so long is it waited for, seconds.
FRESH_S = 3.0
_POLL_S = 0.05
#: Counted from the process's start, as whole numbers or seconds, and lists by port.
_COUNTED = (
    "cpu_s",
    "frames",
    "codes",
    "sessions",
    "resets",
    "checked",
    "bytes_in",
    "bytes_out",
)
#: As it is: of all inputs of the table, and of the latest frames.
_TOLD = ("bits", "servers", "weights", "table", "latency_s", "errors")


class AveragerLog:
    """From its making to :meth:`records`. ``entries``: of the testbed's inventory, by averager."""

    def __init__(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        self._files = {name: Path(entry["status"]) for name, entry in entries.items()}
        self._before = {name: _read(path) for name, path in self._files.items()}

    def counted(
        self, clock: Callable[[], float] = time.time
    ) -> dict[str, dict[str, Any]]:
        """Return the latest status of each averager, with counters since this log began.

        The counters of an averager that was restarted begin at its restart, which ``restarted`` shows. An
        averager that is not back is left out.
        """
        begin_s = clock()
        statuses = {}
        for name, path in self._files.items():
            after = _read(path)
            while (
                after is None or path.stat().st_mtime < begin_s
            ) and clock() < begin_s + FRESH_S:
                time.sleep(_POLL_S)
                after = _read(path)
            if after is not None:
                statuses[name] = _since(self._before[name], after)
        return statuses

    def records(self, **where: Any) -> list[Record]:
        """Return one record of :meth:`counted`, or [] if there are no averagers. ``where``: time and run of
        the record.
        """
        statuses = self.counted()
        return [AveragersCounted(averagers=statuses, **where)] if statuses else []


def _since(
    before: Mapping[str, Any] | None, after: Mapping[str, Any]
) -> dict[str, Any]:
    again = before is None or before["pid"] != after["pid"]
    counted = {
        key: after[key] if again or before is None else _less(after[key], before[key])
        for key in _COUNTED
    }
    return {key: after[key] for key in _TOLD} | counted | {"restarted": again}


def _less(after: Any, before: Any) -> Any:
    if isinstance(after, list):
        return [a - b for a, b in zip(after, before, strict=True)]
    return after - before


def _read(path: Path) -> dict[str, Any] | None:
    try:
        status: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return status
