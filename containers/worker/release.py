"""A ready worker waits for its release: the file ``go``, which holds the common start time."""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ringlight.containers.worker.peer import PeerLost

#: How often the file is looked for where the kernel tells of it, and where it does not, seconds.
_LOOK_S, _POLL_S = 0.25, 0.005
#: Of inotify(7): a file was created, moved there, or written to the end.
_CREATED, _MOVED_TO, _WRITTEN = 0x100, 0x80, 0x8


def wait_for_release(
    go: Path, connections: Iterable[tuple[int, socket.socket]], timeout_s: float
) -> float:
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
    start_s: float | None = None
    with _changes(go.parent) as changes:
        if changes is not None:
            poller.register(changes, select.POLLIN)
        while (now := time.monotonic()) < deadline:
            start_s = start_s or _read(go)
            if start_s is not None and start_s <= now:
                return start_s if now - start_s < 2 * _POLL_S else now
            if start_s is not None and start_s - now < _POLL_S:
                time.sleep(start_s - now)
                continue
            look_s = _POLL_S if changes is None else _LOOK_S
            wait_s = (
                min(look_s, deadline - now)
                if start_s is None
                else min(look_s, start_s - now - _POLL_S / 2)
            )
            for descriptor, _ in poller.poll(max(0.0, wait_s) * 1000):
                if descriptor != changes:
                    raise PeerLost(
                        rank_of[descriptor], "it closed the connection before the start"
                    )
                os.read(descriptor, 1 << 16)
    raise TimeoutError(f"not released in {timeout_s:g} s")


@contextmanager
def _changes(directory: Path) -> Iterator[int | None]:
    """Yield a descriptor that becomes readable when a file appears in a directory; None if the kernel gives
    none.

    Hundreds of workers that look every few milliseconds keep two processors busy while nothing happens.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        yield None
        return
    try:
        watched = libc.inotify_add_watch(
            descriptor, os.fsencode(directory), _CREATED | _MOVED_TO | _WRITTEN
        )
        yield None if watched < 0 else descriptor
    finally:
        os.close(descriptor)


def _read(go: Path) -> float | None:
    """Return the start time (CLOCK_MONOTONIC, seconds), or None while the file is absent or half written."""
    try:
        return float(json.loads(go.read_text())["at"])
    except (FileNotFoundError, ValueError, KeyError):
        return None
