"""A ready worker waits for its release: the file ``go``, which holds the common start time."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from ringlight.containers.worker.peer import PeerLost

_POLL_S = 0.005


def wait_for_release(go: Path, connections: Iterable[tuple[int, socket.socket]], timeout_s: float) -> float:
    """Return at the start time that ``go`` names (CLOCK_MONOTONIC, seconds), or at once when it is past.

    ``connections``: each with its peer's rank. Returns the start time. Raises PeerLost when a peer closes
    meanwhile, TimeoutError after ``timeout_s``.
    """
    poller = select.poll()
    rank_of = {}
    for rank, connection in connections:
        poller.register(connection, select.POLLRDHUP)
        rank_of[connection.fileno()] = rank
    deadline = time.monotonic() + timeout_s
    at: float | None = None
    while (now := time.monotonic()) < deadline:
        at = at or _read(go)
        if at is not None and at <= now:
            return at if now - at < 2 * _POLL_S else now
        if at is not None and at - now < _POLL_S:
            time.sleep(at - now)
            continue
        for descriptor, _ in poller.poll(_POLL_S * 1000):
            raise PeerLost(rank_of[descriptor], "it closed the connection before the start")
    raise TimeoutError(f"not released in {timeout_s:g} s")


def _read(go: Path) -> float | None:
    """The start time, or None while the file is absent or half written."""
    try:
        return float(json.loads(go.read_text())["at"])
    except (FileNotFoundError, ValueError, KeyError):
        return None
