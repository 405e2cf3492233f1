"""Count the bytes that a rank has given its NIC to send, for other processes to read: the doorbell of a queue
pair.

A file has one whole number for each rank: the bytes of all transfers to it that have begun. Together with the
bytes that have left as light, which the O-NIC counts, it shows what is still to be sent. Its numbers only
grow. They are in the page cache, so they are right however the worker ends. Behind them is the number of
stages that the rank has ended, if light follows those of its job.
"""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

#: The file's name in the worker's directory.
FILE = "posted"
#: Bytes of one number, in the machine's own order.
SIZE = 8


class Posted:
    """Counts in the file ``path``, which is created, for ``ranks`` ranks. Any thread may add.

    Raises OSError.
    """

    def __init__(self, path: Path, ranks: int) -> None:
        self._lock = threading.Lock()
        self._counters: dict[int, list[int]] = {}
        descriptor = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
        )
        try:
            # Not only made long: a full disk is told here, not by a signal later.
            os.posix_fallocate(descriptor, 0, SIZE * (ranks + 1))
            self._numbers = memoryview(mmap.mmap(descriptor, SIZE * (ranks + 1))).cast(
                "Q"
            )
        finally:
            os.close(descriptor)

    def add(self, peer: int, payload: int, framing: int = 0) -> None:
        """Count a transfer to rank ``peer`` that begins: bytes of payload, and of its framing."""
        with self._lock:
            amounts = self._counters.setdefault(peer, [0, 0])
            amounts[0] += payload
            amounts[1] += framing
            # One store of a whole number: a reader never sees half of it.
            self._numbers[peer] = sum(amounts)

    def turned(self, stages: int) -> None:
        """Write the number of stages (``workloads.following``) that the rank has ended since it began."""
        self._numbers[-1] = stages

    def amounts(self) -> dict[int, list[int]]:
        """Return the bytes of payload and of framing that were added for each rank, by rank."""
        with self._lock:
            return {
                peer: list(amounts) for peer, amounts in sorted(self._counters.items())
            }


def done_fields(posted: Posted | None) -> dict[str, dict[int, list[int]]]:
    """Return the fields of the event ``done`` for posted bytes; none if the worker posts nothing."""
    return {} if posted is None else {"light": posted.amounts()}
