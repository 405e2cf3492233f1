"""Traces of faults as JSON: InfiniteHBD's list of events (stepfun-ai/InfiniteHBD-Trace, Apache-2.0)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringlight.extensions.cluster.fault_traces import FaultTrace, outages
from ringlight.fabric.text import parse_json
from ringlight.workloads.formats.files import printable, read_text

#: Bytes of a file; that of 349 days of 400 servers has 0.3 MB.
LIMIT = 64 << 20
DAY_S = 86_400.0
_BEGINS = {"fault_start": True, "fault_end": False}


def read_fault_trace(path: Path, servers: int) -> FaultTrace:
    """Return the outages of a file of events.

    The file is a list of events with ``node_id``, ``event_time`` (days) and ``event_type``, fault_start or
    fault_end. ``servers``: how many there were, also those without a fault. Raises ValueError naming the file
    and the event.
    """
    try:
        events = parse_json(read_text(path, LIMIT))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: {error.msg}") from None
    if not isinstance(events, list):
        raise ValueError(f"{path}: it is no list of events")
    try:
        return outages(sorted(_events(events), key=lambda event: event[0]), servers)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _events(events: list[Any]) -> Iterator[tuple[float, str, bool]]:
    for number, event in enumerate(events, 1):
        if not isinstance(event, dict):
            raise ValueError(f"event {number} is no object")
        days, kind = event.get("event_time"), event.get("event_type")
        if (
            isinstance(days, bool)
            or not isinstance(days, int | float)
            or not 0 <= days < 1e6
        ):
            raise ValueError(
                f"event {number}, event_time: {printable(str(days))} is no time in days"
            )
        if kind not in _BEGINS:
            raise ValueError(
                f"event {number}, event_type: {printable(str(kind))} is neither start nor end"
            )
        yield days * DAY_S, str(event.get("node_id")), _BEGINS[kind]
