"""Bounds on connections that are not yet authenticated: their number, their time, and a count of
closed ones.
"""

from __future__ import annotations

import resource
import threading
import time
from collections import deque

#: For how long those that were sent away are told of, seconds.
TOLD_S = 30.0
#: Moments that are remembered.
_MOST_TOLD = 100_000


def share_of_descriptors(most: int, part: int) -> int:
    """Return how many connections, at most ``most``, may have a ``part``-th of the process's descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(most, soft // part))


class SentAway:
    """Counts connections that were closed because there were too many; any thread may call."""

    def __init__(self, door: str) -> None:
        self._door = door
        self._lock = threading.Lock()
        self._moments: deque[float] = deque(maxlen=_MOST_TOLD)

    def count(self) -> None:
        with self._lock:
            self._moments.append(time.monotonic())

    @property
    def complaint(self) -> str | None:
        """One line about connections that were closed in the last `TOLD_S` seconds; None without any."""
        since = time.monotonic() - TOLD_S
        with self._lock:
            while self._moments and self._moments[0] < since:
                self._moments.popleft()
            number = len(self._moments)
        if not number:
            return None
        return f"{self._door}: too many connections; {number} were closed for others in the last {TOLD_S:g} s"
